"""The confidence of a result: a percentile among the earlier questions of the same function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.retrieval.signals import LEAST_SEEN, Standings
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Retrieval

WORDS = [
    "pool",
    "locker",
    "parking",
    "yoga",
    "towel",
    "sauna",
    "trainer",
    "refund",
    "guest",
    "contract",
]
PASSAGES = [{"id": word, "text": f"All about the {word} and its {word} rules."} for word in WORDS]
numbers = st.floats(-1e6, 1e6, allow_subnormal=False)
signals = st.fixed_dictionaries(
    {
        "best_score": numbers,
        "lead": st.floats(0, 1e6, allow_subnormal=False),
        "coverage": st.floats(0, 1),
    }
)


def search(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    words = set(query.casefold().strip("?").split())
    scored = [
        {**it, "score": 0.9 if it["id"] in words else 0.137 - at * at / 1_870}
        for at, it in enumerate(PASSAGES)
    ]
    return sorted(scored, key=lambda it: -it["score"])[:top_k]


def ask_usual(wrapped: Any, count: int = LEAST_SEEN) -> None:
    for number in range(count):
        wrapped.retrieve(f"Where is the {WORDS[number % len(WORDS)]}?")


def standing_of(question: str, respond: Any = search, **settings: Any) -> Retrieval:
    """What is retrieved for *question* after enough usual ones."""
    wrapped = qtm.QueryMiddleware(settings).wrap(respond)
    ask_usual(wrapped)
    return wrapped.retrieve(question)


FOREIGN, USUAL = "Who painted Guernica?", "Where is the sauna?"


def test_before_enough_questions_there_is_no_confidence_and_the_reason_says_how_many_are_missing() -> (
    None
):
    wrapped = qtm.QueryMiddleware().wrap(search)
    ask_usual(wrapped, 7)
    found = wrapped.retrieve(USUAL)
    assert (found.confidence, found.is_unsure) == (None, False)
    assert found.confidence_reasons == (
        "needs 20 earlier questions of this function, and 7 were seen",
    )


def test_a_foreign_question_is_unsure_and_gets_the_same_passages_and_status() -> None:
    wrapped = qtm.QueryMiddleware().wrap(search)
    before = wrapped.retrieve(FOREIGN)
    usual, foreign = standing_of(USUAL), standing_of(FOREIGN)
    assert (usual.is_unsure, foreign.is_unsure) == (False, True)
    assert foreign.confidence is not None
    assert usual.confidence is not None
    assert foreign.confidence < 0.1 < usual.confidence
    assert "better than in 0% of the last 20 questions" in foreign.confidence_reasons[0]
    assert [it.id for it in foreign.matches] == [it.id for it in before.matches]
    assert (foreign.status, foreign.degradations) == (before.status, before.degradations)


def test_a_function_that_finds_nothing_is_unsure_at_once() -> None:
    found = qtm.QueryMiddleware().wrap(lambda query: []).retrieve(USUAL)
    assert (found.confidence, found.is_unsure) == (0.0, True)


def scored(score: Callable[[str, int, float], float | None]) -> Any:
    def respond(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        found = enumerate(search(query, top_k))
        return [{**it, "score": score(query, at, it["score"])} for at, it in found]

    return respond


@pytest.mark.parametrize(
    ("respond", "is_unsure"),
    [
        (scored(lambda query, at, score: 1.0 - score), True),
        (scored(lambda query, at, score: None), False),
        (scored(lambda query, at, score: (1 + any(map(query.count, WORDS))) / (61 + at)), False),
    ],
    ids=["distances", "no scores", "reciprocal ranks"],
)
def test_only_similarities_and_distances_raise_the_flag(respond: Any, is_unsure: bool) -> None:
    assert standing_of(FOREIGN, respond).is_unsure is is_unsure
    assert not standing_of(USUAL, respond).is_unsure


# --- the percentiles ------------------------------------------------------------------------------


@given(st.lists(signals, max_size=60), signals)
def test_a_confidence_lies_between_0_and_1_and_there_is_one_after_20_questions(
    earlier: Sequence[Mapping[str, float]], asked: Mapping[str, float]
) -> None:
    standing = judge([*earlier, asked])
    assert (standing.confidence is None) == (len(earlier) < LEAST_SEEN)
    assert standing.confidence is None or 0.0 <= standing.confidence <= 1.0
    assert standing.reasons


earlier_ones = st.lists(signals, min_size=LEAST_SEEN, max_size=40)


def judge(questions: Sequence[Mapping[str, float]]) -> Any:
    """The standing of the last of *questions*."""
    standings = Standings()
    return [standings.measure_confidence(it, passage_count=1) for it in questions][-1]


def test_the_best_score_counts_as_much_as_its_lead_and_the_held_words_together() -> None:
    names = ("best_score", "lead", "coverage")
    earlier = [dict.fromkeys(names, 0.5)] * LEAST_SEEN
    for name, share in zip(names, (0.5, 0.25, 0.25), strict=True):
        asked = {**dict.fromkeys(names, 0.0), name: 1.0}
        assert judge([*earlier, asked]).confidence == pytest.approx(share)


@given(earlier_ones, st.sampled_from((0.25, 2.0, 1024.0)))
def test_the_scale_of_the_scores_does_not_matter(
    questions: Sequence[Mapping[str, float]], scale: float
) -> None:
    scaled = [
        {**it, "best_score": it["best_score"] * scale, "lead": it["lead"] * scale}
        for it in questions
    ]
    one, other = judge(questions), judge(scaled)
    assert (one.confidence, one.is_unsure) == (other.confidence, other.is_unsure)


def test_one_user_s_many_high_scores_make_no_other_question_unsure() -> None:
    standings, chance = Standings(), Random(4)

    def measure(best_score: float) -> bool:
        signals = {"best_score": best_score, "lead": 0.1, "coverage": 0.2}
        return standings.measure_confidence(signals, passage_count=4).is_unsure

    for _ in range(60):
        measure(chance.uniform(0.55, 0.7))
    for _ in range(170):
        measure(0.95)
    assert not any(measure(best_score) for best_score in (0.56, 0.6, 0.7))
    assert measure(0.2)


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("if_unsure", "calls"), [("answer", 1), ("decline", 0)])
def test_an_answer_declines_an_unsure_result_without_a_model_call_only_if_asked_to(
    if_unsure: str, calls: int
) -> None:
    model = ScriptedModel("The sauna is upstairs [1].")
    wrapped = qtm.QueryMiddleware({"answer": {"ifUnsure": if_unsure}}, client=model).wrap(search)
    ask_usual(wrapped)
    answer = wrapped.answer(FOREIGN)
    assert len(model.prompts) == calls
    assert (answer.found, bool(answer.text)) == (bool(calls), True)
    assert answer.retrieval.is_unsure
