from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from comparisons import comparison, run, score, several
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.evaluation import SYSTEMS, Comparison, Run
from qtmiddleware.reporting import headings, rows, verdict

GAINS = {"q1": 0.2, "q2": -0.1, "q3": 0.1, "q4": 0.0}


def paid(gains: Mapping[str, float], cost: float | None, calls: int = 1) -> dict[str, Run]:
    return {question: run(question, calls=calls, cost=cost) for question in gains}


def cell(found: Comparison, name: str, heading: str) -> str:
    row = next(row for row in rows(found, wide=True) if row[0] == name)
    return row[headings(found, wide=True).index(heading)].strip()


def test_a_row_holds_all_that_was_measured_of_a_system() -> None:
    runs = {question: run(question, calls=1, cost=0.0005) for question in GAINS}
    found = comparison(score("ours", GAINS, ms=(1240.0, 2300.0), runs=runs, deep=True), deep=True)
    assert dict(zip(headings(found, wide=True), rows(found, wide=True)[1], strict=True)) == {
        "system": "ours",
        "nDCG@10": "0.550",
        "gain [95 %]": "+5.0 [+3.0, +7.0]*",
        "R@10": "0.550",
        "R@100": "0.550",
        "MRR@10": "0.550",
        "P@5": "0.550",
        "MAP": "0.550",
        "hurt": "25 %",
        "helped": "50 %",
        "+ms p50": "1,240",
        "p95": "2,300",
        "calls": "1.00",
        "$/1k": "$0.50",
        "$/+0.01": "$0.10",
    }


def test_a_gain_that_may_be_chance_has_no_mark() -> None:
    assert cell(comparison(score("ours", GAINS, is_significant=False)), "ours", "gain [95 %]") == "+5.0 [+3.0, +7.0]"


def test_what_is_not_known_is_a_dash() -> None:
    runs = {question: run(question, calls=1, cost=None) for question in GAINS}
    found = comparison(score("ours", GAINS, runs=runs), score("lost", dict.fromkeys(GAINS, -0.1)))
    assert [cell(found, "ours", it) for it in ("$/1k", "$/+0.01")] == ["–", "–"]
    assert cell(found, "lost", "$/+0.01") == "–"
    assert cell(found, "raw", "gain [95 %]") == "–"


def test_a_hundred_passages_are_a_column_only_where_they_were_measured() -> None:
    assert "R@100" not in headings(comparison(score("ours", GAINS)), wide=True)
    assert "R@100" in headings(comparison(score("ours", GAINS, deep=True), deep=True))


def test_the_usual_table_fits_a_terminal() -> None:
    runs = {question: run(question, calls=3, cost=0.000063) for question in GAINS}
    large = dict.fromkeys(GAINS, 0.2123)
    names = [name for name in SYSTEMS if name != "raw"]
    found = comparison(*(score(it, large, ms=(1987.0, 12577.0), runs=runs, deep=True) for it in names), deep=True)
    lines = [headings(found), *rows(found)]
    assert sum(max(map(len, column)) + 2 for column in zip(*lines, strict=True)) - 2 <= 120


@settings(deadline=None)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=4, unique=True), st.booleans())
def test_every_row_is_as_long_as_the_headings_and_on_one_line(names: list[str], wide: bool) -> None:
    found = comparison(*(score(name, GAINS) for name in names if name != "raw"))
    for row in rows(found, wide=wide):
        assert len(row) == len(headings(found, wide=wide))
        assert all(len(text.splitlines()) <= 1 for text in row)


def test_the_verdict_names_the_best_its_price_and_what_is_free() -> None:
    runs = {question: run(question, calls=1, cost=0.0005) for question in GAINS}
    best = score("combined", dict.fromkeys(GAINS, 0.2), ms=(1240.0, 2300.0), runs=runs)
    assert verdict(comparison(best, score("rules", GAINS))) == (
        "“combined” beats “raw” by 20.0 points of nDCG@10. It hurts 0 % of the questions, adds 1.2 s (median) and asks "
        "the model 1.00 times a question, for $0.50 per 1,000 questions; without a model, “rules” gains 5.0. "
        "“rules” may be as good: the 15.0 points between them [+5.0, +25.0] may be chance."
    )


