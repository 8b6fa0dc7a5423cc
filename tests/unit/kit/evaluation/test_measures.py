from __future__ import annotations

from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.kit.evaluation import evaluate


def test_the_measures_are_their_formulas() -> None:
    found = evaluate({"q": {"a": 1, "b": 2, "c": 0, "d": 1}}, {"q": ["x", "b", "c", "a"]})
    ideal = 2 / log2(2) + 1 / log2(3) + 1 / log2(4)
    assert found.means == pytest.approx(
        {
            "nDCG@10": (2 / log2(3) + 1 / log2(5)) / ideal,
            "R@10": 2 / 3,
            "MRR@10": 1 / 2,
            "P@5": 2 / 5,
            "AP": (1 / 2 + 2 / 4) / 3,
        }
    )


def test_only_the_first_ten_count() -> None:
    ids = [f"p{number:02}" for number in range(11)]
    means = evaluate({"q": {ids[10]: 1}}, {"q": ids}).means
    assert (means["nDCG@10"], means["R@10"], means["MRR@10"]) == (0.0, 0.0, 0.0)
    assert means["AP"] == pytest.approx(1 / 11)


def test_a_question_that_found_nothing_counts_0_and_an_unjudged_one_not_at_all() -> None:
    found = evaluate(
        {"a": {"p": 1}, "b": {"p": 1}, "c": {"p": 1}}, {"a": ["p"], "b": [], "unjudged": ["p"]}
    )
    assert found.values["nDCG@10"] == {"a": 1.0, "b": 0.0, "c": 0.0}
    assert found.means["nDCG@10"] == pytest.approx(1 / 3)


def test_an_empty_run_and_no_judgements_are_0() -> None:
    assert set(evaluate({"q": {"p": 1}}, {}).means.values()) == {0.0}
    assert set(evaluate({}, {}).means.values()) == {0.0}


def test_a_question_without_a_relevant_passage_is_0() -> None:
    assert evaluate({"q": {"p": 0}}, {"q": ["p"]}).means["nDCG@10"] == 0.0


def test_an_id_found_twice_counts_once_where_it_first_stands() -> None:
    assert evaluate({"q": {"p": 1}}, {"q": ["p", "p", "x"]}).means["nDCG@10"] == 1.0
    assert evaluate({"q": {"p": 1, "r": 1}}, {"q": ["p", "p", "r"]}).means["AP"] == 1.0


@given(st.permutations(["zebra", "apple", "mango", "10", "9"]))
def test_the_place_decides_and_not_the_id(ids: list[str]) -> None:
    assert evaluate({"q": {"apple": 1}}, {"q": ids}).means["MRR@10"] == pytest.approx(
        1 / (ids.index("apple") + 1)
    )
