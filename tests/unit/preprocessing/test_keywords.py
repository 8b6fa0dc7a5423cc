"""Lexical evidence: BM25 over the candidates alone."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from math import log
from statistics import pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.retrieval.keyword_evidence import (
    DEVIATIONS,
    K1,
    OVERLAP,
    B,
    add_evidence,
    count_terms,
    find_terms,
    score_bm25,
    score_by_keywords,
)

TEXTS = ["the quick fox", "the lazy dog sleeps well", "fox fox dog"]
MEAN = (3 + 5 + 3) / 3


def idf(documents: int, holding: int) -> float:
    return log(1 + (documents - holding + 0.5) / (holding + 0.5))


def bm25(tf: int, length: int, holding: int, *, documents: int = 3, mean: float = MEAN) -> float:
    return idf(documents, holding) * tf * (K1 + 1) / (tf + K1 * (1 - B + B * length / mean))


def score_texts(keywords: str, texts: Sequence[str | None]) -> list[float] | None:
    """The BM25 score of each text for one query's keywords."""
    terms = find_terms(keywords)
    return score_bm25(terms, count_terms(texts, terms))


def test_the_constants_are_the_usual_ones() -> None:
    assert (K1, B) == (1.2, 0.75)


def test_one_term_scores_as_the_formula_says() -> None:
    assert score_texts("fox", TEXTS) == pytest.approx([bm25(1, 3, 2), 0.0, bm25(2, 3, 2)], rel=1e-12)


def test_several_terms_add_up() -> None:
    expected = [
        bm25(1, 3, 2) + bm25(1, 3, 1),
        bm25(1, 5, 2),
        bm25(2, 3, 2) + bm25(1, 3, 2),
    ]
    assert score_texts("quick fox dog", TEXTS) == pytest.approx(expected, rel=1e-12)


def test_a_keyword_written_twice_counts_once() -> None:
    assert score_texts("fox Fox FOX", TEXTS) == score_texts("fox", TEXTS)


def test_a_word_of_every_text_still_counts_a_little() -> None:
    scores = score_texts("fox", ["fox", "fox"])
    assert scores == pytest.approx([bm25(1, 1, 2, documents=2, mean=1)] * 2)
    assert scores is not None
    assert scores[0] > 0


def test_a_missing_text_scores_nothing_and_counts_as_a_text_of_no_words() -> None:
    scores = score_texts("fox", ["fox", None, ""])
    assert scores == pytest.approx([bm25(1, 1, 1, documents=3, mean=1 / 3), 0.0, 0.0], rel=1e-12)


@pytest.mark.parametrize("keywords", ["", "   ", "?!", "\n", "…"])
def test_no_keyword_gives_no_evidence(keywords: str) -> None:
    assert score_texts(keywords, TEXTS) is None


@pytest.mark.parametrize("texts", [[], [None], [None, ""], ["nothing of it", "here"]])
def test_no_match_gives_no_evidence(texts: list[str | None]) -> None:
    assert score_texts("zebra", texts) is None


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("dogs", "one dog"),
        ("dog", "two dogs"),
        ("DOG", "a dog's life"),
        ("Straße", "die STRASSE"),
        ("Äpfel", "ÄPFEL"),
        ("casas", "una casa"),
        ("COVID-19", "covid 19"),
        ("naïve", "Naïve"),
    ],
)
def test_words_meet_across_case_plural_and_genitive(query: str, text: str) -> None:
    scores = score_texts(query, [text, "unrelated"])
    assert scores is not None
    assert scores[0] > 0 == scores[1]


@pytest.mark.parametrize(("one", "other"), [("bus", "bu"), ("class", "clas"), ("gas", "ga"), ("status", "statu")])
def test_an_s_that_is_no_plural_stays(one: str, other: str) -> None:
    assert score_texts(one, [other]) is None