def test_the_verdict_names_the_best_of_half_the_price_that_may_be_as_good() -> None:
    gains = {f"q{number}": 0.3 + number % 3 / 10 for number in range(30)}
    nearly, less = (
        {asked: gain + (-1) ** place * 0.1 - lag for place, (asked, gain) in enumerate(gains.items())}
        for lag in (0, 0.01)
    )
    best = score("all", {it: gain + 0.01 for it, gain in gains.items()}, runs=paid(gains, 4e-4))
    near, cheap = score("near", nearly, runs=paid(gains, 1e-4)), score("cheap", less, runs=paid(gains, 1e-5))
    dear = score("dear", {it: gain + 0.009 for it, gain in gains.items()}, runs=paid(gains, 3e-4))
    assert "“near” ($0.100) may be as good: the 1.0 points" in verdict(comparison(best, dear, cheap, near))


def test_the_verdict_names_a_cheaper_system_that_may_be_as_good_as_the_best() -> None:
    gains = {f"q{number}": 0.3 + number % 3 / 10 for number in range(30)}
    slightly = {asked: gain + (-1) ** place * 0.1 for place, (asked, gain) in enumerate(gains.items())}
    by_far = dict.fromkeys(gains, 0.1)
    best = score("all", {it: gain + 0.01 for it, gain in gains.items()}, runs=paid(gains, 0.0004))
    cheaper, cheapest = (score(name, slightly, runs=paid(gains, cost)) for name, cost in (("b", 2e-4), ("a", 4e-5)))
    said = verdict(comparison(best, cheaper, cheapest, score("rules", by_far)))
    assert said.endswith("“a” ($0.040) may be as good: the 1.0 points between them [-2.3, +4.3] may be chance.")
    assert verdict(comparison(best, score("rules", by_far))).endswith("without a model, “rules” gains 10.0.")
    unpriced = score("a", slightly, runs=paid(gains, None)), score("all", dict(gains), runs=paid(gains, None, 4))
    assert "“a” (1.00 calls a question)" in verdict(comparison(*unpriced))


def test_the_verdict_names_the_second_best_where_chance_may_have_decided_between_the_two() -> None:
    gains = {f"q{number}": 0.3 + number % 3 / 10 for number in range(30)}
    best, dearer = (score(name, dict(gains), runs=paid(gains, cost)) for name, cost in (("hyde", 1e-4), ("all", 2e-4)))
    assert verdict(comparison(best, dearer)).endswith("“all” ($0.20) does as well.")


def test_a_system_whose_every_answer_is_degraded_does_not_win() -> None:
    broken = replace(score("combined", dict.fromkeys(GAINS, 0.4)), degraded=len(GAINS))
    assert verdict(comparison(broken, score("rules", GAINS))).startswith("“rules” beats “raw”")


def test_the_verdict_says_when_a_price_is_not_known_and_nothing_is_free() -> None:
    runs = {question: run(question, calls=1, cost=None) for question in GAINS}
    said = verdict(comparison(score("combined", GAINS, runs=runs), score("rules", GAINS, is_significant=False)))
    assert "at a price that is not known; nothing gains significantly without a model." in said


def test_a_larger_gain_that_may_be_chance_does_not_win() -> None:
    lucky = score("lucky", dict.fromkeys(GAINS, 0.4), is_significant=False)
    assert verdict(comparison(lucky, score("rules", GAINS))).startswith("“rules” beats “raw” by 5.0 points")


def test_the_verdict_says_that_nothing_beats_the_baseline() -> None:
    lucky = score("lucky", GAINS, is_significant=False)
    worse = score("worse", dict.fromkeys(GAINS, -0.2))
    assert verdict(comparison(lucky, worse)) == (
        "Nothing beats “raw”. On these 4 questions the largest gain, 5.0 points by “lucky”, may be chance, and “worse” "
        "is significantly worse. With so few questions only a large difference can show."
    )


def test_the_verdict_does_not_call_equal_systems_different() -> None:
    equal = dict.fromkeys(GAINS, 0.0)
    assert "no system gained anything" in verdict(comparison(score("same", equal), score("too", equal)))


def test_the_verdict_knows_when_there_is_nothing_to_compare() -> None:
    assert verdict(comparison()) == "There is nothing to compare “raw” with. Only the baseline was measured."


@pytest.mark.parametrize("count", [1, 2, 40])
def test_the_verdict_is_a_sentence_or_a_few(count: int) -> None:
    said = verdict(several(count))
    assert said.endswith(".")
    assert said.isprintable()


def test_a_verdict_is_not_moved_by_the_order_of_systems() -> None:
    found = several()
    turned = replace(found, systems=(found.systems[0], *found.systems[:0:-1]))
    assert verdict(turned) == verdict(found)
