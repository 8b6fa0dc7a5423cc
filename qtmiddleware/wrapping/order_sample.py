"""Compare the plain order of passages with the keyword rules' order, and give advice on the rules.

Without relevance judgements, nobody knows whether a changed order is better. In a trial on ten
small collections, the fraction of questions with a changed order did not predict for which
collections the rules help. Therefore, without judgements, this module never says that they help.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import comb
from typing import Any, Final

from qtmiddleware.errors import InvalidQuery
from qtmiddleware.preprocessing.text import format_count, shorten_text
from qtmiddleware.runtime.steps import Flow
from qtmiddleware.types import Match

MOST_ASKED: Final = 10
"""The largest number of questions to ask. A longer list is sampled at even intervals."""
FEWEST_ASKED: Final = 3
"""The smallest number of questions for the advice to leave rules off that change no order.

With fewer questions, unchanged orders are weak evidence.
"""
MOST_EXAMPLES: Final = 2
MOST_CHARS: Final = 80
"""The largest number of characters of a passage in an example."""
MORE_WORSE: Final = 3
"""The advice is to turn the rules off if at least this many more answers move down than up."""
SIGNIFICANT: Final = 0.05


class Advice(StrEnum):
    """The advice on one feature, such as the keyword rules.

    ``UNSEEN`` means that the feature had no effect on the questions that were asked.
    """

    KEEP = "keep"
    MEASURE = "measure"
    LEAVE_OFF = "leave_off"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class SampleQuestion:
    """A question of a sample.

    Attributes:
        text: the question as the user wrote it.
        relevant: the ids of the question's relevant passages; empty if the user named none.
    """

    text: str = field(repr=False)
    relevant: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SamplePassage:
    """A passage in an `OrderExample`.

    Attributes:
        id: the passage's id; ``None`` if it has none.
        text: the beginning of the passage's text.
    """

    id: str | None
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OrderExample:
    """A question for which the keyword rules put another passage first.

    Attributes:
        question: the question's text.
        before: the first passage in the plain order.
        after: the first passage in the rules' order.
    """

    question: str = field(repr=False)
    before: SamplePassage
    after: SamplePassage


@dataclass(frozen=True, slots=True)
class JudgedSample:
    """How the keyword rules move the answers to judged questions up or down.

    A question is judged if the user named its relevant passages. In each order, the answer is the
    relevant passage that comes first.

    Attributes:
        questions: the number of judged questions that were asked.
        found: the number of questions with an answer in the plain order or in the rules' order.
        first_before: the number of questions whose answer is first in the plain order.
        first_after: the number of questions whose answer is first in the rules' order.
        better: the number of questions whose answer moves up.
        worse: the number of questions whose answer moves down.
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
    """How the keyword rules, without a model, change the order of passages for several questions.

    Attributes:
        asked: the number of questions that were asked with and without the rules.
        left_out: the number of questions that were not asked, because there were more than
            `MOST_ASKED`.
        failed: the number of questions that were asked but failed.
        other_first: the number of questions for which the rules put another passage first.
        changed: the number of questions for which the rules change the plain order. Passages added
            at its end do not count.
        examples: at most two questions for which the rules put another passage first. Questions
            whose first passage had a clear lead in the plain order come first.
        judged: how the answers move; ``None`` if no question names relevant passages.
        errors: why questions failed, without duplicates.
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
        """The number of questions for which both orders are known."""
        return self.asked - self.failed

    def advise(self) -> tuple[Advice, str]:
        """Return the advice on the rules, and the reason for the advice.

        - Keep the rules only if significantly more answers move up than down (one-sided sign test
          at 5 %). For example, 7 of 8 moved answers move up.
        - Leave the rules off if no order changes, or if at least three more answers move down than
          up. This threshold is lower because leaving the rules off costs nothing.
        - Otherwise, measure the effect. If no order changed, and too few questions were asked to
          advise against the rules, the advice is ``UNSEEN``.
        """
        if self.compared >= FEWEST_ASKED and not self.changed:
            return (
                Advice.LEAVE_OFF,
                f"the order does not change for any of {self.compared} questions",
            )
        judged = self.judged
        if judged is not None and is_gain_significant(judged.better, judged.worse):
            return Advice.KEEP, str(judged)
        if judged is not None and judged.worse - judged.better >= MORE_WORSE:
            return Advice.LEAVE_OFF, str(judged)
        return (Advice.MEASURE if self.changed else Advice.UNSEEN), ""

    def __str__(self) -> str:
        if not self.compared:
            text = f"none of {self.asked} questions could be compared"
        elif not self.changed:
            text = f"the order does not change in any of {format_count(self.compared, 'question')}"
        else:
            text = (
                f"another passage is first in {self.other_first or 'none'} of"
                f" {format_count(self.compared, 'question')},"
                f" and the order changes in {self.changed}"
            )
        if self.failed:
            text += f"; {self.failed} failed ({'; '.join(self.errors)})"
        if self.left_out:
            text += f"; {self.left_out} more questions were not asked"
        if self.compared < FEWEST_ASKED:
            text += f"; too few for advice: ask {FEWEST_ASKED} to {MOST_ASKED}"
        return text


def is_gain_significant(moved_up_count: int, moved_down_count: int) -> bool:
    """Return whether significantly more answers moved up than down: a one-sided sign test at 5 %.

    Args:
        moved_up_count: The number of answers that moved up.
        moved_down_count: The number of answers that moved down.
    """
    moved = moved_up_count + moved_down_count
    # If the rules did nothing, each answer would be as likely to move up as down. Then 2 ** moved
    # outcomes would be equally likely.
    ways = sum(comb(moved, count) for count in range(moved_up_count, moved + 1))
    return ways < SIGNIFICANT * (1 << moved)


def read_sample_questions(argument: Any) -> list[SampleQuestion] | None:
    """Return the questions in *argument*, or ``None`` if *argument* is not a list of questions.

    A question is a text or ``{"question": text, "relevant": [id, ...]}``. A list with a single text
    is not a list of questions, because some functions take their only question in a list. Raises
    `InvalidQuery` if ``relevant`` is not a list of ids.
    """
    if (
        not isinstance(argument, list | tuple)
        or not argument
        or (len(argument) == 1 and isinstance(argument[0], str))
    ):
        return None
    questions: list[SampleQuestion] = []
    for item in argument:
        if isinstance(item, str):
            questions.append(SampleQuestion(item))
        elif isinstance(item, Mapping) and isinstance(item.get("question"), str):
            questions.append(
                SampleQuestion(item["question"], read_relevant_ids(item.get("relevant")))
            )
        else:
            return None
    return questions


def read_relevant_ids(id_list: Any) -> frozenset[str]:
    """Return the ids of relevant passages in *id_list*, or no ids if *id_list* is ``None``.

    Raises `InvalidQuery` if *id_list* is not a list of ids.
    """
    if id_list is None:
        return frozenset()
    if not isinstance(id_list, list | tuple | set | frozenset) or not all(
        isinstance(id_, str | int) and not isinstance(id_, bool) for id_ in id_list
    ):
        raise InvalidQuery('"relevant" must be a list of passage ids, such as ["a", "b"]')
    return frozenset(map(str, id_list))


def choose_sample_questions(questions: Sequence[SampleQuestion]) -> list[SampleQuestion]:
    """Return at most `MOST_ASKED` of *questions*, taken at even intervals.

    The first questions alone would be a poor sample, because neighbouring questions in a file are
    often similar.
    """
    count = min(len(questions), MOST_ASKED)
    return [questions[index * len(questions) // count] for index in range(count)]


Matches = Sequence[Match]
"""The passages of one list, best first."""


def compare_orders(
    questions: Sequence[SampleQuestion],
    get_orders: Callable[[str], Flow[tuple[Matches, Matches]]],
    describe_error: Callable[[Exception], str],
    *,
    unasked_count: int = 0,
) -> Flow[OrderSample]:
    """Ask *questions*, and return how the keyword rules change the order of the passages.

    Args:
        questions: the questions to ask.
        get_orders: returns a question's passages in the plain order and in the rules' order. If
            *get_orders* raises an exception, the question counts as failed.
        describe_error: returns a sentence about an exception.
        unasked_count: the number of questions that the caller left out of *questions*.
    """
    changed, errors = 0, list[str]()
    examples: list[tuple[float, OrderExample]] = []
    positions: list[tuple[int | None, int | None]] = []
    for question in questions:
        try:
            before, after = yield from get_orders(question.text)
            keys = [match.key for match in before], [match.key for match in after]
            # The rules never return fewer passages. Additional ones at the end change nothing.
            changed += keys[0] != keys[1][: len(keys[0])]
            if before and after and keys[0][0] != keys[1][0]:
                example = OrderExample(
                    shorten_text(question.text, MOST_CHARS),
                    _shorten_passage(before[0]),
                    _shorten_passage(after[0]),
                )
                examples.append((_measure_first_lead(before), example))
            if question.relevant:
                positions.append(
                    (
                        _find_answer_position(before, question.relevant),
                        _find_answer_position(after, question.relevant),
                    )
                )
        except Exception as error:
            errors.append(describe_error(error))
    examples.sort(key=lambda pair: -pair[0])
    return OrderSample(
        asked=len(questions),
        left_out=unasked_count,
        failed=len(errors),
        other_first=len(examples),
        changed=changed,
        examples=tuple(example for _, example in examples[:MOST_EXAMPLES]),
        judged=_count_answer_moves(positions) if positions else None,
        errors=tuple(dict.fromkeys(errors)),
    )


def _count_answer_moves(positions: Sequence[tuple[int | None, int | None]]) -> JudgedSample:
    """Count the judged questions whose answer is found, comes first, moves up or moves down.

    *positions* holds a pair per question: the answer's position in the plain order, and its
    position in the rules' order. Positions start at 0. ``None`` means that the order holds no
    answer.
    """
    # An answer that is not in a list is worse than any position.
    absent = float("inf")
    ranks = [
        (absent if before is None else before, absent if after is None else after)
        for before, after in positions
    ]
    return JudgedSample(
        questions=len(ranks),
        found=sum(min(pair) < absent for pair in ranks),
        first_before=sum(before == 0 for before, _ in ranks),
        first_after=sum(after == 0 for _, after in ranks),
        better=sum(after < before for before, after in ranks),
        worse=sum(after > before for before, after in ranks),
    )


def _find_answer_position(matches: Matches, relevant_ids: frozenset[str]) -> int | None:
    return next((index for index, match in enumerate(matches) if match.id in relevant_ids), None)


def _measure_first_lead(matches: Matches) -> float:
    """Return the first passage's lead over the second, as a fraction of the range of scores.

    Returns 0 if a score is unknown, or if all scores are equal.
    """
    scores = [match.score for match in matches]
    first_score, second_score, last_score = scores[0], scores[min(1, len(scores) - 1)], scores[-1]
    if (
        first_score is None
        or second_score is None
        or last_score is None
        or first_score == last_score
    ):
        return 0.0
    return abs(first_score - second_score) / abs(first_score - last_score)


def _shorten_passage(match: Match) -> SamplePassage:
    return SamplePassage(match.id, shorten_text((match.text or "")[: 4 * MOST_CHARS], MOST_CHARS))
