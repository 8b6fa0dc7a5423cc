"""Whether a difference between two systems is more than chance.

Source: Smucker, Allan and Carterette 2007 (randomisation test and bootstrap in retrieval), Holm 1979.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qtmiddleware.errors import MissingExtra

RESAMPLES: Final = 9_999
"""So many resamples, which with the sample itself make ten thousand."""
CONFIDENCE: Final = 0.95
SIGNIFICANT: Final = 0.05
_AT_ONCE: Final = 4_000_000
"""Numbers held at once while resampling: 32 MB."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean difference *gain* with its 95 % interval from *low* to *high* and the probability *p* of chance.

    *p_holm* is *p* corrected for all systems that were compared, so that below 0.05 is significant.
    """

    gain: float = 0.0
    low: float = 0.0
    high: float = 0.0
    p: float = 1.0
    p_holm: float = 1.0

    @property
    def is_significant(self) -> bool:
        """Whether chance is an unlikely explanation, at the 5 % level after the correction."""
        return self.p_holm < SIGNIFICANT

    def to_dict(self) -> dict[str, float]:
        """All of it as plain data."""
        return {"gain": self.gain, "low": self.low, "high": self.high, "p": self.p, "pHolm": self.p_holm}


def difference(gains: Sequence[float], *, seed: int = 0) -> Difference:
    """The mean of *gains*, one a question, with a paired bootstrap interval and a two-sided randomisation test.

    Both resample `RESAMPLES` times with *seed*. Without gains, or where none differs from 0, it is no difference.
    Raises `MissingExtra` without scipy.
    """
    try:
        import numpy as np
        from scipy import stats
    except ImportError as error:
        raise MissingExtra("scipy", "eval") from error
    sample = np.asarray(gains, dtype=float)
    if not sample.any():
        return Difference()
    gain = float(sample.mean())
    if len(sample) == 1:
        return Difference(gain, gain, gain)
    drawn: dict[str, Any] = {"n_resamples": RESAMPLES, "batch": max(1, _AT_ONCE // len(sample)), "vectorized": True}
    interval = stats.bootstrap(
        (sample,), np.mean, method="percentile", confidence_level=CONFIDENCE, rng=np.random.default_rng(seed), **drawn
    ).confidence_interval
    test = stats.permutation_test(
        (sample,), np.mean, permutation_type="samples", rng=np.random.default_rng(seed), **drawn
    )
    # Of equal gains the means differ in their last digit, and either end may be the larger one.
    low, high = sorted((float(interval.low), float(interval.high)))
    return Difference(gain, low, high, float(test.pvalue))


def holm(probabilities: Mapping[str, float]) -> dict[str, float]:
    """Each of the *probabilities* corrected for being one of many: the k-th smallest of n times (n - k + 1), at most 1.

    A larger one is never corrected to less than a smaller one.
    """
    corrected: dict[str, float] = {}
    least = 0.0
    for place, (name, p) in enumerate(sorted(probabilities.items(), key=lambda entry: entry[1])):
        least = max(least, min(1.0, p * (len(probabilities) - place)))
        corrected[name] = least
    return corrected
