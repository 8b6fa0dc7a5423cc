"""The field's measures as trec_eval computes them, whether a difference is more than chance, and how systems compare.

Sources: Smucker, Allan and Carterette 2007 (randomisation test and bootstrap in retrieval), Holm
1979.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from math import ceil
from typing import Any, Final

from qtmiddleware.errors import MissingExtra
from qtmiddleware.kit.evaluation.dataset import Qrels
from qtmiddleware.kit.evaluation.systems import Run

MEASURES: Final = ("nDCG@10", "R@10", "MRR@10", "P@5", "AP")
"""What is measured of the first passages."""
DEEP: Final = ("R@100",)
"""What is measured of the first hundred."""
TOP_K: Final = 10
"""So many passages a system is asked for: as far as the measures of the first look."""
DEPTH: Final = 100
"""So many it is asked for once more where the first hundred are measured."""
PRIMARY: Final = "nDCG@10"
"""The measure by which systems are compared: gain, significance, hurt rate."""
TOLERANCE: Final = 1e-9
"""By how much two values of a measure must differ to be different, and not the rounding of one."""
RESAMPLES: Final = 9_999
"""So many resamples, which with the sample itself make ten thousand."""
CONFIDENCE: Final = 0.95
SIGNIFICANT: Final = 0.05
FEW: Final = 30
"""With fewer questions only a large difference can be seen."""
_NUMBERS_AT_ONCE: Final = 4_000_000
"""Numbers held at once while resampling: 32 MB."""


@dataclass(frozen=True, slots=True)
class PerQuery:
    """Every measure of every judged question: *values* by measure, then by the question's id, each from 0 to 1."""

    values: Mapping[str, Mapping[str, float]] = field(repr=False)

    @property
    def means(self) -> dict[str, float]:
        """The mean of each measure over all judged questions; 0 where there are none."""
        return {
            name: sum(found.values()) / len(found) if found else 0.0
            for name, found in self.values.items()
        }


def evaluate(
    qrels: Qrels, run: Mapping[str, Sequence[str]], measures: Sequence[str] = MEASURES
) -> PerQuery:
    """Measure *run*, the ids each question found, best first, against the judgements.

    A judged question that found nothing, or is not in *run*, counts 0; an unjudged one is not
    counted. An id that comes twice counts where it first stands. Measures: nDCG@10 (gain = grade,
    Järvelin and Kekäläinen 2002), R@10, MRR@10, P@5, AP (its mean over the questions is MAP) and
    R@100. Raises `MissingExtra` without ir-measures.
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
    """Return a falling score for each rank, as trec_eval orders by score and breaks ties by id, not by place."""
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
        """Return all of it as plain data."""
        return {
            "gain": self.gain,
            "low": self.low,
            "high": self.high,
            "p": self.p,
            "pHolm": self.p_holm,
        }


def difference(gains: Sequence[float], *, seed: int = 0) -> Difference:
    """Return the mean of *gains*, one a question, with a paired bootstrap interval and a two-sided randomisation test.

    Both resample `RESAMPLES` times with *seed*. Without gains, or where none differs from 0, it is
    no difference. Raises `MissingExtra` without scipy.
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
        (sample,),
        np.mean,
        method="percentile",
        confidence_level=CONFIDENCE,
        rng=np.random.default_rng(seed),
        **drawn,
    ).confidence_interval
    test = stats.permutation_test(
        (sample,), np.mean, permutation_type="samples", rng=np.random.default_rng(seed), **drawn
    )
    # Of equal gains the means differ in their last digit, and either end may be the larger one.
    low, high = sorted((float(interval.low), float(interval.high)))
    return Difference(gain, low, high, float(test.pvalue))


def sign_test(better: int, worse: int) -> float:
    """Return the two-sided probability that chance makes so uneven counts, ties aside; 1.0 if both are 0.

    Raises `MissingExtra` without scipy.
    """
    try:
        from scipy import stats
    except ImportError as error:
        raise MissingExtra("scipy", "eval") from error
    return float(stats.binomtest(better, better + worse).pvalue) if better + worse else 1.0


