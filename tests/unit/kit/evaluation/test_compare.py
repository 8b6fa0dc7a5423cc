"""Live functions of every kind, compared under several settings."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import ConfigError, WrapError
from qtmiddleware.kit.evaluation import FREE, SYSTEMS, USUAL, Comparison, Question
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Message
from tests.support.pinecone_world import pinecone_world
from tests.support.retrieval_world import PASSAGES, scripted, search, words

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


def as_vector(text: str) -> list[float]:
    found = words(text)
    return [float(word in found) for word in VOCABULARY] + [0.1]


def expected(top_k: int = 10) -> dict[str, tuple[str, ...]]:
    """What the plain function finds."""
    return {id_: tuple(row["id"] for row in search(text, top_k)) for id_, text in QUERIES.items()}


def runs_of(found: Comparison, system: str) -> dict[str, tuple[str, ...]]:
    return {id_: run.ids for id_, run in found[system].runs.items()}


def test_a_plain_function_is_compared_under_what_needs_no_model() -> None:
    found = compare(retrieve, QUERIES, QRELS)
    assert [score.name for score in found.systems] == list(FREE)
    assert (found.dataset, found.passages, found.questions, found.baseline) == (
        "live function",
        None,
        3,
        "off",
    )
    assert runs_of(found, "off") == expected()
    assert found["off"].llm_calls == found["rules"].llm_calls == 0
    assert set(found["off"].means) == set(qtm.evaluation.MEASURES)


def test_with_a_client_it_is_compared_under_what_asks_a_model_too() -> None:
    model = ScriptedModel(scripted)
    found = compare(retrieve, QUERIES, QRELS, client=model)
    assert [score.name for score in found.systems] == list(USUAL)
    calls = {score.name: score.llm_calls for score in found.systems}
    assert (calls["off"], calls["rules"], calls["rewrite"], calls["all"], calls["balanced"]) == (
        0,
        0,
        3,
        9,
        3,
    )
    # Three questions are too few for the gate to be unsure of one.
    assert calls["auto"] == 0
    assert [variant.kind for variant in found["rewrite"].runs["food"].variants] == [
        "original",
        "rewrite",
    ]


def test_raw_is_the_plain_function_byte_for_byte() -> None:
    asked: list[tuple[str, int]] = []

    def listening(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        asked.append((query, top_k))
        return search(query, top_k)

    compare(listening, QUERIES, QRELS, [])
    assert asked == [(text, 10) for text in QUERIES.values()]


def test_an_asynchronous_function_is_awaited() -> None:
    async def awaited(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        await asyncio.sleep(0)
        return search(query, top_k)

    found = compare(awaited, QUERIES, QRELS, ["rules", "balanced"], client=ScriptedModel(scripted))
    plain = compare(retrieve, QUERIES, QRELS, ["rules", "balanced"], client=ScriptedModel(scripted))
    assert {score.name: score.means for score in found.systems} == {
        score.name: score.means for score in plain.systems
    }
    assert runs_of(found, "balanced") == runs_of(plain, "balanced")


async def test_where_a_loop_runs_already_an_asynchronous_function_is_refused_with_the_way_out() -> (
    None
):
    async def awaited(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        return search(query, top_k)

    with pytest.raises(WrapError, match="to_thread"):
        compare(awaited, QUERIES, QRELS)
    found = await asyncio.to_thread(compare, awaited, QUERIES, QRELS)
    assert runs_of(found, "off") == expected()


def test_a_function_of_vectors_is_compared_with_what_embeds_for_it() -> None:
    embedded: list[str] = []

    def embed(texts: Sequence[str]) -> list[list[float]]:
        embedded.extend(texts)
        return [as_vector(text) for text in texts]

    def nearest(vector: list[float], top_k: int) -> list[dict[str, Any]]:
        rows = [
            {
                "id": id_,
                "score": sum(a * b for a, b in zip(vector, as_vector(text), strict=True)),
                "text": text,
            }
            for id_, text in PASSAGES.items()
        ]
        return sorted(rows, key=lambda row: (-float(str(row["score"])), row["id"]))[:top_k]

    found = compare(
        nearest,
        QUERIES,
        QRELS,
        ["rewrite"],
        client=ScriptedModel(scripted),
        embed=embed,
        query_arg="vector",
    )
    assert runs_of(found, "off")["food"] == tuple(
        row["id"] for row in nearest(as_vector(QUERIES["food"]), 10)
    )
    assert found["rewrite"].llm_calls == 3
    assert "Does the dog Jaco have medical conditions or illness?" in embedded


def test_a_wrapped_function_is_measured_as_it_is_and_under_every_system() -> None:
    wrapped = qtm.QueryMiddleware(
        {"transformationType": "rewrite"}, client=ScriptedModel(scripted)
    ).wrap(retrieve)
    found = compare(wrapped, QUERIES, QRELS, ["rules", "hyde"])
    assert [score.name for score in found.systems] == ["off", "rules", "hyde", "yours"]
    assert runs_of(found, "off") == expected()
    kinds = {
        name: [it.kind for it in found[name].runs["food"].variants]
        for name in ("rules", "hyde", "yours")
    }
    assert kinds == {
        "rules": ["original"],
        "hyde": ["original", "hyde"],
        "yours": ["original", "rewrite"],
    }
    assert [score.name for score in compare(wrapped, QUERIES, QRELS).systems] == [*USUAL, "yours"]


def test_a_wrapped_method_is_measured_on_its_object() -> None:
    class Index:
        def __init__(self, only: str) -> None:
            self.only = only

        @qtm.middleware(config={"transformationType": "rewrite"}, client=ScriptedModel(scripted))
        def find(self, query: str, top_k: int = 4) -> list[dict[str, Any]]:
            return [row for row in search(query, top_k) if row["id"] != self.only]

    found = compare(Index("food").find, QUERIES, QRELS, ["rules"])
    assert [score.name for score in found.systems] == ["off", "rules", "yours"]
    assert runs_of(found, "off") == {
        id_: tuple(it for it in ids if it != "food") for id_, ids in expected().items()
    }
    assert [variant.kind for variant in found["off"].runs["food"].variants] == ["original"]
    assert found["yours"].llm_calls == 3


def test_raw_reranks_nothing_though_the_wrapped_function_does() -> None:
    judged: list[str] = []

    def rerank(query: str, texts: Sequence[str]) -> list[float]:
        judged.append(query)
        return [float(at) for at in range(len(texts))]

    wrapped = qtm.QueryMiddleware({"rerank": {"enabled": True}}, reranker=rerank).wrap(retrieve)
    found = compare(wrapped, QUERIES, QRELS, [])
    assert runs_of(found, "off") == expected()
    assert runs_of(found, "yours") != expected()
    assert judged == list(QUERIES.values())


def test_a_question_with_a_history_is_asked_with_it() -> None:
    model = ScriptedModel(scripted)
    history = (
        Message("user", "Does Jaco have any health concerns?"),
        Message("assistant", "Jaco is healthy."),
    )
    questions = [
        Question("food", "And what does he eat?", history),
        Question("unjudged", "And when?"),
    ]
    found = compare(retrieve, questions, {"food": {"food": 1}}, ["balanced"], client=model)
    assert found.questions == 1
    assert [prompt.history for prompt in model.prompts] == [history]
    # What leads a follow-up, which a question without a history is never searched by alone.
    assert [variant.kind for variant in found["balanced"].runs["food"].variants] == [
        "original",
        "hyde",
    ]


def test_the_index_of_a_real_client_is_compared() -> None:
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
        options: Any = {
            "embed": embed,
            "top_k_arg": "top_k",
            "arguments": {"include_metadata": True},
        }
        found = compare(index.query, QUERIES, QRELS, **options)
        around = compare(
            lambda query, top_k: index.query(
                vector=as_vector(query), top_k=top_k, include_metadata=True
            ),
            QUERIES,
            QRELS,
        )
    assert runs_of(found, "rules") == runs_of(around, "rules")
    assert {len(ids) for ids in runs_of(found, "off").values()} == {len(PASSAGES)}
    assert found.notes == around.notes == ()


def test_own_arguments_and_no_top_k_go_to_the_function() -> None:
    asked: list[Mapping[str, Any]] = []

    def spaced(query: str, namespace: str, top_k: int = 3) -> list[dict[str, Any]]:
        asked.append({"namespace": namespace, "top_k": top_k})
        return search(query, top_k)

    compare(spaced, QUERIES, QRELS, [], arguments={"namespace": "dogs"}, top_k=None)
    assert asked == [{"namespace": "dogs", "top_k": 3}] * 3
    fixed = compare(lambda query: search(query, 2), QUERIES, QRELS, [])
    assert runs_of(fixed, "off") == expected(2)


def test_systems_may_be_settings_of_ones_own() -> None:
    given = {
        "light": {"keywordEvidence": {"weight": 0.1}},
        "heavy": {"keywordEvidence": {"weight": 0.9}},
    }
    found = compare(retrieve, QUERIES, QRELS, given)
    assert [score.name for score in found.systems] == ["off", "light", "heavy"]
    assert given == {
        "light": {"keywordEvidence": {"weight": 0.1}},
        "heavy": {"keywordEvidence": {"weight": 0.9}},
    }


def test_unknown_systems_are_refused_with_those_there_are() -> None:
    with pytest.raises(
        ConfigError, match=r"there is no system 'bm25'; the systems are: off; .*auto"
    ) as caught:
        compare(retrieve, QUERIES, QRELS, ["bm25"])
    assert caught.value.allowed == "; ".join(SYSTEMS)
    assert [score.name for score in compare(retrieve, QUERIES, QRELS, "rules").systems] == [
        "off",
        "rules",
    ]


def test_impossible_settings_are_refused_before_anything_is_searched() -> None:
    asked: list[str] = []

    def listening(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        asked.append(query)
        return search(query, top_k)

    with pytest.raises(ConfigError, match="keywordEvidence"):
        compare(listening, QUERIES, QRELS, {"bad": {"keywordEvidence": {"weight": 3}}})
    with pytest.raises(ConfigError, match="hybrid"):
        compare(listening, QUERIES, QRELS, ["hybrid"])
    assert asked == []


def test_judgements_of_unknown_questions_and_two_questions_of_one_id_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="2 judged questions are not among the queries, the first is 'a'"
    ):
        compare(retrieve, QUERIES, {**QRELS, "a": {"food": 1}, "b": {"food": 1}})
    with pytest.raises(ConfigError, match="same id"):
        compare(retrieve, [Question("food", "a"), Question("food", "b")], {"food": {"food": 1}})
    with pytest.raises(ConfigError, match="no judged questions"):
        compare(retrieve, QUERIES, {})


def test_results_without_ids_are_refused_as_nothing_can_be_judged() -> None:
    def nameless(query: str, top_k: int = 4) -> list[str]:
        return [row["metadata"]["text"] for row in search(query, top_k)]

    with pytest.raises(ConfigError, match=r'no ids.*passages with an "id"'):
        compare(nameless, QUERIES, QRELS)


def test_results_that_cannot_be_read_are_refused_and_do_not_count_as_nothing_found() -> None:
    with pytest.raises(ConfigError, match=r"cannot be read as passages \(generator\)"):
        compare(lambda query: (row for row in search(query, 4)), QUERIES, QRELS)


@pytest.mark.parametrize(
    "grades", [{"food": 1.0}, {"food": "1"}, {"food": 10**30}, {7: 1}, ["food"], None]
)
def test_judgements_that_are_none_are_refused_by_their_question(grades: Any) -> None:
    with pytest.raises(
        ConfigError,
        match="the judgements of 'food' must be a mapping of passage ids to whole numbers of at most 10,000",
    ):
        compare(retrieve, QUERIES, {**QRELS, "food": grades})


@pytest.mark.parametrize(
    "queries", [["What does Jaco eat?"], {"food": None}, {7: "What does Jaco eat?"}, {"food": " "}]
)
def test_queries_that_are_none_are_refused(queries: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"query 1 must be a Question|the question 'food' .* is blank"
    ):
        compare(retrieve, queries, {"food": {"food": 1}})


def test_names_with_a_meaning_are_not_given_another() -> None:
    other = {"transformationType": "none"}
    wrapped = qtm.QueryMiddleware({}).wrap(retrieve)
    for fn, name in ((retrieve, "off"), (wrapped, "off"), (wrapped, "yours")):
        with pytest.raises(ConfigError, match=f"the name '{name}' is reserved"):
            compare(fn, QUERIES, QRELS, {name: other})
    assert compare(retrieve, QUERIES, QRELS, {"off": SYSTEMS["off"], "yours": other}).questions == 3


def test_options_that_a_wrapped_function_would_not_heed_are_refused() -> None:
    wrapped = qtm.QueryMiddleware({}).wrap(retrieve)
    with pytest.raises(ConfigError, match="already wrapped"):
        compare(wrapped, QUERIES, QRELS, client=ScriptedModel(scripted))
    with pytest.raises(ConfigError, match="already wrapped"):
        compare(wrapped, QUERIES, QRELS, query_arg="query")


@pytest.mark.parametrize("make", [lambda fn: fn, functools.partial], ids=["function", "partial"])
def test_what_the_function_raises_passes_through(make: Callable[[Any], Any]) -> None:
    def broken(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        raise TimeoutError("theirs")

    with pytest.raises(TimeoutError, match="theirs"):
        compare(make(broken), QUERIES, QRELS)


def test_the_same_seed_is_the_same_outcome_and_nothing_given_is_changed() -> None:
    queries, qrels = dict(QUERIES), {id_: dict(grades) for id_, grades in QRELS.items()}
    first, second = (
        compare(retrieve, queries, qrels, seed=7)["rules"].difference for _ in range(2)
    )
    assert first == second
    assert (queries, qrels) == (QUERIES, QRELS)


def test_every_step_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    compare(retrieve, QUERIES, QRELS, ["rules"], progress=lambda *step: told.append(step))
    assert told == [(name, done, 3) for name in ("off", "rules") for done in (1, 2, 3)]


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
    assert [(score.name, score.failed, len(score.runs)) for score in found.systems] == [
        ("off", 1, 6),
        ("rules", 1, 6),
    ]
    assert found.notes == (
        (
            "2 of 8 questions failed and are not counted: off on 'q1' (TimeoutError: no answer from the "
            "index); rules on 'q0' (TimeoutError: no answer from the index)."
        ),
    )
    assert found.fingerprints == compare(retrieve, EIGHT, JUDGED, ["rules"]).fingerprints
    assert found.asked == set(EIGHT)


@pytest.mark.parametrize(("works", "asked"), [(0, 5), (10, 30)])
def test_an_index_that_is_down_is_not_asked_all_questions(works: int, asked: int) -> None:
    calls = 0

    def dies(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        nonlocal calls
        calls += 1
        if calls > works:
            raise ConnectionError("refused")
        return search(query, top_k)

    with pytest.raises(ConnectionError, match="refused") as caught:
        compare(dies, MANY, {id_: {"food": 1} for id_ in MANY})
    assert calls == asked
    assert "questions in a row" in caught.value.__notes__[0]


def test_a_function_that_fails_on_every_question_of_few_is_not_measured() -> None:
    with pytest.raises(TimeoutError):
        compare(failing_on(1, 2), {"a": "x", "b": "y"}, {"a": {"food": 1}, "b": {"food": 1}})


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
    questions = [
        Question("a", QUERIES["food"], relevant_texts={"gold": text.upper() + " "}),
        Question("b", QUERIES["food"], relevant_texts={"gold": f"More. {text} And more."}),
        Question("c", QUERIES["food"], relevant_texts={"gold": "Another text of the same length."}),
    ]
    qrels = {question.id: {"gold": 1} for question in questions}
    found = compare(retrieve, questions, qrels, [])["off"].per_query.values["R@10"]
    assert found == {"a": 1.0, "b": 1.0, "c": 0.0}

    def nameless(query: str, top_k: int = 4) -> list[str]:
        return [row["metadata"]["text"] for row in search(query, top_k)]

    found = compare(nameless, questions[:1], {"a": {"gold": 1}}, [])["off"].means
    assert found["R@10"] == 1.0


@pytest.mark.parametrize("odd", ["p\ud800", "p\0a", "\0", " ", "ä" * 5_000, "a\tb\nc"])
def test_no_id_can_crash_the_measures_or_be_taken_for_another(odd: str) -> None:
    rows = [{"id": f"{odd}{n}", "score": 1 - n / 10, "text": f"words {n}"} for n in range(3)]
    queries = {odd: "which?", f"{odd}x": "which?"}
    qrels = {odd: {f"{odd}2": 1}, f"{odd}x": {f"{odd}0": 1}}
    found = compare(lambda query, top_k=10: rows[:top_k], queries, qrels, [])
    assert found["off"].per_query.values["MRR@10"] == pytest.approx({odd: 1 / 3, f"{odd}x": 1.0})
