"""How the order of passages changes for several questions, and whether that is a reason to keep the rules.

Without judgements nobody knows whether another order is a better one. Tried on ten small
collections, no share of changed questions told those that gain from those that lose, so a sample
alone never says that the rules help.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import comb
from typing import Any, Final

from qtmiddleware.errors import InvalidQuery
from qtmiddleware.preprocessing.text import shorten
from qtmiddleware.runtime.steps import Flow
from qtmiddleware.types import Match

MOST_ASKED: Final = 10
"""Questions of a list that are asked; of a longer list they are taken at even distances."""
FEWEST_ASKED: Final = 3
"""With fewer questions an order that never changes says nothing."""
MOST_EXAMPLES: Final = 2
MOST_CHARS: Final = 80
"""Characters that an example shows of a passage."""
MORE_WORSE: Final = 3
"""How many more answers must move down than up before the advice is to leave the rules off."""
SIGNIFICANT: Final = 0.05


class Advice(StrEnum):
    """What to do with one part of the middleware, by what is known of its effect."""

    KEEP = "keep"
    MEASURE = "measure"
    LEAVE_OFF = "leave_off"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class SampleQuestion:
    """One question of a sample, with the ids of the passages that answer it if the user named them."""

    text: str = field(repr=False)
    relevant: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SamplePassage:
    """The *id* of a passage, ``None`` if it has none, and the beginning of its *text*."""

    id: str | None
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OrderExample:
    """A *question* for which another passage comes first: the one *before* and the one *after* the rules."""

    question: str = field(repr=False)
    before: SamplePassage
    after: SamplePassage


@dataclass(frozen=True, slots=True)
class JudgedSample:
    """Where the answers of the judged questions stand in the plain order and under the rules.

    An answer is the first passage of a list that the user named as relevant.

    Attributes:
        questions: Judged questions that were asked.
        found: Questions with an answer in either list.
        first_before: Questions whose answer comes first in the plain order.
        first_after: Questions whose answer comes first under the rules.
        better: Questions whose answer moves up.
        worse: Questions whose answer moves down.
    """

    questions: int
    found: int
    first_before: int
    first_after: int
    better: int
    worse: int

    def __str__(self) -> str:
        return (
            f"in {self.questions} judged questions, the answer is first for {self.first_after}"
            f" instead of {self.first_before}; its place is better for {self.better}, worse for"
            f" {self.worse}"
        )


@dataclass(frozen=True, slots=True)
class OrderSample:
    """How the rules change the order of the passages for several questions; no model takes part.

    Attributes:
        asked: Questions for which the function was called with and without the rules.
        left_out: Questions of the list that were not asked, because it was longer than
        `MOST_ASKED`.
        failed: Questions that could not be asked, or for which the function raised.
        other_first: Questions for which another passage comes first.
        changed: Questions for which any passage is new or moves.
        examples: At most two of the questions for which another passage comes first, those whose
        leader was clearest.
        judged: Where the answers stand, ``None`` if no question names its answers.
        errors: Why questions failed, each reason once.
    """

    asked: int
    left_out: int
    failed: int
    other_first: int
    changed: int
    examples: tuple[OrderExample, ...] = field(default=(), repr=False)
    judged: JudgedSample | None = None
    errors: tuple[str, ...] = field(default=(), repr=False)

    @property
    def compared(self) -> int:
        """Questions whose two orders are known."""
        return self.asked - self.failed

    def advise(self) -> tuple[Advice, str]:
        """Return what to do with the rules, and why.

        Keep them only if so many more answers move up than down that chance is an unlikely reason:
        5 of 5 that move, 7 of 8 or 9 of 10 (sign test, one-sided, at 5 %). Leave them off if no
        order changes, or if at least three more answers move down than up. That bar is lower:
        leaving the rules off costs nothing.
        """
        if self.compared >= FEWEST_ASKED and not self.changed:
            return (
                Advice.LEAVE_OFF,
                f"the order does not change for any of {self.compared} questions",
            )
        judged = self.judged
        if judged is not None and is_unlikely(judged.better, judged.worse):
            return Advice.KEEP, str(judged)
        if judged is not None and judged.worse - judged.better >= MORE_WORSE:
            return Advice.LEAVE_OFF, str(judged)
        return (Advice.MEASURE if self.changed else Advice.UNSEEN), ""

    def __str__(self) -> str:
        if not self.compared:
            text = f"none of {self.asked} questions could be compared"
        elif not self.changed:
            text = f"the order does not change in any of {_count(self.compared)}"
        else:
            text = (
                f"another passage is first in {self.other_first or 'none'} of"
                f" {_count(self.compared)}, and the order changes in {self.changed}"
            )
        if self.failed:
            text += f"; {self.failed} failed ({'; '.join(self.errors)})"
        if self.left_out:
            text += f"; {self.left_out} more questions were not asked"
        if self.compared < FEWEST_ASKED:
            text += f"; too few for advice: ask {FEWEST_ASKED} to {MOST_ASKED}"
        return text


def is_unlikely(better: int, worse: int) -> bool:
    """Whether at least *better* of all that moved would seldom be better by chance (sign test, one-sided)."""
    moved = better + worse
    as_good = sum(comb(moved, count) for count in range(better, moved + 1))
    return as_good < SIGNIFICANT * (1 << moved)


def read_questions(value: Any) -> list[SampleQuestion] | None:
    """Return the questions of a list, ``None`` for what is no list of questions.

    A question is a text or ``{"question": text, "relevant": [id, ...]}``. A list of one text is the
    question of a function that takes it so. Raises `InvalidQuery` if ``relevant`` is no list of
    ids.
    """
    if (
        not isinstance(value, list | tuple)
        or not value
        or (len(value) == 1 and isinstance(value[0], str))
    ):
        return None
    questions: list[SampleQuestion] = []
    for item in value:
        if isinstance(item, str):
            questions.append(SampleQuestion(item))
        elif isinstance(item, Mapping) and isinstance(item.get("question"), str):
            questions.append(SampleQuestion(item["question"], read_relevant(item.get("relevant"))))
        else:
            return None
    return questions


def read_relevant(value: Any) -> frozenset[str]:
    """Return the ids of a question's relevant passages; raises `InvalidQuery` if *value* is no list of ids."""
    if value is None:
        return frozenset()
    if not isinstance(value, list | tuple | set | frozenset) or not all(
        isinstance(id_, str | int) and not isinstance(id_, bool) for id_ in value
    ):
        raise InvalidQuery('"relevant" must be a list of passage ids, such as ["a", "b"]')
    return frozenset(map(str, value))


