"""Every question answered by two systems, and every pair of answers judged in both orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Any, Final

from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.evaluation import Question
from qtmiddleware.evaluation.judging.judged import CRITERIA, Judged, Outcome, Verdict, sign_test
from qtmiddleware.evaluation.judging.prompts import Opinion, opinion, prompt
from qtmiddleware.evaluation.prompt_runner import PromptRunner
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.runtime.logs import get_logger

MOST_FAILURES: Final = 16
"""After so many failures in a row, of the systems or of the judge, nothing is asked any more."""

Answering = Callable[[Question], str]

logger: Final = get_logger("qtmiddleware.judging")


def judge(
    baseline: Answering,
    challenger: Answering,
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
    of the judge that is missing or no verdict, fail the question. *progress* is told how many questions are done of
    how many.

    Raises `ModelError` after `MOST_FAILURES` failures in a row, or for a refused key, before the judge has compared
    anything; after that all that is left counts as failed, and is logged. Raises `ConfigError` for names that are the
    same and numbers that are impossible, `MissingExtra` without scipy, and what else the systems raise.
    """
    if baseline_name == challenger_name:
        raise ConfigError(f"both systems are called {baseline_name!r}", path="challenger_name", value=challenger_name)
    sign_test(0, 0)  # Without scipy nothing of what follows should be paid for.
    asking = PromptRunner(model, timeout, concurrency)
    judging = _Judging(baseline, challenger, asking, Random(seed))
    given = [(question, reference) for question in questions if (reference := _reference(question))]
    for start in range(0, len(given), concurrency):
        judging.take(given[start : start + concurrency])
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


def _reference(question: Question) -> str:
    given = question.metadata.get("answer")
    return given if isinstance(given, str) and given.strip() else ""


@dataclass(slots=True)
class _Pair:
    """Both answers to one question; *challenger_first* says who is A in the first of the two orders."""

    question: Question
    reference: str
    baseline: str = ""
    challenger: str = ""
    challenger_first: bool = False
    error: ModelError | None = None
    opinions: list[Opinion] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        return self.baseline.strip() == self.challenger.strip()

    def prompts(self) -> Iterator[Prompt]:
        """Both orders."""
        for swapped in (self.challenger_first, not self.challenger_first):
            a, b = (self.challenger, self.baseline) if swapped else (self.baseline, self.challenger)
            yield prompt(self.question, self.reference, a, b)

    def hear(self, replies: Sequence[Reply | ModelError]) -> None:
        """What the judge replied to the two prompts."""
        try:
            for reply in replies:
                if isinstance(reply, ModelError):
                    raise reply
                self.opinions.append(opinion(reply))
        except ModelError as error:
            self.error = error

    def verdict(self) -> Verdict:
        if self.error is not None:
            return self._verdict("failed", reason=self.error.reason)
        if not self.opinions:
            return self._verdict("tie", reason="equal")
        names = ("A", "B") if self.challenger_first else ("B", "A")
        votes = [_vote(said, name) for said, name in zip(self.opinions, names, strict=True)]
        outcome: Outcome = "win" if votes == [1, 1] else "loss" if votes == [-1, -1] else "tie"
        return self._verdict(
            outcome,
            is_flip=votes[0] != votes[1],
            baseline_scores=self._scores(names[::-1]),
            challenger_scores=self._scores(names),
        )

    def _scores(self, names: Sequence[str]) -> dict[str, float]:
        """The mean of both orders; *names* says under which name the answer stood in each."""
        found = [said.scores[name] for said, name in zip(self.opinions, names, strict=True)]
        return {criterion: fmean(scores[criterion] for scores in found) for criterion in CRITERIA}

    def _verdict(self, outcome: Outcome, **rest: Any) -> Verdict:
        return Verdict(
            self.question.id, outcome, baseline_answer=self.baseline, challenger_answer=self.challenger, **rest
        )


def _vote(said: Opinion, challenger: str) -> int:
    """1 for the challenger, who stood under the name *challenger*, -1 for the baseline, 0 for neither."""
    return 0 if not said.better else 1 if said.better == challenger else -1


class _Judging:
    """Answers and judges some questions at a time."""

    def __init__(self, baseline: Answering, challenger: Answering, asking: PromptRunner, chance: Random) -> None:
        self.verdicts: list[Verdict] = []
        self._systems = (baseline, challenger)
        self._asking = asking
        self._chance = chance
        self._failures = 0
        self._has_judged = False
        self._is_over = False

    def take(self, questions: Sequence[tuple[Question, str]]) -> None:
        """A verdict on each of *questions*, which come with their references."""
        pairs = [self._answered(_Pair(*given, challenger_first=self._chance.random() < 0.5)) for given in questions]
        asked = [pair for pair in pairs if pair.error is None and not pair.is_equal]
        replies = iter(self._asking.run([it for pair in asked for it in pair.prompts()]))
        for pair in asked:
            pair.hear([next(replies), next(replies)])
        for pair in pairs:
            self._settle(pair)

    def _answered(self, pair: _Pair) -> _Pair:
        if self._is_over:
            pair.error = ModelError("cancelled")
            return pair
        try:
            pair.baseline, pair.challenger = (_text(system(pair.question)) for system in self._systems)
        except ModelError as error:
            pair.error = error
        return pair

    def _settle(self, pair: _Pair) -> None:
        self.verdicts.append(pair.verdict())
        if pair.error is None:
            self._has_judged |= bool(pair.opinions)
            self._failures = 0
        elif not self._is_over:
            self._failed(pair.error)

    def _failed(self, error: ModelError) -> None:
        self._failures += 1
        if self._failures < MOST_FAILURES and error.reason != "unauthorized":
            return
        if not self._has_judged:
            raise error
        self._is_over = True
        logger.warning(
            "judging was given up: %d questions in a row failed (%s: %s)", self._failures, error.reason, error
        )


def _text(answer: object) -> str:
    if not isinstance(answer, str):
        raise ConfigError(f"a system answered with {type(answer).__name__}; it has to return the answer's text")
    return answer
