"""The measures are their formulas, and the tests of differences are those of the literature."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import log2
from statistics import fmean
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qtmiddleware.kit.evaluation import Difference, measures
from qtmiddleware.kit.evaluation.measures import RESAMPLES, evaluate, holm


def means(*given: Any) -> dict[str, float]:
    return {name: fmean(values.values()) for name, values in evaluate(*given).items()}


def difference(gains: Sequence[float], *, seed: int = 0) -> Difference:
    return measures.difference(dict(enumerate(gains)), seed=seed)


def test_the_measures_are_their_formulas_on_the_first_ten() -> None:
    found = means({"q": {"a": 1, "b": 2, "c": 0, "d": 1}}, {"q": ["x", "b", "c", "a", "b"]})
    ideal = 2 / log2(2) + 1 / log2(3) + 1 / log2(4)
    assert found == pytest.approx(
        {
            "nDCG@10": (2 / log2(3) + 1 / log2(5)) / ideal,
            "R@10": 2 / 3,
            "MRR@10": 1 / 2,
            "P@5": 2 / 5,
            "AP": (1 / 2 + 2 / 4) / 3,
        }
    )
    ids = [f"p{number:02}" for number in range(11)]
    assert means({"q": {ids[10]: 1}}, {"q": ids})["R@10"] == 0.0


def test_a_question_that_found_nothing_counts_0_and_an_unjudged_one_not_at_all() -> None:
    qrels = {"a": {"p": 1}, "b": {"p": 1}, "c": {"p": 1}, "d": {"p": 0}}
    found = evaluate(qrels, {"a": ["p"], "b": [], "d": ["p"], "unjudged": ["p"]})
    assert found["nDCG@10"] == {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0}


@pytest.mark.parametrize("mean", [0.0, 0.04])
def test_for_normal_gains_the_test_says_what_students_says(mean: float) -> None:
    from scipy import stats

    sample = [float(value) for value in stats.norm(mean, 0.2).rvs(120, random_state=3)]
    expected = stats.ttest_rel(sample, [0.0] * len(sample))
    found, interval = difference(sample), expected.confidence_interval()
    assert found.p == pytest.approx(float(expected.pvalue), abs=0.02)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=0.006)


def test_a_small_sample_is_tested_by_every_sign_there_is() -> None:
    sample = [0.1, 0.2, 0.3, -0.05, 0.4]
    signed = [
        abs(sum(sign * gain for sign, gain in zip(signs, sample, strict=True)))
        for signs in product((1, -1), repeat=5)
    ]
    exact = sum(value >= abs(sum(sample)) - 1e-12 for value in signed) / 2**5
    assert difference(sample).p == pytest.approx(exact)
    assert difference([0.5] * 40).p == pytest.approx(2 / (RESAMPLES + 1), abs=1e-4)
    assert difference([]) == Difference()
    assert (difference([0.0, 1e-12]).gain, difference([0.0, 1e-12]).p) == (0.0, 1.0)
    assert difference([0.25]) == Difference(0.25, 0.25, 0.25, gains={0: 0.25})  # type: ignore[dict-item]


@settings(max_examples=25, deadline=None)
@example([0.668, 0.668], 0)
@given(
    st.lists(st.floats(-1, 1).map(lambda value: round(value, 3)), min_size=2, max_size=40),
    st.integers(0, 5),
)
def test_a_difference_lies_in_its_interval_and_depends_on_the_seed_alone(
    sample: list[float], seed: int
) -> None:
    found = difference(sample, seed=seed)
    assert found == difference(list(sample), seed=seed)
    assert min(sample) - 1e-9 <= found.low <= found.high <= max(sample) + 1e-9
    assert 0 < found.p <= 1


def correct(p_values: dict[str, float]) -> dict[str, float]:
    tested = {name: Difference(p=p) for name, p in p_values.items()}
    return {name: found.p_holm for name, found in holm(tested).items()}


def test_holm_is_as_computed_by_hand() -> None:
    # Sorted 0.005, 0.011, 0.02, 0.04, 0.13, times 5, 4, 3, 2, 1: 0.025, 0.044, 0.06, 0.08, 0.13.
    found = correct({"a": 0.02, "b": 0.005, "c": 0.13, "d": 0.04, "e": 0.011})
    assert found == pytest.approx({"b": 0.025, "e": 0.044, "a": 0.06, "d": 0.08, "c": 0.13})
    # The second is never less than the first.
    assert correct({"a": 0.01, "b": 0.011, "c": 0.9})["b"] == pytest.approx(0.03)
    assert correct({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert not Difference(p=0.01, p_holm=0.05).is_significant
