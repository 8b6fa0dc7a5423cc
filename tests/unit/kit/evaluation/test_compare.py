"""Functions of every kind, compared under several settings on judged questions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from math import log2
from typing import Any

import numpy as np
import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import ConfigError, ModelError, WrapError
from qtmiddleware.kit.evaluation import Comparison, Dataset, Question, Run, measure
from qtmiddleware.kit.evaluation.measures import MEASURES
from qtmiddleware.kit.evaluation.systems import FREE, read_run
from qtmiddleware.protocols import Passage, Prompt, Reply
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline, Message
from tests.support.retrieval_world import PASSAGES, QUERY, scripted, search

compare = qtm.evaluation.compare
QUERIES = {
    "health": "Does Jaco have any health concerns?",
    "food": "What does Jaco eat?",
    "fees": "How much is the fee for an adoption?",
}
QRELS = {
    "health": {"health": 1, "illness": 1},
    "food": {"food": 1},
    "fees": {"fees": 2, "adoption": 0},
}
MANY = {f"{number}": f"What does Jaco eat on day {number}?" for number in range(60)}


def retrieve(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    return search(query, top_k)


def expected(top_k: int = 10) -> dict[str, tuple[str, ...]]:
    """What the plain function finds."""
    return {id_: tuple(row["id"] for row in search(text, top_k)) for id_, text in QUERIES.items()}


def runs_of(found: Comparison, system: str) -> dict[str, tuple[str, ...]]:
    return {id_: run.ids for id_, run in found[system].runs.items()}


def test_a_plain_function_is_compared_under_what_needs_no_model() -> None:
    told: list[tuple[str, int, int]] = []
    found = compare(retrieve, QUERIES, QRELS, progress=lambda *step: told.append(step))
    assert [score.name for score in found.systems] == list(FREE)
    assert (found.questions, found.passages, found.baseline) == (3, None, "off")
    assert set(found["off"].means) == set(MEASURES)
    assert told[:4] == [*(("off", done, 3) for done in (1, 2, 3)), ("preprocessed as text", 1, 3)]


def test_the_baseline_is_the_plain_function_with_the_same_calls() -> None:
    asked: list[tuple[str, int, str]] = []

    def listening(query: str, namespace: str = "", top_k: int = 3) -> list[dict[str, Any]]:
        asked.append((query, top_k, namespace))
        return search(query, top_k)

    compare(listening, QUERIES, QRELS, [])
    compare(listening, QUERIES, QRELS, [], arguments={"namespace": "dogs"}, top_k=None)
    texts = QUERIES.values()
    assert asked == [*((text, 10, "") for text in texts), *((text, 3, "dogs") for text in texts)]
    fixed = compare(lambda query: search(query, 2), QUERIES, QRELS, [])
    assert runs_of(fixed, "off") == expected(2)


async def test_an_asynchronous_function_is_awaited_but_not_in_a_running_loop() -> None:
    async def awaited(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        return search(query, top_k)

    with pytest.raises(WrapError, match="to_thread"):
        compare(awaited, QUERIES, QRELS)
    found = await asyncio.to_thread(compare, awaited, QUERIES, QRELS, "rules")
    assert runs_of(found, "rules") == runs_of(compare(retrieve, QUERIES, QRELS), "rules")


def test_a_wrapped_function_is_measured_as_it_is_and_under_every_system() -> None:
    config = {"transformationType": "rewrite", "rerank": {"enabled": True}}

    class Index:
        @qtm.middleware(
            config=config,
            client=ScriptedModel(scripted),
            reranker=lambda query, texts: [float(at) for at in range(len(texts))],
        )
        def find(self, query: str, top_k: int = 4) -> list[dict[str, Any]]:
            return search(query, top_k)

    found = compare(Index().find, QUERIES, QRELS, ["rules", "hyde"])
    kinds = {it.name: [one.kind for one in it.runs["food"].variants] for it in found.systems}
    assert kinds == {
        "off": ["original"],
        "rules": ["original"],
        "hyde": ["original", "hyde"],
        "yours": ["original", "rewrite"],
    }
    # The baseline reranks nothing, although the function does.
    assert runs_of(found, "off") == expected() != runs_of(found, "yours")
    with pytest.raises(ConfigError, match="already wrapped"):
        compare(Index().find, QUERIES, QRELS, client=ScriptedModel(scripted))


def test_a_question_with_a_history_is_asked_with_it() -> None:
    model = ScriptedModel(scripted)
    history = (Message("user", "Is Jaco ill?"), Message("assistant", "Jaco is healthy."))
    questions = [Question("food", "And what does he eat?", history), Question("unjudged", "When?")]
    found = compare(retrieve, questions, {"food": {"food": 1}}, ["balanced"], client=model)
    assert found.questions == 1
    assert [prompt.history for prompt in model.prompts] == [history]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"systems": ["bm25"]}, r"there is no system 'bm25'; the systems are: off; .*auto"),
        ({"systems": {"off": {"transformationType": "none"}}}, "the name 'off' is reserved"),
        ({"qrels": {**QRELS, "a": {"food": 1}}}, "1 judged questions are not .* first is 'a'"),
        ({"qrels": {"food": {"food": 0}}}, "must have a passage with a grade above 0"),
        ({"qrels": {"food": ["food"]}}, "judgements of 'food' must be a mapping"),
        ({"qrels": {"food": {"food": "high"}}}, "question 'food', passage 'food': has 'high' as a"),
        (
            {"qrels": {"food": {"food": 0.5}}},
            "question 'food', passage 'food': has '0.5' as a grade",
        ),
        ({"queries": [Question("food", "a"), Question("food", "b")]}, "same id"),
        ({"queries": {"food": " "}, "qrels": {"food": {"food": 1}}}, "'food' .* is blank"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_searched(
    given: dict[str, Any], said: str
) -> None:
    def never(query: str, top_k: int = 4) -> Any:
        pytest.fail("searched")

    with pytest.raises(ConfigError, match=said):
        compare(never, **{"queries": QUERIES, "qrels": QRELS, **given})


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda rows: [row["metadata"]["text"] for row in rows], r'no ids.*passages with an "id"'),
        (lambda rows: (row for row in rows), r"cannot be read as passages \(generator\)"),
    ],
)
def test_results_without_ids_or_that_cannot_be_read_are_refused(read: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        compare(lambda query: read(search(query, 4)), QUERIES, QRELS)


# --- failures and ids -----------------------------------------------------------------------------


def failing_on(numbers: range | tuple[int, ...], calls: list[str]) -> Callable[..., Any]:
    """A function that fails on its calls of these *numbers*, from 1 on."""

    def flaky(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        calls.append(query)
        if len(calls) in numbers:
            raise TimeoutError(f"no answer\nfrom the index for {query!r}")
        return search(query, top_k)

    return flaky


def test_questions_the_function_fails_on_are_counted_noted_and_left_out_of_every_system() -> None:
    eight = {f"q{number}": QUERIES["food"] for number in range(8)}
    judged = {id_: {"food": 1} for id_ in eight}
    # The second question as it is, and another of the first system's seven that are left.
    found = compare(failing_on((2, 9, 10), []), eight, judged, ["rules"])
    assert [(score.failed, len(score.runs)) for score in found.systems] == [(1, 6), (1, 6)]
    (note,) = found.notes
    assert note.startswith(
        "2 of 8 questions failed and are not counted: off on 'q1' (TimeoutError)"
    )
    assert QUERIES["food"] in str(found.errors[0])
    assert QUERIES["food"] not in repr(found) + json.dumps(found.to_dict())
    assert found.fingerprints == compare(retrieve, eight, judged, ["rules"]).fingerprints
    assert found.asked == set(eight)


@pytest.mark.parametrize(("works", "asked"), [(0, 10), (7, 17)])
def test_an_index_that_is_down_is_not_asked_all_questions(works: int, asked: int) -> None:
    calls: list[str] = []
    dies = failing_on(range(works + 1, 99), calls)
    with pytest.raises(TimeoutError) as caught:
        compare(dies, MANY, {id_: {"food": 1} for id_ in MANY})
    assert len(calls) == asked
    assert "questions in a row" in caught.value.__notes__[0]


def test_ids_that_no_judgement_knows_end_it_after_twenty_questions_with_one_of_each_side() -> None:
    asked: list[str] = []

    def other(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        asked.append(query)
        return [{"id": "chunk-1", "score": 1.0, "text": "Jaco eats."}]

    with pytest.raises(ConfigError, match=r"They name 'food', .* function returned 'chunk-1'"):
        compare(other, MANY, {id_: {"food": 1} for id_ in MANY})
    assert len(asked) == 20
    few = dict(list(MANY.items())[:5])
    with pytest.raises(ConfigError, match=r"They name 'food', .* no judged id in 10 answers"):
        compare(other, few, {id_: {"food": 1} for id_ in few}, ["rules"])
    # One of few may still be a hard question.
    queries = {"q": QUERIES["food"], "r": QUERIES["food"]}
    found = compare(retrieve, queries, {"q": {"food": 1}, "r": {"nowhere": 1}}, ["rules"])
    assert found.notes[-1].startswith("No search returned 1 relevant passage: nowhere.")


@pytest.mark.parametrize("grade", [np.int64(1), np.float32(1), 1.0, True, "yes"])
def test_grades_are_read_as_in_files(grade: Any) -> None:
    given, plain = (
        compare(retrieve, QUERIES, {"food": {"food": value}}, []) for value in (grade, 1)
    )
    assert given["off"].means == plain["off"].means
    assert given.fingerprints == plain.fingerprints


def test_passages_are_found_by_their_text_where_the_judgements_have_other_ids() -> None:
    text = PASSAGES["food"]
    golds = [text.upper() + " ", f"More. {text} And more.", "Another text of the same length."]
    questions = [
        Question(str(n), QUERIES["food"], relevant_texts={"gold": gold})
        for n, gold in enumerate(golds)
    ]
    qrels = {question.id: {"gold": 1} for question in questions}

    def texts(query: str) -> list[str]:
        return [row["metadata"]["text"] for row in search(query, 9)]

    for fn in (retrieve, texts):
        found = compare(fn, questions, qrels, [])["off"].per_query["R@10"]
        assert found == {"0": 1.0, "1": 1.0, "2": 0.0}


@pytest.mark.parametrize("odd", ["p\ud800", "p\0a", " ", "ä" * 5_000, "a\tb\nc"])
def test_no_id_can_crash_the_measures_or_be_taken_for_another(odd: str) -> None:
    rows = [{"id": f"{odd}{n}", "score": 1 - n / 10, "text": f"words {n}"} for n in range(3)]
    queries = {odd: "which?", f"{odd}x": "which?"}
    qrels = {odd: {f"{odd}2": 1}, f"{odd}x": {f"{odd}0": 1}}
    found = compare(lambda query, top_k=10: rows[:top_k], queries, qrels, [])
    assert found["off"].per_query["MRR@10"] == pytest.approx({odd: 1 / 3, f"{odd}x": 1.0})


# --- the figures ----------------------------------------------------------------------------------

DATA = Dataset(
    "five",
    tuple(Passage(id_, f"text {id_}") for id_ in "abcde"),
    tuple(Question(id_, f"what is {id_}?") for id_ in "abcde"),
    {id_: {id_: 1} for id_ in "abcde"},
)


def second(question: Question) -> Run:
    """The right passage second."""
    return Run(("x", question.id))


def mixed(question: Question) -> Run:
    """Better for a, b and c, worse for d, much worse for e; the model is asked about a to d."""
    ids = {"d": ("x", "y", "z", "d"), "e": ()}.get(question.id, (question.id,))
    asked = question.id != "e"
    return Run(ids, 0.5, int(asked), degraded=not asked, cost_usd=0.002 * asked)


def test_the_figures_are_shares_and_means_of_the_questions() -> None:
    systems = {"off": second, "first": lambda question: Run((question.id,)), "mixed": mixed}
    found = measure(systems, DATA, notes=["a note"], seed=3)
    score = found["mixed"]
    assert (score.helped_rate, score.hurt_rate, score.call_rate) == (0.6, 0.4, 0.8)
    assert score.means["nDCG@10"] == pytest.approx((3 + 1 / log2(5)) / 5)
    assert (score.llm_calls, score.degraded) == (4, 1)
    assert (score.added_ms, score.usd_per_thousand) == pytest.approx((500, 1.6))
    assert [id_ for id_, _ in score.difference.worst()] == ["e", "d"]
    assert (found["off"].hurt_rate, found["off"].usd_per_thousand) == (0.0, 0.0)
    # Two systems were tested.
    first = found["first"].difference
    assert first.p_holm == pytest.approx(min(1.0, 2 * first.p))
    plain = found.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert (plain["seed"], plain["fingerprints"]) == (3, DATA.fingerprints)
    assert plain["systems"][2]["hurtRate"] == 0.4
    assert plain["notes"][0] == "a note"
    assert plain["notes"][1].startswith("mixed: 1 of 5 answers are degraded")
    assert "what is" not in repr(found)


@pytest.mark.parametrize("run", [Run(("a",), llm_calls=1, cost_usd=None), Run((), degraded=True)])
def test_a_price_that_is_not_known_is_none(run: Run) -> None:
    found = measure({"off": second, "m": lambda _: run}, DATA)["m"]
    assert (found.cost_usd, found.usd_per_thousand) == (None, None)


class Accounted(ScriptedModel):
    """Replies that say what they cost and how long they once took."""

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        reply = super().complete(prompt, deadline)
        return Reply(reply.text, 100, 20, 2, 0.5, seconds=3.0)


def test_a_run_holds_what_a_call_took_with_the_time_of_replayed_replies() -> None:
    def run_with(transformation: str, model: Any) -> Run:
        config = {"transformationType": transformation}
        return read_run(
            qtm.QueryMiddleware(config, client=model).wrap(search).retrieve(QUERY, 4), {}
        )

    run = run_with("rewrite", Accounted(scripted))
    assert (run.llm_calls, run.cost_usd, run.searches) == (2, 0.5, 2)
    # Three prompts side by side.
    assert 3.0 <= run_with("all", Accounted(scripted)).seconds_added < 6.0
    assert "Jaco" not in repr(run)
    assert run_with("rewrite", ScriptedModel(ModelError("timeout"))).degraded
