"""The gate: when a question is worth a call to the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.retrieval.gate import MAX_OBSERVED, Gate

WORDS = ["jaguar", "pantanal", "fish", "river", "night"]
KEYWORDS = " ".join(WORDS)

UNSURE = ([0.80, 0.79, 0.79, 0.78], ["cats", "dogs", "night", "jaguar fish river"])
CLEAR = ([0.95, 0.70, 0.30, 0.20], ["jaguar fish pantanal", "jaguar river night", "jaguar", "cats"])


def results(seed: int, count: int) -> list[list[float]]:
    """First results of an index: each falls off from its best score at a pace of its own."""
    random = Random(seed)
    return [
        [0.9 - pace * place for place in range(10)]
        for pace in (random.random() * 0.05 for _ in range(count))
    ]


def passages(seed: int, count: int) -> Iterator[tuple[list[float], list[str]]]:
    """First results of an index with their texts, some of which hold many of the words and others none."""
    random = Random(seed)
    for scores in results(seed, count):
        held = random.random()
        yield (
            scores,
            [" ".join(word for word in WORDS if random.random() < held) or "cats" for _ in scores],
        )


# --- what is decided ------------------------------------------------------------------------------


def test_an_unsure_result_asks_and_a_clear_one_does_not_before_anything_is_known() -> None:
    asked, left = (
        Gate().decide_model_call(*it, KEYWORDS, target_call_rate=0.35) for it in (UNSURE, CLEAR)
    )
    assert (asked.call, asked.reason) == (True, "unsure_first_result")
    assert (left.call, left.reason) == (False, "clear_first_result")


@pytest.mark.parametrize("scale", [1.0, 0.1, 40.0])
def test_scores_alone_are_enough_to_decide_whatever_their_scale(scale: float) -> None:
    for scores, call in ((UNSURE[0], True), (CLEAR[0], False)):
        gate = Gate()
        for lead in (0.1, 0.2, 0.3):
            gate.decide_model_call([scale, scale * (1 - lead)], target_call_rate=0.35)
        scaled = [scale * score for score in scores]
        assert gate.decide_model_call(scaled, target_call_rate=0.35).call == call


def test_texts_alone_are_enough_to_decide() -> None:
    asked, left = (
        Gate().decide_model_call([None] * 4, texts, KEYWORDS, target_call_rate=0.35)
        for _, texts in (UNSURE, CLEAR)
    )
    assert (asked.call, left.call) == (True, False)


def test_a_decision_holds_the_numbers_it_was_made_on() -> None:
    gate = Gate()
    gate.decide_model_call(*UNSURE, KEYWORDS, target_call_rate=0.35)
    signals = gate.decide_model_call(*CLEAR, KEYWORDS, target_call_rate=0.35).signals
    assert list(signals) == [
        "lead",
        "coverage",
        "agreement",
        "joint_lead",
        "doubt",
        "threshold",
        "observed",
    ]
    assert (signals["coverage"], signals["observed"]) == (1.0, 1)
    assert signals["doubt"] < signals["threshold"]
    assert json.loads(json.dumps(dict(signals))) == signals


@pytest.mark.parametrize("scores", [[], [0.5], [None, None], [None, 0.5, None]])
def test_a_result_that_tells_nothing_asks_the_model(scores: list[float | None]) -> None:
    decision = Gate().decide_model_call(
        scores, [None] * len(scores), KEYWORDS, target_call_rate=0.35
    )
    assert (decision.call, decision.reason) == (True, "too_few_scores")


def test_a_rate_of_zero_never_asks() -> None:
    gate = Gate()
    decisions = [
        gate.decide_model_call(scores, target_call_rate=0.0)
        for scores in ([], [0.5], [0.5, 0.5], *results(1, 40))
    ]
    assert {(it.call, it.reason) for it in decisions} == {(False, "target_call_rate_is_zero")}


def test_a_rate_of_one_always_asks() -> None:
    gate = Gate()
    decisions = [gate.decide_model_call(scores, target_call_rate=1.0) for scores in results(2, 600)]
    assert {(it.call, it.reason) for it in decisions} == {(True, "target_call_rate_is_one")}


def test_the_words_of_a_result_tell_what_its_scores_do_not() -> None:
    gate, scores = Gate(), [0.9 - 0.02 * place for place in range(10)]
    calls = [
        (
            len(set(" ".join(texts[:3]).split())),
            gate.decide_model_call(scores, texts, KEYWORDS, target_call_rate=0.35).call,
        )
        for _, texts in passages(8, 600)
    ]
    asked, left = ([held for held, call in calls[100:] if call is which] for which in (True, False))
    assert sum(asked) / len(asked) < sum(left) / len(left) - 1


# --- calibration ----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.1, 0.35, 0.5, 0.8])
def test_the_call_rate_comes_close_to_what_was_asked_for(target: float) -> None:
    alone, both = Gate(), Gate()
    calls = [
        alone.decide_model_call(scores, target_call_rate=target).call
        for scores in results(7, 2_000)
    ]
    assert sum(calls[500:]) / 1_500 == pytest.approx(target, abs=0.02)
    calls = [
        both.decide_model_call(*it, KEYWORDS, target_call_rate=target).call
        for it in passages(7, 2_000)
    ]
    assert sum(calls[500:]) / 1_500 == pytest.approx(target, abs=0.02)


def test_the_call_rate_is_near_from_the_start() -> None:
    for seed in range(20):
        gate = Gate()
        calls = [
            gate.decide_model_call(*it, KEYWORDS, target_call_rate=0.35).call
            for it in passages(seed, 100)
        ]
        assert sum(calls) / 100 == pytest.approx(0.35, abs=0.06)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_scale_of_an_index_does_not_matter(scale: float) -> None:
    gate = Gate()
    calls = [
        gate.decide_model_call([score * scale for score in scores], target_call_rate=0.35).call
        for scores in results(7, 1_000)
    ]
    assert sum(calls[200:]) / 800 == pytest.approx(0.35, abs=0.03)


def test_the_rate_is_kept_where_every_result_looks_alike() -> None:
    # Scores made of ranks, as a hybrid backend returns them, are the same for every query.
    gate, scores = Gate(), [1 / (60 + rank) for rank in range(1, 11)]
    calls = [gate.decide_model_call(scores, target_call_rate=0.35).call for _ in range(1_000)]
    assert sum(calls[200:]) / 800 == pytest.approx(0.35, abs=0.03)


def test_the_rate_is_kept_while_results_grow_less_and_less_sure() -> None:
    gate = Gate()
    results = [[0.9 - place * 0.05 * 0.99**query for place in range(10)] for query in range(600)]
    calls = [gate.decide_model_call(scores, target_call_rate=0.35).call for scores in results]
    assert sum(calls) / 600 == pytest.approx(0.35, abs=0.03)


def test_the_gate_follows_an_index_that_changes() -> None:
    gate = Gate()
    for scores in results(3, MAX_OBSERVED):
        gate.decide_model_call(scores, target_call_rate=0.35)
    # From now on all leads are a hundred times longer; after as many again only they are
    # remembered.
    wider = [[score * 100 for score in scores] for scores in results(4, 2 * MAX_OBSERVED)]
    decisions = [gate.decide_model_call(scores, target_call_rate=0.35) for scores in wider][
        MAX_OBSERVED:
    ]
    leads: dict[bool, list[float]] = {True: [], False: []}
    for decision in decisions:
        leads[decision.call].append(decision.signals["lead"])
    assert len(leads[True]) / MAX_OBSERVED == pytest.approx(0.35, abs=0.03)
    assert sum(leads[True]) / len(leads[True]) < sum(leads[False]) / len(leads[False]) / 2


def test_calls_that_are_made_anyway_count() -> None:
    gate, calls = Gate(), 0
    for query, it in enumerate(passages(9, 2_000)):
        if query % 8:
            calls += gate.decide_model_call(*it, KEYWORDS, target_call_rate=0.35).call
        else:
            gate.record_forced_call(0.35)
            calls += 1
    assert calls / 2_000 == pytest.approx(0.35, abs=0.02)


def test_many_calls_that_are_made_anyway_leave_some_for_the_others() -> None:
    gate, calls = Gate(), 0
    for it in passages(9, 1_000):
        for _ in range(4):
            gate.record_forced_call(0.35)
        calls += gate.decide_model_call(*it, KEYWORDS, target_call_rate=0.35).call
    assert 0.05 < calls / 1_000 < 0.35


def test_memory_is_bounded() -> None:
    gate = Gate()
    observed = [
        gate.decide_model_call(it, target_call_rate=0.35).signals["observed"]
        for it in results(6, MAX_OBSERVED + 200)
    ]
    assert max(observed) == observed[-1] == MAX_OBSERVED


@given(st.lists(st.lists(st.floats(-1, 1), max_size=5), max_size=60), st.floats(0, 1))
def test_the_same_history_makes_the_same_decisions(
    history: list[list[float]], target: float
) -> None:
    one, other = Gate(), Gate()
    assert [one.decide_model_call(it, target_call_rate=target) for it in history] == [
        other.decide_model_call(it, target_call_rate=target) for it in history
    ]


def test_many_threads_lose_no_observation() -> None:
    gate, together = Gate(), Barrier(16)

    def decide(seed: int) -> int:
        together.wait()
        return len(
            [gate.decide_model_call(scores, target_call_rate=0.35) for scores in results(seed, 25)]
        )

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(decide, range(16))) == 400
    assert gate.decide_model_call([0.5, 0.4], target_call_rate=0.35).signals["observed"] == 400


def test_many_threads_beyond_the_bound_keep_the_order_intact() -> None:
    gate, together = Gate(), Barrier(8)

    def decide(seed: int) -> None:
        together.wait()
        for scores in results(seed, 200):
            gate.decide_model_call(scores, target_call_rate=0.35)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decide, range(8)))
    calls = [
        gate.decide_model_call(scores, target_call_rate=0.35).call for scores in results(99, 1_000)
    ]
    assert sum(calls) / 1_000 == pytest.approx(0.35, abs=0.04)