@pytest.mark.parametrize(
    ("query", "right", "wrong"),
    [
        ("東京の天気", "今日の東京は晴れ", "大阪は雨です"),
        ("机器学习", "深度学习和机器学习", "今天去公园"),
        ("สุขภาพ", "ปัญหาสุขภาพของแมว", "ราคาหุ้นวันนี้"),
        ("한국어", "한국어 문법", "영어 문법"),
        ("здоровье", "Здоровье собаки", "цены акций"),
        ("猫", "猫が好き", "犬が好き"),
    ],
)
def test_scripts_without_spaces_and_others_find_their_passage(query: str, right: str, wrong: str) -> None:
    scores = score_texts(query, [wrong, right])
    assert scores is not None
    assert scores[1] > scores[0]


def test_a_script_without_spaces_is_counted_in_pairs_of_neighbours() -> None:
    # "天気予報" is the pairs 天気, 気予, 予報: three of them in the first text, one in the second.
    pairs = score_texts("天気予報", ["天気予報", "天気図"])
    expected = [
        bm25(1, 3, 2, documents=2, mean=2.5) + 2 * bm25(1, 3, 1, documents=2, mean=2.5),
        bm25(1, 2, 2, documents=2, mean=2.5),
    ]
    assert pairs == pytest.approx(expected, rel=1e-12)


def test_letters_beside_characters_of_such_a_script_are_words() -> None:
    scores = score_texts("GPT4", ["我喜欢GPT4模型", "我喜欢模型"])
    assert scores is not None
    assert scores[0] > 0 == scores[1]


def test_vowel_signs_belong_to_their_word() -> None:
    # The second text holds the consonants of the word and not the word.
    scores = score_texts("हिन्दी", ["हिन्दी भाषा", "ह न द"])
    assert scores is not None
    assert scores[0] > 0 == scores[1]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_an_accent_is_the_same_however_it_is_encoded(form: str) -> None:
    query, text = unicodedata.normalize(form, "café"), "le café noir"
    other = unicodedata.normalize("NFD" if form == "NFC" else "NFC", text)
    scores = score_texts(query, [other, "cafe"])
    assert scores is not None
    assert scores[0] > 0


def test_full_width_letters_are_letters() -> None:
    assert score_texts("ＡＢＣ", ["abc"]) is not None


anything = st.text(st.characters(), max_size=60)


@given(anything, st.lists(st.one_of(st.none(), anything), max_size=6))
def test_evidence_never_fails_keeps_the_length_and_is_not_negative(keywords: str, texts: list[str | None]) -> None:
    scores = score_texts(keywords, texts)
    if scores is not None:
        assert len(scores) == len(texts)
        assert all(score >= 0 for score in scores)
        assert any(score > 0 for score in scores)
        assert all(score == 0 for score, text in zip(scores, texts, strict=True) if not text)


@given(st.lists(st.sampled_from(["fox", "dog", "cat", "the"]), min_size=1, max_size=8), st.integers(0, 5))
def test_more_of_the_keyword_in_a_text_of_the_same_length_scores_no_less(words: list[str], extra: int) -> None:
    less = " ".join([*words, *["owl"] * extra])
    more = " ".join([*words, *["fox"] * extra])
    scores = score_texts("fox", [less, more, "fox"])
    assert scores is not None
    assert scores[1] >= scores[0]


# --- several queries' keywords ---------------------------------------------------------------------------------------

WORDS = st.text("abc ", max_size=8)


def scaled(scores: list[float]) -> list[float]:
    """Scores over their lowest, in widths of so many standard deviations."""
    width = DEVIATIONS * pstdev(scores)
    return [(score - min(scores)) / width if max(scores) - min(scores) > 1e-9 else 0.0 for score in scores]


@given(words=WORDS, texts=st.lists(WORDS, max_size=5), weight=st.floats(0.1, 9))
def test_one_querys_evidence_is_its_scores_on_one_scale_whatever_its_weight(
    words: str, texts: list[str], weight: float
) -> None:
    scores = score_texts(words, texts)
    expected = None if scores is None else pytest.approx(scaled(scores))
    assert score_by_keywords([(words, weight)], texts) == expected


def test_a_word_that_few_texts_hold_is_more_evidence_than_one_of_many() -> None:
    texts = ["owl", *["fox"] * 15, *["dog"] * 16]
    rare, common = score_by_keywords([("owl", 1.0)], texts), score_by_keywords([("fox", 1.0)], texts)
    assert rare is not None
    assert common is not None
    assert max(rare) > 1.0 > max(common)


