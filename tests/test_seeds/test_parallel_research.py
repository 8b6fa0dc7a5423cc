"""Seed document 004: one call rewrites and decomposes, five answers are made at once, one synthesis puts them together."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import openai
import pytest
from pytest_httpserver import HTTPServer

import qtmiddleware as qtm
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt
from qtmiddleware.testing import ScriptedModel
from tests.support.model_server import ModelServer
from tests.test_seeds.world import PATIENT, Shelf

QUESTION: Final = "How well does federated learning keep data private?"
REWRITTEN: Final = "How well does federated learning keep training data private against leakage?"
SUB_QUERIES: Final = (
    "What is federated learning?",
    "Which methods protect updates in federated learning?",
    "What accuracy does private federated learning reach?",
    "How does federated learning compare with central training?",
    "Where is federated learning applied in hospitals?",
)
REPLY: Final = {
    "rewrittenQuery": REWRITTEN,
    "subQueries": list(SUB_QUERIES),
    "reasoning": "The question has five sides.",
}
PAPERS: Final = {
    "definition": "Federated learning trains one model on many devices; data stay where they are.",
    "averaging": "What is averaged in federated learning are the updates of all devices.",
    "secure": "Secure aggregation and noise are methods that protect updates in federated learning.",
    "attack": "Gradients leak: an attack on federated learning restored a third of the images.",
    "accuracy": "Private federated learning reaches an accuracy of 91 percent on handwriting.",
    "central": "Compared with central training, federated learning needs ten times the rounds.",
    "hospital": "Federated learning is applied in twenty hospitals to find tumours.",
    "phone": "Keyboards of phones were the first use of federated learning.",
}
SAID: Final = (
    "It trains on devices [1].",
    "Aggregation and noise [1][2].",
    "91 percent [1].",
    "Ten times the rounds [2].",
    "In twenty hospitals [1].",
)
ANSWERS: Final = dict(zip(SUB_QUERIES, SAID, strict=True))
SYNTHESIS: Final = "Overview: on devices [1]. Details: noise [5]. Uses: hospitals [17]."
TOP_K: Final = 4

Script = Callable[[Prompt], Any]


def script(**replies: Any) -> Script:
    """Replies by the name of the prompt, those of sub-answers by their question as well."""
    known = {
        "combined": REPLY,
        "sub_answer": ANSWERS,
        "synthesis": SYNTHESIS,
        "answer": "Plainly [1].",
        **replies,
    }

    def reply(prompt: Prompt) -> Any:
        said = known[prompt.mode]
        return said[prompt.query] if prompt.mode == "sub_answer" else said

    return reply


def config(**settings: Any) -> qtm.Config:
    """The preset with the five categories, answered part by part."""
    return qtm.Config.load("research", environ={}).overridden(
        {**PATIENT, "answer": "synthesis", **settings}
    )


class Asking:
    """A wrapped search over the papers, with its model and its shelf."""

    def __init__(self, replies: Script, search: Any = None, **settings: Any) -> None:
        self.model = ScriptedModel(replies)
        self.shelf = Shelf(PAPERS)
        middleware = qtm.QueryMiddleware(config(**settings), client=self.model)
        self.wrapped: Any = middleware.wrap(search or self.shelf.search)

    def answer(self, question: str = QUESTION, **options: Any) -> qtm.Answer:
        return self.wrapped.answer(question, top_k=TOP_K, **options)  # type: ignore[no-any-return]

    def modes(self) -> list[str]:
        return [prompt.mode for prompt in self.model.prompts]

    def shown(self, mode: str) -> list[dict[str, Any]]:
        """What the model was shown in the prompts of *mode*."""
        return [json.loads(prompt.user) for prompt in self.model.prompts if prompt.mode == mode]


def troubles(answer: qtm.Answer) -> list[tuple[str, str]]:
    return [(trouble.stage, trouble.reason) for trouble in answer.degradations]


# --- the transformation ---------------------------------------------------------------------------


def transform(reply: Any) -> tuple[qtm.Transformation, ScriptedModel]:
    model = ScriptedModel(reply)
    return qtm.QueryMiddleware(config(), client=model).transform(QUESTION), model


AS_JSON: Final = json.dumps(REPLY, indent=2)


@pytest.mark.parametrize(
    "reply",
    [
        REPLY,
        {"rewrite": REWRITTEN, "sub_queries": list(SUB_QUERIES)},
        f"```json\n{AS_JSON}\n```",
        f"Here is the JSON:\n\n```\n{AS_JSON}\n```\nDone.",
        AS_JSON,
    ],
    ids=["the document's keys", "our keys", "fenced", "fenced in talk", "text"],
)
def test_one_call_writes_the_rewrite_and_five_sub_queries(reply: Any) -> None:
    made, model = transform(reply)
    assert (made.rewrite, made.sub_queries) == (REWRITTEN, SUB_QUERIES)
    assert len(model.prompts) == 1


def test_the_model_is_asked_for_exactly_five_sub_queries_of_five_categories_in_their_order() -> (
    None
):
    _, model = transform(REPLY)
    (asked,) = (field for field in model.prompts[0].fields if field.name == "sub_queries")
    assert (asked.min_items, asked.max_items) == (5, 5)
    wanted = ("background", "method", "result", "compar", "appli")
    places = [asked.description.lower().index(word) for word in wanted]
    assert places == sorted(places)


def test_no_more_than_five_sub_queries_are_used_and_that_is_noted() -> None:
    more = [
        *SUB_QUERIES,
        "Who invented federated learning?",
        "What does federated learning cost?",
    ]
    made, _ = transform({**REPLY, "subQueries": more})
    assert made.sub_queries == SUB_QUERIES
    assert made.notes


def test_a_prompt_of_ones_own_takes_the_place_of_the_built_in_one() -> None:
    own = "You are an expert at reformulating questions for academic paper search."
    asking = Asking(script(), llm={"prompts": {"combined": own, "synthesis": "You are CiteBite."}})
    asking.answer()
    by_mode = {prompt.mode: prompt.system for prompt in asking.model.prompts}
    assert own in by_mode["combined"]
    assert "You are CiteBite." in by_mode["synthesis"]


def test_a_conversation_is_shown_to_the_model_as_dicts_or_pairs() -> None:
    said = {**REPLY, "standalone": QUESTION}
    turns = [
        ("user", "Tell me about federated learning."),
        ("assistant", "It trains on devices."),
    ]
    dicts = [{"role": role, "content": content} for role, content in turns]
    for history in (turns, dicts):
        asking = Asking(script(combined=said))
        answer = asking.answer("How well does it keep data private?", history=history)
        assert answer.text == SYNTHESIS
        (shown,) = asking.shown("combined")
        assert "Tell me about federated learning." in json.dumps(shown)
        assert "It trains on devices." in json.dumps(shown)
        assert QUESTION in asking.shelf.searched


def test_every_question_is_transformed_but_small_talk_is_passed_on_without_a_model_call() -> None:
    asking = Asking(script())
    for question in (QUESTION, "Which noise protects gradients best?"):
        asking.wrapped.retrieve(question, top_k=TOP_K)
    assert asking.modes() == ["combined"] * 2
    asking.wrapped.retrieve("Hi", top_k=TOP_K)
    assert asking.modes() == ["combined"] * 2


@pytest.mark.parametrize(("settings", "calls"), [({}, 1), ({"cache": False}, 2)])
def test_a_question_asked_again_is_transformed_again_only_without_the_cache(
    settings: Mapping[str, Any], calls: int
) -> None:
    asking = Asking(script(), **settings)
    for _ in range(2):
        asking.wrapped.retrieve(QUESTION, top_k=TOP_K)
    assert asking.modes() == ["combined"] * calls


# --- the parallel answers -------------------------------------------------------------------------


def test_a_question_takes_seven_model_calls_and_a_search_for_each_sub_query() -> None:
    asking = Asking(script())
    answer = asking.answer()
    assert sorted(asking.modes()) == ["combined", *["sub_answer"] * 5, "synthesis"]
    assert answer.retrieval.trace.llm_calls == 7
    assert sorted(asking.shelf.searched) == sorted([QUESTION, *SUB_QUERIES])
    assert (answer.text, answer.status) == (SYNTHESIS, "full")


def test_the_five_sub_queries_are_searched_and_then_answered_at_the_same_time() -> None:
    # Whoever asks one after the other never gets past the barrier.
    together = threading.Barrier(5, timeout=30)
    known, shelf = script(), Shelf(PAPERS)

    def reply(prompt: Prompt) -> Any:
        if prompt.mode == "sub_answer":
            together.wait()
        return known(prompt)

    def search(query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
        if query in SUB_QUERIES:
            together.wait()
        return shelf.search(query, top_k)

    answer = Asking(reply, search).answer()
    assert (answer.text, answer.status) == (SYNTHESIS, "full")


def test_each_sub_query_is_answered_from_the_passages_of_its_own_search() -> None:
    asking = Asking(script())
    answer = asking.answer()
    assert [part.question for part in answer.sub_answers] == list(SUB_QUERIES)
    shelf = Shelf(PAPERS)
    by_question = {shown["question"]: shown for shown in asking.shown("sub_answer")}
    for part in answer.sub_answers:
        own = {PAPERS[hit["id"]] for hit in shelf.search(part.question, len(PAPERS))[:TOP_K]}
        assert {match.text for match in part.matches} == own
        assert {shown["text"] for shown in by_question[part.question]["passages"]} == own


def test_an_answer_of_a_part_says_what_it_rests_on_and_whether_it_succeeded() -> None:
    said = {**ANSWERS, SUB_QUERIES[3]: ModelError("unavailable")}
    parts = Asking(script(sub_answer=said)).answer().sub_answers
    assert [part.found for part in parts] == [True, True, True, False, True]
    assert parts[3].reason == "unavailable"
    for part in parts:
        for citation in part.citations:
            assert part.text[citation.start : citation.end] == f"[{citation.number}]"
            assert citation.match is part.matches[citation.number - 1]


def test_a_part_that_fails_is_asked_once() -> None:
    said = {**ANSWERS, SUB_QUERIES[0]: ModelError("rate_limited")}
    asking = Asking(script(sub_answer=said, synthesis="With noise [1]."))
    answer = asking.answer()
    questions = [shown["question"] for shown in asking.shown("sub_answer")]
    assert questions.count(SUB_QUERIES[0]) == 1
    assert answer.text == "With noise [1]."
    assert troubles(answer) == [("sub_answers", "rate_limited")]


# --- the synthesis --------------------------------------------------------------------------------


def test_the_synthesis_is_given_every_answer_with_its_numbers_moved_behind_those_before() -> None:
    asking = Asking(script())
    asking.answer()
    (shown,) = asking.shown("synthesis")
    assert shown["question"] == QUESTION
    assert [part["question"] for part in shown["sub_answers"]] == list(SUB_QUERIES)
    assert [part["answer"] for part in shown["sub_answers"]] == [
        "It trains on devices [1].",
        "Aggregation and noise [5][6].",
        "91 percent [9].",
        "Ten times the rounds [14].",
        "In twenty hospitals [17].",
    ]


def test_the_passages_of_every_part_are_kept_also_those_that_come_again() -> None:
    answer = Asking(script()).answer()
    assert answer.matches == tuple(match for part in answer.sub_answers for match in part.matches)
    assert len(answer.matches) == 5 * TOP_K > len({match.id for match in answer.matches})
    first, second, *_, last = answer.sub_answers
    cited = [citation.match for citation in answer.citations]
    assert cited == [first.matches[0], second.matches[0], last.matches[0]]
    assert [citation.number for citation in answer.citations] == [1, 5, 17]


def test_the_synthesis_adds_nothing_to_what_the_parts_say_and_keeps_their_numbers() -> None:
    asking = Asking(script(synthesis="On devices [1], with noise [5], says a paper [99]."))
    answer = asking.answer()
    assert "99" not in answer.text
    assert [citation.number for citation in answer.citations] == [1, 5]


def test_a_part_that_failed_takes_no_numbers() -> None:
    said = {**ANSWERS, SUB_QUERIES[1]: "NO_ANSWER: the papers do not say."}
    asking = Asking(script(sub_answer=said, synthesis="91 percent [5]."))
    answer = asking.answer()
    (shown,) = asking.shown("synthesis")
    assert [part["question"] for part in shown["sub_answers"]] == [
        question for question in SUB_QUERIES if question != SUB_QUERIES[1]
    ]
    assert shown["sub_answers"][1]["answer"] == "91 percent [5]."
    assert answer.citations[0].match is answer.sub_answers[2].matches[0]


def test_of_a_stream_only_the_synthesis_is_shown_as_it_comes() -> None:
    pieces = ["Overview: ", "on devices [1]. ", "Details: noise [5]."]
    asking = Asking(script(synthesis=pieces))
    with asking.wrapped.stream_answer(QUESTION, top_k=TOP_K) as stream:
        shown = list(stream)
    assert len(shown) > 1
    assert "".join(shown) == "".join(pieces) == stream.answer.text
    assert len(stream.answer.sub_answers) == 5


# --- when something fails -------------------------------------------------------------------------


def answer_only(count: int, failed: Any) -> dict[str, Any]:
    """Replies by sub-query, of which only the first *count* hold an answer."""
    return {
        question: ANSWERS[question] if place < count else failed
        for place, question in enumerate(SUB_QUERIES)
    }


every_failure: Final = pytest.mark.parametrize(
    "failed", [ModelError("unavailable"), "NO_ANSWER: the papers do not say."]
)
# Five failures in a row would switch the model off, the plain answer's call included.
UNBROKEN: Final = {"breaker": {"failures": 0}}


@every_failure
def test_two_answers_of_parts_are_enough_for_a_synthesis(failed: Any) -> None:
    said = answer_only(2, failed)
    asking = Asking(script(sub_answer=said, synthesis="Both [1][5]."), **UNBROKEN)
    assert asking.answer().text == "Both [1][5]."
    assert "answer" not in asking.modes()


@every_failure
@pytest.mark.parametrize("count", [1, 0])
def test_with_fewer_than_two_answers_of_parts_the_question_is_answered_plainly(
    count: int, failed: Any
) -> None:
    asking = Asking(script(sub_answer=answer_only(count, failed)), **UNBROKEN)
    answer = asking.answer()
    assert (answer.text, answer.status) == ("Plainly [1].", "degraded")
    assert ("sub_answers", "too_few_successes") in troubles(answer)
    (shown,) = asking.shown("answer")
    assert shown["question"] == QUESTION
    assert "synthesis" not in asking.modes()


def test_with_fewer_than_two_searches_of_sub_queries_the_plain_passages_come_back() -> None:
    shelf = Shelf(PAPERS)

    def search(query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
        if query in (REWRITTEN, *SUB_QUERIES[1:]):
            raise OSError("down")
        return shelf.search(query, top_k)

    found = Asking(script(), search).wrapped.retrieve(QUESTION, top_k=TOP_K)
    assert "too_few_successes" in {trouble.reason for trouble in found.degradations}
    assert {match.id for match in found.matches} == {
        hit["id"] for hit in Shelf(PAPERS).search(QUESTION, TOP_K)
    }


@pytest.mark.parametrize("trouble", [ModelError("unavailable"), "I cannot help with that.", ""])
def test_where_the_transformation_fails_the_question_is_answered_plainly(trouble: Any) -> None:
    asking = Asking(script(combined=trouble))
    answer = asking.answer()
    assert (answer.text, answer.status) == ("Plainly [1].", "degraded")
    assert answer.sub_answers == ()
    assert asking.shelf.searched == [QUESTION]


@pytest.mark.parametrize("trouble", [ModelError("unavailable"), ""])
def test_where_the_synthesis_fails_the_best_answer_of_a_part_is_given(trouble: Any) -> None:
    answer = Asking(script(synthesis=trouble)).answer()
    assert answer.text == "Aggregation and noise [5][6]."
    assert answer.status == "degraded"
    assert troubles(answer)[0][0] == "synthesis"
    assert [citation.match for citation in answer.citations] == list(
        answer.sub_answers[1].matches[:2]
    )


def test_where_every_search_fails_the_error_of_the_own_search_is_raised() -> None:
    broken = RuntimeError("the index is down")

    def search(query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
        raise broken

    with pytest.raises(RuntimeError) as caught:
        Asking(script(), search).answer()
    assert caught.value is broken


def test_where_the_model_fails_throughout_its_first_error_is_raised_with_the_passages() -> None:
    first = ModelError("rate_limited")
    failing = dict.fromkeys(SUB_QUERIES, first)
    asking = Asking(script(sub_answer=failing, answer=ModelError("unavailable")))
    with pytest.raises(ModelError) as caught:
        asking.answer()
    assert caught.value is first
    assert caught.value.retrieval.matches


# --- in an application ----------------------------------------------------------------------------


def test_over_http_the_transformation_is_asked_coolly_and_the_answers_come_back(
    host: HTTPServer,
) -> None:
    def say(body: dict[str, Any]) -> Any:
        text = "\n".join(message["content"] for message in body["messages"])
        shown = json.loads(body["messages"][-1]["content"])
        if "sub_answers" in shown:
            return SYNTHESIS
        if shown.get("question") in SUB_QUERIES:
            return ANSWERS[shown["question"]]
        return f"```json\n{json.dumps(REPLY)}\n```" if QUESTION in text else "Plainly [1]."

    server = ModelServer(host, say, path="/research/v1")
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
    settings = config(llm={"temperatures": {"combined": 0.2}}, transformationModel="any-model")
    wrapped: Any = qtm.QueryMiddleware(settings, client=client).wrap(Shelf(PAPERS).search)
    answer = wrapped.answer(QUESTION, top_k=TOP_K)
    assert (answer.text, answer.status) == (SYNTHESIS, "full")
    assert len(server.bodies) == 7
    assert server.bodies[0]["temperature"] == 0.2
    assert server.bodies[0]["model"] == "any-model"
