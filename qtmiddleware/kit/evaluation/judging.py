"""Answers judged by a language model against a reference answer: two systems compared, here, or several ranked.

Judges of this kind prefer whichever answer stands first, so each pair is judged in both orders and only what holds in
both is a win (Zheng et al. 2023, "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import Any, Final, Literal

from qtmiddleware.errors import ConfigError, MissingExtra, ModelError
from qtmiddleware.kit.evaluation.dataset import Question
from qtmiddleware.kit.evaluation.measures import SIGNIFICANT
from qtmiddleware.kit.evaluation.prompts import CRITERIA, JUDGE, NAMES, PromptRunner, build_judge_prompt, parse_object
from qtmiddleware.kit.evaluation.ranking import (
    RankedAnswers,
    RankedSystems,
    Reason,
    Standing,
    average_scores,
    parse_score,
    rank,
    read_line,
)
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.runtime.logs import get_logger

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

MOST_FAILURES: Final = 16
"""After so many failures in a row, of the systems or of the judge, nothing is asked any more."""

_BETTER: Final = {"a": "A", "b": "B", "neither": "", "tie": "", "none": "", "both": "", "equal": ""}

AnswerQuestion = Callable[[Question], str]

Outcome = Literal["win", "loss", "tie", "failed"]
"""How the challenger did."""

logger: Final = get_logger("qtmiddleware.judging")


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
        return _sign_test(self.wins, self.losses)

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

    A question's reference is the ``answer`` in its metadata; those without are skipped. *model* sees the answers as A
    and B, without the systems' names, twice: once in each order, of which *seed* draws the first to be asked. A system
    wins where it is better in both, everything else is a tie. Equal answers tie unseen.

    The answers are made one question after the other in the caller's thread, as a system may learn from one for the
    next; *concurrency* judgements run at a time, each within *timeout* seconds. A `ModelError` of a system, and a reply
    of the judge that is missing or no verdict, fail the question. *progress* receives how many questions are done of
    how many.

    Raises `ModelError` after `MOST_FAILURES` failures in a row, or for a refused key, before the judge has compared
    anything; after that all that is left counts as failed, and is logged. Raises `ConfigError` for names that are the
    same and numbers that are impossible, `MissingExtra` without scipy, and what else the systems raise.
    """
    if baseline_name == challenger_name:
        raise ConfigError(f"both systems are called {baseline_name!r}", path="challenger_name", value=challenger_name)
    _sign_test(0, 0)  # Without scipy nothing of what follows should be paid for.
    runner = PromptRunner(model, timeout, concurrency)
    random = Random(seed)
    judged = [question for question in questions if question.reference]
    verdicts: list[Verdict] = []
    failures = 0
    while len(verdicts) < len(judged):
        batch = judged[len(verdicts) : len(verdicts) + concurrency]
        pairs = [_answer(question, baseline, challenger, random) for question in batch]
        _ask_judge(pairs, runner)
        for pair in pairs:
            verdicts.append(pair.build_verdict((challenger_name, baseline_name)))
            failures = failures + 1 if pair.error else 0
            if pair.error and (failures >= MOST_FAILURES or pair.error.reason == "unauthorized"):
                _give_up(pair.error, verdicts, judged)
                break
        if progress is not None:
            progress(len(verdicts), len(judged))
    return Judged(
        baseline=baseline_name,
        challenger=challenger_name,
        judge=model.name,
        verdicts=tuple(verdicts),
        skipped=len(questions) - len(judged),
        cost_usd=runner.cost_usd,
    )