def holm(probabilities: Mapping[str, float]) -> dict[str, float]:
    """Return each of the *probabilities* corrected for being one of many.

    The k-th smallest of n is multiplied by (n - k + 1), at most to 1, and never less than a smaller
    one.
    """
    corrected: dict[str, float] = {}
    least = 0.0
    for place, (name, p) in enumerate(sorted(probabilities.items(), key=lambda entry: entry[1])):
        least = max(least, min(1.0, p * (len(probabilities) - place)))
        corrected[name] = least
    return corrected


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Half of the values are at most *p50*, 95 of 100 at most *p95* (nearest rank)."""

    p50: float = 0.0
    p95: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        """Return those of *values*; 0 where there are none."""
        ordered = sorted(values)
        if not ordered:
            return cls()
        return cls(*(ordered[ceil(share * len(ordered)) - 1] for share in (0.5, 0.95)))

    def to_dict(self) -> dict[str, float]:
        """Return both as plain data."""
        return {"p50": self.p50, "p95": self.p95}


@dataclass(frozen=True, slots=True)
class SystemScore:
    """How one system did on all questions.

    *difference* is its nDCG@10 less the baseline's; *hurt_rate* and *helped_rate* are the shares of
    questions with a lower or higher one. *gains* holds it for every single question, *runs* and
    *per_query* what was found and measured there. *added_ms* is what the system reported of itself
    or, where it reported nothing, its time beyond the baseline's on the same question; *stages_ms*
    the milliseconds of each stage, over the questions that went through it. *cost_usd* is that of
    the model for all questions, ``None`` where a price is not known or every answer was degraded.
    *failed* counts the questions it failed on, which no figure is about.
    """

    name: str
    means: Mapping[str, float]
    difference: Difference
    hurt_rate: float
    helped_rate: float
    added_ms: Percentiles
    stages_ms: Mapping[str, Percentiles]
    llm_calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    degraded: int
    gains: Mapping[str, float] = field(repr=False)
    per_query: PerQuery = field(repr=False)
    runs: Mapping[str, Run] = field(repr=False)
    failed: int = 0

    @property
    def call_rate(self) -> float:
        """The share of the questions for which the model was asked at all."""
        return sum(run.llm_calls > 0 for run in self.runs.values()) / len(self.runs)

    @property
    def searches(self) -> int | None:
        """How many searches all questions took, ``None`` where that is not known."""
        counts = [run.searches for run in self.runs.values()]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def searches_per_question(self) -> float | None:
        """How many searches a question took, on the average; ``None`` where that is not known."""
        return None if self.searches is None else self.searches / len(self.runs)

    @property
    def usd_per_thousand(self) -> float | None:
        """US dollars that the model costs for a thousand questions, ``None`` where that is not known."""
        return None if self.cost_usd is None else 1_000 * self.cost_usd / len(self.runs)

    @property
    def read_usd_per_thousand(self) -> float | None:
        """US dollars that the searches of a thousand questions cost, ``None`` where that is not known."""
        costs = [run.read_cost_usd for run in self.runs.values()]
        return (
            None
            if None in costs
            else 1_000 * sum(cost for cost in costs if cost is not None) / len(costs)
        )

    @property
    def usd_per_point(self) -> float | None:
        """US dollars that the model costs for a thousand questions and each +0.01 of nDCG@10.

        ``None`` where the cost is not known or nothing was gained.
        """
        cost, gain = self.usd_per_thousand, self.difference.gain
        return None if cost is None or gain <= TOLERANCE else cost / (100 * gain)

    def worst(self, count: int = 10) -> list[tuple[str, float]]:
        """Return the ids of the *count* questions that lost most against the baseline, and what they lost; worst first.

        Only those that lost anything.
        """
        lost = [(question, gain) for question, gain in self.gains.items() if gain < -TOLERANCE]
        return sorted(lost, key=lambda entry: entry[1])[:count]

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data, without what was searched and found."""
        worst = self.worst(1)
        return {
            "name": self.name,
            "means": dict(self.means),
            "difference": self.difference.to_dict(),
            "hurtRate": self.hurt_rate,
            "helpedRate": self.helped_rate,
            "worstQuestion": {"id": worst[0][0], "gain": worst[0][1]} if worst else None,
            "addedMs": self.added_ms.to_dict(),
            "stagesMs": {name: found.to_dict() for name, found in self.stages_ms.items()},
            "searches": self.searches,
            "searchesPerQuestion": self.searches_per_question,
            "readUsdPerThousand": self.read_usd_per_thousand,
            "llmCalls": self.llm_calls,
            "callRate": self.call_rate,
            "inputTokens": self.input_tokens,
            "outputTokens": self.output_tokens,
            "costUsd": self.cost_usd,
            "usdPerThousand": self.usd_per_thousand,
            "usdPerPoint": self.usd_per_point,
            "degraded": self.degraded,
            "failed": self.failed,
            "perQuery": {name: dict(values) for name, values in self.per_query.values.items()},
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """How all systems did on one data set, in the order they were given.

    *passages* is ``None`` where it is not known, as behind a function of one's own. *notes* are
    sentences a reader must know to judge the figures: that the questions are synthetic, replies
    recorded, or tokens estimated. *seed* is that of every resampling, *data_hash* the sha256 of the
    passages, questions and judgements they were measured on.
    *fingerprints* are the same apart, by ``questions``, ``judgements`` and ``passages``, in
    whichever order they came;
    *settings* is the sha256 of each system's settings. *counts_model_time* is false where replies
    were replayed without the time they took.
    """

    dataset: str
    passages: int | None
    questions: int
    baseline: str
    systems: tuple[SystemScore, ...]
    notes: tuple[str, ...] = ()
    seed: int = 0
    data_hash: str = ""
    counts_model_time: bool = True
    fingerprints: Mapping[str, str] = field(default_factory=dict, repr=False)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> SystemScore:
        """Return the score of the system called *name*; raises `KeyError` for an unknown one."""
        return {system.name: system for system in self.systems}[name]

    @property
    def challengers(self) -> tuple[SystemScore, ...]:
        """Every system but the baseline."""
        return tuple(system for system in self.systems if system.name != self.baseline)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data, ready for JSON."""
        return {
            "dataset": self.dataset,
            "passages": self.passages,
            "questions": self.questions,
            "baseline": self.baseline,
            "notes": list(self.notes),
            "seed": self.seed,
            "dataHash": self.data_hash,
            "fingerprints": dict(self.fingerprints),
            "settingsHash": dict(self.settings),
            "version": version("qtmiddleware"),
            "countsModelTime": self.counts_model_time,
            "systems": [system.to_dict() for system in self.systems],
        }
