"""Ask a language model which of two systems answers better, given a reference answer.

The judge sees each pair of answers in both orders. An answer wins only if it is better in both
orders. The module `ranking` compares more than two systems.
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
from qtmiddleware.kit.evaluation.measures import SIGNIFICANT, compute_sign_test_p_value
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
"""Returns the text of a system's answer to a question."""

Outcome = Literal["win", "loss", "tie", "failed"]
"""The challenger's result on one question."""

# The indices of the two answers on a ballot.
_BASELINE, _CHALLENGER = 0, 1
_OUTCOMES: Final[dict[int | None, Outcome]] = {_BASELINE: "loss", _CHALLENGER: "win", None: "tie"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's verdict on one question.

    Attributes:
        question: The question's id.
        outcome: The challenger's result: ``win``, ``loss``, ``tie`` or ``failed``.
        is_flip: Whether the judge decided differently after the answers were swapped.
        reason: The reason in one word if *outcome* is ``failed``; ``equal`` if both answers were
            the same; otherwise empty.
        baseline_scores: The baseline's score per criterion, from 1 to 10: the mean over both
            orders of the answers. Empty if the judge gave no scores.
        challenger_scores: The challenger's score per criterion, as for the baseline.
        baseline_answer: The baseline's answer.
        challenger_answer: The challenger's answer.
        reasons: The judge's reasons.
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
        """Return the verdict as a dict, ready for JSON. The answers are left out."""
        return {
            "question": self.question,
            "outcome": self.outcome,
            "flip": self.is_flip,
            "reason": self.reason,
            "baselineScores": dict(self.baseline_scores),
            "challengerScores": dict(self.challenger_scores),
            "reasons": [reason.to_dict() for reason in self.reasons],
        }


@dataclass(frozen=True)  # Without slots, because cached_property needs a __dict__.
class Judged:
    """The result of comparing a challenger's answers with a baseline's answers on all questions.

    Attributes:
        baseline: The baseline's name.
        challenger: The challenger's name.
        judge: The name of the model that judged.
        verdicts: One verdict per judged question.
        skipped: The number of questions without a reference answer.
        cost_usd: The cost of the judge's replies in US dollars; ``None`` if its price is not known.
    """

    baseline: str
    challenger: str
    judge: str
    verdicts: tuple[Verdict, ...] = field(repr=False)
    skipped: int = 0
    cost_usd: float | None = 0.0

    @property
    def wins(self) -> int:
        """The number of questions that the challenger answered better in both orders."""
        return self._counts["win"]

    @property
    def losses(self) -> int:
        """The number of questions that the baseline answered better in both orders."""
        return self._counts["loss"]

    @property
    def ties(self) -> int:
        """The number of questions that neither system answered better in both orders."""
        return self._counts["tie"]

    @property
    def failed(self) -> int:
        """The number of questions without a verdict, because a system or the judge failed."""
        return self._counts["failed"]

    @property
    def flips(self) -> int:
        """The number of ties in which the judge changed its choice when the answers were swapped.

        If there are many such ties, the judge is unreliable.
        """
        return sum(verdict.is_flip for verdict in self.verdicts)

    @cached_property
    def p(self) -> float:
        """The p-value of the wins and losses by a two-sided sign test.

        Ties are ignored. The p-value is 1.0 if there are no wins and no losses. Raises
        `MissingExtra` if scipy is not installed.
        """
        return compute_sign_test_p_value(self.wins, self.losses)

    @property
    def is_significant(self) -> bool:
        """``True`` if the result is statistically significant at the 5 % level."""
        return self.p < SIGNIFICANT

    @property
    def baseline_scores(self) -> dict[str, float]:
        """The baseline's mean score per criterion, from 1 to 10; empty if nothing was scored."""
        return average_scores([verdict.baseline_scores for verdict in self.verdicts])

    @property
    def challenger_scores(self) -> dict[str, float]:
        """The challenger's mean score per criterion, from 1 to 10; empty if nothing was scored."""
        return average_scores([verdict.challenger_scores for verdict in self.verdicts])

    @cached_property
    def _counts(self) -> Counter[str]:
        return Counter(verdict.outcome for verdict in self.verdicts)

    def describe_outcome(self, verdict: Verdict) -> str:
        """Return the outcome of *verdict* in a few words, such as ``rules is better``."""
        outcomes = {
            "win": f"{self.challenger} is better",
            "loss": f"{self.baseline} is better",
            "tie": "neither",
        }
        return outcomes.get(verdict.outcome, f"no verdict ({verdict.reason})")

    def summary(self) -> str:
        """Return the result as one or two sentences, with wins, losses, ties and the p-value."""
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
        counts = (
            ("The verdict changed when the answers were swapped", self.flips),
            ("failed", self.failed),
            ("without a reference answer", self.skipped),
        )
        asides = "; ".join(f"{label}: {count}" for label, count in counts if count)
        return f"{text} {asides[:1].upper()}{asides[1:]}." if asides else text

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict, ready for JSON. The answers are left out."""
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
    """Ask *model* which of two systems answers each question better, given a reference answer.

    The reference answer is ``answer`` in the question's metadata. Questions without a reference
    answer are skipped. The model sees the answers as A and B, without the systems' names, once in
    each order.
    A system wins if its answer is better in both orders. Otherwise the result is a tie. If the
    answers are equal, the result is a tie and the model is not asked.

    The systems answer one question after the other in the caller's thread, because a system may
    learn from earlier questions. A question fails if a system raises `ModelError`, or if the
    judge's reply is missing or not valid. After `MOST_FAILURES` failures in a row, or if the
    service refuses the API key, the remaining questions fail, and a warning is logged.

    Args:
        baseline: Returns the baseline's answer to a question.
        challenger: Returns the challenger's answer to a question.
        questions: The questions.
        model: The model that judges.
        baseline_name: The name of the baseline.
        challenger_name: The name of the challenger.
        seed: The seed that draws the first order of each pair.
        timeout: Seconds allowed per judgement.
        concurrency: The largest number of judgements that run at the same time.
        progress: Receives the number of questions done and the total number.

    Raises:
        ModelError: Judging stopped before the judge gave any opinion.
        ConfigError: The names are the same, or *timeout* or *concurrency* is not valid.
        MissingExtra: scipy is not installed.
        Exception: Any other exception that a system raises.
    """
    if baseline_name == challenger_name:
        raise ConfigError(
            f"the two systems must have different names, not both {baseline_name!r}",
            path="challenger_name",
            value=challenger_name,
        )
    compute_sign_test_p_value(0, 0)  # Raises without scipy, before any answer is paid for.
    panel = Judge(ANSWERS, model, seed=seed, timeout=timeout, concurrency=concurrency)

    def build_ballot(question: Question) -> Ballot:
        answers: list[str] = []
        try:
            answers.append(_require_text(baseline(question)))
            answers.append(_require_text(challenger(question)))
        except ModelError as error:
            # The ballot keeps the baseline's answer, if the challenger failed.
            return Ballot(question, answers, error=error)
        differ = answers[0].strip() != answers[1].strip()
        return Ballot(question, answers, panel.draw_orders(2) if differ else ())

    judged = [question for question in questions if question.reference]
    ballots = panel.judge_questions(judged, build_ballot, progress)
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
    """Return the verdict on the question of *ballot*. Two equal answers are a tie.

    *systems* has two names: the baseline's and the challenger's.
    """
    outcome, reason = _OUTCOMES[ballot.find_winner()], "" if ballot.opinions else "equal"
    if ballot.error is not None:
        outcome, reason = "failed", ballot.error.reason
    # If a system failed, the ballot has fewer than two answers.
    baseline, challenger, *_ = (*map(str, ballot.candidates), "", "")
    return Verdict(
        ballot.question.id,
        outcome,
        ballot.depends_on_order,
        reason,
        ballot.average_scores(_BASELINE),
        ballot.average_scores(_CHALLENGER),
        baseline,
        challenger,
        ballot.list_reasons(systems),
    )


def _require_text(answer: object) -> str:
    """Return *answer*; raises `ConfigError` if it is not text."""
    if not isinstance(answer, str):
        raise ConfigError(f"a system must return the answer's text, not {type(answer).__name__}")
    return answer
