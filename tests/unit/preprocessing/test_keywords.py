"""Lexical evidence: BM25 over the candidates alone."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import log
from operator import add
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qtmiddleware.retrieval.bm25 import (
    K1,
    MEANS,
    MOST,
    MOST_READ,
    PAIR,
    WINDOWS,
    B,
    compute_pair_gains,
    compute_term_gains,
    count_terms,
    find_terms,
    strip_plural,
    sum_gains,
)
from qtmiddleware.retrieval.keyword_evidence import (
    OVERLAP,
    WEIGHT_OF_VARIANTS,
    WEIGHT_OF_VARIANTS_BESIDE_RANKS,
    add_keyword_evidence,
    are_reciprocal_ranks,
    choose_weight_and_reason,
    score_by_keywords,
)
from qtmiddleware.retrieval.question_words import find_matching_words, locate_words

TEXTS = ["the quick fox", "the lazy dog sleeps well", "fox fox dog"]
MEAN = (3 + 5 + 3) / 3


def idf(documents: int, holding: int) -> float:
    return log(1 + (documents - holding + 0.5) / (holding + 0.5))


def bm25(tf: int, length: int, holding: int, *, documents: int = 3, mean: float = MEAN) -> float:
    return idf(documents, holding) * tf * (K1 + 1) / (tf + K1 * (1 - B + B * length / mean))


def score_texts(keywords: str, texts: Sequence[str | None]) -> list[float] | None:
    """The BM25 score of each text for one query's keywords."""
    terms = find_terms(keywords)
    scores = sum_gains(terms, compute_term_gains(count_terms(texts, terms)), len(texts))
    return scores if any(scores) else None


def test_the_constants_are_the_usual_ones() -> None:
    assert (K1, B) == (1.2, 0.75)


def test_one_term_scores_as_the_formula_says() -> None:
    assert score_texts("fox", TEXTS) == pytest.approx(
        [bm25(1, 3, 2), 0.0, bm25(2, 3, 2)], rel=1e-12
    )


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


@pytest.mark.parametrize(
    ("one", "other"), [("bus", "bu"), ("class", "clas"), ("gas", "ga"), ("status", "statu")]
)
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
def test_scripts_without_spaces_and_others_find_their_passage(
    query: str, right: str, wrong: str
) -> None:
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

# --- how words are counted ------------------------------------------------------------------------

MARKS = "".join(
    sign for sign in map(chr, range(0x300, 0x1A00)) if unicodedata.category(sign)[0] == "M"
)
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
)
# Words in all their forms, and what stands between, before and after them.
SIGNS = "aAsSéßİKﬁ½①ſ _-'.’…\n\0\u0301\u0308\u200d猫人人天気ーガｶﾞสุขภा\ud800"
PIECES = st.sampled_from([*SIGNS, "dog", "Dogs", "GPT4", "क्षि", "été", "ÉTÉS"])
MIXED = st.lists(PIECES, max_size=30).map("".join)


def split_plainly(text: str) -> list[str]:
    """The words of *text* as they are meant: one after the other, whatever it takes."""
    words: list[str] = []
    for word in re.findall(rf"[\w{MARKS}]+", unicodedata.normalize("NFKC", text).casefold()):
        for run in UNSPACED.findall(word):
            words += [run[i : i + 2] for i in range(max(1, len(run) - 1))]
        words += UNSPACED.sub(" ", word).split()
    return words


@pytest.mark.parametrize(
    "text",
    ["K Å", "İstanbul", "ﬁsh ½", "don’t", "人人人 人人", "天気ー", "ｶﾞ", "สุขภาพ", "\ud800 a\ud800"],
)
def test_words_of_every_script_are_counted_one_by_one(text: str) -> None:
    expected = Counter(map(strip_plural, split_plainly(text)))
    counted = {
        term: count
        for term, count in expected.items()
        if not (len(term) == 1 and UNSPACED.match(term))
    }
    ((counts, length, _),) = count_terms([text], frozenset(counted))
    assert (counts, length) == (counted, expected.total())


