"""What a judge said of two systems, question by question and on the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any, Final, Literal

from qtmiddleware.errors import MissingExtra
from qtmiddleware.evaluation.measures import SIGNIFICANT

CRITERIA: Final = ("accuracy", "completeness", "relevance")

Outcome = Literal["win", "loss", "tie", "failed"]
"""What became of the challenger."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's verdict on one question.

    *is_flip* says that the judge preferred the other answer, or none, as soon as they changed places. *reason* says in
    one word why a verdict ``failed``, and ``equal`` where both answers were the same. The scores are from 1 to 10, one
    for each of `CRITERIA`, the mean of both orders; empty where the judge gave none.
    """

    question: str
    outcome: Outcome
    is_flip: bool = False
    reason: str = ""
    baseline_scores: Mapping[str, float] = field(default_factory=dict)
    challenger_scores: Mapping[str, float] = field(default_factory=dict)
    baseline_answer: str = field(default="", repr=False)
    challenger_answer: str = field(default="", repr=False)

    def to_dict(self) -> dict[str, Any]:
        """All of it but the answers as plain data."""
        return {
            "question": self.question,
            "outcome": self.outcome,
            "flip": self.is_flip,
            "reason": self.reason,
            "baselineScores": dict(self.baseline_scores),
            "challengerScores": dict(self.challenger_scores),
        }


@dataclass(frozen=True)
class Judged:
    """How often the *challenger*'s answer was better than the *baseline*'s, in the eyes of the model *judge*.

    *skipped* questions had no reference answer. *cost_usd* is what the judge's replies cost, ``None`` where its price
    is not known.
    """

    baseline: str
    challenger: str
    judge: str
    verdicts: tuple[Verdict, ...] = field(repr=False)
    skipped: int = 0
    cost_usd: float | None = 0.0

    @property
    def wins(self) -> int:
        """Questions on which the challenger was better in both orders."""
        return self._counts["win"]

    @property
    def losses(self) -> int:
        """Questions on which the baseline was better in both orders."""
        return self._counts["loss"]

    @property
    def ties(self) -> int:
        """Questions on which neither was better in both orders."""
        return self._counts["tie"]

    @property
    def failed(self) -> int:
        """Questions without a verdict: no answer, or no usable reply of the judge in one of the orders."""
        return self._counts["failed"]

    @property
    def flips(self) -> int:
        """Ties of which the two orders said different things; many of them speak against the judge."""
        return sum(verdict.is_flip for verdict in self.verdicts)

    @cached_property
    def p(self) -> float:
        """The probability of so uneven wins and losses by chance: exact two-sided sign test, ties aside.

        1.0 without wins and losses. Raises `MissingExtra` without scipy.
        """
        return sign_test(self.wins, self.losses)

    @property
    def is_significant(self) -> bool:
        """Whether chance is an unlikely explanation, at the 5 % level."""
        return self.p < SIGNIFICANT

    @property
    def baseline_scores(self) -> dict[str, float]:
        """The baseline's mean score, 1 to 10, for each of `CRITERIA`; empty where nothing was scored."""
        return _means([verdict.baseline_scores for verdict in self.verdicts])

    @property
    def challenger_scores(self) -> dict[str, float]:
        """The challenger's mean score, 1 to 10, for each of `CRITERIA`; empty where nothing was scored."""
        return _means([verdict.challenger_scores for verdict in self.verdicts])

    @cached_property
    def _counts(self) -> Counter[str]:
        return Counter(verdict.outcome for verdict in self.verdicts)

    def summary(self) -> str:
        """The result in one or two sentences."""
        judged = self.wins + self.losses + self.ties
        if not judged:
            return (
                f"{self.judge} judged none of the {self.failed + self.skipped} questions: {self.failed} failed, "
                f"{self.skipped} without a reference answer."
            )
        verdict = "no significant difference"
        if self.is_significant:
            verdict = f"{self.challenger} is {'better' if self.wins > self.losses else 'worse'}"
        text = (
            f"Judged by {self.judge} on {judged} questions, {self.challenger} wins {self.wins}, loses {self.losses} "
            f"and ties {self.ties} against {self.baseline}: {verdict} (p = {self.p:.2g}, sign test)."
        )
        aside = (
            ("Other verdict when the answers changed places", self.flips),
            ("failed", self.failed),
            ("without a reference answer", self.skipped),
        )
        said = "; ".join(f"{what}: {count}" for what, count in aside if count)
        return f"{text} {said[:1].upper()}{said[1:]}." if said else text

    def to_dict(self) -> dict[str, Any]:
        """All of it but the answers as plain data."""
        return {
            "baseline": self.baseline,
            "challenger": self.challenger,
            "judge": self.judge,
            "wins": self.wins,
            "losses": self.losses,
            "ties": self.ties,
            "flips": self.flips,
            "failed": self.failed,
            "skipped": self.skipped,
            "p": self.p,
            "baselineScores": self.baseline_scores,
            "challengerScores": self.challenger_scores,
            "costUsd": self.cost_usd,
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
        }


def sign_test(wins: int, losses: int) -> float:
    """The two-sided p of *wins* and *losses* under equal chances; raises `MissingExtra` without scipy."""
    try:
        from scipy import stats
    except ImportError as error:
        raise MissingExtra("scipy", "eval") from error
    return float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def _means(scores: list[Mapping[str, float]]) -> dict[str, float]:
    given = [one for one in scores if one]
    return {name: fmean(one[name] for one in given) for name in CRITERIA} if given else {}
