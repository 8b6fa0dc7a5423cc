"""The gate: what a first result says of itself, and when a question is worth a call to the model."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from qtmiddleware.retrieval.signals import MAX_OBSERVED, Gate
from tests.support.retrieval_world import QUERY, Searched, Way, every_way, search, transforming

# --- signals --------------------------------------------------------------------------------------


# --- what is decided ------------------------------------------------------------------------------

WORDS = ["jaguar", "pantanal", "fish", "river", "night"]
KEYWORDS = " ".join(WORDS)
UNSURE = ([0.80, 0.79, 0.79, 0.78], ["cats", "dogs", "night", "jaguar fish river"])
CLEAR = ([0.95, 0.70, 0.30, 0.20], ["jaguar fish pantanal", "jaguar river night", "jaguar", "cats"])


def results(seed: int, count: int) -> list[list[float]]:
    """First results of an index: each falls off from its best score at a pace of its own."""
    random = Random(seed)
    paces = [random.random() * 0.05 for _ in range(count)]
    return [[0.9 - pace * place for place in range(10)] for pace in paces]


def passages(seed: int, count: int) -> Iterator[tuple[list[float], list[str]]]:
    """First results of an index with their texts, some of which hold many of the words and others none."""
    random = Random(seed)
    for scores in results(seed, count):
        held = random.random()
        texts = [[word for word in WORDS if random.random() < held] for _ in scores]
        yield scores, [" ".join(words) or "cats" for words in texts]


def decide(gate: Gate, scores: Any, texts: Any = (), *, rate: float = 0.35) -> Any:
    return gate.decide_model_call(scores, texts, KEYWORDS, target_call_rate=rate)


def rate_of(decisions: Any, first: int = 0) -> float:
    calls = [decision.call for decision in decisions][first:]
    return sum(calls) / len(calls)


def test_an_unsure_result_asks_and_a_clear_one_does_not_before_anything_is_known() -> None:
    asked, left = (decide(Gate(), *result) for result in (UNSURE, CLEAR))
    assert (asked.call, asked.reason) == (True, "unsure_first_result")
    assert (left.call, left.reason) == (False, "clear_first_result")


@pytest.mark.parametrize("scores", [[], [0.5], [None, None], [None, 0.5, None]])
def test_a_result_that_tells_nothing_asks_the_model(scores: list[float | None]) -> None:
    decision = decide(Gate(), scores, [None] * len(scores))
    assert (decision.call, decision.reason) == (True, "too_few_scores")


# --- calibration ----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [0.1, 0.35, 0.8])
def test_the_call_rate_comes_close_to_what_was_asked_for(target: float) -> None:
    alone, both = Gate(), Gate()
    by_scores = [decide(alone, scores, rate=target) for scores in results(7, 2_000)]
    by_words = [decide(both, *result, rate=target) for result in passages(7, 2_000)]
    for decisions in (by_scores, by_words):
        assert rate_of(decisions, 500) == pytest.approx(target, abs=0.02)


def test_the_gate_remembers_a_bounded_number_and_follows_an_index_that_changes() -> None:
    gate = Gate()
    for scores in results(3, MAX_OBSERVED):
        decide(gate, scores)
    # From now on all leads are a hundred times longer; after as many again only they are
    # remembered.
    wider = [[score * 100 for score in scores] for scores in results(4, 2 * MAX_OBSERVED)]
    decisions = [decide(gate, scores) for scores in wider][MAX_OBSERVED:]
    assert rate_of(decisions) == pytest.approx(0.35, abs=0.03)
    asked, left = (
        [it.signals["lead"] for it in decisions if it.call is call] for call in (True, False)
    )
    assert sum(asked) / len(asked) < sum(left) / len(left) / 2
    assert decisions[-1].signals["observed"] == MAX_OBSERVED


def test_calls_that_are_made_anyway_count() -> None:
    gate, calls = Gate(), 0
    for query, result in enumerate(passages(9, 2_000)):
        if query % 8:
            calls += decide(gate, *result).call
        else:
            gate.record_forced_call(0.35)
            calls += 1
    assert calls / 2_000 == pytest.approx(0.35, abs=0.02)


def test_many_threads_lose_no_observation() -> None:
    gate = Gate()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda scores: decide(gate, scores), results(5, 400)))
    assert decide(gate, [0.5, 0.4]).signals["observed"] == 400


# --- in a retrieval -------------------------------------------------------------------------------

SIGNALS = ["lead", "coverage", "agreement", "joint_lead"]
AUTO = transforming("rewrite", escalation={"mode": "auto"}, cache={"enabled": False})


def signals_of(searched: Searched, query: str = QUERY) -> dict[str, float]:
    decision = searched.retrieve(query).trace.decision
    assert decision is not None
    return dict(decision.signals)


@every_way
def test_scores_and_texts_decide_and_the_decision_holds_its_numbers(way: Way) -> None:
    signals = signals_of(way.wrap(config=AUTO))
    assert list(signals) == [*SIGNALS, "doubt", "threshold", "observed"]
    assert signals["coverage"] == 1.0


@pytest.mark.parametrize(
    ("kept", "signals"),
    [(("id", "score"), SIGNALS[:1]), (("id", "metadata"), SIGNALS[1:]), (("id",), [])],
)
def test_what_is_missing_is_left_out(kept: tuple[str, ...], signals: list[str]) -> None:
    def respond(query: str, top_k: int) -> Any:
        return [{name: row[name] for name in kept} for row in search(query, top_k)]

    found = signals_of(Way("sync").wrap(respond, config=AUTO))
    assert [name for name in found if name in SIGNALS] == signals