def test_scores_that_differ_by_rounding_alone_are_no_evidence() -> None:
    # The same words in another order may be summed to another last digit.
    words = ["fox", "dog", "cat", "owl", "elk", "ant", "bee"]
    texts = [" ".join(words[at:] + words[:at]) for at in range(7)]
    assert score_by_keywords([(" ".join(words), 1.0)], texts) == [0.0] * 7


@given(queries=st.lists(st.tuples(WORDS, st.floats(0, 2)), min_size=2, max_size=4), texts=st.lists(WORDS, max_size=5))
def test_several_queries_evidence_is_the_weighted_sum_of_each_alone(
    queries: list[tuple[str, float]], texts: list[str]
) -> None:
    alone = [(score_texts(words, texts), weight) for words, weight in queries if weight > 0]
    heard = [(scores, weight) for scores, weight in alone if scores is not None]
    found = score_by_keywords(queries, texts)
    if not heard:
        assert found is None
        return
    # As shares of the largest, so that the smallest floats do not vanish.
    shares = [weight / max(it for _, it in heard) for _, weight in heard]
    voice = sum(share**OVERLAP for share in shares) ** (1 / OVERLAP)
    expected = [0.0] * len(texts)
    for (scores, _), share in zip(heard, shares, strict=True):
        for at, score in enumerate(scaled(scores)):
            expected[at] += share * score / voice
    assert found == pytest.approx(expected)


def test_a_query_without_a_word_in_any_text_says_nothing() -> None:
    assert score_by_keywords([("fox", 1.0), ("unicorn", 5.0)], TEXTS) == pytest.approx(
        score_by_keywords([("fox", 1.0), ("fox", 0.0)], TEXTS)
    )


# --- scores and evidence ------------------------------------------------------------------------------------------


def test_scores_and_evidence_are_added_by_weight() -> None:
    # Scores 2, 6, 4 become 0, 1, 0.5; evidence is on that scale already.
    assert add_evidence([2, 6, 4], [0.0, 0.5, 1.0], 0.25, 4.0) == pytest.approx(
        [0.75 * 0 + 0.25 * 0, 0.75 * 1 + 0.25 * 0.5, 0.75 * 0.5 + 0.25 * 1]
    )


def test_the_spread_is_the_unit_of_the_scores() -> None:
    assert add_evidence([2, 6, 4], [0.0, 0.5, 1.0], 0.25, 2.0) == pytest.approx(
        [0.75 * 0 + 0.25 * 0, 0.75 * 2 + 0.25 * 0.5, 0.75 * 1 + 0.25 * 1]
    )


def test_negative_scores_are_only_another_scale() -> None:
    evidence = [0.0, 0.5, 1.0]
    assert add_evidence([-4, 0, -2], evidence, 0.25, 4.0) == add_evidence([2, 6, 4], evidence, 0.25, 4.0)


def test_scores_that_tell_nothing_apart_have_no_say() -> None:
    assert add_evidence([1.0, 1.0], [0.0, 1.0], 0.25, 0.0) == [0.0, 0.25]


@pytest.mark.parametrize(("weight", "expected"), [(0.0, [0.0, 1.0]), (1.0, [0.7, 0.0])])
def test_a_weight_at_its_limit_hears_one_side_alone(weight: float, expected: list[float]) -> None:
    assert add_evidence([1.0, 2.0], [0.7, 0.0], weight, 1.0) == expected


def test_no_scores_stay_none() -> None:
    assert add_evidence([], [], 0.25, 1.0) == []


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 2)), min_size=1, max_size=10),
    st.floats(0, 1),
    st.floats(0, 1e6),
)
def test_the_sum_is_never_negative(pairs: list[tuple[float, float]], weight: float, spread: float) -> None:
    result = add_evidence([score for score, _ in pairs], [keyword for _, keyword in pairs], weight, spread)
    assert len(result) == len(pairs)
    assert all(value >= 0 for value in result)
