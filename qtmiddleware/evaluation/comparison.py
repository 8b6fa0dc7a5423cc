"""How several systems did on the same questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

from qtmiddleware.evaluation.measures import Difference, PerQuery
from qtmiddleware.evaluation.systems import Run

PRIMARY: Final = "nDCG@10"
"""The measure by which systems are compared: gain, significance, hurt rate."""
TOLERANCE: Final = 1e-9
"""By how much two values of a measure must differ to be different, and not the rounding of one."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Half of the values are at most *p50*, 95 of 100 at most *p95* (nearest rank)."""

    p50: float = 0.0
    p95: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        """Those of *values*; 0 where there are none."""
        ordered = sorted(values)
        if not ordered:
            return cls()
        return cls(*(ordered[ceil(share * len(ordered)) - 1] for share in (0.5, 0.95)))

    def to_dict(self) -> dict[str, float]:
        """Both as plain data."""
        return {"p50": self.p50, "p95": self.p95}


@dataclass(frozen=True, slots=True)
class SystemScore:
    """How one system did on all questions.

    *difference* is its nDCG@10 less the baseline's; *hurt_rate* and *helped_rate* are the shares of questions with a
    lower or higher one. *gains* holds it for every single question, *runs* and *per_query* what was found and measured
    there. *added_ms* is what the system reported of itself or, where it reported nothing, its time beyond the
    baseline's on the same question; *stages_ms* the milliseconds of each stage, over the questions that went through
    it. *cost_usd* is that of all questions, ``None`` where a price is not known or every
    answer was degraded.
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

    @property
    def call_rate(self) -> float:
        """The share of the questions for which the model was asked at all."""
        return sum(run.llm_calls > 0 for run in self.runs.values()) / len(self.runs)

    @property
    def usd_per_thousand(self) -> float | None:
        """US dollars that a thousand questions cost, ``None`` where that is not known."""
        return None if self.cost_usd is None else 1_000 * self.cost_usd / len(self.runs)

    @property
    def usd_per_point(self) -> float | None:
        """US dollars that a thousand questions cost for each +0.01 of nDCG@10.

        ``None`` where the cost is not known or nothing was gained.
        """
        cost, gain = self.usd_per_thousand, self.difference.gain
        return None if cost is None or gain <= TOLERANCE else cost / (100 * gain)

    def worst(self, count: int = 10) -> list[tuple[str, float]]:
        """The ids of the *count* questions that lost most against the baseline, with what they lost; the worst first.

        Only those that lost anything.
        """
        lost = [(question, gain) for question, gain in self.gains.items() if gain < -TOLERANCE]
        return sorted(lost, key=lambda entry: entry[1])[:count]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, without what was searched and found."""
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
            "llmCalls": self.llm_calls,
            "callRate": self.call_rate,
            "inputTokens": self.input_tokens,
            "outputTokens": self.output_tokens,
            "costUsd": self.cost_usd,
            "usdPerThousand": self.usd_per_thousand,
            "usdPerPoint": self.usd_per_point,
            "degraded": self.degraded,
            "perQuery": {name: dict(values) for name, values in self.per_query.values.items()},
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """How all systems did on one data set, in the order they were given.

    *passages* is ``None`` where it is not known, as behind a function of one's own. *notes* are sentences a reader must
    know to judge the figures: that the questions are synthetic, replies recorded, or tokens estimated. *seed* is that
    of every resampling, *data_hash* the sha256 of the passages, questions and judgements they were measured on.
    """

    dataset: str
    passages: int | None
    questions: int
    baseline: str
    systems: tuple[SystemScore, ...]
    notes: tuple[str, ...] = ()
    seed: int = 0
    data_hash: str = ""

    def __getitem__(self, name: str) -> SystemScore:
        """The score of the system called *name*."""
        return {system.name: system for system in self.systems}[name]

    @property
    def challengers(self) -> tuple[SystemScore, ...]:
        """Every system but the baseline."""
        return tuple(system for system in self.systems if system.name != self.baseline)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, ready for JSON."""
        return {
            "dataset": self.dataset,
            "passages": self.passages,
            "questions": self.questions,
            "baseline": self.baseline,
            "notes": list(self.notes),
            "seed": self.seed,
            "dataHash": self.data_hash,
            "systems": [system.to_dict() for system in self.systems],
        }
