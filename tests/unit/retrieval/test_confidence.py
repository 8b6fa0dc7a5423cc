"""The confidence of a result: a percentile among the earlier questions of the same function."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.retrieval.confidence import LEAST_SEEN, Standings, measure_confidence_signals
from qtmiddleware.types import Retrieval

WORDS = (
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
)
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


def test_before_enough_questions_there_is_no_confidence_and_the_reason_says_how_many_are_missing() -> (
    None
):
    wrapped = qtm.QueryMiddleware().wrap(search)
    ask_usual(wrapped, 7)
    found = wrapped.retrieve("Where is the pool?")
    assert found.confidence is None
    assert not found.is_unsure
    assert found.confidence_reasons == (
        "needs 20 earlier questions of this function, and 7 were seen",
    )


def test_a_question_that_the_collection_does_not_answer_is_unsure_and_a_usual_one_is_not() -> None:
    wrapped = qtm.QueryMiddleware().wrap(search)
    ask_usual(wrapped)
    usual, foreign = (
        wrapped.retrieve("Where is the sauna?"),
        wrapped.retrieve("Who painted Guernica?"),
    )
    assert (usual.is_unsure, foreign.is_unsure) == (False, True)
    assert foreign.confidence is not None
    assert usual.confidence is not None
    assert foreign.confidence < 0.1 < usual.confidence
    assert (
        foreign.confidence_reasons[0]
        == "the best score is better than in 0% of the last 21 questions"
    )


def test_an_unsure_result_has_the_same_passages_and_status_as_without_the_signal() -> None:
    wrapped = qtm.QueryMiddleware().wrap(search)
    before = wrapped.retrieve("Who painted Guernica?")
    ask_usual(wrapped)
    after = wrapped.retrieve("Who painted Guernica?")
    assert after.is_unsure
    assert [it.id for it in after.matches] == [it.id for it in before.matches]
    assert (after.status, after.degradations) == (before.status, before.degradations)


def test_a_function_that_finds_nothing_is_unsure_at_once() -> None:
    found = qtm.QueryMiddleware().wrap(lambda query: []).retrieve("Where is the pool?")
    assert (found.confidence, found.is_unsure) == (0.0, True)
    assert found.confidence_reasons == ("the function returned no passages",)


def test_distances_count_the_other_way_round() -> None:
    def by_distance(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        return [{**it, "score": 1.0 - it["score"]} for it in search(query, top_k)]

    wrapped = qtm.QueryMiddleware().wrap(by_distance)
    ask_usual(wrapped)
    assert wrapped.retrieve("Who painted Guernica?").is_unsure
    assert not wrapped.retrieve("Where is the towel?").is_unsure


def test_without_scores_the_words_alone_give_a_percentile_and_never_a_flag() -> None:
    def without_scores(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        return [{"id": it["id"], "text": it["text"]} for it in search(query, top_k)]

    wrapped = qtm.QueryMiddleware().wrap(without_scores)
    ask_usual(wrapped)
    found = wrapped.retrieve("Who painted Guernica?")
    assert found.standing.percentiles.keys() == {"coverage"}
    assert not found.is_unsure


def test_reciprocal_ranks_give_a_percentile_and_never_a_flag() -> None:
    def by_rank(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        is_found = any(word in query for word in WORDS)
        lists = 2 if is_found else 1
        return [
            {"id": it["id"], "text": it["text"], "score": lists / (61 + at)}
            for at, it in enumerate(search(query, len(PASSAGES)))
        ]

    wrapped = qtm.QueryMiddleware().wrap(by_rank)
    ask_usual(wrapped)
    found = wrapped.retrieve("Who painted Guernica?")
    assert found.confidence == 0.0
    assert not found.is_unsure


def test_a_page_and_a_call_that_is_passed_through_have_no_confidence() -> None:
    def paged(query: str, top_k: int = 4, offset: int = 0) -> list[dict[str, Any]]:
        return search(query, top_k + offset)[offset:]

    page = qtm.QueryMiddleware().wrap(paged).retrieve("Where is the pool?", offset=4)
    passed = qtm.QueryMiddleware().wrap(search).retrieve("   ")
    assert (page.confidence, passed.confidence) == (None, None)
    assert "page" in page.confidence_reasons[0]
    assert "passed through" in passed.confidence_reasons[0]


def test_the_confidence_is_in_the_record_of_the_query_log(tmp_path: Any) -> None:
    log = tmp_path / "queries.jsonl"
    wrapped = qtm.QueryMiddleware({"log": {"path": str(log)}}).wrap(search)
    ask_usual(wrapped)
    wrapped.retrieve("Who painted Guernica?")
    record = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    assert record["is_unsure"] is True
    assert record["confidence"] == pytest.approx(0.0)
    assert record["confidence_signals"].keys() == {"best_score", "lead", "coverage"}
    assert len(record["confidence_reasons"]) == 3


# --- the percentiles ------------------------------------------------------------------------------


@given(st.lists(signals, max_size=60), signals)
def test_a_confidence_lies_between_0_and_1_and_there_is_one_after_20_questions(
    earlier: Sequence[Mapping[str, float]], asked: Mapping[str, float]
) -> None:
    standings = Standings()
    for it in earlier:
        standings.measure_confidence(it, passage_count=1)
    standing = standings.measure_confidence(asked, passage_count=1)
    assert (standing.confidence is None) == (len(earlier) < LEAST_SEEN)
    assert standing.confidence is None or 0.0 <= standing.confidence <= 1.0
    assert standing.reasons


@given(
    st.lists(signals, min_size=LEAST_SEEN, max_size=40),
    signals,
    st.sampled_from(("best_score", "lead", "coverage")),
)
def test_a_better_signal_never_lowers_the_confidence(
    earlier: Sequence[Mapping[str, float]], asked: Mapping[str, float], name: str
) -> None:
    confidences = []
    for more in (0.0, 1.0):
        standings = Standings()
        for it in earlier:
            standings.measure_confidence(it, passage_count=1)
        confidences.append(
            standings.measure_confidence(
                {**asked, name: asked[name] + more}, passage_count=1
            ).confidence
        )
    assert confidences[0] is not None
    assert confidences[1] is not None
    assert confidences[0] <= confidences[1]


@given(
    st.lists(signals, min_size=LEAST_SEEN, max_size=40),
    signals,
    st.sampled_from((0.25, 2.0, 1024.0)),
)
def test_the_scale_of_the_scores_does_not_matter(
    earlier: Sequence[Mapping[str, float]], asked: Mapping[str, float], scale: float
) -> None:
    def judge(factor: float) -> tuple[float | None, bool]:
        standings = Standings()
        for it in (*earlier, asked):
            scaled = {**it, "best_score": it["best_score"] * factor, "lead": it["lead"] * factor}
            standing = standings.measure_confidence(scaled, passage_count=1)
        return standing.confidence, standing.is_unsure

    assert judge(scale) == judge(1.0)


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


def test_of_evenly_spread_scores_no_more_than_the_lowest_of_a_hundred_is_unsure() -> None:
    standings = Standings()
    flagged = set()
    for number in range(400):
        # 7 and 100 have no common divisor, so each hundred questions take every hundredth once.
        place = number * 7 % 100
        usual = {"best_score": 0.5 + place / 1_000, "lead": 0.1, "coverage": 0.0}
        if standings.measure_confidence(usual, passage_count=1).is_unsure and number >= 100:
            flagged.add(place)
    assert flagged <= {0}


@given(st.lists(st.none() | st.floats(), max_size=12), st.booleans())
def test_any_scores_give_finite_signals(
    scores: Sequence[float | None], lower_is_better: bool
) -> None:
    measured = measure_confidence_signals(scores, None, lower_is_better=lower_is_better)
    assert all(abs(it) < float("inf") for it in measured.values())


def test_threads_that_ask_at_the_same_time_lose_no_question() -> None:
    standings = Standings()
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda at: standings.measure_confidence({"best_score": float(at)}, passage_count=1),
                range(400),
            )
        )
    assert standings.measure_confidence({"best_score": 1e9}, passage_count=1).seen == 400


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("if_unsure", "calls"), [("answer", 1), ("decline", 0)])
def test_an_answer_declines_an_unsure_result_without_a_model_call_only_if_asked_to(
    if_unsure: str, calls: int
) -> None:
    asked: list[Any] = []

    def model(prompt: Any) -> str:
        asked.append(prompt)
        return "The sauna is upstairs [1]."

    wrapped = qtm.QueryMiddleware({"answer": {"ifUnsure": if_unsure}}, client=model).wrap(search)
    ask_usual(wrapped)
    answer = wrapped.answer("Who painted Guernica?")
    assert len(asked) == calls
    assert answer.found is bool(calls)
    assert answer.text
    assert isinstance(answer.retrieval, Retrieval)
    assert answer.retrieval.is_unsure
