"""What a check of several questions says: how many orders change, which ones, and when the rules are advised."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.wrapping.order_sample import (
    Advice,
    JudgedSample,
    OrderSample,
    is_gain_significant,
)
from tests.support.retrieval_world import WAYS, Way, scripted, search, transforming

MOVES: Final = [
    f"Does {name} have any health concerns?"
    for name in ("Jaco", "Bella", "Rex", "Luna", "Max", "Milo")
]
STAYS: Final = [
    f"When does {name} walk?" for name in ("Jaco", "Bella", "Rex", "Luna", "Max", "Milo")
]
FILLERS: Final = ["Cats sleep", "Birds sing", "Fish swim", "Bees hum", "Cows graze", "Mice run"]


def find_pets(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    """Return the answer close behind a passage without its words, or far ahead if a walk is asked for."""
    answer, other = query.rstrip("?"), "The fee is due before the shelter opens"
    leads = query.startswith("When")
    rows: list[dict[str, Any]] = [
        {"id": "answer", "score": 0.9 if leads else 0.79, "text": answer},
        {"id": "other", "score": 0.5 if leads else 0.8, "text": other},
    ]
    rows.sort(key=lambda row: -row["score"])
    rows += [{"id": str(n), "score": 0.4 - n / 20, "text": it} for n, it in enumerate(FILLERS)]
    return rows[:top_k]


def judge(questions: list[str], *relevant: str) -> list[dict[str, Any]]:
    return [{"question": question, "relevant": list(relevant)} for question in questions]


def checked(questions: Any, fn: Any = find_pets, **options: Any) -> qtm.Check:
    found: qtm.Check = (
        qtm.QueryMiddleware(options.pop("config", None), **options).wrap(fn).check(questions)
    )
    return found


def take_sample(check: qtm.Check) -> OrderSample:
    assert check.sample is not None
    return check.sample


def find(check: qtm.Check, subject: str) -> qtm.Finding:
    return next(it for it in (*check.findings, *check.verdicts) if it.subject == subject)


def rules(check: qtm.Check) -> qtm.Finding:
    return find(check, "keyword evidence")


@pytest.mark.parametrize("way", WAYS, ids=repr)
def test_of_several_questions_it_is_said_for_how_many_another_passage_comes_first(way: Way) -> None:
    wrapped = way.wrap(find_pets).wrapped
    questions = [*MOVES[:2], *STAYS[:3]]
    check = (
        asyncio.run(wrapped.acheck(questions)) if way.name != "sync" else wrapped.check(questions)
    )
    sample = take_sample(check)
    assert (sample.asked, sample.failed, sample.other_first, sample.left_out) == (5, 0, 2, 0)
    assert "another passage is first in 2 of 5 questions" in find(check, "sample").text
    assert rules(check).values["advice"] == "measure"
    assert "may help or harm, so measure it" in str(check)
    assert json.loads(json.dumps(check.to_dict()))["sample"]["other_first"] == 2


def test_two_examples_show_the_passage_that_came_first_and_the_one_that_would() -> None:
    check = checked(MOVES)
    first, second = take_sample(check).examples
    assert (first.before.id, first.after.id, second.before.id) == ("other", "answer", "other")
    report = str(check)
    assert f"first           other: {first.before.text}" in report
    assert f"would be first  answer: {first.after.text}" in report
    assert all(len(line) <= 80 for line in report.splitlines())


def test_the_examples_are_those_whose_leader_was_clearest_and_their_texts_are_short() -> None:
    def lead_by_name(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        rows = find_pets(query, top_k)
        return [{**rows[0], "score": 0.79 + len(query) / 10_000, "text": "x " * 90_000}, *rows[1:]]

    sample = take_sample(
        checked([*MOVES, "Does Bartholomew have any health concerns?"], lead_by_name)
    )
    assert sample.other_first == 7
    assert "Bartholomew" in sample.examples[0].question
    assert all(len(it.before.text) <= 80 for it in sample.examples)


def test_an_order_that_stays_for_three_questions_is_a_reason_to_leave_the_rules_off() -> None:
    check = checked(STAYS[:3])
    assert (rules(check).values["advice"], rules(check).mend) == (
        "leave_off",
        "set keywordEvidence: false",
    )
    assert not check.helps
    assert "leave it off: the order does not change for any of 3 questions" in str(check)


def test_two_questions_are_too_few_to_advise_on() -> None:
    check = checked(STAYS[:2])
    assert (rules(check).values["advice"], check.helps) == ("unseen", True)
    assert "too few for advice: ask 3 to 10" in find(check, "sample").text
    assert "check([...])" in rules(check).mend


def test_one_question_has_no_sample() -> None:
    check = checked(MOVES[0])
    assert (check.sample, check.to_dict()["sample"], rules(check).values["advice"]) == (
        None,
        None,
        "measure",
    )


def test_a_list_of_one_text_is_the_question_of_a_function_that_takes_it_so() -> None:
    def find_first(query_texts: list[str], top_k: int = 4) -> Any:
        assert isinstance(query_texts, list)
        return find_pets(query_texts[0], top_k)

    check = checked([MOVES[0]], find_first)
    assert (check.sample, check.question, rules(check).values["advice"]) == (
        None,
        MOVES[0],
        "measure",
    )


def test_questions_for_which_the_function_raises_are_reported_and_the_others_count() -> None:
    def fail_for_rex(query: str, top_k: int = 4) -> Any:
        if "Rex" in query:
            raise ConnectionError("http://user:secret@host is down")
        return find_pets(query, top_k)

    check = checked([*MOVES[:3], "   ", *STAYS[:1]], fail_for_rex)
    sample = take_sample(check)
    assert (sample.asked, sample.failed, sample.compared, sample.other_first) == (5, 2, 3, 2)
    assert (
        "2 failed (ConnectionError: http://host is down; InvalidQuery: the question is blank)"
        in find(check, "sample").text
    )


def test_a_function_that_fails_for_all_but_the_first_question_is_no_reason_for_advice() -> None:
    calls: list[str] = []

    def fail_later(query: str, top_k: int = 4) -> Any:
        calls.append(query)
        if len(calls) > 8:
            raise TimeoutError
        return find_pets(query, top_k)

    check = checked(MOVES[:3], fail_later)
    assert take_sample(check).compared == 0
    assert find(check, "sample").state == "problem"
    assert rules(check).values["advice"] == "unseen"


def test_of_many_questions_ten_are_asked_at_even_distances() -> None:
    asked: set[str] = set()

    def note(query: str, top_k: int = 4) -> Any:
        asked.add(query)
        return find_pets(query, top_k)

    check = checked([f"When does dog {n} walk?" for n in range(40)], note)
    assert asked == {f"When does dog {n} walk?" for n in range(0, 40, 4)}
    assert (take_sample(check).asked, take_sample(check).left_out) == (10, 30)
    assert "30 more questions were not asked" in find(check, "sample").text


def test_only_judgements_say_that_the_rules_will_help() -> None:
    assert rules(checked(MOVES)).values["advice"] == "measure"
    check = checked(judge(MOVES, "answer"))
    judged = take_sample(check).judged
    assert judged == JudgedSample(
        questions=6, found=6, first_before=0, first_after=6, better=6, worse=0
    )
    assert rules(check).values["advice"] == "keep"
    said = "in 6 judged questions, the answer is first for 6 instead of 0; its place is better for 6, worse for 0"
    assert find(check, "judged").text == rules(check).text == said
    assert "helps: in 6 judged" in str(check)


def test_judgements_say_that_the_rules_harm() -> None:
    check = checked(judge(MOVES[:3], "other"))
    assert (rules(check).values["advice"], check.helps) == ("leave_off", False)
    assert "first for 0 instead of 3; its place is better for 0, worse for 3" in rules(check).text


def test_four_answers_that_move_up_are_not_enough_to_promise_more() -> None:
    check = checked([*judge(MOVES[:4], "answer"), *judge(STAYS, "answer")])
    assert rules(check).values["advice"] == "measure"
    assert "better for 4, worse for 0" in find(check, "judged").text


def test_judgements_that_name_no_passage_that_is_found_are_said() -> None:
    check = checked(judge(MOVES, "https://elsewhere/answer"))
    assert find(check, "judged").state == "problem"
    assert "compare your ids" in str(check)


@pytest.mark.parametrize("relevant", ["answer", 7, {"answer": 1}, [None], [True]])
def test_relevant_passages_that_are_no_list_of_ids_are_refused(relevant: Any) -> None:
    with pytest.raises(qtm.InvalidQuery, match="list of passage ids"):
        checked([{"question": MOVES[0], "relevant": relevant}])


def test_where_a_model_is_asked_too_it_is_asked_once_and_the_sample_is_of_the_rules_alone() -> None:
    model = ScriptedModel(scripted)
    check = checked(STAYS, client=model, config=transforming("rewrite"))
    assert find(check, "model").values["calls"] == 1
    assert rules(check).values["advice"] == "leave_off"
    assert 'escalation: "always"' in rules(check).mend


def test_rules_that_are_switched_off_are_not_sampled() -> None:
    check = checked(MOVES, config={"keywordEvidence": False})
    assert (check.sample, rules(check).state) == (None, "off")


def test_a_function_of_vectors_is_sampled_too() -> None:
    vectors: dict[str, list[float]] = {}

    def embed(text: str) -> list[float]:
        return vectors.setdefault(text, [float(len(vectors)), 1.0])

    def search_vector(vector: list[float], top_k: int = 4) -> Any:
        return find_pets(next(text for text, it in vectors.items() if it == list(vector)), top_k)

    check = qtm.QueryMiddleware().wrap(search_vector, embed=embed).check(MOVES)
    assert take_sample(check).other_first == len(MOVES)


def test_a_question_inside_an_argument_is_replaced_where_it_stands() -> None:
    def find_records(*, namespace: str, inputs: dict[str, Any], top_k: int = 4) -> Any:
        return find_pets(inputs["text"], top_k)

    wrapped = qtm.QueryMiddleware().wrap(find_records)
    check = wrapped.check(namespace="docs", inputs={"text": MOVES}, top_k=4)
    assert take_sample(check).other_first == len(MOVES)


@pytest.mark.parametrize(
    ("count", "config", "client", "is_told"),
    [
        (8, None, None, True),
        (8, transforming("rewrite"), ScriptedModel(scripted), False),
        (60, None, None, False),
    ],
    ids=["small", "small, with a model", "large"],
)
def test_who_has_few_passages_and_asks_no_model_is_told_that_one_call_gains_most(
    count: int, config: Any, client: Any, is_told: bool, bare_environment: None
) -> None:
    def find_many(query: str, top_k: int = 4) -> Any:
        rows = [
            {"id": str(n), "score": 0.9 - n / 100, "text": f"Note {n} on dogs"}
            for n in range(count)
        ]
        return rows[:top_k]

    report = str(checked("What does note 7 say?", find_many, config=config, client=client))
    assert ("small collections gain most from" in " ".join(report.split())) == is_told
    assert ('"words"' in report) == is_told


@given(st.lists(st.text(max_size=60), min_size=2, max_size=12))
def test_no_list_of_questions_makes_a_check_fail(questions: list[str]) -> None:
    check = checked(questions, lambda query, top_k=4: search(query, top_k))
    assert json.dumps(check.to_dict())
    assert str(check)


@given(st.integers(0, 40), st.integers(0, 40))
def test_a_promise_takes_more_than_luck(better: int, worse: int) -> None:
    moved = better + worse
    luck = binomtest(better, moved, alternative="greater").pvalue if moved else 1.0
    assert is_gain_significant(better, worse) == (luck < 0.05)
    judged = JudgedSample(moved, moved, 0, 0, better, worse)
    advice, why = OrderSample(
        asked=50, left_out=0, failed=0, other_first=9, changed=9, judged=judged
    ).advise()
    assert (advice is Advice.KEEP) == is_gain_significant(better, worse)
    assert (advice is Advice.LEAVE_OFF) == (worse >= better + 3)
    assert why == ("" if advice is Advice.MEASURE else str(judged))


def test_what_was_asked_stands_in_no_log_and_no_repr(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def fail_for_rex(query: str, top_k: int = 4) -> Any:
        if "Rex" in query:
            raise KeyError(query)
        return find_pets(query, top_k)

    with caplog.at_level(logging.INFO, "qtmiddleware"):
        check = checked(
            judge(MOVES, "answer"),
            fail_for_rex,
            config={"log": {"path": str(tmp_path / "log.jsonl")}},
        )
    assert list(tmp_path.iterdir()) == []
    for question in MOVES:
        assert question not in f"{check!r}{caplog.text}"