@given(st.one_of(MIXED, anything), st.lists(st.one_of(MIXED, anything), max_size=4))
def test_terms_are_counted_as_in_the_list_of_all_words(keywords: str, texts: list[str]) -> None:
    terms = find_terms(keywords)
    assert terms == frozenset(map(strip_plural, split_plainly(keywords)))
    for text, (counts, length, _) in zip(texts, count_terms(texts, terms), strict=True):
        words = split_plainly(text)
        # A character of a script without spaces that is asked for alone is found inside words too.
        alone = {term for term in terms if len(term) == 1 and UNSPACED.match(term)}
        expected = Counter(term for word in words if (term := strip_plural(word)) in terms - alone)
        expected.update({term: unicodedata.normalize("NFKC", text).count(term) for term in alone})
        assert (counts, length) == (+expected, len(words))


@pytest.mark.parametrize("word", ["word ", "wört ", "слово ", "天気 ", "天", "\N{GRINNING FACE}"])
def test_of_long_texts_parts_are_read_from_beginning_to_end(word: str) -> None:
    long, short = f"start {word * (40_000 // len(word.encode()))} end", "start middle end"
    few, many = MOST_READ // 50_000, MOST_READ // 16_000
    terms = frozenset({"start", "middle", "end"})
    words = len(split_plainly(long))
    all_read = count_terms([long] * few + [short], terms)
    assert [(it.counts, it.length) for it in all_read[:-1]] == [
        ({"start": 1, "end": 1}, words)
    ] * few
    assert (all_read[-1].counts, all_read[-1].length) == (dict.fromkeys(terms, 1), 3)
    *cut, whole = count_terms([long] * (many - 1) + [short], terms)
    assert whole == all_read[-1]
    for counts, length, _ in cut:
        assert counts == {"start": 1, "end": 1}
        assert length == pytest.approx(words * 16_000 / len(long.encode()), abs=3 * WINDOWS)


