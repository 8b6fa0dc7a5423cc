from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.errors import ConfigError, InvalidQuery
from qtmiddleware.preprocessing import (
    LANGUAGES,
    detect_language,
    extract_keywords,
    find_protected_spans,
    preprocess,
)
from tests.support.shared_data import DEMO, SHARED

ROOT = Path(__file__).resolve().parents[3]
LEXICONS = ROOT / "qtmiddleware" / "preprocessing" / "lexicons"
QUERIES = [DEMO / "queries.jsonl", *sorted((SHARED / "data").glob("**/queries.jsonl"))]

KEPT_AS_WRITTEN = ("quote", "identifier", "number", "url")


ODD = """? . , ' " “ ” « » ¿ ¡ Jaco C++ .NET v1.2 2023 May Will Smith WHO IT U.S. l' it's dogs' - ... ( ) 10% a.b @x #y
iPhone ß İ 5 € 1 299 $ + no. p.m. ~/x"""


def lexicon_words() -> list[str]:
    """Every word and phrase part of every list, with codes and marks between them."""
    words: set[str] = set()
    for file in LEXICONS.glob("??.json"):
        data = json.loads(file.read_text(encoding="utf-8"))
        words.update(*data["stop_words"].values(), *data["hints"].values())
        words.update(data["negations"], data["elisions"])
        for pattern in data["lead_ins"] + data["kept_phrases"]:
            words.update(re.split(r"[\s|\[\]]+", pattern))
    return sorted(words - {""}) + ODD.split() * 12


WORDS = lexicon_words()
CASED = st.builds(
    lambda word, change: change(word),
    st.sampled_from(WORDS),
    st.sampled_from([str, str, str.capitalize, str.upper]),
)
QUESTIONS = st.builds(
    lambda words, space, end: space.join(words) + end,
    st.lists(CASED, min_size=1, max_size=9),
    st.sampled_from([" ", " ", "", "  "]),
    st.sampled_from(["", "?"]),
)
TEXTS = st.one_of(
    st.text(), QUESTIONS, st.text(alphabet="aA1 .'\"“”’-_/:@#?()<>$%+é\u0301\u200b中я")
)


def folded(text: str) -> str:
    """*text* without case, composition, the dot of the Turkish capital I and the form of its apostrophes."""
    composed = re.sub("[’ʼ‛]", "'", unicodedata.normalize("NFKC", text).casefold())
    return unicodedata.normalize("NFC", composed.replace("＇", "'").replace("i\u0307", "i"))


def begins_with_a_name(keywords: str) -> bool:
    """Whether the first keyword has a capital, as in "Can yaman married" from "Is Can Yaman married?"."""
    return keywords[:1] != keywords[:1].lower()


@given(TEXTS)
def test_preparing_keywords_again_in_their_language_changes_nothing_but_a_name_at_their_start(
    text: str,
) -> None:
    once = extract_keywords(text)
    again = preprocess(once.keywords, language=once.language or "auto")
    assert begins_with_a_name(once.keywords) or again == once.keywords


@given(TEXTS, st.sampled_from(["auto", *LANGUAGES]))
def test_a_query_never_becomes_empty(text: str, language: str) -> None:
    result = preprocess(text, language=language)
    assert result.strip() if text.strip() else result == text


@given(TEXTS)
def test_no_word_is_added(text: str) -> None:
    source = folded(text)
    at = 0
    for word in preprocess(text).split():
        # Every keyword stands in the query, behind the one before it.
        at = source.find(folded(word), at)
        assert at >= 0, word
        at += len(folded(word))


@given(TEXTS)
def test_protected_spans_survive(text: str) -> None:
    result = preprocess(text)
    for span in find_protected_spans(text):
        if span.kind in KEPT_AS_WRITTEN:
            assert span.text in result
        elif span.kind == "negation":
            assert folded(span.text) in folded(result)


@pytest.mark.parametrize(
    "file", QUERIES, ids=lambda path: str(path.parent.relative_to(path.parents[2]))
)
def test_real_questions_keep_the_laws(file: Path) -> None:
    for line in file.read_text(encoding="utf-8").splitlines():
        question = json.loads(line)["text"]
        result, language = (prepared := extract_keywords(question)).keywords, prepared.language
        assert result.strip()
        assert (
            begins_with_a_name(result) or preprocess(result, language=language or "auto") == result
        )
        for span in find_protected_spans(question):
            assert span.kind not in KEPT_AS_WRITTEN or span.text in result


@pytest.mark.parametrize("language", ["xx", "", "english", "e"])
def test_an_unknown_language_is_refused_with_the_known_ones(language: str) -> None:
    with pytest.raises(ConfigError, match="de, en, es, fr, it, nl, pt") as caught:
        preprocess("the dog", language=language)
    assert caught.value.path == "preprocess.language"


@pytest.mark.parametrize("value", [None, 3, b"text", ["text"]])
def test_what_is_no_string_is_refused(value: object) -> None:
    for function in (preprocess, extract_keywords, find_protected_spans, detect_language):
        with pytest.raises(InvalidQuery, match=type(value).__name__):
            function(value)  # type: ignore[operator]


@pytest.mark.parametrize("words", ["not", [1], [None]])
def test_word_lists_that_are_none_are_refused(words: object) -> None:
    with pytest.raises(ConfigError, match="keepWords"):
        preprocess("a query", keep_words=words)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="extraWords"):
        preprocess("a query", extra_words=words)  # type: ignore[arg-type]


def test_own_words_are_kept_and_removed() -> None:
    assert preprocess("what is the dog doing", keep_words=["the"]) == "the dog doing"
    assert preprocess("what is the dog doing", extra_words=["doing"]) == "dog"
    assert preprocess("what is the dog", keep_words=("what is the",)) == "what is the dog"
    assert preprocess("What does IT mean in the US?", extra_words={"it", "us"}) == "mean in"
    assert preprocess("что такое граф", extra_words=["что", "такое"]) == "граф"
    assert preprocess("what is what", keep_words=["what"], extra_words=["what"]) == "what what"
