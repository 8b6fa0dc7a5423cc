"""The field's measures as trec_eval computes them, and whether a difference between two systems is more than chance.

Sources: Smucker, Allan and Carterette 2007 (randomisation test and bootstrap in retrieval), Holm 1979.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from qtmiddleware.errors import MissingExtra
from qtmiddleware.evaluation.dataset import Qrels

MEASURES: Final = ("nDCG@10", "R@10", "MRR@10", "P@5", "AP")
"""What is measured of the first passages."""
DEEP: Final = ("R@100",)
"""What is measured of the first hundred."""
TOP_K: Final = 10
"""So many passages a system is asked for: as far as the measures of the first look."""
DEPTH: Final = 100
"""So many it is asked for once more where the first hundred are measured."""
RESAMPLES: Final = 9_999
"""So many resamples, which with the sample itself make ten thousand."""
CONFIDENCE: Final = 0.95
SIGNIFICANT: Final = 0.05
_NUMBERS_AT_ONCE: Final = 4_000_000
"""Numbers held at once while resampling: 32 MB."""


@dataclass(frozen=True, slots=True)
class PerQuery:
    """Every measure of every judged question: *values* by measure, then by the question's id, each from 0 to 1."""

    values: Mapping[str, Mapping[str, float]] = field(repr=False)

    @property
    def means(self) -> dict[str, float]:
        """The mean of each measure over all judged questions; 0 where there are none."""
        return {name: sum(found.values()) / len(found) if found else 0.0 for name, found in self.values.items()}


def evaluate(qrels: Qrels, run: Mapping[str, Sequence[str]], measures: Sequence[str] = MEASURES) -> PerQuery:
    """Measure *run*, the ids each question found, best first, against the judgements.

    A judged question that found nothing, or is not in *run*, counts 0; an unjudged one is not counted. An id that comes
    twice counts where it first stands. Measures: nDCG@10 (gain = grade, Järvelin and Kekäläinen 2002), R@10, MRR@10,
    P@5, AP (its mean over the questions is MAP) and R@100. Raises `MissingExtra` without ir-measures.
    """
    try:
        import ir_measures
    except ImportError as error:
        raise MissingExtra("ir-measures", "eval") from error
    values = {name: dict.fromkeys(qrels, 0.0) for name in measures}
    scores = {question: _score_by_rank(run[question]) for question in qrels if run.get(question)}
    if scores:
        # As objects: its parser of names uses what newer Pythons no longer have.
        known = {
            "nDCG@10": ir_measures.nDCG @ 10,
            "R@10": ir_measures.R @ 10,
            "MRR@10": ir_measures.RR @ 10,
            "P@5": ir_measures.P @ 5,
            "AP": ir_measures.AP,
            "R@100": ir_measures.R @ 100,
        }
        names: dict[Any, str] = {known[name]: name for name in measures}
        judged = {question: dict(qrels[question]) for question in scores}
        for found in ir_measures.iter_calc(list(names), judged, scores):
            values[names[found.measure]][found.query_id] = float(found.value)
    return PerQuery(values)


def _score_by_rank(ids: Sequence[str]) -> dict[str, float]:
    """A falling score for each rank, as trec_eval orders by score and breaks ties by id, not by place."""
    return {id_: -float(rank) for rank, id_ in enumerate(dict.fromkeys(ids))}


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
    drawn: dict[str, Any] = {
        "n_resamples": RESAMPLES,
        "batch": max(1, _NUMBERS_AT_ONCE // len(sample)),
        "vectorized": True,
    }
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
