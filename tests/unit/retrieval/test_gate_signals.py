"""What a first result says of itself."""

from __future__ import annotations

from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.retrieval.gate import LOOKED_AT, NEAR, measure_signals

FALLING = [0.9, 0.8, 0.7, 0.6]


# --- scores ---------------------------------------------------------------------------------------


def test_the_lead_is_how_far_the_first_stands_above_the_tenth() -> None:
    scores = [0.9, 0.8, 0.7, *[0.3] * 7, 0.1]
    assert measure_signals(scores, [], "") == {"lead": pytest.approx(0.6)}


@pytest.mark.parametrize(
    ("scores", "lead"), [([0.9, 0.1], 0.8), ([0.9, 0.2, 0.1], 0.8), ([0.9, 0.7, 0.2, 0.2], 0.7)]
)
def test_of_a_short_result_the_first_leads_the_last(scores: list[float], lead: float) -> None:
    assert measure_signals(scores, [], "")["lead"] == pytest.approx(lead)


def test_distances_lead_as_similarities_do() -> None:
    assert measure_signals([0.1, 0.3, 0.5, 0.5], [], "")["lead"] == pytest.approx(0.4)


@pytest.mark.parametrize("scores", [[], [0.5], [None, None], [0.9, None, 0.5]])
def test_without_two_numbers_there_is_no_lead(scores: list[float | None]) -> None:
    assert measure_signals(scores, [], "") == {}


def test_what_stands_below_what_is_looked_at_does_not_matter() -> None:
    scores = [0.9 - 0.01 * place for place in range(LOOKED_AT)]
    texts = ["jaguars eat fish"] * 3 + ["a fish"] * (LOOKED_AT - 4) + ["cats"]
    found = measure_signals(scores, texts, "jaguar fish")
    assert measure_signals([*scores, 0.1, None], [*texts, "jaguar"], "jaguar fish") == found
    near = measure_signals([*scores[:NEAR], *[0.1] * (LOOKED_AT - NEAR)], texts, "jaguar fish")
    assert (near["lead"], near["coverage"]) == (found["lead"], found["coverage"])


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "coverage"),
    [
        (["Jaguars live in the Pantanal.", "They eat fish."], 1.0),
        (["Jaguars live there."], 1 / 3),
        (["cats", "dogs", "birds", "jaguar fish Pantanal"], 0.0),
        (["fishing in a PANTANAL boat"], 1 / 3),
        ([None, "a fish"], 1 / 3),
    ],
)
def test_coverage_is_the_share_of_the_keywords_in_the_first_three_passages(
    texts: list[str | None], coverage: float
) -> None:
    assert measure_signals([], texts, "jaguar fish Pantanal")["coverage"] == pytest.approx(coverage)


@pytest.mark.parametrize(
    ("word", "text"), [("jaguars", "one jaguar"), ("jaguar", "two jaguars"), ("größe", "GRÖSSE")]
)
def test_a_plural_and_capitals_are_the_same_word(word: str, text: str) -> None:
    assert measure_signals([], [text], word)["coverage"] == 1.0


def test_scripts_without_spaces_are_looked_for_anywhere() -> None:
    assert measure_signals([], ["明日の東京の天気は晴れ"], "東京")["coverage"] == 1.0


@pytest.mark.parametrize(
    ("texts", "keywords"),
    [([], "jaguar"), ([None, ""], "jaguar"), (["a jaguar"], ""), (["?"], "?!")],
)
def test_without_texts_or_keywords_the_scores_speak_alone(
    texts: list[str | None], keywords: str
) -> None:
    assert list(measure_signals([0.9, 0.1], texts, keywords)) == ["lead"]


def test_scores_and_words_agree_where_both_put_the_same_passage_first() -> None:
    texts = ["jaguar fish", *["cats"] * 3]
    assert measure_signals(FALLING, texts, "jaguar fish")["agreement"] == 1.0
    assert measure_signals(FALLING, texts[::-1], "jaguar fish")["agreement"] == 0.0


