"""What is known before anything was searched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.retrieval.gate import classify_trivial_query


@pytest.mark.parametrize(
    "query",
    [
        "hi", "Hello!", "  hey  ", "Thank you very much.", "THANKS!!!", "good   morning", "ok", "¡Hola!",
        "muchas gracias", "¿sí?", "Guten Tag", "danke!", "Vielen Dank.", "Tschüss", "Bonjour", "merci beaucoup…",
        "d'accord", "d’accord", "Ciao!", "grazie mille", "Olá!", "obrigada", "Dank je", "tot ziens",
    ],
)  # fmt: skip
def test_a_greeting_or_thanks_is_small_talk(query: str) -> None:
    assert classify_trivial_query(query, []) == "small_talk"


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?",
        "hi what is RAG",
        "thanks for the invoice number",
        "hello world program",
        "OKR",
        "what is ok",
    ],
)
def test_a_question_is_not_small_talk(query: str) -> None:
    assert classify_trivial_query(query, []) == ""


@pytest.mark.parametrize(
    ("query", "identifiers"),
    [
        ("ERR-4711", ["ERR-4711"]),
        ("  ERR-4711, SKU 12?", ["ERR-4711", "SKU 12"]),
        ("A-1 A-12", ["A-1", "A-12"]),
        ("https://example.org/x?id=1", ["https://example.org/x?id=1"]),
        ("42 42", ["42"]),
    ],
)
def test_identifiers_alone_need_no_model(query: str, identifiers: list[str]) -> None:
    assert classify_trivial_query(query, identifiers) == "only_identifiers"


@pytest.mark.parametrize(
    ("query", "identifiers"),
    [
        ("what is ERR-4711", ["ERR-4711"]),
        ("ERR-4711", []),
        ("", []),
        ("ERR-4711 東京", ["ERR-4711"]),
        ("x1", ["1"]),
    ],
)
def test_identifiers_beside_words_do(query: str, identifiers: list[str]) -> None:
    assert classify_trivial_query(query, identifiers) == ""


@given(st.text(), st.lists(st.text(), max_size=4))
def test_any_text_can_be_looked_at(query: str, identifiers: list[str]) -> None:
    assert classify_trivial_query(query, identifiers) in ("", "small_talk", "only_identifiers")