def choose_evenly(questions: Sequence[SampleQuestion]) -> list[SampleQuestion]:
    """Return at most `MOST_ASKED` of the *questions*, at even distances: neighbours in a file are often alike."""
    count = min(len(questions), MOST_ASKED)
    return [questions[place * len(questions) // count] for place in range(count)]


Matches = Sequence[Match]
"""The passages of one list, best first."""


def sample_orders(
    questions: Sequence[SampleQuestion],
    compare: Callable[[str], Flow[tuple[Matches, Matches]]],
    describe_error: Callable[[Exception], str],
    *,
    left_out: int = 0,
) -> Flow[OrderSample]:
    """Compare both orders of each of the *questions*; raises nothing that *compare* raises.

    *compare* returns the passages of a question in the plain order and under the rules.
    """
    changed, errors = 0, list[str]()
    examples: list[tuple[float, OrderExample]] = []
    places: list[tuple[int | None, int | None]] = []
    for question in questions:
        try:
            before, after = yield from compare(question.text)
            keys = [match.key for match in before], [match.key for match in after]
            changed += keys[0] != keys[1][: len(keys[0])]
            if before and after and keys[0][0] != keys[1][0]:
                example = OrderExample(
                    shorten(question.text, MOST_CHARS), _show(before[0]), _show(after[0])
                )
                examples.append((_measure_lead(before), example))
            if question.relevant:
                places.append(
                    (
                        _find_answer(before, question.relevant),
                        _find_answer(after, question.relevant),
                    )
                )
        except Exception as error:
            errors.append(describe_error(error))
    examples.sort(key=lambda pair: -pair[0])
    return OrderSample(
        asked=len(questions),
        left_out=left_out,
        failed=len(errors),
        other_first=len(examples),
        changed=changed,
        examples=tuple(example for _, example in examples[:MOST_EXAMPLES]),
        judged=_count_answers(places) if places else None,
        errors=tuple(dict.fromkeys(errors)),
    )


def _count_answers(places: Sequence[tuple[int | None, int | None]]) -> JudgedSample:
    """Count where the answers stand in the two lists of each judged question, from the *places* of the first one."""
    absent = float("inf")
    ranks = [
        (absent if one is None else one, absent if other is None else other)
        for one, other in places
    ]
    return JudgedSample(
        questions=len(ranks),
        found=sum(min(pair) < absent for pair in ranks),
        first_before=sum(before == 0 for before, _ in ranks),
        first_after=sum(after == 0 for _, after in ranks),
        better=sum(after < before for before, after in ranks),
        worse=sum(after > before for before, after in ranks),
    )


def _find_answer(matches: Matches, relevant: frozenset[str]) -> int | None:
    return next((place for place, match in enumerate(matches) if match.id in relevant), None)


def _measure_lead(matches: Matches) -> float:
    """The lead of the first passage over the second, in shares of the range of the scores; 0 if that is not known."""
    scores = [match.score for match in matches]
    first, second, last = scores[0], scores[min(1, len(scores) - 1)], scores[-1]
    if first is None or second is None or last is None or first == last:
        return 0.0
    return abs(first - second) / abs(first - last)


def _show(match: Match) -> SamplePassage:
    return SamplePassage(match.id, shorten((match.text or "")[: 4 * MOST_CHARS], MOST_CHARS))


def _count(questions: int) -> str:
    return f"{questions} question{'' if questions == 1 else 's'}"
