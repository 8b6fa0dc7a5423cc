"""Compute retrieval measures like trec_eval, and test differences for significance.

Sources: Smucker, Allan and Carterette 2007 (randomisation test and bootstrap in retrieval), Holm
1979.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from qtmiddleware.errors import MissingExtra
from qtmiddleware.kit.evaluation.dataset import Qrels

MEASURES: Final = ("nDCG@10", "R@10", "MRR@10", "P@5", "AP")
# Systems are compared by this measure: gain, significance and hurt rate.
PRIMARY: Final = "nDCG@10"
# Each system is asked for this many passages.
TOP_K: Final = 10
# Two values of a measure count as equal if they differ by no more than this.
TOLERANCE: Final = 1e-9
# With the sample itself, there are ten thousand samples.
RESAMPLES: Final = 9_999
SIGNIFICANT: Final = 0.05
# With fewer questions than this, only a large difference can be detected.
FEW: Final = 30
_NUMBERS_AT_ONCE: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class PerQuery:
    """The values of measures, by the measure's name and question id."""

    values: Mapping[str, Mapping[str, float]] = field(repr=False)

    @property
    def means(self) -> dict[str, float]:
        """The mean of each measure over the questions; 0 if there are none."""
        return {
            name: sum(by_question.values()) / max(1, len(by_question))
            for name, by_question in self.values.items()
        }


def evaluate(
    qrels: Qrels,
    run: Mapping[str, Sequence[str]],
) -> PerQuery:
    """Return the values of all measures for every question in *qrels*.

    Raises:
        MissingExtra: ir-measures is not installed.
    """
    try:
        import ir_measures
    except ImportError as error:
        raise MissingExtra("ir-measures", "eval") from error
    questions = [question for question in qrels if run.get(question)]
    values = {name: dict.fromkeys(qrels, 0.0) for name in MEASURES}
    if not questions:
        return PerQuery(values)
    judged: dict[str, dict[str, int]] = {}
    scores: dict[str, dict[str, float]] = {}
    # trec_eval is written in C, and cuts or rejects some ids. It gets numbers instead.
    for number, question in enumerate(questions):
        grades, found = qrels[question], dict.fromkeys(run[question])
        numbers = {id_: str(place) for place, id_ in enumerate({**grades, **found})}
        judged[str(number)] = {numbers[id_]: grade for id_, grade in grades.items()}
        scores[str(number)] = {numbers[id_]: -float(rank) for rank, id_ in enumerate(found)}
    names: dict[Any, str] = {
        ir_measures.parse_measure("RR@10" if name == "MRR@10" else name): name for name in MEASURES
    }
    for result in ir_measures.iter_calc(list(names), judged, scores):
        values[names[result.measure]][questions[int(result.query_id)]] = float(result.value)
    return PerQuery(values)


@dataclass(frozen=True, slots=True)
class Difference:
    """A system's mean gain over the baseline in one measure.

    Attributes:
        gain: The mean of the gains of the questions.
        low: The lower end of the 95% bootstrap interval.
        high: The upper end of the interval.
        p: The p-value of the two-sided paired randomisation test.
        p_holm: The p-value after Holm's correction for all compared systems.
        tests: The number of tests that the correction is for.
    """

    gain: float = 0.0
    low: float = 0.0
    high: float = 0.0
    p: float = 1.0
    p_holm: float = 1.0
    tests: int = 1

    @property
    def is_significant(self) -> bool:
        """``True`` if the gain or loss is significant at 5 % after the correction."""
        return self.p_holm < SIGNIFICANT


def difference(gains: Sequence[float], *, seed: int = 0) -> Difference:
    """Return the mean of *gains*, one per question, with its interval and p-value.

    Raises `MissingExtra` if scipy is not installed.
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

    def resample(test: Any, **options: Any) -> Any:
        return test(
            (sample,),
            np.mean,
            n_resamples=RESAMPLES,
            batch=max(1, _NUMBERS_AT_ONCE // len(sample)),
            vectorized=True,
            rng=np.random.default_rng(seed),
            **options,
        )

    interval = resample(stats.bootstrap, method="percentile").confidence_interval
    test = resample(stats.permutation_test, permutation_type="samples")
    # Rounding may swap the ends of an interval of equal gains.
    low, high = sorted((float(interval.low), float(interval.high)))
    return Difference(gain, low, high, float(test.pvalue))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return *p_values* after Holm's correction for their number."""
    corrected: dict[str, float] = {}
    least = 0.0
    for place, (name, p) in enumerate(sorted(p_values.items(), key=lambda entry: entry[1])):
        least = max(least, min(1.0, p * (len(p_values) - place)))
        corrected[name] = least
    return corrected
