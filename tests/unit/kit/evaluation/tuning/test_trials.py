from __future__ import annotations

import pytest

from qtmiddleware.kit.evaluation import Dataset, Question, Run, measure
from qtmiddleware.kit.evaluation.tuning import OVERALL_ERRORS, Trial

COUNT = 100


def trial(found: int, *, asked: int = 0) -> Trial:
    """A candidate that answers the first *found* of a hundred questions, raw none, and asks about *asked* of them."""
    questions = tuple(Question(str(number), str(number)) for number in range(COUNT))
    data = Dataset("hundred", (), questions, {question.id: {"p": 1} for question in questions})

    def run(question: Question) -> Run:
        number = int(question.id)
        return Run(("p",) if number < found else ("x",), llm_calls=int(number < asked))

    score = measure({"raw": lambda _: [("x", 1.0)], "it": run}, data, baseline="raw")["it"]
    return Trial("rules", {}, score)


def test_one_question_more_is_no_clear_gain_and_a_tenth_of_them_is() -> None:
    assert not trial(51).is_clearly_better(trial(50))
    assert trial(60).is_clearly_better(trial(50))
    assert not trial(50).is_clearly_better(trial(50))


def test_what_one_step_may_take_for_clear_need_not_be_so_after_many() -> None:
    assert trial(54).is_clearly_better(trial(50))
    assert not trial(54).is_clearly_better(trial(50), OVERALL_ERRORS)
    assert trial(60).is_clearly_better(trial(50), OVERALL_ERRORS)


@pytest.mark.parametrize(
    ("cheap", "dear", "is_taken"),
    [
        (trial(50), trial(50, asked=100), True),  # no call, nothing lost
        (trial(49), trial(50, asked=100), False),  # no call, a point lost
        (trial(55), trial(50, asked=100), True),  # no call, and better
        (trial(50, asked=35), trial(50, asked=100), True),  # fewer calls, the very same found
        (
            trial(49, asked=35),
            trial(50, asked=100),
            False,
        ),  # fewer calls, a point lost, by chance perhaps not more
        (trial(50, asked=100), trial(50, asked=100), False),  # not cheaper
        (trial(60, asked=100), trial(50, asked=35), False),  # dearer
    ],
)
def test_fewer_calls_are_taken_only_where_next_to_nothing_is_lost(
    cheap: Trial, dear: Trial, is_taken: bool
) -> None:
    assert cheap.can_replace(dear) is is_taken
