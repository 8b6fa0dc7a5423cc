from __future__ import annotations

from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from qtmiddleware.kit.evaluation import Difference, difference, holm
from qtmiddleware.kit.evaluation.measures import RESAMPLES

gains = st.lists(st.floats(-1, 1).map(lambda value: round(value, 3)), min_size=2, max_size=40)
probabilities = st.dictionaries(st.text(max_size=3), st.floats(0, 1), max_size=8)


def normal_gains(count: int, mean: float, seed: int) -> list[float]:
    return [float(value) for value in stats.norm(mean, 0.2).rvs(count, random_state=seed)]


@pytest.mark.parametrize("mean", [0.0, 0.02, 0.04, 0.06])
def test_for_normal_gains_the_test_says_what_students_says(mean: float) -> None:
    sample = normal_gains(120, mean, seed=3)
    expected = stats.ttest_rel(sample, [0.0] * len(sample))
    found = difference(sample)
    assert found.p == pytest.approx(float(expected.pvalue), abs=0.02)
    interval = expected.confidence_interval()
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=0.006)
    assert found.gain == pytest.approx(sum(sample) / len(sample))


def test_a_small_sample_is_tested_by_every_sign_there_is() -> None:
    sample = [0.1, 0.2, 0.3, -0.05, 0.4]
    signed = [
        abs(sum(sign * gain for sign, gain in zip(signs, sample, strict=True)))
        for signs in product((1, -1), repeat=5)
    ]
    exact = sum(value >= abs(sum(sample)) - 1e-12 for value in signed) / 2**5
    assert difference(sample).p == pytest.approx(exact)


def test_gains_of_one_sign_can_be_no_less_likely_than_their_number_allows() -> None:
    assert difference([0.5] * 4).p == pytest.approx(2 / 2**4)
    assert difference([0.5] * 40).p == pytest.approx(2 / (RESAMPLES + 1), abs=1e-4)


def test_without_gains_or_a_single_one_there_is_nothing_to_resample() -> None:
    assert difference([]) == difference([0.0, 0.0]) == Difference()
    assert difference([0.25]) == Difference(0.25, 0.25, 0.25)


@settings(max_examples=25, deadline=None)
@example([0.668, 0.668], 0)
@given(gains, st.integers(0, 5))
def test_a_difference_lies_in_its_interval_and_depends_on_the_seed_alone(
    sample: list[float], seed: int
) -> None:
    found = difference(sample, seed=seed)
    assert found == difference(list(sample), seed=seed)
    assert min(sample) - 1e-9 <= found.low <= found.high <= max(sample) + 1e-9
    assert found.low - 1e-9 <= found.gain <= found.high + 1e-9 or len(sample) < 5
    assert 0 < found.p <= 1


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0.01, 1).map(lambda value: round(value, 3)), min_size=2, max_size=12))
def test_losses_are_as_likely_as_gains_of_their_size(sample: list[float]) -> None:
    won, lost = difference(sample), difference([-gain for gain in sample])
    assert won.p == pytest.approx(lost.p)
    assert won.gain == pytest.approx(-lost.gain)


def test_holm_is_as_computed_by_hand() -> None:
    # Sorted 0.005, 0.011, 0.02, 0.04, 0.13, times 5, 4, 3, 2, 1: 0.025, 0.044, 0.06, 0.08, 0.13.
    found = holm({"a": 0.02, "b": 0.005, "c": 0.13, "d": 0.04, "e": 0.011})
    assert found == pytest.approx({"b": 0.025, "e": 0.044, "a": 0.06, "d": 0.08, "c": 0.13})
    # The second is never less than the first.
    assert holm({"a": 0.01, "b": 0.011, "c": 0.9}) == pytest.approx(
        {"a": 0.03, "b": 0.03, "c": 0.9}
    )
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


@given(probabilities)
def test_holm_lowers_nothing_keeps_the_order_and_is_at_most_bonferronis(
    given_: dict[str, float],
) -> None:
    found = holm(given_)
    assert found.keys() == given_.keys()
    for name, p in given_.items():
        assert min(p, 1.0) <= found[name] <= min(1.0, p * len(given_))
    by_p = sorted(given_, key=given_.__getitem__)
    assert [found[name] for name in by_p] == sorted(found.values())


def test_significant_is_below_five_in_a_hundred_after_the_correction() -> None:
    assert not Difference(p=0.01, p_holm=0.05).is_significant
    assert Difference(p=0.01, p_holm=0.0499).is_significant
