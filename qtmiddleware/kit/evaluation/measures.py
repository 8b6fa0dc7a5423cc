"""Compute retrieval measures like trec_eval, test differences for significance, and score systems.

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
"""The measures that are computed from the first `TOP_K` passages."""
DEEP: Final = ("R@100",)
"""The measures that are computed from the first `DEPTH` passages."""
TOP_K: Final = 10
"""The number of passages that each system is asked for. `MEASURES` use only these passages."""
DEPTH: Final = 100
"""The number of passages that each system is asked for in an extra run, to compute `DEEP`."""
PRIMARY: Final = "nDCG@10"
"""The measure by which systems are compared: gain, significance and hurt rate."""
TOLERANCE: Final = 1e-9
"""Two values of a measure count as equal if they differ by no more than this."""
RESAMPLES: Final = 9_999
"""The number of resamples. With the sample itself, there are ten thousand samples."""
CONFIDENCE: Final = 0.95
"""The confidence level of intervals."""
SIGNIFICANT: Final = 0.05
"""A p-value below this level counts as significant."""
FEW: Final = 30
"""With fewer questions than this, only a large difference can be detected."""
_NUMBERS_AT_ONCE: Final = 4_000_000
"""Resampling holds at most this many floats in memory at once (32 MB)."""


@dataclass(frozen=True, slots=True)
class PerQuery:
    """The value of every measure for every judged question.

    Attributes:
        values: The values, from 0 to 1, by measure and question id.
    """

    values: Mapping[str, Mapping[str, float]] = field(repr=False)

    @property
    def means(self) -> dict[str, float]:
        """The mean of each measure over all judged questions; 0 if there are none."""
        return {
            name: sum(by_question.values()) / len(by_question) if by_question else 0.0
            for name, by_question in self.values.items()
        }


def compute_measures(
    qrels: Qrels, ranked_ids: Mapping[str, Sequence[str]], measures: Sequence[str] = MEASURES
) -> PerQuery:
    """Return the value of each of *measures* for each judged question.

    The value is 0 for a judged question without results. Questions without judgements are ignored.
    If a passage id occurs twice in a list, its first rank counts.

    Args:
        qrels: The judgements: grades by question id and passage id.
        ranked_ids: The passage ids that the system returned, best first, by question id.
        measures: The measures to compute: nDCG@10 (the gain is the grade, Järvelin and Kekäläinen
            2002), R@10, MRR@10, P@5, AP (its mean over the questions is MAP) and R@100.

    Raises:
        MissingExtra: ir-measures is not installed.
    """
    try:
        import ir_measures
    except ImportError as error:
        raise MissingExtra("ir-measures", "eval") from error
    # ir-measures gets only the questions with results. The others keep the value 0.
    values = {name: dict.fromkeys(qrels, 0.0) for name in measures}
    scores = {
        question: _build_rank_scores(ranked_ids[question])
        for question in qrels
        if ranked_ids.get(question)
    }
    if scores:
        # Objects, not names: ir-measures' name parser needs a module that newer Pythons lack.
        measure_objects = {
            "nDCG@10": ir_measures.nDCG @ 10,
            "R@10": ir_measures.R @ 10,
            "MRR@10": ir_measures.RR @ 10,
            "P@5": ir_measures.P @ 5,
            "AP": ir_measures.AP,
            "R@100": ir_measures.R @ 100,
        }
        names: dict[Any, str] = {measure_objects[name]: name for name in measures}
        judged = {question: dict(qrels[question]) for question in scores}
        for result in ir_measures.iter_calc(list(names), judged, scores):
            values[names[result.measure]][result.query_id] = float(result.value)
    return PerQuery(values)


def _build_rank_scores(passage_ids: Sequence[str]) -> dict[str, float]:
    """Return a score for each of *passage_ids*: 0 for the first id, -1 for the next, and so on."""
    return {id_: -float(rank) for rank, id_ in enumerate(dict.fromkeys(passage_ids))}


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean difference between two systems, with its confidence interval and p-value.

    Attributes:
        gain: The mean difference.
        low: The lower end of the 95 % interval.
        high: The upper end of the 95 % interval.
        p: The p-value: the probability of a difference at least this large by chance.
        p_holm: The p-value, corrected for the number of compared systems (Holm).
    """

    gain: float = 0.0
    low: float = 0.0
    high: float = 0.0
    p: float = 1.0
    p_holm: float = 1.0

    @property
    def is_significant(self) -> bool:
        """``True`` if the corrected p-value `p_holm` is below 0.05."""
        return self.p_holm < SIGNIFICANT

    def to_dict(self) -> dict[str, float]:
        """Return the difference as a dict, ready for JSON."""
        return {
            "gain": self.gain,
            "low": self.low,
            "high": self.high,
            "p": self.p,
            "pHolm": self.p_holm,
        }


