"""Two answers to each question, judged by a language model against a reference answer.

Judges of this kind prefer whichever answer stands first, so each pair is judged in both orders and only what holds in
both is a win (Zheng et al. 2023, "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from statistics import fmean
from typing import Any, Final, Literal

from qtmiddleware.errors import ConfigError, MissingExtra, ModelError
from qtmiddleware.evaluation.dataset import Question
from qtmiddleware.evaluation.measures import SIGNIFICANT
from qtmiddleware.evaluation.prompt_runner import PromptRunner, parse_object
from qtmiddleware.evaluation.prompts import CRITERIA, JUDGE, NAMES, build_judge_prompt
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.runtime.logs import get_logger

__all__ = ["CRITERIA", "Judged", "Outcome", "Verdict", "judge"]

MOST_FAILURES: Final = 16
"""After so many failures in a row, of the systems or of the judge, nothing is asked any more."""

_BETTER: Final = {"a": "A", "b": "B", "neither": "", "tie": "", "none": "", "both": "", "equal": ""}
_SCORE: Final = re.compile(r"(\d{1,2}(?:\.\d{1,9})?)(?: ?/ ?10)?")

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
        return _sign_test(self.wins, self.losses)

    @property
    def is_significant(self) -> bool:
        """Whether chance is an unlikely explanation, at the 5 % level."""
        return self.p < SIGNIFICANT

    @property
    def baseline_scores(self) -> dict[str, float]:
        """The baseline's mean score, 1 to 10, for each of `CRITERIA`; empty where nothing was scored."""
        return _average([verdict.baseline_scores for verdict in self.verdicts])

    @property
    def challenger_scores(self) -> dict[str, float]:
        """The challenger's mean score, 1 to 10, for each of `CRITERIA`; empty where nothing was scored."""
        return _average([verdict.challenger_scores for verdict in self.verdicts])

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
    asking = PromptRunner(model, timeout, concurrency)
    judging = _Judging(baseline, challenger, asking, Random(seed))
    given = [(question, reference) for question in questions if (reference := _get_reference(question))]
    for start in range(0, len(given), concurrency):
        judging.judge(given[start : start + concurrency])
        if progress is not None:
            progress(len(judging.verdicts), len(given))
    return Judged(
        baseline=baseline_name,
        challenger=challenger_name,
        judge=model.name,
        verdicts=tuple(judging.verdicts),
        skipped=len(questions) - len(given),
        cost_usd=asking.cost_usd,
    )


