"""Lexical evidence: BM25 over the candidates alone, and the words that passages hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.preprocessing.text import fold_words, split_terms
from qtmiddleware.retrieval.fusion import are_reciprocal_ranks
from qtmiddleware.retrieval.question_words import (
    find_matching_words,
    locate_words,
)

anything = st.text(st.characters(), max_size=60)


def holds(keywords: str, text: str) -> bool:
    """Whether *text* holds all words of *keywords*."""
    return set(find_matching_words(keywords, text)) == set(split_terms(keywords))


def score_by_keywords(keywords: str, texts: Sequence[str | None]) -> list[float] | None:
    """What the words of *keywords* add to each text that nothing else tells apart."""
    rows = [{"id": str(place), "score": 0.0, "text": text} for place, text in enumerate(texts)]
    config = {"keywordEvidence": {"weight": 1.0}}
    evidence = qtm.middleware(lambda query: rows, config=config).retrieve(keywords).evidence
    if evidence is None:
        return None
    ids = [id_ for _, id_ in evidence.keys]
    shares = dict(zip(ids, evidence.shares, strict=True))
    return [shares[str(place)] for place in range(len(texts))]


# --- folding and splitting ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("What's in v3.4.1?", ["what's", "in", "v3.4.1"]),
        ("Clause 3.2: see 10.0.0.12, ZP-410-b.", ["clause", "3.2", "see", "10.0.0.12", "zp-410-b"]),
        ("8.90 or 8,90 or 1,500", ["8.90", "or", "8,90", "or", "1,500"]),
        (
            "a 30-day, state-of-the-art trial",
            ["a", "30", "day", "state", "of", "the", "art", "trial"],
        ),
        ("max_tokens, _emphasis_", ["max_tokens", "emphasis"]),
        ("2026年の健康診断", ["2026", "年の健康診断"]),
        ("PDF파일 3개", ["pdf", "파일", "3", "개"]),
        ("İstanbul’un NÜFUSU", ["istanbul'un", "nufusu"]),
        ("Kündi\u00adgungs\u200bfrist", ["kundigungsfrist"]),
        ("أَحْكَام الإيـــجار", ["احكام", "الايجار"]),
    ],
)
def test_words_are_whole_and_folded(text: str, words: list[str]) -> None:
    assert fold_words(text) == words


@pytest.mark.parametrize(
    ("keyword", "text"),
    [
        ("Straße", "die STRASSE"),
        ("COVID-19", "covid 19"),
        ("naïve", "nai\u0308ve — œuvre"),
        ("健康", "犬の健康状態"),
        ("สุขภาพ", "ปัญหาสุขภาพของแมว"),
        ("E-210", "Error E210"),
        ("2.10", "since v2.10.1"),
        ("v2", "in v2.3"),
        ("3.x", "as of 3.4"),
        ("10.0.0.12", "http://10.0.0.12:8080/"),
        ("8.90", "nur 8,90 €"),
        ("1,500", "1500"),
        ("٢٠٢٤", "2024"),
        ("9:30", "from 09:30"),
        ("25,000", "25\u202f000 km"),
    ],
)
def test_a_text_holds_a_word_in_its_other_spellings(keyword: str, text: str) -> None:
    assert holds(keyword, text)


def test_an_email_is_found_in_any_spelling() -> None:
    assert find_matching_words("e-mail", "Write an email")
    assert locate_words("e-mail", "Write an email")


@pytest.mark.parametrize(
    ("keyword", "text"),
    [
        ("3.2", "clause 2.3"),
        ("2.10", "10.2"),
        ("3.4.1", "3.4"),
        ("10.0.0.12", "12.0.0.10"),
        ("E-210", "E-230"),
        ("9:30", "at 19:30"),
        ("email", "the mail"),
        ("ZP-410", "410 mm"),
        ("2025-03-01", "2025-01-03"),
    ],
)
def test_a_text_does_not_hold_a_code_by_its_fragments(keyword: str, text: str) -> None:
    assert not find_matching_words(keyword, text)


# --- BM25 -----------------------------------------------------------------------------------------


@given(anything, st.lists(st.one_of(st.none(), anything), max_size=6))
def test_evidence_never_fails_and_is_not_negative(keywords: str, texts: list[str | None]) -> None:
    scores = score_by_keywords(keywords, texts)
    if scores is not None:
        assert len(scores) == len(texts)
        assert all(score >= 0 for score in scores)
        assert all(score == 0 for score, text in zip(scores, texts, strict=True) if not text)


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
    assert are_reciprocal_ranks(fuse_ranks(1_000, one))
    # As a service sends them that holds them in single precision.
    assert are_reciprocal_ranks(
        np.asarray(fuse_ranks(k, one, other)[:50], dtype=np.float32).tolist()
    )


def test_the_keywords_that_a_text_holds_are_named_as_the_question_writes_them() -> None:
    held = find_matching_words("Nike stores europe store 健康", "NIKE's only store; 犬の健康状態")
    assert held == ("nike", "stores", "健康")
    assert find_matching_words("", "text") == find_matching_words("words", "") == ()


def test_keywords_are_located_where_they_stand_in_a_text() -> None:
    text = "Nike's stores, 犬の健康状態, 狗 and NIKE"
    located = [text[start:end] for start, end in locate_words("nike store 健康状 狗", text)]
    assert located == ["Nike", "stores", "健康状", "狗", "NIKE"]
