"""What tuning found, on questions it had not seen, and whether that is worth using."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from qtmiddleware.evaluation import BASELINE, PRIMARY, TOLERANCE, Comparison, SystemScore
from qtmiddleware.evaluation.tuning.budget import Budget
from qtmiddleware.evaluation.tuning.trials import Trial

TUNED: Final = "tuned"
"""The name of the tuned config among the systems compared; where it is one of the defaults, it has that one's name."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome of tuning.

    *comparison* holds the raw query, the library's defaults and the tuned config, all on the held-out questions, their
    probabilities corrected for one another (Holm). *tuned* is what the training questions decided for, which may be the
    *default*. *chosen* is what is recommended: the tuned config or, where that did not hold on the held-out questions,
    the default. *config* is the recommended config, without the keys that have their defaults. *refusals* say why
    nothing can be recommended; without any it `is_better`. *trained* holds what the compared systems did on the
    *trained_on* questions the search saw, by their names in *comparison*; *trials* every candidate it tried.
    """

    config: Mapping[str, Any]
    chosen: str
    tuned: str
    default: str
    comparison: Comparison
    trained: Mapping[str, Trial] = field(repr=False)
    trials: tuple[Trial, ...] = field(repr=False)
    trained_on: int
    budget: Budget
    refusals: tuple[str, ...]
    seconds: float

    @property
    def is_better(self) -> bool:
        """Whether the config beats the raw query on the held-out questions by more than chance, within the budget."""
        return not self.refusals

    @property
    def score(self) -> SystemScore:
        """What the recommended config did on the held-out questions."""
        return self.comparison[self.chosen]

    @property
    def overfit(self) -> float:
        """How much more nDCG@10 the tuned config gained on the questions of the search than on the held-out ones."""
        return self.trained[self.tuned].score.difference.gain - self.comparison[self.tuned].difference.gain

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, ready for JSON."""
        return {
            "isBetter": self.is_better,
            "refusals": list(self.refusals),
            "config": dict(self.config),
            "chosen": self.chosen,
            "tuned": {"name": self.tuned, **self.trained[self.tuned].to_dict()},
            "default": self.default,
            "budget": self.budget.to_dict(),
            "comparison": self.comparison.to_dict(),
            "training": {
                "questions": self.trained_on,
                "candidates": len(self.trials),
                "seconds": self.seconds,
                "overfit": self.overfit,
                "systems": {name: trial.to_dict() for name, trial in self.trained.items()},
                "trials": [trial.to_dict() for trial in self.trials],
            },
        }

    def summary(self) -> str:
        """The outcome in plain sentences, a line each."""
        trained = self.trained[self.tuned]
        tried = f"{len(self.trials)} candidates tried on {self.trained_on} questions in {self.seconds:.0f} s"
        lines = [f"{tried}; what follows was measured on {self.comparison.questions} other questions."]
        if self.tuned == BASELINE:
            lines.append("Decided by the former: the raw query; nothing within the budget was clearly better.")
        else:
            gained = f"On the questions that decided it had gained {_points(trained.score.difference.gain)}"
            lines += [
                f"Decided by the former: {trained.name}{', the default' if self.tuned == self.default else ''}.",
                _told("It", self.comparison[self.tuned]),
                f"{gained}; the difference, {_points(self.overfit)}, is what does not carry over.",
            ]
        if self.default not in (self.tuned, BASELINE):
            lines.append(_told(f"The default, {self.default},", self.comparison[self.default]))
        lines += [
            f"Beyond the budget: {name}, as on the former {' and '.join(trial.broken)}."
            for name, trial in self.trained.items()
            if trial.broken
        ]
        return "\n".join([*lines, *self._advice()])

    def _advice(self) -> Iterator[str]:
        if not self.is_better:
            yield from (f"Refused: {why}" for why in self.refusals)
        elif self.chosen != self.tuned:
            yield (
                f"Recommended: the default, {self.chosen}, as the held-out questions do not confirm what was decided. "
                "Taken by these very questions, it may look a little better on them than it is."
            )
        elif self.chosen == self.default:
            yield "Recommended: this, which is the library's default within the budget."
        else:
            yield "Recommended: the tuned config, which the held-out questions confirm."


def _told(subject: str, score: SystemScore) -> str:
    found = score.difference
    cost = score.usd_per_thousand
    interval = f"95 % interval {100 * found.low:+.1f} to {100 * found.high:+.1f}"
    return (
        f"{subject} gains {_points(found.gain)} of {PRIMARY} over the raw query on the held-out questions "
        f"({interval}, p {found.p_holm:.4f} corrected), hurts {score.hurt_rate:.0%} of them, asks "
        f"the model about {score.call_rate:.0%}, adds {score.added_ms.p50:.0f} ms (p95 {score.added_ms.p95:.0f})"
        + (f" and costs ${cost:.2f} for a thousand questions." if cost else ".")
    )


def _points(gain: float) -> str:
    return f"{100 * gain:+.1f} points"


def is_worse_than(one: SystemScore, other: SystemScore) -> bool:
    """Whether *one* found less on the questions both were asked."""
    return one.means[PRIMARY] < other.means[PRIMARY] - TOLERANCE
