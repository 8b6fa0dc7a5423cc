"""Functions of every kind, compared under several settings on judged questions."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import Callable, Sequence
from math import log2
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import ConfigError, MissingExtra, ModelError, WrapError
from qtmiddleware.kit.evaluation import (
    FREE,
    SYSTEMS,
    USUAL,
    Comparison,
    Dataset,
    Question,
    Run,
    measure,
    run_of,
)
from qtmiddleware.protocols import Passage, Prompt, Reply
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline, Message
from tests.support.pinecone_world import pinecone_world
from tests.support.retrieval_world import PASSAGES, QUERY, scripted, search, words

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
VOCABULARY = sorted({word for text in PASSAGES.values() for word in words(text)})


def retrieve(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    return search(query, top_k)


async def awaited(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    await asyncio.sleep(0)
    return search(query, top_k)


def as_vector(text: str) -> list[float]:
    found = words(text)
    return [float(word in found) for word in VOCABULARY] + [0.1]


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
    assert runs_of(found, "off") == expected()
    assert set(found["off"].means) == set(qtm.evaluation.MEASURES)
    assert told[:4] == [*(("off", done, 3) for done in (1, 2, 3)), ("preprocessed as text", 1, 3)]


def test_with_a_client_it_is_compared_under_what_asks_a_model_too() -> None:
    found = compare(retrieve, QUERIES, QRELS, client=ScriptedModel(scripted))
    assert [score.name for score in found.systems] == list(USUAL)
    names = ("off", "rules", "rewrite", "all", "balanced", "auto")
    # Three questions are too few for the gate to be unsure of one.
    assert [found[name].llm_calls for name in names] == [0, 0, 3, 9, 3, 0]


def test_raw_is_the_plain_function_with_the_same_calls() -> None:
    asked: list[tuple[str, int, str]] = []

    def listening(query: str, namespace: str = "", top_k: int = 3) -> list[dict[str, Any]]:
        asked.append((query, top_k, namespace))
        return search(query, top_k)

    compare(listening, QUERIES, QRELS, [])
    assert asked == [(text, 10, "") for text in QUERIES.values()]
    asked.clear()
    compare(listening, QUERIES, QRELS, [], arguments={"namespace": "dogs"}, top_k=None)
    assert asked == [(text, 3, "dogs") for text in QUERIES.values()]
    fixed = compare(lambda query: search(query, 2), QUERIES, QRELS, [])
    assert runs_of(fixed, "off") == expected(2)


async def test_an_asynchronous_function_is_awaited_but_not_in_a_running_loop() -> None:
    with pytest.raises(WrapError, match="to_thread"):
        compare(awaited, QUERIES, QRELS)
    found = await asyncio.to_thread(compare, awaited, QUERIES, QRELS)
    assert runs_of(found, "rules") == runs_of(compare(retrieve, QUERIES, QRELS), "rules")


def test_the_index_of_a_real_client_is_compared_with_what_embeds_for_it() -> None:
    def embed(texts: Sequence[str]) -> list[list[float]]:
        return [as_vector(text) for text in texts]

    with pinecone_world() as world:
        world.add_index("dogs", dimension=len(VOCABULARY) + 1)
        index = world.index("dogs")
        index.upsert(
            vectors=[
                {"id": id_, "values": as_vector(text), "metadata": {"text": text}}
                for id_, text in PASSAGES.items()
            ]
        )
        options: Any = {"embed": embed, "top_k_arg": "top_k"}
        options |= {"arguments": {"include_metadata": True}}
        found = compare(index.query, QUERIES, QRELS, **options)
    assert {len(ids) for ids in runs_of(found, "off").values()} == {len(PASSAGES)}
    assert found.notes == ()


def test_a_wrapped_function_is_measured_as_it_is_and_under_every_system() -> None:
    class Index:
        def __init__(self, only: str) -> None:
            self.only = only

        @qtm.middleware(config={"transformationType": "rewrite"}, client=ScriptedModel(scripted))
        def find(self, query: str, top_k: int = 4) -> list[dict[str, Any]]:
            return [row for row in search(query, top_k) if row["id"] != self.only]

    found = compare(Index("fees").find, QUERIES, QRELS, ["rules", "hyde"])
    kinds = {it.name: [one.kind for one in it.runs["food"].variants] for it in found.systems}
    assert kinds == {
        "off": ["original"],
        "rules": ["original"],
        "hyde": ["original", "hyde"],
        "yours": ["original", "rewrite"],
    }
    assert all("fees" not in ids for ids in runs_of(found, "off").values())
    with pytest.raises(ConfigError, match="already wrapped"):
        compare(Index("").find, QUERIES, QRELS, client=ScriptedModel(scripted))


def test_raw_reranks_nothing_though_the_wrapped_function_does() -> None:
    def rerank(query: str, texts: Sequence[str]) -> list[float]:
        return [float(at) for at in range(len(texts))]

    wrapped = qtm.QueryMiddleware({"rerank": {"enabled": True}}, reranker=rerank).wrap(retrieve)
    found = compare(wrapped, QUERIES, QRELS, [])
    assert runs_of(found, "off") == expected() != runs_of(found, "yours")


def test_a_question_with_a_history_is_asked_with_it() -> None:
    model = ScriptedModel(scripted)
    history = (Message("user", "Is Jaco ill?"), Message("assistant", "Jaco is healthy."))
    questions = [Question("food", "And what does he eat?", history), Question("unjudged", "When?")]
    found = compare(retrieve, questions, {"food": {"food": 1}}, ["balanced"], client=model)
    assert found.questions == 1
    assert [prompt.history for prompt in model.prompts] == [history]


def test_systems_may_be_settings_of_ones_own_or_a_name() -> None:
    given = {"light": {"keywordEvidence": {"weight": 0.1}}}
    assert [it.name for it in compare(retrieve, QUERIES, QRELS, given).systems] == ["off", "light"]
    assert [it.name for it in compare(retrieve, QUERIES, QRELS, "rules").systems][1:] == ["rules"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"systems": ["bm25"]}, r"there is no system 'bm25'; the systems are: off; .*auto"),
        ({"systems": {"bad": {"keywordEvidence": {"weight": 3}}}}, "keywordEvidence"),
        ({"systems": ["hybrid"]}, "hybrid"),
        ({"systems": {"off": {"transformationType": "none"}}}, "the name 'off' is reserved"),
        ({"qrels": {**QRELS, "a": {"food": 1}}}, "1 judged questions are not .* first is 'a'"),
        ({"qrels": {}}, "no judged questions"),
        ({"qrels": {"food": {"food": 0}}}, "must have a passage with a grade above 0"),
        ({"qrels": {"food": {"food": 1.5}}}, "'food' must be a mapping of passage ids to whole"),
        ({"qrels": {"food": {"food": 10**30}}}, "numbers of at most 10,000"),
        ({"qrels": {"food": ["food"]}}, "must be a mapping .* not list"),
        ({"queries": [Question("food", "a"), Question("food", "b")]}, "same id"),
        ({"queries": ["What does Jaco eat?"]}, "query 1 must be a Question"),
        ({"queries": {"food": " "}, "qrels": {"food": {"food": 1}}}, "the question 'food' .* is blank"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused_before_anything_is_searched(
    given: dict[str, Any], said: str
) -> None:
    def never(query: str, top_k: int = 4) -> Any:
        pytest.fail("searched")

    with pytest.raises(ConfigError, match=said):
        compare(never, **{"queries": QUERIES, "qrels": QRELS, **given})


def test_results_without_ids_or_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ConfigError, match=r'no ids.*passages with an "id"'):
        compare(lambda query: [row["metadata"]["text"] for row in retrieve(query)], QUERIES, QRELS)
    with pytest.raises(ConfigError, match=r"cannot be read as passages \(generator\)"):
        compare(lambda query: (row for row in search(query, 4)), QUERIES, QRELS)


@pytest.mark.parametrize("package", ["ir_measures", "scipy"])
def test_a_missing_package_is_told_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"qtmiddleware\[eval\]"):
        compare(lambda query: pytest.fail("ran"), QUERIES, QRELS)


# --- failures and ids -----------------------------------------------------------------------------

EIGHT = {f"q{n}": text for n, text in enumerate([QUERIES["food"], "What is the fee?"] * 4)}
JUDGED = {id_: {("food", "fees")[number % 2]: 1} for number, id_ in enumerate(EIGHT)}
MANY = {f"{number}": f"What does Jaco eat on day {number}?" for number in range(60)}


def failing_on(*numbers: int) -> Callable[..., list[dict[str, Any]]]:
    """A function that fails on its calls of these *numbers*, from 1 on."""
    calls = 0

    def flaky(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        nonlocal calls
        calls += 1
        if calls in numbers:
            raise TimeoutError("no answer\nfrom the index")
        return search(query, top_k)

    return flaky


def test_questions_the_function_fails_on_are_counted_noted_and_left_out_of_every_system() -> None:
    # The second question as it is, and another of the first system's seven that are left.
    found = compare(failing_on(2, 9, 10), EIGHT, JUDGED, ["rules"])
    assert [(score.failed, len(score.runs)) for score in found.systems] == [(1, 6), (1, 6)]
    (note,) = found.notes
    assert note == (
        "2 of 8 questions failed and are not counted: off on 'q1' (TimeoutError: no answer from the "
        "index); rules on 'q0' (TimeoutError: no answer from the index)."
    )
    assert found.fingerprints == compare(retrieve, EIGHT, JUDGED, ["rules"]).fingerprints
    assert found.asked == set(EIGHT)


@pytest.mark.parametrize(("works", "asked"), [(0, 5), (10, 30)])
def test_an_index_that_is_down_is_not_asked_all_questions(works: int, asked: int) -> None:
    dies, calls = failing_on(*range(works + 1, 99)), []

    def counted(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        calls.append(query)
        return dies(query, top_k)

    with pytest.raises(TimeoutError) as caught:
        compare(functools.partial(counted), MANY, {id_: {"food": 1} for id_ in MANY})
    assert len(calls) == asked
    assert "questions in a row" in caught.value.__notes__[0]


def test_ids_that_no_judgement_knows_end_it_after_twenty_questions_with_one_of_each_side() -> None:
    asked: list[str] = []

    def other(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        asked.append(query)
        return [{"id": "chunk-1", "score": 1.0, "text": "Jaco eats."}]

    said = r"They name 'food', for example; the function returned 'chunk-1'"
    with pytest.raises(ConfigError, match=said):
        compare(other, MANY, {id_: {"food": 1} for id_ in MANY})
    assert len(asked) == 20
    # Few questions that find nothing relevant may still be hard ones.
    found = compare(retrieve, {"q": "What does Jaco eat?"}, {"q": {"nowhere": 1}}, ["rules"])
    assert found.notes[-1].startswith("No passage that a system found is judged")


def test_passages_are_found_by_their_text_where_the_judgements_have_other_ids() -> None:
    text = PASSAGES["food"]
    golds = [text.upper() + " ", f"More. {text} And more.", "Another text of the same length."]
    questions = [
        Question(str(n), QUERIES["food"], relevant_texts={"gold": gold})
        for n, gold in enumerate(golds)
    ]
    qrels = {question.id: {"gold": 1} for question in questions}
    found = compare(retrieve, questions, qrels, [])["off"].per_query.values["R@10"]
    assert found == {"0": 1.0, "1": 1.0, "2": 0.0}
    texts = compare(lambda query: [row["metadata"]["text"] for row in search(query, 9)], questions[:1], {"0": {"gold": 1}}, [])  # fmt: skip
    assert texts["off"].means["R@10"] == 1.0


@pytest.mark.parametrize("odd", ["p\ud800", "p\0a", "\0", " ", "ä" * 5_000, "a\tb\nc"])
def test_no_id_can_crash_the_measures_or_be_taken_for_another(odd: str) -> None:
    rows = [{"id": f"{odd}{n}", "score": 1 - n / 10, "text": f"words {n}"} for n in range(3)]
    queries = {odd: "which?", f"{odd}x": "which?"}
    qrels = {odd: {f"{odd}2": 1}, f"{odd}x": {f"{odd}0": 1}}
    found = compare(lambda query, top_k=10: rows[:top_k], queries, qrels, [])
    assert found["off"].per_query.values["MRR@10"] == pytest.approx({odd: 1 / 3, f"{odd}x": 1.0})


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
    return Run(ids, 0.5, int(asked), not asked, 100, 10, 0.002 * asked)


def test_the_figures_are_shares_and_means_of_the_questions() -> None:
    found = measure({"off": second, "mixed": mixed}, DATA, baseline="off", notes=["a note"], seed=3)
    score = found["mixed"]
    assert (score.helped_rate, score.hurt_rate, score.call_rate) == (0.6, 0.4, 0.8)
    assert score.means["nDCG@10"] == pytest.approx((3 + 1 / log2(5)) / 5)
    assert (score.llm_calls, score.input_tokens, score.degraded) == (4, 500, 1)
    assert (score.added_ms.p50, score.usd_per_thousand) == pytest.approx((500, 1.6))
    assert [id_ for id_, _ in score.worst()] == ["e", "d"]
    assert (found["off"].hurt_rate, found["off"].usd_per_thousand) == (0.0, 0.0)
    plain = found.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert (plain["seed"], plain["fingerprints"]) == (3, DATA.fingerprints)
    assert plain["systems"][1]["hurtRate"] == 0.4
    assert plain["notes"][0] == "a note"
    assert plain["notes"][1].startswith("mixed: 1 of 5 answers are degraded")
    assert "what is" not in repr(found)


def test_p_values_are_corrected_for_the_number_of_systems() -> None:
    def first(question: Question) -> Run:
        return Run((question.id,))

    found = measure({"off": second, "first": first, "mixed": mixed}, DATA, baseline="off")
    p = found["first"].difference.p
    assert found["first"].difference.p_holm == pytest.approx(min(1.0, 2 * p))
    assert found["off"].difference.p_holm == 1.0


def test_a_price_that_is_not_known_is_none() -> None:
    def unpriced(question: Question) -> Run:
        return Run((question.id,), llm_calls=1, cost_usd=None)

    def never_replied(question: Question) -> Run:
        return Run((question.id,), degraded=True)

    for system in (unpriced, never_replied):
        found = measure({"off": second, "m": system}, DATA, baseline="off")["m"]
        assert (found.cost_usd, found.usd_per_thousand) == (None, None)


def test_an_unknown_baseline_is_refused() -> None:
    with pytest.raises(ConfigError, match="the name of a system, not 'nobody'"):
        measure({"off": lambda question: pytest.fail("ran")}, DATA, baseline="nobody")


class Accounted(ScriptedModel):
    """Replies that say what they cost and how long they once took."""

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        return Reply(super().complete(prompt, deadline).text, 100, 20, 2, 0.5, seconds=3.0)


def run_with(transformation: str, model: Any) -> Run:
    config = {"transformationType": transformation, "store": {"readPrice": 20}}
    return run_of(qtm.QueryMiddleware(config, client=model).wrap(search).retrieve(QUERY, 4))


def test_a_run_holds_what_a_call_took_with_the_time_of_replayed_replies() -> None:
    run = run_with("rewrite", Accounted(scripted))
    assert (run.llm_calls, run.input_tokens, run.output_tokens, run.cost_usd) == (2, 100, 20, 0.5)
    assert (run.searches, run.read_cost_usd) == (2, pytest.approx(40e-6))
    # Three prompts side by side.
    assert 3.0 <= run_with("all", Accounted(scripted)).seconds_added < 6.0
    assert "Jaco" not in repr(run)
    assert run_with("rewrite", ScriptedModel(ModelError("timeout"))).degraded


def test_every_system_is_a_config_that_can_be_measured() -> None:
    for name in SYSTEMS:
        measured = qtm.Config.load(qtm.evaluation.MEASURED, environ={}).overridden(SYSTEMS[name])
        assert not measured.settings.cache.enabled
        asks = measured.settings.transformation_type != "none"
        assert qtm.evaluation.asks_a_model(name) == asks
    assert not any(map(qtm.evaluation.asks_a_model, FREE))
    assert set(FREE) < set(USUAL) < set(SYSTEMS)
    assert list(qtm.evaluation.chosen(["rules", "hyde", "off", "rules"])) == [
        "off",
        "rules",
        "hyde",
    ]