def measure_difference(gains: Sequence[float], *, seed: int = 0) -> Difference:
    """Return the mean of *gains*, its bootstrap interval, and its p-value.

    The p-value is that of a two-sided randomisation test. The interval and the test each use
    `RESAMPLES` resamples. If there are no gains, or all gains are 0, the p-value is 1.

    Args:
        gains: The difference between two systems on each question.
        seed: The seed of the resamples.

    Raises:
        MissingExtra: scipy is not installed.
    """
    try:
        import numpy as np
        from scipy import stats
    except ImportError as error:
        raise MissingExtra("scipy", "eval") from error
    sample = np.asarray(gains, dtype=float)
    # If all gains are 0, every resample is 0 too, so there is nothing to test.
    if not sample.any():
        return Difference()
    gain = float(sample.mean())
    # Resamples of a single question are all equal, and no difference can be significant.
    if len(sample) == 1:
        return Difference(gain, gain, gain)
    resampling: dict[str, Any] = {
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
        **resampling,
    ).confidence_interval
    test = stats.permutation_test(
        (sample,),
        np.mean,
        permutation_type="samples",
        rng=np.random.default_rng(seed),
        **resampling,
    )
    # If all gains are equal, the resampled means differ in their last digit only, and the lower
    # end may come out as the larger one.
    low, high = sorted((float(interval.low), float(interval.high)))
    return Difference(gain, low, high, float(test.pvalue))


def compute_sign_test_p_value(better_count: int, worse_count: int) -> float:
    """Return the p-value of a two-sided sign test on the numbers of better and worse questions.

    If both numbers are 0, the p-value is 1.0. Raises `MissingExtra` if scipy is not installed.
    """
    try:
        from scipy import stats
    except ImportError as error:
        raise MissingExtra("scipy", "eval") from error
    return (
        float(stats.binomtest(better_count, better_count + worse_count).pvalue)
        if better_count + worse_count
        else 1.0
    )