def test_the_agreement_is_how_high_the_scores_put_what_the_words_put_first() -> None:
    texts = ["cats", "jaguar", "jaguar jaguar", "dogs"]
    assert measure_signals([1.0, 0.9, 0.8, 0.0], texts, "jaguar")["agreement"] == pytest.approx(0.8)


def test_a_word_that_few_passages_hold_decides_which_one_the_words_put_first() -> None:
    texts = ["fish", "fish", "jaguar", "fish"]
    assert measure_signals(FALLING, texts, "jaguar fish")["agreement"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("texts", [["jaguar"] * 4, ["cats"] * 4])
def test_words_that_stand_everywhere_or_nowhere_agree_with_nothing(texts: list[str]) -> None:
    assert measure_signals(FALLING, texts, "jaguar")["agreement"] == 0.0


def test_without_scores_ranks_stand_in_for_them() -> None:
    texts = ["jaguar fish pantanal", "jaguar fish", "jaguar", "cats"]
    found = measure_signals([None] * 4, texts, "jaguar fish pantanal")
    assert list(found) == ["coverage", "agreement", "joint_lead"]
    # Those fall as evenly as ranks do.
    assert measure_signals(FALLING, texts, "jaguar fish pantanal") == pytest.approx(
        {"lead": 0.3, **found}
    )


def test_two_passages_are_too_few_to_compare() -> None:
    assert list(measure_signals([0.9, 0.1], ["jaguar", ""], "jaguar")) == ["lead", "coverage"]


def test_distances_agree_with_words_as_similarities_do() -> None:
    texts = ["jaguar fish pantanal", "jaguar fish", "jaguar", "cats"]
    similar, distant = (
        measure_signals(it, texts, "jaguar fish pantanal") for it in (FALLING, [0.1, 0.2, 0.3, 0.4])
    )
    for name in ("agreement", "joint_lead"):
        assert distant[name] == pytest.approx(similar[name])


def test_beside_a_first_passage_that_holds_all_words_the_joint_lead_is_that_of_the_scores() -> None:
    texts = ["jaguar fish", "jaguar", *["cats"] * 18]
    scores = [1.0, *[0.5] * 18, 0.0]
    assert measure_signals(scores, texts, "jaguar fish")["joint_lead"] == pytest.approx(0.5)


def test_where_no_passage_holds_a_keyword_the_joint_lead_is_that_of_the_scores() -> None:
    found = measure_signals([1.0, *[0.25] * 18, 0.0], ["cats"] * 20, "jaguar")
    assert found["joint_lead"] == pytest.approx(0.75)


def test_the_joint_lead_is_longer_where_one_passage_holds_the_words_than_where_many_do() -> None:
    scores = [1.0, *[0.5] * 18, 0.0]
    one, many = (
        measure_signals(
            scores, ["cats", *["jaguar fish"] * count, *["cats"] * (19 - count)], "jaguar fish"
        )
        for count in (1, 15)
    )
    assert one["joint_lead"] > many["joint_lead"] + 0.5


def test_forms_of_a_word_are_the_same_word_in_a_known_language() -> None:
    texts = ["She got ill.", "cats", "dogs"]
    assert measure_signals(FALLING[:3], texts, "illness", "en")["coverage"] == 1.0
    assert measure_signals(FALLING[:3], texts, "illness")["coverage"] == 0.0


def test_scores_and_texts_of_different_number_are_no_reason_to_fail() -> None:
    assert measure_signals([0.9, 0.1], ["a fish"] * 5, "fish")["coverage"] == 1.0


@given(
    st.lists(st.one_of(st.none(), st.floats(-1e9, 1e9)), max_size=14),
    st.lists(st.one_of(st.none(), st.text()), max_size=14),
    st.text(),
)
def test_whatever_came_every_signal_is_a_number(
    scores: list[float | None], texts: list[str | None], keywords: str
) -> None:
    found = measure_signals(scores, texts, keywords)
    assert all(map(isfinite, found.values()))
    assert 0.0 <= found.get("coverage", 0.0) <= 1.0
    assert 0.0 <= found.get("agreement", 0.0) <= 1.0
    assert found.get("joint_lead", 0.0) >= -1e-9