def _get_reference(question: Question) -> str:
    given = question.metadata.get("answer")
    return given if isinstance(given, str) and given.strip() else ""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the judge says once: which answer is *better*, ``A``, ``B`` or neither (empty), and the scores of each."""

    better: str
    scores: Mapping[str, Mapping[str, float]]


def parse_opinion(reply: Reply) -> Opinion:
    """Return the opinion in *reply*; raises `ModelError` (``unparsable``) where a part is missing or impossible."""
    given = parse_object(reply, [field.name for field in JUDGE.fields if field.name != "reason"])
    said = given.get("better")
    better = said.strip(" .\"'").casefold().removeprefix("answer ") if isinstance(said, str) else "?"
    scores = {name: {it: _parse_score(given.get(f"{name.lower()}_{it}")) for it in CRITERIA} for name in NAMES}
    if better not in _BETTER or not all(score for by_name in scores.values() for score in by_name.values()):
        raise ModelError("unparsable", "the judge's reply is not a verdict with all scores from 1 to 10")
    return Opinion(_BETTER[better], scores)


def _parse_score(given: object) -> float:
    """Return a score from 1 to 10; 0 for anything else."""
    match = _SCORE.fullmatch(given.strip()) if isinstance(given, str) else None
    score = float(match.group(1)) if match else 0.0
    return score if 1 <= score <= 10 else 0.0


@dataclass(slots=True)
class _Pair:
    """Both answers to one question; *names* says under which name the challenger stands in each of the two orders."""

    question: Question
    reference: str
    names: tuple[str, str]
    baseline: str = ""
    challenger: str = ""
    error: ModelError | None = None
    opinions: list[Opinion] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        return self.baseline.strip() == self.challenger.strip()

    def build_prompts(self) -> list[Prompt]:
        """Return both orders."""
        return [
            build_judge_prompt(
                self.question,
                self.reference,
                *((self.challenger, self.baseline) if name == "A" else (self.baseline, self.challenger)),
            )
            for name in self.names
        ]

    def read_replies(self, replies: Sequence[Reply | ModelError]) -> None:
        try:
            for reply in replies:
                if isinstance(reply, ModelError):
                    raise reply
                self.opinions.append(parse_opinion(reply))
        except ModelError as error:
            self.error = error

    def build_verdict(self) -> Verdict:
        if self.error is not None:
            return self._verdict("failed", reason=self.error.reason)
        if not self.opinions:
            return self._verdict("tie", reason="equal")
        # 1 for the challenger, -1 for the baseline, 0 for neither.
        votes = [
            0 if not said.better else 1 if said.better == name else -1
            for said, name in zip(self.opinions, self.names, strict=True)
        ]
        outcome: Outcome = "win" if votes == [1, 1] else "loss" if votes == [-1, -1] else "tie"
        return self._verdict(
            outcome,
            is_flip=votes[0] != votes[1],
            baseline_scores=self._average_scores(self.names[::-1]),
            challenger_scores=self._average_scores(self.names),
        )

    def _average_scores(self, names: Sequence[str]) -> dict[str, float]:
        """Return the mean of both orders; *names* says under which name the answer stood in each."""
        scores = [said.scores[name] for said, name in zip(self.opinions, names, strict=True)]
        return {criterion: fmean(it[criterion] for it in scores) for criterion in CRITERIA}

    def _verdict(self, outcome: Outcome, **rest: Any) -> Verdict:
        return Verdict(
            self.question.id, outcome, baseline_answer=self.baseline, challenger_answer=self.challenger, **rest
        )


class _Judging:
    """Answers and judges some questions at a time."""

    def __init__(
        self, baseline: AnswerQuestion, challenger: AnswerQuestion, asking: PromptRunner, random: Random
    ) -> None:
        self.verdicts: list[Verdict] = []
        self._systems = (baseline, challenger)
        self._asking = asking
        self._random = random
        self._failures = 0
        self._has_judged = False
        self._is_over = False

    def judge(self, questions: Sequence[tuple[Question, str]]) -> None:
        """Add a verdict on each of *questions*, which come with their references."""
        pairs = [self._answer(question, reference) for question, reference in questions]
        asked = [pair for pair in pairs if pair.error is None and not pair.is_equal]
        replies = iter(self._asking.run([prompt for pair in asked for prompt in pair.build_prompts()]))
        for pair in asked:
            pair.read_replies([next(replies), next(replies)])
        for pair in pairs:
            self.verdicts.append(pair.build_verdict())
            if pair.error is None:
                self._has_judged |= bool(pair.opinions)
                self._failures = 0
            elif not self._is_over:
                self._count_failure(pair.error)

    def _answer(self, question: Question, reference: str) -> _Pair:
        pair = _Pair(question, reference, ("A", "B") if self._random.random() < 0.5 else ("B", "A"))
        if self._is_over:
            pair.error = ModelError("cancelled")
            return pair
        try:
            pair.baseline, pair.challenger = (_require_text(system(question)) for system in self._systems)
        except ModelError as error:
            pair.error = error
        return pair

    def _count_failure(self, error: ModelError) -> None:
        self._failures += 1
        if self._failures < MOST_FAILURES and error.reason != "unauthorized":
            return
        if not self._has_judged:
            raise error
        self._is_over = True
        logger.warning(
            "judging was given up: %d questions in a row failed (%s: %s)", self._failures, error.reason, error
        )


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


def _average(scores: list[Mapping[str, float]]) -> dict[str, float]:
    given = [one for one in scores if one]
    return {name: fmean(one[name] for one in given) for name in CRITERIA} if given else {}
