"""The verdict on a comparison, and what a report says of the questions a system hurt."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from qtmiddleware.kit.evaluation import Dataset, PerQuery, Question, Run
from qtmiddleware.kit.evaluation.reporting import verdict
from qtmiddleware.kit.evaluation.reporting.verdicts import ID_LENGTH, WorstQuestionFinder
from qtmiddleware.protocols import Passage
from tests.support.report_world import comparison, run, score, several

RULES = "The right passage comes first for 2 of 4 questions instead of 0; 1 of 4 gets worse. “rules” gains 5.0 points"
GAINS = {"q1": 0.2, "q2": -0.1, "q3": 0.1, "q4": 0.0}


FOLDER = "handbook/a-folder-with-a-name-that-is-long/and-another-one-below-it.md"


def paid(gains: Mapping[str, float], cost: float | None, calls: int = 1) -> dict[str, Run]:
    return {question: run(question, calls=calls, cost=cost) for question in gains}


def test_the_verdict_names_the_best_its_price_and_what_is_free() -> None:
    runs = {question: run(question, calls=1, cost=0.0005) for question in GAINS}
    best = score("combined", dict.fromkeys(GAINS, 0.2), ms=(1240.0, 2300.0), runs=runs)
    assert verdict(comparison(best, score("rules", GAINS))) == (
        "The right passage comes first for 4 of 4 questions instead of 0; none gets worse. "
        "“combined” gains 20.0 points of nDCG@10 over “raw” (95% interval +18.0 to +22.0). It adds 1.2 s (median) "
        "and calls the model 1.00 times per question, for $0.50 per 1,000 questions. "
        "Without a model, “rules” gains 5.0. "
        "“rules” may be as good: the 15.0 points between them [+5.0, +25.0] may be chance."
    )


def test_what_is_gained_further_down_is_told_where_no_more_questions_have_the_right_passage_first() -> (
    None
):
    below = {"q1": 0.05, "q2": 0.05, "q3": -0.02, "q4": 0.0}
    assert verdict(comparison(score("rules", below))).startswith(
        "2 of 4 questions get better and 1 gets worse; "
        "the right passage comes first for 0, as before. “rules” gains 2.0"
    )
    found = comparison(score("rules", {"q1": 0.05, "q2": 0.0}))
    base = replace(found["raw"], per_query=PerQuery({"MRR@10": {"q1": 1.0, "q2": 0.5}}))
    assert verdict(replace(found, systems=(base, *found.challengers))).startswith(
        "1 of 2 questions gets better and none gets worse; the right passage comes first for 0 instead of 1. “rules”"
    )


def test_the_verdict_says_how_many_searches_a_question_takes() -> None:
    runs = {question: run(question, searches=6, calls=1) for question in GAINS}
    best = dict.fromkeys(GAINS, 0.2)
    assert "(median), makes 6.00 searches and calls the model" in verdict(
        comparison(score("all", best, runs=runs))
    )
    runs = {question: run(question, searches=1) for question in GAINS}
    assert "makes 1.00 searches per question and calls no model." in verdict(
        comparison(score("a", best, runs=runs))
    )


def test_of_two_at_one_price_the_one_that_searches_less_is_named() -> None:
    gains = {f"q{number}": 0.3 + number % 3 / 10 for number in range(30)}
    best, less = (
        score(
            name,
            dict(gains),
            runs={it: run(it, calls=1, cost=1e-4, searches=count) for it in gains},
        )
        for name, count in (("thorough", 6), ("balanced", 2))
    )
    said = verdict(comparison(best, less))
    assert said.endswith("“balanced” (2.00 searches per question) does as well.")


def test_the_verdict_names_the_best_of_half_the_price_that_may_be_as_good() -> None:
    gains = {f"q{number}": 0.3 + number % 3 / 10 for number in range(30)}
    nearly, less = (
        {
            asked: gain + (-1) ** place * 0.1 - lag
            for place, (asked, gain) in enumerate(gains.items())
        }
        for lag in (0, 0.01)
    )
    best = score("all", {it: gain + 0.01 for it, gain in gains.items()}, runs=paid(gains, 4e-4))
    near, cheap = (
        score("near", nearly, runs=paid(gains, 1e-4)),
        score("cheap", less, runs=paid(gains, 1e-5)),
    )
    dear = score("dear", {it: gain + 0.009 for it, gain in gains.items()}, runs=paid(gains, 3e-4))
    # From Python 3.12 on sums are more exact, and 0.09999 is 0.1.
    assert re.search(
        r"“near” \(\$0\.100?\) may be as good: the 1\.0 points",
        verdict(comparison(best, dear, cheap, near)),
    )


def test_the_verdict_names_a_cheaper_system_that_may_be_as_good_as_the_best() -> None:
    gains = {f"q{number}": 0.3 + number % 3 / 10 for number in range(30)}
    slightly = {
        asked: gain + (-1) ** place * 0.1 for place, (asked, gain) in enumerate(gains.items())
    }
    by_far = dict.fromkeys(gains, 0.1)
    best = score("all", {it: gain + 0.01 for it, gain in gains.items()}, runs=paid(gains, 0.0004))
    cheaper, cheapest = (
        score(name, slightly, runs=paid(gains, cost)) for name, cost in (("b", 2e-4), ("a", 4e-5))
    )
    said = verdict(comparison(best, cheaper, cheapest, score("rules", by_far)))
    assert said.endswith(
        "“a” ($0.040) may be as good: the 1.0 points between them [-2.3, +4.3] may be chance."
    )
    assert verdict(comparison(best, score("rules", by_far))).endswith(
        "Without a model, “rules” gains 10.0."
    )
    more = {asked: gain + 0.001 for asked, gain in gains.items()}
    unpriced = (
        score("a", slightly, runs=paid(gains, None)),
        score("all", more, runs=paid(gains, None, 4)),
    )
    assert "“a” (1.00 calls per question)" in verdict(comparison(*unpriced))


def test_the_verdict_names_the_second_best_where_chance_may_have_decided_between_the_two() -> None:
    gains = {f"q{number}": 0.3 + number % 3 / 10 for number in range(30)}
    best, dearer = (
        score(name, dict(gains), runs=paid(gains, cost))
        for name, cost in (("hyde", 1e-4), ("all", 2e-4))
    )
    assert verdict(comparison(best, dearer)).endswith("“all” ($0.20) does as well.")


def test_a_system_whose_every_answer_is_degraded_does_not_win() -> None:
    broken = replace(score("combined", dict.fromkeys(GAINS, 0.4)), degraded=len(GAINS))
    assert verdict(comparison(broken, score("rules", GAINS))).startswith(RULES)


def test_the_verdict_says_when_a_price_is_not_known_and_what_is_free_may_be_chance() -> None:
    best = score(
        "combined", GAINS, runs={question: run(question, calls=1, cost=None) for question in GAINS}
    )
    said = verdict(comparison(best, score("rules", GAINS, is_significant=False)))
    assert (
        "unknown price. Without a model, “rules” gains +5.0 [+3.0, +7.0], which may be chance."
        in said
    )
    worse = score("rules", dict.fromkeys(GAINS, -0.1), is_significant=False)
    assert "unknown price. No system gains without a model." in verdict(comparison(best, worse))


def test_a_larger_gain_that_may_be_chance_does_not_win() -> None:
    lucky = score("lucky", dict.fromkeys(GAINS, 0.4), is_significant=False)
    assert verdict(comparison(lucky, score("rules", GAINS))).startswith(RULES)


def test_the_verdict_says_that_nothing_beats_the_baseline() -> None:
    lucky = score("lucky", GAINS, is_significant=False)
    worse = score("worse", dict.fromkeys(GAINS, -0.2))
    assert verdict(comparison(lucky, worse)) == (
        "No system is clearly better than “raw”, which has the right passage first for 0 of 4 questions. On these 4 "
        "questions the largest gain, 5.0 points of nDCG@10 by “lucky” (95% interval +3.0 to +7.0), may be chance, and "
        "“worse” is significantly worse. With so few questions, only a large difference can be seen."
    )


def test_the_verdict_does_not_call_equal_systems_different() -> None:
    equal = dict.fromkeys(GAINS, 0.0)
    assert "no system gained anything" in verdict(
        comparison(score("same", equal), score("too", equal))
    )


def test_the_verdict_knows_when_there_is_nothing_to_compare() -> None:
    assert verdict(comparison()) == (
        "“raw” has the right passage first for 0 of 1 question. "
        "Only the baseline was measured, so there is nothing to compare it with."
    )


@pytest.mark.parametrize("count", [1, 2, 40])
def test_the_verdict_is_a_sentence_or_a_few(count: int) -> None:
    said = verdict(several(count))
    assert said.endswith(".")
    assert said.isprintable()


def test_a_verdict_is_not_moved_by_the_order_of_systems() -> None:
    found = several()
    turned = replace(found, systems=(found.systems[0], *found.systems[:0:-1]))
    assert verdict(turned) == verdict(found)


def test_chunks_of_one_document_are_told_apart_however_long_its_name_is() -> None:
    ids = [f"{FOLDER}#{number}" for number in (12, 13)]
    ours = score("ours", {"q": -0.2}, runs={"q": run("q", ids=ids[:1])})
    found = comparison(ours)
    passages = tuple(Passage(id_, f"words of {id_[-2:]}") for id_ in ids)
    data = Dataset("a set", passages, (Question("q", "what?"),), {"q": dict.fromkeys(ids, 1)})
    (hurt,) = WorstQuestionFinder(found, data).find_worst_questions(ours)
    assert [one.text for one in hurt.missed] == ["words of 13"]
    shown = [one.id for one in (*hurt.found, *hurt.missed)]
    assert [id_[-3:] for id_ in shown] == ["#12", "#13"]
    assert all(len(id_) == ID_LENGTH for id_ in shown)
