from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import Dataset, Question
from qtmiddleware.kit.evaluation.tuning import LEAST, split
from qtmiddleware.types import Message


def asked(*questions: Question) -> Dataset:
    return Dataset("asked", (), questions, {question.id: {"p": 1} for question in questions})


def many(count: int) -> Dataset:
    return asked(*(Question(f"q{number}", f"Question {number}?") for number in range(count)))


def opening(question: Question) -> str:
    return question.history[0].content if question.history else question.text


def ids(data: Dataset) -> set[str]:
    return {question.id for question in data.questions}


@given(count=st.integers(50, 90), seed=st.integers(), holdout=st.floats(0.4, 0.6))
def test_every_question_is_on_one_side_with_its_judgements(
    count: int, seed: int, holdout: float
) -> None:
    data = many(count)
    train, held = split(data, seed=seed, holdout=holdout)
    assert ids(train) | ids(held) == ids(data)
    assert not ids(train) & ids(held)
    assert len(held.questions) == round(holdout * count)
    assert (set(train.qrels), set(held.qrels)) == (ids(train), ids(held))


@given(
    spoken=st.lists(
        st.lists(
            st.sampled_from(["who?", " WHO? ", "and then?", "why", "", "é", "x y"]), max_size=3
        )
    ),
    seed=st.integers(),
)
def test_no_question_no_text_and_no_conversation_is_ever_on_both_sides(
    spoken: list[list[str]], seed: int
) -> None:
    odd = [
        Question(f"odd{at}", turns[-1], tuple(Message("user", turn) for turn in turns[:-1]))
        for at, turns in enumerate(spoken)
        if turns
    ]
    train, held = split(asked(*many(90).questions, *odd), seed=seed)
    assert not ids(train) & ids(held)
    begun = [
        {" ".join(opening(it).split()).casefold() for it in side.questions}
        for side in (train, held)
    ]
    assert not begun[0] & begun[1]
    assert not set(train.qrels) & set(held.qrels)


@given(order=st.permutations(range(40)))
def test_the_order_of_the_questions_changes_nothing(order: list[int]) -> None:
    data = many(40)
    _, held = split(data)
    _, again = split(replace(data, questions=tuple(data.questions[place] for place in order)))
    assert ids(again) == ids(held)


def test_another_seed_divides_otherwise() -> None:
    assert ids(split(many(60), seed=1)[1]) != ids(split(many(60), seed=2)[1])
    assert ids(split(many(60), seed=1)[1]) == ids(split(many(60), seed=1)[1])


@given(seed=st.integers(0, 1000))
def test_a_conversation_stays_on_one_side_its_first_question_included(seed: int) -> None:
    conversations = [
        [
            Question(f"{number}-first", f"Who was number {number}?"),
            Question(
                f"{number}-next", "And then?", (Message("user", f"who was  Number {number}?"),)
            ),
        ]
        for number in range(30)
    ]
    train, held = split(
        asked(*(question for pair in conversations for question in pair)), seed=seed
    )
    for side in (train, held):
        assert {id_.partition("-")[0] for id_ in ids(side)} == {
            it.id.partition("-")[0] for it in side.questions
        }
        assert len(ids(side)) % 2 == 0
    assert not {it.partition("-")[0] for it in ids(train)} & {
        it.partition("-")[0] for it in ids(held)
    }


@given(seed=st.integers(0, 1000))
def test_questions_of_equal_text_stay_on_one_side(seed: int) -> None:
    twins = [
        Question(f"twin{number}", "The  SAME one?" if number % 2 else "the same one?")
        for number in range(6)
    ]
    _, held = split(asked(*many(60).questions, *twins), seed=seed)
    assert len(ids(held) & ids(asked(*twins))) in (0, 6)


def test_too_few_questions_are_refused_with_the_number_that_is_needed() -> None:
    with pytest.raises(
        ConfigError, match=r"10 judged questions are too few to tune on: 40 are needed"
    ):
        split(many(10))
    with pytest.raises(
        ConfigError, match=r"39 judged questions are too few to tune on: 40 are needed"
    ):
        split(many(39))
    with pytest.raises(
        ConfigError, match=r"60 judged questions are too few to tune on: 80 are needed"
    ):
        split(many(60), holdout=0.25)
    assert [len(side.questions) for side in split(many(40))] == [LEAST, LEAST]


def test_questions_of_one_conversation_cannot_be_divided() -> None:
    opening = (Message("user", "Who was it?"),)
    data = asked(*(Question(f"q{number}", f"And {number}?", opening) for number in range(90)))
    with pytest.raises(
        ConfigError, match=r"90 judged questions are of too few conversations or texts \(1\)"
    ):
        split(data)


@pytest.mark.parametrize("holdout", [0.0, 1.0, -1.0, float("nan")])
def test_a_share_that_leaves_a_side_empty_is_refused(holdout: float) -> None:
    with pytest.raises(ConfigError, match="must be above 0 and below 1"):
        split(many(60), holdout=holdout)
