"""What becomes of the questions in ``questions.json``, by language."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any, Final

import pytest

from qtmiddleware.preprocessing import extract_keywords, preprocess

ROWS: Final[dict[str, Any]] = json.loads(
    Path(__file__).with_name("questions.json").read_text(encoding="utf-8")
)
UNCHANGED: Final[list[str]] = ROWS.pop("unchanged")
OTHER: Final[dict[str, str]] = ROWS.pop("other")
BY_LANGUAGE: Final[dict[str, dict[str, str]]] = ROWS


@pytest.mark.parametrize("rows", [*BY_LANGUAGE.values(), OTHER], ids=[*BY_LANGUAGE, "other"])
def test_a_question_becomes_its_keywords(rows: dict[str, str]) -> None:
    assert {query: preprocess(query) for query in rows} == rows


def test_what_is_protected_stays_as_it_is_written() -> None:
    assert [preprocess(query) for query in UNCHANGED] == UNCHANGED


@pytest.mark.parametrize("rows", BY_LANGUAGE.values(), ids=BY_LANGUAGE)
def test_decomposed_letters_make_no_difference(rows: dict[str, str]) -> None:
    decomposed = {query: unicodedata.normalize("NFD", query) for query in rows}
    found = {query: preprocess(text) for query, text in decomposed.items()}
    assert {query: unicodedata.normalize("NFC", text) for query, text in found.items()} == rows


@pytest.mark.parametrize("language", [code for code in BY_LANGUAGE if code != "en"])
def test_the_language_of_a_question_is_found(language: str) -> None:
    found = {query: extract_keywords(query).language for query in BY_LANGUAGE[language]}
    assert found == dict.fromkeys(found, language)


def test_a_turkish_capital_i_becomes_a_letter_that_a_word_search_finds() -> None:
    assert preprocess("İstanbul nüfusu kaç?").startswith("istanbul")
