"""Any number of answers to a question, ranked by a judge who does not know whose they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.evaluation import Question
from qtmiddleware.kit.evaluation.ballots import MOST_FAILURES, parse_ranks
from qtmiddleware.kit.evaluation.judging import rank
from qtmiddleware.protocols import Prompt
from tests.support.answering_service import rank_by_words
from tests.support.judging_world import QUESTIONS, judge_of, shown

ANSWERS = {
    "raw": {one.id: "No idea." for one in QUESTIONS},
    "rules": {one.id: f"It is {one.id[1:]}, and the vet said so in May." for one in QUESTIONS},
    "rewrite": {one.id: f"It is {one.id[1:]}, says the vet." for one in QUESTIONS},
}


def by_words(prompt: Prompt) -> Mapping[str, Any]:
    return rank_by_words(shown(prompt))


def letters(prompt: Prompt) -> dict[str, str]:
    return {name: text for name, text in shown(prompt).items() if len(name) == 1}


def ranked_as(prompt: Prompt, groups: Sequence[Sequence[str]]) -> Mapping[str, Any]:
    """What a judge replies who ranks these groups of letters."""
    return {
        **rank_by_words(shown(prompt)),
        "ranking": " > ".join(" = ".join(it) for it in groups if it),
    }


def first_is_best(prompt: Prompt) -> Mapping[str, Any]:
    return ranked_as(prompt, list(letters(prompt)))


def only_first_is_best(prompt: Prompt) -> Mapping[str, Any]:
    first, *others = letters(prompt)
    return ranked_as(prompt, [[first], others])


def longer_is_better(prompt: Prompt) -> Mapping[str, Any]:
    lengths = {name: len(text) for name, text in letters(prompt).items()}
    return ranked_as(prompt, [[name] for name in sorted(lengths, key=lambda name: -lengths[name])])


def named_is_best(prompt: Prompt) -> Mapping[str, Any]:
    """Prefers whatever speaks of the system called rules, wherever that may be told."""
    told = {
        name
        for name, text in letters(prompt).items()
        if "rules" in text or f"{name} is rules" in prompt.system
    }
    return ranked_as(prompt, [sorted(told), [name for name in letters(prompt) if name not in told]])


def test_systems_are_ranked_by_both_orders_and_the_judges_words_are_kept() -> None:
    model = judge_of(by_words)
    ranked = rank(QUESTIONS, ANSWERS, model)
    assert [(it.system, it.rank, it.firsts, it.questions) for it in ranked.standings] == [
        ("rules", 1, 8, 8),
        ("rewrite", 2, 0, 8),
        ("raw", 3, 0, 8),
    ]
    first, second = ranked.questions[0].reasons
    assert first.order == second.order[::-1]
    assert first.order["ABCD".index(first.text[0])].startswith("rules")
    assert first.text.endswith(" says most.")
    assert ranked.questions[0].standings[0].strengths == ("full", "full")
    assert ranked.summary() == (
        "Ranked by judge-1 on 8 questions: rules > rewrite > raw. Repeats agree on 100% of the pairs. "
        "Ahead of raw by more than chance: rules, rewrite."
    )
    assert len(model.prompts) == 2 * len(QUESTIONS)
    assert not any(
        name in prompt.system + prompt.user for prompt in model.prompts for name in ANSWERS
    )
    json.dumps(ranked.to_dict())


def test_a_judge_that_goes_by_position_leaves_no_order() -> None:
    ranked = rank(QUESTIONS, ANSWERS, judge_of(first_is_best))
    assert {it.place for it in ranked.standings} == {2.0}
    assert not any(it.is_ahead for it in ranked.standings)
    assert ranked.agreement == 0.0
    assert all(one.is_flip for one in ranked.questions)
    assert "Another answer was best when their order was reversed: 8" in ranked.summary()


def many(count: int) -> tuple[Sequence[Question], dict[str, dict[str, str]]]:
    questions = [
        Question(f"m{at}", f"What is number {at}?", metadata={"answer": f"It is {at}."})
        for at in range(count)
    ]
    words = {
        "raw": "No idea.",
        "rules": "It is {}, and the vet said so in May.",
        "rewrite": "It is {}, says the vet.",
    }
    return questions, {
        name: {it.id: text.format(it.id[1:]) for it in questions} for name, text in words.items()
    }


@pytest.mark.parametrize("repeats", [2, 6])
def test_who_is_shown_first_gains_nothing_by_it(repeats: int) -> None:
    questions, answers = many(60)
    ranked = rank(questions, answers, judge_of(only_first_is_best), repeats=repeats)
    assert not any(it.is_ahead for it in ranked.standings)
    assert all(
        low < 2.0 < high for low, high in (it.interval for it in ranked.standings if it.interval)
    )


def test_who_is_longer_gains_nothing_as_a_judge_that_goes_by_length_is_found_out() -> None:
    ranked = rank(QUESTIONS, ANSWERS, judge_of(longer_is_better))
    assert (ranked.standings, ranked.set_aside, ranked.failed) == ((), 8, 0)
    assert {one.error for one in ranked.questions} == {"length"}
    assert "Not counted, because the judge preferred a repeated answer: 8" in ranked.summary()
    assert any("said twice" in reason.legend for reason in ranked.questions[0].reasons)


def test_a_system_s_name_gains_nothing_as_no_judge_is_told_it() -> None:
    ranked = rank(QUESTIONS, ANSWERS, judge_of(named_is_best))
    assert {it.place for it in ranked.standings} == {2.0}
    assert not any(it.is_ahead for it in ranked.standings)


def test_repeats_are_half_reversed_and_agreement_is_measured_between_them() -> None:
    asked: list[int] = []

    def waver(prompt: Prompt) -> Mapping[str, Any]:
        asked.append(1)
        return by_words(prompt) if len(asked) % 4 else ranked_as(prompt, [list(letters(prompt))])

    model = judge_of(waver)
    ranked = rank(QUESTIONS[:1], ANSWERS, model, repeats=4, concurrency=1)
    (one,) = ranked.questions
    orders = [reason.order for reason in one.reasons]
    assert len(orders) == 4
    assert orders[1] == orders[0][::-1]
    assert orders[3] == orders[2][::-1]
    assert (
        one.agreement == 0.5
    )  # three of the six pairs of repeats say the same of every pair of answers
    for count in (0, 3):
        with pytest.raises(ConfigError, match="even number"):
            rank(QUESTIONS, ANSWERS, model, repeats=count)


def test_places_and_leads_have_intervals_over_the_questions() -> None:
    ranked = rank(QUESTIONS, ANSWERS, judge_of(by_words))
    rules, rewrite, raw = ranked.standings
    assert (rules.interval, rules.lead, rules.lead_interval, rules.is_ahead) == (
        (1.0, 1.0),
        2.0,
        (2.0, 2.0),
        True,
    )
    assert (rewrite.lead, raw.lead, raw.is_ahead) == (1.0, None, False)
    one = rank(QUESTIONS[:1], ANSWERS, judge_of(by_words)).standings[0]
    assert not one.is_ahead  # one question says nothing of the next


def test_equal_answers_share_a_place_and_are_shown_once() -> None:
    model = judge_of(by_words)
    ranked = rank(QUESTIONS[:1], {**ANSWERS, "stepback": ANSWERS["rules"]}, model)
    assert [(it.system, it.rank) for it in ranked.standings] == [
        ("rules", 1),
        ("stepback", 1),
        ("rewrite", 3),
        ("raw", 4),
    ]
    assert {
        len([name for name in shown(prompt) if len(name) == 1]) for prompt in model.prompts
    } == {4}
    equal = rank(QUESTIONS[:1], {"raw": ANSWERS["raw"], "again": ANSWERS["raw"]}, model)
    assert [it.rank for it in equal.standings] == [1, 1]
    assert len(model.prompts) == 2


def test_who_has_no_answer_takes_no_part_and_what_cannot_be_judged_is_skipped() -> None:
    some = {**ANSWERS, "rewrite": {"q0": "It is 0, says the vet."}}
    ranked = rank([*QUESTIONS[:2], Question("x", "?")], some, judge_of(by_words))
    assert [len(one.standings) for one in ranked.questions] == [3, 2]
    assert ranked.skipped == 1


def test_a_reply_that_is_no_ranking_fails_its_question_and_nothing_else() -> None:
    def reply(prompt: Prompt) -> Any:
        return "I like them all." if "number 1" in prompt.user else by_words(prompt)

    ranked = rank(QUESTIONS, ANSWERS, judge_of(reply))
    assert [one.error for one in ranked.questions] == ["", "unparsable", *[""] * 6]
    assert ranked.failed == 1
    with pytest.raises(ModelError, match="ranking"):
        rank(QUESTIONS, ANSWERS, judge_of("I like them all."))


def test_a_judge_that_dies_later_keeps_what_it_ranked_and_is_not_asked_on() -> None:
    questions, answers = many(40)
    replies = iter(range(1_000))

    def dying(prompt: Prompt) -> Any:
        return (
            by_words(prompt)
            if next(replies) < 8
            else ModelError("unavailable", "the service is down")
        )

    model = judge_of(dying)
    ranked = rank(questions, answers, model, concurrency=1)
    assert [one.error for one in ranked.questions] == [
        *[""] * 4,
        *["unavailable"] * MOST_FAILURES,
        *["cancelled"] * 20,
    ]
    assert ranked.standings[0].questions == 4
    assert len(model.prompts) == 8 + 2 * MOST_FAILURES


def test_a_key_that_is_refused_later_ends_the_ranking_with_what_there_is() -> None:
    replies = iter(range(1_000))

    def refusing(prompt: Prompt) -> Any:
        return (
            by_words(prompt)
            if next(replies) < 2
            else ModelError("unauthorized", "rejected the key")
        )

    ranked = rank(QUESTIONS, ANSWERS, judge_of(refusing), concurrency=1)
    assert [one.error for one in ranked.questions] == ["", "unauthorized", *["cancelled"] * 6]


@pytest.mark.parametrize(
    ("said", "places"),
    [
        ("B > A = C", {"B": 1, "A": 2.5, "C": 2.5}),
        ("A, C, B", {"A": 1, "C": 2, "B": 3}),
        ("b > a = c", {"B": 1, "A": 2.5, "C": 2.5}),
        ("B, then C, then A", {"B": 1, "C": 2, "A": 3}),
        ("Answer C > answer B > answer A.", {"C": 1, "B": 2, "A": 3}),
        ("A > B", {}),
        ("A > B > C > C", {}),
        ("A > B > C > D", {}),
        (["A", "B", "C"], {}),
    ],
)
def test_places_are_read_as_judges_write_them(said: object, places: dict[str, float]) -> None:
    assert parse_ranks(said, "ABC") == places


@given(st.text())
def test_whatever_a_judge_says_is_a_ranking_of_all_or_none(said: str) -> None:
    assert set(parse_ranks(said, "ABC")) in (set(), set("ABC"))
