"""Compute retrieval measures like trec_eval, and test differences for significance.

Sources: Smucker, Allan and Carterette 2007 (randomisation test and bootstrap in retrieval), Holm
1979.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from qtmiddleware.errors import MissingExtra
from qtmiddleware.kit.evaluation.dataset import Qrels
from qtmiddleware.kit.evaluation.formatting import format_points, to_json

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

# The values of measures, by the measure's name and question id.
PerQuery = Mapping[str, Mapping[str, float]]


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
        return values
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
    return values


@dataclass(frozen=True, slots=True)
class Difference:
    """A system's mean gain over the baseline in one measure.

    Attributes:
        gain: The mean of the gains of the questions.
        low, high: The ends of the 95% bootstrap interval.
        p: The p-value of the two-sided paired randomisation test.
        p_holm: The p-value after Holm's correction for all compared systems.
        tests: The number of tests that the correction is for.
        gains: The gain of each question, by question id.
    """

    gain: float = 0.0
    low: float = 0.0
    high: float = 0.0
    p: float = 1.0
    p_holm: float = 1.0
    tests: int = 1
    gains: Mapping[str, float] = field(default_factory=dict, repr=False)

    @property
    def is_significant(self) -> bool:
        """``True`` if the gain or loss is significant at 5 % after the correction."""
        return self.p_holm < SIGNIFICANT

    @property
    def better(self) -> int:
        """The number of questions that got better."""
        return sum(gain > 0 for gain in self.gains.values())

    @property
    def worse(self) -> int:
        """The number of questions that got worse."""
        return sum(gain < 0 for gain in self.gains.values())

    def worst(self, count: int = 10) -> list[tuple[str, float]]:
        """Return the ids and the (negative) gains of the questions that lost most."""
        lost = [(id_, gain) for id_, gain in self.gains.items() if gain < 0]
        return sorted(lost, key=lambda entry: (entry[1], entry[0]))[:count]

    def format_gain(self) -> str:
        """Return the gain in points with its interval, such as ``+12.3 [+8.1, +16.4]``."""
        low, high = format_points(self.low), format_points(self.high)
        return f"{format_points(self.gain)} [{low}, {high}]"

    def describe_chance(self) -> str:
        """Return whether the gain may be chance, and why if its interval does not include 0."""
        if self.is_significant:
            return "is more than chance"
        if self.low <= 0 <= self.high:
            return "may be chance"
        why = f" after correction for {self.tests} comparisons" if self.tests > 1 else ""
        p = self.p_holm
        value = "p < .001" if p < 0.001 else f"p = {p:.2g}".replace("0.", ".", 1)
        return f"may be chance ({value}{why})"

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a dict, ready for JSON."""
        return to_json(self, leave_out=("gains",))


def difference(gains: Mapping[Any, float], *, seed: int = 0) -> Difference:
    """Return the mean of *gains*, one per question, with its interval and p-value.

    Raises `MissingExtra` if scipy is not installed.
    """
    try:
        import numpy as np
        from scipy import stats
    except ImportError as error:
        raise MissingExtra("scipy", "eval") from error
    gains = {id_: gain if abs(gain) > TOLERANCE else 0.0 for id_, gain in gains.items()}
    sample = np.fromiter(gains.values(), dtype=float)
    if not sample.any():
        return Difference(gains=gains)
    gain = float(sample.mean())
    if len(sample) == 1:
        return Difference(gain, gain, gain, gains=gains)

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
    return Difference(gain, low, high, float(test.pvalue), gains=gains)


def holm(differences: Mapping[str, Difference]) -> dict[str, Difference]:
    """Return *differences* with their p-values corrected after Holm for the number of tests."""
    corrected: dict[str, Difference] = {}
    least, count = 0.0, len(differences)
    for place, name in enumerate(sorted(differences, key=lambda name: differences[name].p)):
        least = max(least, min(1.0, differences[name].p * (count - place)))
        corrected[name] = replace(differences[name], p_holm=least, tests=count)
    return corrected
