"""The gate: when a question is worth a call to the model."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from random import Random
from statistics import pstdev
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.gate import MAX_OBSERVED, MIN_OBSERVED, PRIOR_SPREAD, Gate, nothing_to_transform


def results(seed: int, count: int) -> list[list[float]]:
    """First results of an index: each falls off from its best score at a pace of its own."""
    random = Random(seed)
    return [[0.9 - pace * place for place in range(10)] for pace in (random.random() * 0.05 for _ in range(count))]


# --- what is decided ----------------------------------------------------------------------------------------------


def test_a_narrow_spread_asks_and_a_wide_one_does_not_before_anything_is_known() -> None:
    unsure, clear = [0.80, 0.79, 0.78], [0.95, 0.40, 0.30]
    asked, left = (Gate().decide(scores, target_call_rate=0.35) for scores in (unsure, clear))
    assert (asked.call, asked.reason) == (True, "low_spread")
    assert (left.call, left.reason) == (False, "clear_first_result")


def test_a_decision_holds_the_numbers_it_was_made_on() -> None:
    scores = [0.95, 0.40, 0.30]
    signals = Gate().decide(scores, target_call_rate=0.35).signals
    assert signals == {"spread": pytest.approx(pstdev(scores)), "threshold": PRIOR_SPREAD, "observed": 1}
    assert json.loads(json.dumps(dict(signals)))["observed"] == 1


@pytest.mark.parametrize("scores", [[], [0.5], [None, None], [None, 0.5, None], [float("nan"), 0.5, float("inf")]])
def test_too_few_scores_to_judge_by_ask_the_model(scores: list[float | None]) -> None:
    decision = Gate().decide(scores, target_call_rate=0.35)
    assert (decision.call, decision.reason) == (True, "too_few_scores")


def test_a_rate_of_zero_never_asks() -> None:
    gate = Gate()
    decisions = [gate.decide(scores, target_call_rate=0.0) for scores in ([], [0.5], [0.5, 0.5], *results(1, 40))]
    assert {(it.call, it.reason) for it in decisions} == {(False, "target_call_rate_is_zero")}


def test_a_rate_of_one_always_asks() -> None:
    gate = Gate()
    assert all(gate.decide(scores, target_call_rate=1.0).call for scores in results(2, 600))


def test_a_rate_of_one_is_not_explained_by_a_spread_that_was_wide() -> None:
    decision = Gate().decide([0.95, 0.10], target_call_rate=1.0)
    assert decision.call
    assert decision.reason != "low_spread"


def test_scores_beyond_every_float_are_no_reason_to_fail() -> None:
    assert Gate().decide([10**400, 1, 2], target_call_rate=0.5).reason


# --- calibration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.1, 0.35, 0.5, 0.8])
def test_the_call_rate_comes_close_to_what_was_asked_for(target: float) -> None:
    gate = Gate()
    calls = [gate.decide(scores, target_call_rate=target).call for scores in results(7, 2_000)]
    assert sum(calls[500:]) / 1_500 == pytest.approx(target, abs=0.04)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_scale_of_an_index_does_not_matter(scale: float) -> None:
    gate = Gate()
    calls = [
        gate.decide([score * scale for score in scores], target_call_rate=0.35).call for scores in results(7, 1_000)
    ]
    assert sum(calls[200:]) / 800 == pytest.approx(0.35, abs=0.06)


def test_the_rate_is_kept_where_every_result_spreads_alike() -> None:
    # Scores made of ranks, as a hybrid backend returns them, are the same for every query.
    gate, scores = Gate(), [1 / (60 + rank) for rank in range(1, 11)]
    calls = [gate.decide(scores, target_call_rate=0.35).call for _ in range(1_000)]
    assert sum(calls[200:]) / 800 == pytest.approx(0.35, abs=0.06)


def test_the_gate_follows_an_index_that_changes() -> None:
    gate = Gate()
    for scores in results(3, MAX_OBSERVED):
        gate.decide(scores, target_call_rate=0.35)
    # From now on all spreads are a hundred times wider; after as many again only they are remembered.
    wider = [[score * 100 for score in scores] for scores in results(4, 2 * MAX_OBSERVED)]
    calls = [gate.decide(scores, target_call_rate=0.35).call for scores in wider]
    assert sum(calls[MAX_OBSERVED:]) / MAX_OBSERVED == pytest.approx(0.35, abs=0.06)


def test_the_prior_counts_until_enough_was_seen() -> None:
    gate = Gate()
    seen = [gate.decide(scores, target_call_rate=0.35).signals["threshold"] for scores in results(5, MIN_OBSERVED + 1)]
    assert seen[:MIN_OBSERVED] == [PRIOR_SPREAD] * MIN_OBSERVED
    spreads = sorted(pstdev(scores) for scores in results(5, MIN_OBSERVED))
    assert seen[MIN_OBSERVED] == pytest.approx(spreads[int(0.35 * MIN_OBSERVED)])


def test_memory_is_bounded() -> None:
    gate = Gate()
    observed = [gate.decide(it, target_call_rate=0.35).signals["observed"] for it in results(6, MAX_OBSERVED + 200)]
    assert max(observed) == observed[-1] == MAX_OBSERVED


@given(st.lists(st.lists(st.floats(-1, 1), max_size=5), max_size=60), st.floats(0, 1))
def test_the_same_history_makes_the_same_decisions(history: list[list[float]], target: float) -> None:
    one, other = Gate(), Gate()
    assert [one.decide(it, target_call_rate=target) for it in history] == [
        other.decide(it, target_call_rate=target) for it in history
    ]


def test_many_threads_lose_no_observation() -> None:
    gate, together = Gate(), Barrier(16)

    def decide(seed: int) -> int:
        together.wait()
        return len([gate.decide(scores, target_call_rate=0.35) for scores in results(seed, 25)])

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(decide, range(16))) == 400
    assert gate.decide([0.5, 0.4], target_call_rate=0.35).signals["observed"] == 401


def test_many_threads_beyond_the_bound_keep_the_order_intact() -> None:
    gate, together = Gate(), Barrier(8)

    def decide(seed: int) -> None:
        together.wait()
        for scores in results(seed, 200):
            gate.decide(scores, target_call_rate=0.35)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decide, range(8)))
    calls = [gate.decide(scores, target_call_rate=0.35).call for scores in results(99, 1_000)]
    assert sum(calls) / 1_000 == pytest.approx(0.35, abs=0.06)


# --- what needs no model ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "hi", "Hello!", "  hey  ", "Thank you very much.", "THANKS!!!", "good   morning", "ok", "¡Hola!",
        "muchas gracias", "¿sí?", "Guten Tag", "danke!", "Vielen Dank.", "Tschüss", "Bonjour", "merci beaucoup…",
        "d'accord", "d’accord", "Ciao!", "grazie mille", "Olá!", "obrigada", "Dank je", "tot ziens",
    ],
)  # fmt: skip
def test_a_greeting_or_thanks_is_small_talk(query: str) -> None:
    assert nothing_to_transform(query, []) == "small_talk"


@pytest.mark.parametrize(
    "query",
    ["", "?", "hi what is RAG", "thanks for the invoice number", "hello world program", "OKR", "what is ok"],
)
def test_a_question_is_not_small_talk(query: str) -> None:
    assert nothing_to_transform(query, []) == ""


@pytest.mark.parametrize(
    ("query", "identifiers"),
    [
        ("ERR-4711", ["ERR-4711"]),
        ("  ERR-4711, SKU 12?", ["ERR-4711", "SKU 12"]),
        ("A-1 A-12", ["A-1", "A-12"]),
        ("https://example.org/x?id=1", ["https://example.org/x?id=1"]),
        ("42 42", ["42"]),
    ],
)
def test_identifiers_alone_need_no_model(query: str, identifiers: list[str]) -> None:
    assert nothing_to_transform(query, identifiers) == "only_identifiers"


@pytest.mark.parametrize(
    ("query", "identifiers"),
    [("what is ERR-4711", ["ERR-4711"]), ("ERR-4711", []), ("", []), ("ERR-4711 東京", ["ERR-4711"]), ("x1", ["1"])],
)
def test_identifiers_beside_words_do(query: str, identifiers: list[str]) -> None:
    assert nothing_to_transform(query, identifiers) == ""


@given(st.text(), st.lists(st.text(), max_size=4))
def test_any_text_can_be_looked_at(query: str, identifiers: list[str]) -> None:
    assert nothing_to_transform(query, identifiers) in ("", "small_talk", "only_identifiers")