def test_of_texts_that_are_read_in_parts_pairs_are_looked_for_in_the_whole_beginning() -> None:
    text = "word " * 1_000 + "blue moon " + "word " * 300
    counted = count_terms(
        [text] * (MOST_READ // 1_000), {"blue", "moon", "word"}, frozenset({("word", "blue")})
    )
    assert all("blue" not in it.counts or it.pairs for it in counted)
    edges = "blue moon " + "word " * 600
    counted = count_terms(
        [edges] * (MOST_READ // 1_000), {"blue", "moon"}, frozenset({("blue", "moon")})
    )
    assert {it.length < 600 for it in counted} == {True}
    assert [set(it.pairs) for it in counted] == [{("blue", "moon")}] * len(counted)


@given(
    st.lists(
        st.tuples(st.text("a ç猫", min_size=1, max_size=9), st.integers(1, 2_000_000)),
        min_size=1,
        max_size=3,
    )
)
@settings(max_examples=20, deadline=None)
def test_texts_of_any_length_are_read_within_the_bound(parts: list[tuple[str, int]]) -> None:
    counted = count_terms(
        [part * (size // len(part.encode())) for part, size in parts], frozenset()
    )
    assert sum(text.length for text in counted) <= MOST_READ + WINDOWS * len(parts)


@given(anything, st.lists(st.one_of(st.none(), anything), max_size=6))
def test_evidence_never_fails_keeps_the_length_and_is_not_negative(
    keywords: str, texts: list[str | None]
) -> None:
    scores = score_texts(keywords, texts)
    if scores is not None:
        assert len(scores) == len(texts)
        assert all(score >= 0 for score in scores)
        assert any(score > 0 for score in scores)
        assert all(score == 0 for score, text in zip(scores, texts, strict=True) if not text)


@given(
    st.lists(st.sampled_from(["fox", "dog", "cat", "the"]), min_size=1, max_size=8),
    st.integers(0, 5),
)
def test_more_of_the_keyword_in_a_text_of_the_same_length_scores_no_less(
    words: list[str], extra: int
) -> None:
    less = " ".join([*words, *["owl"] * extra])
    more = " ".join([*words, *["fox"] * extra])
    scores = score_texts("fox", [less, more, "fox"])
    assert scores is not None
    assert scores[1] >= scores[0]


# --- several queries' keywords --------------------------------------------------------------------


def find_pairs(words: str) -> set[tuple[str, str]]:
    """Each two of the words that stand side by side; those of scripts without spaces stand behind all others."""
    split = re.findall(rf"[\w{MARKS}]+", unicodedata.normalize("NFKC", words).casefold())
    others = UNSPACED.sub(" ", " ".join(split)).split()
    runs = UNSPACED.findall(" ".join(split))
    return set(
        pairwise(
            map(
                strip_plural,
                [*others, *(run[i : i + 2] for run in runs for i in range(max(1, len(run) - 1)))],
            )
        )
    )


WORDS = st.text("abc ", max_size=8)


def scaled(scores: list[float]) -> list[float]:
    """Scores over their lowest, in so many times the mean of that."""
    width = MEANS * sum(score - min(scores) for score in scores) / len(scores)
    return [
        min(MOST, (score - min(scores)) / width) if max(scores) - min(scores) > 1e-9 else 0.0
        for score in scores
    ]


def score_words_and_pairs(words: str, texts: list[str]) -> list[float] | None:
    scores, pairs = score_texts(words, texts), find_pairs(words)
    counted = count_terms(texts, find_terms(words), pairs)
    return (
        None
        if scores is None
        else list(map(add, scores, sum_gains(pairs, compute_pair_gains(counted), len(texts))))
    )


@given(words=WORDS, texts=st.lists(WORDS, max_size=5), weight=st.floats(0.1, 9))
def test_one_querys_evidence_is_its_scores_on_one_scale_whatever_its_weight(
    words: str, texts: list[str], weight: float
) -> None:
    scores = score_words_and_pairs(words, texts)
    expected = None if scores is None else pytest.approx(scaled(scores))
    assert score_by_keywords([(words, weight)], texts) == expected


def test_a_word_that_few_texts_hold_is_more_evidence_than_one_of_many() -> None:
    texts = ["owl", *["fox"] * 15, *["dog"] * 16]
    rare, common = (
        score_by_keywords([("owl", 1.0)], texts),
        score_by_keywords([("fox", 1.0)], texts),
    )
    assert rare is not None
    assert common is not None
    assert max(rare) > 1.0 > max(common)


def test_scores_that_differ_by_rounding_alone_are_no_evidence() -> None:
    # The same words in another order may be summed to another last digit.
    words = ["fox", "dog", "cat", "owl", "elk", "ant", "bee"]
    texts = [" and ".join(words[at:] + words[:at]) for at in range(7)]
    assert score_by_keywords([(" ".join(words), 1.0)], texts) == [0.0] * 7


@given(
    queries=st.lists(st.tuples(WORDS, st.floats(0, 2)), min_size=2, max_size=4),
    texts=st.lists(WORDS, max_size=5),
)
def test_several_queries_evidence_is_the_weighted_sum_of_each_alone(
    queries: list[tuple[str, float]], texts: list[str]
) -> None:
    alone = [
        (score_words_and_pairs(words, texts), weight) for words, weight in queries if weight > 0
    ]
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


# --- words side by side ---------------------------------------------------------------------------


def test_two_keywords_side_by_side_are_more_evidence_than_the_two_apart() -> None:
    texts = [
        "the blue moon over the bay",
        "the moon over the blue bay",
        "the moons blue over the bay",
        "a bay",
    ]
    found = score_by_keywords([("blue moons", 1.0)], texts)
    assert found is not None
    assert found[0] > found[1] == found[2] > found[3]
    pairs = find_pairs("blue moons")
    counted = count_terms(texts, {"blue", "moon"}, pairs)
    assert [set(it.pairs) for it in counted] == [{("blue", "moon")}, set(), set(), set()]
    assert sum_gains(pairs, compute_pair_gains(counted), 4) == pytest.approx(
        [PAIR * idf(4, 1), 0.0, 0.0, 0.0]
    )


def test_of_scripts_without_spaces_three_characters_in_a_row_are_side_by_side() -> None:
    texts = ["北京大学在这里", "北京有大学", None]
    counted = count_terms(texts, find_terms("北京大"), find_pairs("北京大"))
    assert [len(it.pairs) for it in counted] == [1, 0, 0]


@given(st.one_of(MIXED, anything), st.lists(st.one_of(MIXED, anything), max_size=4))
def test_pairs_are_those_in_the_list_of_all_words(keywords: str, texts: list[str]) -> None:
    pairs = find_pairs(keywords)
    for text, counted in zip(texts, count_terms(texts, find_terms(keywords), pairs), strict=True):
        assert counted.pairs == find_pairs(text) & pairs


@pytest.mark.parametrize("end", ["", " é", " ’", " 猫"])
@pytest.mark.parametrize(
    ("before", "is_found"), [(0, True), (7_990, True), (7_995, False), (9_000, False)]
)
def test_of_a_long_text_pairs_are_looked_for_in_the_first_8000_characters(
    before: int, end: str, *, is_found: bool
) -> None:
    text = "x" * before + " blue moon" + " bay" * 3_000 + end
    (counted,) = count_terms([text], find_terms("blue moon"), frozenset({("blue", "moon")}))
    assert set(counted.pairs) == ({("blue", "moon")} if is_found else set())


# --- what evidence weighs -------------------------------------------------------------------------


def fuse_ranks(k: int, *lists: list[int]) -> list[float]:
    passages = {passage for ranks in lists for passage in ranks}
    return sorted(
        (sum(1 / (k + it.index(one) + 1) for it in lists if one in it) for one in passages),
        reverse=True,
    )


@given(
    k=st.sampled_from([1, 2, 50, 60]),
    seed=st.randoms(use_true_random=False),
    count=st.integers(10, 60),
)
def test_scores_of_a_rank_fusion_are_recognised_whatever_its_constant(
    k: int, seed: Any, count: int
) -> None:
    one, other = seed.sample(range(80), count), seed.sample(range(80), count)
    assert are_reciprocal_ranks(fuse_ranks(k, one, other)[:50])
    assert are_reciprocal_ranks(fuse_ranks(k, one))
    # As a service sends them that holds them in single precision.
    assert are_reciprocal_ranks(
        np.asarray(fuse_ranks(k, one, other)[:50], dtype=np.float32).tolist()
    )


@given(st.lists(st.floats(-0.99, 0.99), min_size=8, max_size=60, unique=True))
def test_other_scores_are_not_taken_for_ranks(cosines: list[float]) -> None:
    falling = sorted((0.37 + one / 3 for one in cosines), reverse=True)
    assert not are_reciprocal_ranks(falling)
    assert not are_reciprocal_ranks([20 * one for one in falling])
    assert not are_reciprocal_ranks([-one for one in reversed(falling)])


def test_equal_few_or_round_scores_are_no_ranks() -> None:
    assert not are_reciprocal_ranks([])
    assert not are_reciprocal_ranks([0.5, 0.25])
    assert not are_reciprocal_ranks([0.5] * 20)
    assert not are_reciprocal_ranks([round(0.9 - place / 20, 2) for place in range(18)])
    assert not are_reciprocal_ranks([0.9, 0.8, 0.7, 0.6, 0.5])


def test_a_models_words_weigh_less_beside_scores_that_are_ranks() -> None:
    assert choose_weight_and_reason([0.9, None, 0.5]) == (WEIGHT_OF_VARIANTS, "")
    weight, reason = choose_weight_and_reason(fuse_ranks(60, list(range(20))))
    assert weight == WEIGHT_OF_VARIANTS_BESIDE_RANKS
    assert "reciprocal ranks" in reason


def add_sum(
    scores: list[float], evidence: list[float], weight: float, spread: float
) -> list[float]:
    """Scores and evidence under a weight that is set."""
    return add_keyword_evidence(
        scores, [weight * share for share in evidence], 1.0 - weight, spread
    )


def test_scores_and_evidence_are_added_by_weight() -> None:
    # Scores 2, 6, 4 become 0, 1, 0.5; evidence is on that scale already.
    assert add_sum([2, 6, 4], [0.0, 0.5, 1.0], 0.25, 4.0) == pytest.approx(
        [0.75 * 0 + 0.25 * 0, 0.75 * 1 + 0.25 * 0.5, 0.75 * 0.5 + 0.25 * 1]
    )


def test_the_spread_is_the_unit_of_the_scores() -> None:
    assert add_sum([2, 6, 4], [0.0, 0.5, 1.0], 0.25, 2.0) == pytest.approx(
        [0.75 * 0 + 0.25 * 0, 0.75 * 2 + 0.25 * 0.5, 0.75 * 1 + 0.25 * 1]
    )


def test_negative_scores_are_only_another_scale() -> None:
    evidence = [0.0, 0.5, 1.0]
    assert add_sum([-4, 0, -2], evidence, 0.25, 4.0) == add_sum([2, 6, 4], evidence, 0.25, 4.0)


def test_scores_that_tell_nothing_apart_have_no_say() -> None:
    assert add_sum([1.0, 1.0], [0.0, 1.0], 0.25, 0.0) == [0.0, 0.25]


@pytest.mark.parametrize(("weight", "expected"), [(0.0, [0.0, 1.0]), (1.0, [0.7, 0.0])])
def test_a_weight_at_its_limit_hears_one_side_alone(weight: float, expected: list[float]) -> None:
    assert add_sum([1.0, 2.0], [0.7, 0.0], weight, 1.0) == expected


def test_no_scores_stay_none() -> None:
    assert add_sum([], [], 0.25, 1.0) == []


@example([(0.0, 0.0), (1.0, 0.0)], 1.0, 5e-324)
@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 2)), min_size=1, max_size=10),
    st.floats(0, 1),
    st.floats(0, 1e6),
)
def test_the_sum_is_never_negative(
    pairs: list[tuple[float, float]], weight: float, spread: float
) -> None:
    result = add_sum(
        [score for score, _ in pairs], [keyword for _, keyword in pairs], weight, spread
    )
    assert len(result) == len(pairs)
    assert all(value >= 0 for value in result)


def test_the_keywords_that_a_text_holds_are_named_as_the_question_writes_them() -> None:
    held = find_matching_words("Nike stores europe store 健康", "NIKE's only store; 犬の健康状態")
    assert held == ("nike", "stores", "健康")
    assert find_matching_words("", "text") == find_matching_words("words", "") == ()


def test_keywords_are_located_where_they_stand_in_a_text() -> None:
    text = "Nike's stores, 犬の健康状態, 狗 and NIKE"
    located = [text[start:end] for start, end in locate_words("nike store 健康状 狗", text)]
    assert located == ["Nike", "stores", "健康状", "狗", "NIKE"]


@given(st.text(), st.text())
def test_located_words_lie_in_the_text_one_after_the_other(keywords: str, text: str) -> None:
    ends = [at for span in locate_words(keywords, text) for at in span]
    assert ends == sorted(ends)
    assert all(0 <= at <= len(text) for at in ends)
    assert all(start < end for start, end in zip(ends[::2], ends[1::2], strict=True))