def correct_p_values(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return *p_values*, corrected for the number of tests by Holm's method.

    *p_values* maps the name of each test to its p-value. The k-th smallest of n p-values is
    multiplied by (n - k + 1). Corrected p-values are at most 1, and their order stays the same.

    Source: Holm 1979.
    """
    corrected: dict[str, float] = {}
    least = 0.0
    for place, (name, p) in enumerate(sorted(p_values.items(), key=lambda entry: entry[1])):
        # A corrected value is never below the one before it, so the order is kept.
        least = max(least, min(1.0, p * (len(p_values) - place)))
        corrected[name] = least
    return corrected


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The 50th and 95th percentiles of a list of values, by nearest rank.

    Attributes:
        p50: The median: half of the values are at most this large.
        p95: The 95th percentile: 95 of 100 values are at most this large.
    """

    p50: float = 0.0
    p95: float = 0.0

    @classmethod
    def from_values(cls, values: Sequence[float]) -> Percentiles:
        """Return the percentiles of *values*; both are 0 if *values* is empty."""
        ordered = sorted(values)
        if not ordered:
            return cls()
        return cls(*(ordered[ceil(share * len(ordered)) - 1] for share in (0.5, 0.95)))

    def to_dict(self) -> dict[str, float]:
        """Return both percentiles as a dict, ready for JSON."""
        return {"p50": self.p50, "p95": self.p95}


@dataclass(frozen=True, slots=True)
class SystemScore:
    """One system's measures, times and costs over all questions.

    Attributes:
        name: The system's name.
        means: The mean of each measure over the questions.
        difference: The system's nDCG@10 minus the baseline's.
        hurt_rate: The share of questions with a lower nDCG@10 than the baseline's.
        helped_rate: The share of questions with a higher nDCG@10 than the baseline's.
        added_ms: The milliseconds that the system adds to a plain search. If the system does not
            report them: the system's time minus the baseline's time for the same question.
        stages_ms: The milliseconds of each stage, over the questions for which the stage ran.
        llm_calls: The number of model calls for all questions.
        input_tokens: The number of tokens that the model read.
        output_tokens: The number of tokens that the model wrote.
        cost_usd: The model's cost for all questions in US dollars. ``None`` if a price is not known
            or every answer was degraded.
        degraded: The number of degraded answers.
        gains: The system's nDCG@10 minus the baseline's, by question id.
        per_query: The value of each measure for each question.
        runs: The system's result for each question, by question id.
        failed: The number of questions on which the system failed. All other figures leave out
            these questions.
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
        """The share of questions for which the model was called at least once."""
        return sum(run.llm_calls > 0 for run in self.runs.values()) / len(self.runs)

    @property
    def searches(self) -> int | None:
        """The number of searches for all questions; ``None`` if the number is not known."""
        counts = [run.searches for run in self.runs.values()]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def searches_per_question(self) -> float | None:
        """The mean number of searches per question; ``None`` if the number is not known."""
        return None if self.searches is None else self.searches / len(self.runs)

    @property
    def usd_per_thousand(self) -> float | None:
        """The model's cost in US dollars per thousand questions; ``None`` if not known."""
        return None if self.cost_usd is None else 1_000 * self.cost_usd / len(self.runs)

    @property
    def read_usd_per_thousand(self) -> float | None:
        """The searches' cost in US dollars per thousand questions; ``None`` if not known."""
        costs = [run.read_cost_usd for run in self.runs.values()]
        return (
            None
            if None in costs
            else 1_000 * sum(cost for cost in costs if cost is not None) / len(costs)
        )

    @property
    def usd_per_point(self) -> float | None:
        """The model's cost per 0.01 nDCG@10 gained, in US dollars per thousand questions.

        ``None`` if the cost is not known, or if the system gains nothing.
        """
        cost, gain = self.usd_per_thousand, self.difference.gain
        return None if cost is None or gain <= TOLERANCE else cost / (100 * gain)

    def list_worst_questions(self, count: int = 10) -> list[tuple[str, float]]:
        """Return the ids and gains of the *count* questions that lost most, worst first.

        A loss is a negative gain. If fewer than *count* questions lost, all of them are returned.
        """
        lost = [(question, gain) for question, gain in self.gains.items() if gain < -TOLERANCE]
        return sorted(lost, key=lambda entry: entry[1])[:count]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a dict, ready for JSON, without queries and passages."""
        worst = self.list_worst_questions(1)
        return {
            "name": self.name,
            "means": dict(self.means),
            "difference": self.difference.to_dict(),
            "hurtRate": self.hurt_rate,
            "helpedRate": self.helped_rate,
            "worstQuestion": {"id": worst[0][0], "gain": worst[0][1]} if worst else None,
            "addedMs": self.added_ms.to_dict(),
            "stagesMs": {
                name: percentiles.to_dict() for name, percentiles in self.stages_ms.items()
            },
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
    """The scores of several systems on the same data set.

    Attributes:
        dataset: The data set's name.
        passages: The number of passages; ``None`` if it is not known, as for your own function.
        questions: The number of measured questions.
        baseline: The name of the system that all others are compared with.
        systems: The score of each system, in the order of measuring.
        notes: Notes for readers of the figures, for example on synthetic questions, recorded
            replies or estimated tokens.
        seed: The seed of the statistical tests and intervals.
        data_hash: The sha256 of the passages, questions and judgements.
        counts_model_time: Whether the added times include the original time of recorded replies.
        fingerprints: One sha256 each for ``questions``, ``judgements`` and ``passages``. The order
            of questions and passages does not matter.
        settings: The sha256 of each system's settings.
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
        """Return the score of the system called *name*; raises `KeyError` if there is none."""
        return {system.name: system for system in self.systems}[name]

    @property
    def challengers(self) -> tuple[SystemScore, ...]:
        """All systems except the baseline."""
        return tuple(system for system in self.systems if system.name != self.baseline)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole comparison as a dict, ready for JSON."""
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
