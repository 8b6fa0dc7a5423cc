"""Any number of answers to a question, ranked by a judge who does not know whose they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.errors import ModelError
from qtmiddleware.evaluation import Question
from qtmiddleware.evaluation.judging import rank
from qtmiddleware.evaluation.ranking import parse_places
from qtmiddleware.protocols import Prompt
from tests.support.answering_service import rank_by_length
from tests.support.judging_world import QUESTIONS, judge_of, shown

ANSWERS = {
    "raw": {one.id: "No idea." for one in QUESTIONS},
    "rules": {one.id: f"It is {one.id[1:]}, and the vet said so in May." for one in QUESTIONS},
    "rewrite": {one.id: f"It is {one.id[1:]}, says the vet." for one in QUESTIONS},
}


def by_length(prompt: Prompt) -> Mapping[str, Any]:
    return rank_by_length(shown(prompt))


def first_is_best(prompt: Prompt) -> Mapping[str, Any]:
    return {**rank_by_length(shown(prompt)), "ranking": " > ".join(name for name in shown(prompt) if len(name) == 1)}


def test_systems_are_ranked_by_both_orders_and_the_judges_words_are_kept() -> None:
    model = judge_of(by_length)
    ranked = rank(QUESTIONS, ANSWERS, model)
    assert [(it.system, it.rank, it.firsts, it.questions) for it in ranked.standings] == [
        ("rules", 1, 8, 8),
        ("rewrite", 2, 0, 8),
        ("raw", 3, 0, 8),
    ]
    first, second = ranked.questions[0].reasons
    assert first.order == second.order[::-1]
    assert first.text == f"{'ABC'[first.order.index('rules')]} says most."
    assert ranked.questions[0].standings[0].strengths == ("full", "full")
    assert ranked.summary() == "Ranked by judge-1 on 8 questions: rules > rewrite > raw."
    assert len(model.prompts) == 2 * len(QUESTIONS)
    assert not any(name in prompt.system + prompt.user for prompt in model.prompts for name in ANSWERS)
    json.dumps(ranked.to_dict())


def test_a_judge_that_goes_by_position_leaves_no_order() -> None:
    ranked = rank(QUESTIONS, ANSWERS, judge_of(first_is_best))
    assert {it.place for it in ranked.standings} == {2.0}
    assert all(one.is_flip for one in ranked.questions)
    assert "Another answer was best when they changed places: 8" in ranked.summary()


def test_equal_answers_share_a_place_and_are_shown_once() -> None:
    model = judge_of(by_length)
    ranked = rank(QUESTIONS[:1], {**ANSWERS, "stepback": ANSWERS["rules"]}, model)
    assert [(it.system, it.rank) for it in ranked.standings] == [
        ("rules", 1),
        ("stepback", 1),
        ("rewrite", 3),
        ("raw", 4),
    ]
    assert {len([name for name in shown(prompt) if len(name) == 1]) for prompt in model.prompts} == {3}
    equal = rank(QUESTIONS[:1], {"raw": ANSWERS["raw"], "again": ANSWERS["raw"]}, model)
    assert [it.rank for it in equal.standings] == [1, 1]
    assert len(model.prompts) == 2


def test_who_has_no_answer_takes_no_part_and_what_cannot_be_judged_is_skipped() -> None:
    some = {**ANSWERS, "rewrite": {"q0": "It is 0, says the vet."}}
    ranked = rank([*QUESTIONS[:2], Question("x", "?")], some, judge_of(by_length))
    assert [len(one.standings) for one in ranked.questions] == [3, 2]
    assert ranked.skipped == 1


def test_a_reply_that_is_no_ranking_fails_its_question_and_nothing_else() -> None:
    def reply(prompt: Prompt) -> Any:
        return "I like them all." if "number 1" in prompt.user else by_length(prompt)

    ranked = rank(QUESTIONS, ANSWERS, judge_of(reply))
    assert [one.error for one in ranked.questions] == ["", "unparsable", *[""] * 6]
    assert ranked.failed == 1
    with pytest.raises(ModelError, match="ranking"):
        rank(QUESTIONS, ANSWERS, judge_of("I like them all."))


@pytest.mark.parametrize(
    ("said", "places"),
    [
        ("B > A = C", {"B": 1, "A": 2.5, "C": 2.5}),
        ("A, C, B", {"A": 1, "C": 2, "B": 3}),
        ("Answer C > answer B > answer A", {"C": 1, "B": 2, "A": 3}),
        ("A > B", {}),
        ("A > B > C > C", {}),
        ("A > B > C > D", {}),
        (["A", "B", "C"], {}),
    ],
)
def test_places_are_read_as_judges_write_them(said: object, places: dict[str, float]) -> None:
    assert parse_places(said, "ABC") == places


@given(st.text())
def test_whatever_a_judge_says_is_a_ranking_of_all_or_none(said: str) -> None:
    assert set(parse_places(said, "ABC")) in (set(), set("ABC"))