def _give_up(error: ModelError, verdicts: list[Verdict], judged: Sequence[Question]) -> None:
    """Raise *error* where the judge has compared nothing yet; else count all questions that are left as failed."""
    if not any(verdict.challenger_scores for verdict in verdicts):
        raise error
    left = judged[len(verdicts) :]
    verdicts += [Verdict(question.id, "failed", reason="cancelled") for question in left]
    about: dict[str, Any] = {"event": "judging_given_up", "reason": error.reason, "left": len(left)}
    logger.warning("judging was given up with %d questions left (%s: %s)", len(left), error.reason, error, **about)


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the judge says once: which answer is *better*, ``A``, ``B`` or neither (empty), why, and the scores."""

    better: str
    scores: Mapping[str, Mapping[str, float]]
    reason: str = field(default="", repr=False)


def parse_opinion(reply: Reply) -> Opinion:
    """Return the opinion in *reply*; raises `ModelError` (``unparsable``) where a part is missing or impossible."""
    given = parse_object(reply, [field.name for field in JUDGE.fields if field.name != "reason"])
    said = given.get("better")
    better = said.strip(" .\"'").casefold().removeprefix("answer ") if isinstance(said, str) else "?"
    scores = {name: {it: parse_score(given.get(f"{name.lower()}_{it}")) for it in CRITERIA} for name in NAMES}
    if better not in _BETTER or not all(score for by_name in scores.values() for score in by_name.values()):
        raise ModelError("unparsable", "the judge's reply is not a verdict with all scores from 1 to 10")
    return Opinion(_BETTER[better], scores, read_line(given.get("reason")))


@dataclass(slots=True)
class _Pair:
    """Both answers to one question; *names* says under which name the challenger stands in each of the two orders."""

    question: Question
    names: Sequence[str]
    baseline: str = ""
    challenger: str = ""
    error: ModelError | None = None
    opinions: Sequence[Opinion] = ()

    def build_prompts(self) -> list[Prompt]:
        """Return both orders."""
        orders = {"A": (self.challenger, self.baseline), "B": (self.baseline, self.challenger)}
        reference = self.question.reference
        return [build_judge_prompt(self.question, reference, *orders[name]) for name in self.names]

    def build_verdict(self, systems: Sequence[str]) -> Verdict:
        """Return what both orders say; a tie where the judge was not asked as the answers are equal.

        *systems* are the names of the challenger and the baseline.
        """
        verdict = Verdict(
            self.question.id, "tie", baseline_answer=self.baseline, challenger_answer=self.challenger, reason="equal"
        )
        if self.error is not None:
            return replace(verdict, outcome="failed", reason=self.error.reason)
        if not self.opinions:
            return verdict
        scores = [opinion.scores for opinion in self.opinions]
        first, second = (_vote(said, name) for said, name in zip(self.opinions, self.names, strict=True))
        return replace(
            verdict,
            outcome=first if first == second else "tie",
            is_flip=first != second,
            reason="",
            # Where the challenger is A in one order, the baseline is A in the other.
            baseline_scores=average_scores([it[name] for it, name in zip(scores, self.names[::-1], strict=True)]),
            challenger_scores=average_scores([it[name] for it, name in zip(scores, self.names, strict=True)]),
            reasons=tuple(
                Reason(said.reason, tuple(systems if name == "A" else systems[::-1]))
                for said, name in zip(self.opinions, self.names, strict=True)
                if said.reason
            ),
        )


def _vote(opinion: Opinion, name: str) -> Outcome:
    """Return how the challenger, which is called *name*, does in *opinion*."""
    if not opinion.better:
        return "tie"
    return "win" if opinion.better == name else "loss"


def _answer(question: Question, baseline: AnswerQuestion, challenger: AnswerQuestion, random: Random) -> _Pair:
    pair = _Pair(question, NAMES if random.random() < 0.5 else NAMES[::-1])
    try:
        pair.baseline, pair.challenger = _require_text(baseline(question)), _require_text(challenger(question))
    except ModelError as error:
        pair.error = error
    return pair


def _ask_judge(pairs: Sequence[_Pair], runner: PromptRunner) -> None:
    """Add the judge's opinions, or its error, to those of *pairs* whose answers are there and differ."""
    asked = [pair for pair in pairs if pair.error is None and pair.baseline.strip() != pair.challenger.strip()]
    replies = iter(runner.run([prompt for pair in asked for prompt in pair.build_prompts()]))
    for pair in asked:
        both = next(replies), next(replies)
        try:
            pair.opinions = [_read_opinion(reply) for reply in both]
        except ModelError as error:
            pair.error = error


def _read_opinion(reply: Reply | ModelError) -> Opinion:
    if isinstance(reply, ModelError):
        raise reply
    return parse_opinion(reply)


def _require_text(answer: object) -> str:
    if not isinstance(answer, str):
        raise ConfigError(f"a system answered with {type(answer).__name__}; it has to return the answer's text")
    return answer


def _sign_test(wins: int, losses: int) -> float:
    """Return the two-sided p of *wins* and *losses* under equal chances; raises `MissingExtra` without scipy."""
    try:
        from scipy import stats
    except ImportError as error:
        raise MissingExtra("scipy", "eval") from error
    return float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
