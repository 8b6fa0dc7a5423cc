"""Answers judged by a language model against a reference answer: two systems compared, here, or several ranked.

A pair is a ranking of two: each is judged in both orders, and an answer wins only if it is better
in both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.evaluation.ballots import Ballot, Judge, Reason, average_scores
from qtmiddleware.kit.evaluation.dataset import Question
from qtmiddleware.kit.evaluation.measures import SIGNIFICANT, sign_test
from qtmiddleware.kit.evaluation.prompts import ANSWERS, CRITERIA
from qtmiddleware.kit.evaluation.ranking import RankedAnswers, RankedSystems, Standing, rank
from qtmiddleware.protocols import LanguageModel

__all__ = [
    "CRITERIA",
    "Judged",
    "Outcome",
    "RankedAnswers",
    "RankedSystems",
    "Reason",
    "Standing",
    "Verdict",
    "judge",
    "rank",
]

AnswerQuestion = Callable[[Question], str]

Outcome = Literal["win", "loss", "tie", "failed"]
"""How the challenger did."""

_BASELINE, _CHALLENGER = 0, 1
_OUTCOMES: Final[dict[int | None, Outcome]] = {_BASELINE: "loss", _CHALLENGER: "win", None: "tie"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's verdict on one question.

    *is_flip* says that the judge preferred the other answer, or none, as soon as they changed
    places. *reason* says in one word why a verdict ``failed``, and ``equal`` where both answers
    were the same. The scores are from 1 to 10, one for each of `CRITERIA`, the mean of both orders;
    empty where the judge gave none.
    """

    question: str
    outcome: Outcome
    is_flip: bool = False
    reason: str = ""
    baseline_scores: Mapping[str, float] = field(default_factory=dict)
    challenger_scores: Mapping[str, float] = field(default_factory=dict)
    baseline_answer: str = field(default="", repr=False)
    challenger_answer: str = field(default="", repr=False)
    reasons: tuple[Reason, ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """All of it but the answers as plain data."""
        return {
            "question": self.question,
            "outcome": self.outcome,
            "flip": self.is_flip,
            "reason": self.reason,
            "baselineScores": dict(self.baseline_scores),
            "challengerScores": dict(self.challenger_scores),
            "reasons": [reason.to_dict() for reason in self.reasons],
        }


@dataclass(frozen=True)
class Judged:
    """How often the *challenger*'s answer was better than the *baseline*'s, in the eyes of the model *judge*.

    *skipped* questions had no reference answer. *cost_usd* is what the judge's replies cost,
    ``None`` where its price is not known.
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
        return average_scores([verdict.baseline_scores for verdict in self.verdicts])

    @property
    def challenger_scores(self) -> dict[str, float]:
        """The challenger's mean score, 1 to 10, for each of `CRITERIA`; empty where nothing was scored."""
        return average_scores([verdict.challenger_scores for verdict in self.verdicts])

    @cached_property
    def _counts(self) -> Counter[str]:
        return Counter(verdict.outcome for verdict in self.verdicts)

    def describe(self, verdict: Verdict) -> str:
        """Return which of the two is better by *verdict*, in a few words."""
        outcomes = {
            "win": f"{self.challenger} is better",
            "loss": f"{self.baseline} is better",
            "tie": "neither",
        }
        return outcomes.get(verdict.outcome, f"no verdict ({verdict.reason})")

    def summary(self) -> str:
        """The result in one or two sentences."""
        judged = self.wins + self.losses + self.ties
        if not judged:
            return (
                f"{self.judge} judged none of the {self.failed + self.skipped} questions:"
                f" {self.failed} failed, {self.skipped} without a reference answer."
            )
        verdict = "no significant difference"
        if self.is_significant:
            verdict = f"{self.challenger} is {'better' if self.wins > self.losses else 'worse'}"
        text = (
            f"Judged by {self.judge} on {judged} questions, {self.challenger} wins {self.wins},"
            f" loses {self.losses} and ties {self.ties} against {self.baseline}: {verdict} (p ="
            f" {self.p:.2g}, sign test)."
        )
        aside = (
            ("The verdict changed when the answers were swapped", self.flips),
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


def judge(
    baseline: AnswerQuestion,
    challenger: AnswerQuestion,
    questions: Sequence[Question],
    model: LanguageModel,
    *,
    baseline_name: str,
    challenger_name: str,
    seed: int = 0,
    timeout: float = 60.0,
    concurrency: int = 4,
    progress: Callable[[int, int], None] | None = None,
) -> Judged:
    """Let *model* judge the answers of *baseline* and *challenger* against each question's reference answer.

    A question's reference is the ``answer`` in its metadata; those without are skipped. *model*
    sees the answers as A and B, without the systems' names, twice: once in each order, of which
    *seed* draws the first to be asked. A system wins where it is better in both, everything else is
    a tie. Equal answers tie unseen.

    The answers are made one question after the other in the caller's thread, as a system may learn
    from one for the next; *concurrency* judgements run at a time, each within *timeout* seconds. A
    `ModelError` of a system, and a reply of the judge that is missing or no verdict, fail the
    question. *progress* receives how many questions are done of how many.

    Raises `ModelError` after `MOST_FAILURES` failures in a row, or for a refused key, before the
    judge has compared anything; after that all that is left counts as failed, and is logged. Raises
    `ConfigError` for names that are the same and numbers that are impossible, `MissingExtra`
    without scipy, and what else the systems raise.
    """
    if baseline_name == challenger_name:
        raise ConfigError(
            f"the two systems must have different names, not both {baseline_name!r}",
            path="challenger_name",
            value=challenger_name,
        )
    sign_test(0, 0)  # Without scipy nothing of what follows should be paid for.
    panel = Judge(ANSWERS, model, seed=seed, timeout=timeout, concurrency=concurrency)

    def ask_systems(question: Question) -> Ballot:
        answers: list[str] = []
        try:
            answers.append(_require_text(baseline(question)))
            answers.append(_require_text(challenger(question)))
        except ModelError as error:
            return Ballot(question, answers, error=error)
        differ = answers[0].strip() != answers[1].strip()
        return Ballot(question, answers, panel.draw_orders(2) if differ else ())

    judged = [question for question in questions if question.reference]
    ballots = panel.ask(judged, ask_systems, progress)
    return Judged(
        baseline=baseline_name,
        challenger=challenger_name,
        judge=model.name,
        verdicts=tuple(
            _build_verdict(ballot, (baseline_name, challenger_name)) for ballot in ballots
        ),
        skipped=len(questions) - len(judged),
        cost_usd=panel.cost_usd,
    )


def _build_verdict(ballot: Ballot, systems: Sequence[str]) -> Verdict:
    """Return what both orders say; a tie where the judge was not asked as the answers are equal."""
    outcome, reason = _OUTCOMES[ballot.find_winner()], "" if ballot.opinions else "equal"
    if ballot.error is not None:
        outcome, reason = "failed", ballot.error.reason
    baseline, challenger, *_ = (*map(str, ballot.shown), "", "")
    return Verdict(
        ballot.question.id,
        outcome,
        ballot.is_flip,
        reason,
        ballot.average_scores(_BASELINE),
        ballot.average_scores(_CHALLENGER),
        baseline,
        challenger,
        ballot.list_reasons(systems),
    )


def _require_text(answer: object) -> str:
    if not isinstance(answer, str):
        raise ConfigError(f"a system must return the answer's text, not {type(answer).__name__}")
    return answer
