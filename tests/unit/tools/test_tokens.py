"""A text is cut at the end of a sentence, and its tokens are counted on the high side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qtmiddleware.tools.tokens import CUT, count_tokens, cut_text
from tests.support.token_counts import SAMPLES, load_tokenizer

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def encode() -> Any:
    return load_tokenizer()


@pytest.mark.thorough
@pytest.mark.parametrize("name", SAMPLES)
def test_no_fewer_tokens_are_counted_than_a_models_tokenizer_makes(name: str, encode: Any) -> None:
    text = SAMPLES[name]
    assert len(encode(text)) <= count_tokens(text) <= 2.5 * len(encode(text)) + 4


@pytest.mark.thorough
@pytest.mark.parametrize(
    "page", ["README.md", "SECURITY.md", "config/schema.json", "qtmiddleware/wrapping/wrapped.py"]
)
def test_a_whole_page_is_counted_within_half_as_much_again(page: str, encode: Any) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")[:20_000]
    assert len(encode(text)) <= count_tokens(text) <= 1.6 * len(encode(text))
    written = json.dumps({"text": text})
    assert len(encode(written)) <= count_tokens(written)


TEXT = "Dr. Wong saw Jaco in May. He is fine. He weighs 4.2 kg, e.g. after lunch. Call again."


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [
        (100, TEXT),
        (23, "Dr. Wong saw Jaco in May. He is fine. […]"),
        (13, "Dr. Wong saw Jaco in May. […]"),
        (8, "Dr. Wong saw […]"),
        (1, ""),
        (0, ""),
        (-5, ""),
    ],
)
def test_a_text_ends_with_a_sentence_else_with_a_word(tokens: int, kept: str) -> None:
    assert cut_text(TEXT, tokens) == kept


def test_sentences_of_other_scripts_end_where_they_end() -> None:
    assert cut_text("客户可以退货。请保留收据。谢谢您的来信和支持。", 24).startswith(
        "客户可以退货。"
    )
    assert cut_text("客户可以退货。请保留收据。谢谢您的来信和支持。", 24).endswith("。 […]")


@given(st.text(), st.integers(-10, 60))
@example("a" * 10_000, 20)
@example("\ud800" * 9, 8)
@example("word " * 5_000, 30)
def test_whatever_the_text_it_is_kept_whole_or_cut_within_its_tokens(
    text: str, tokens: int
) -> None:
    kept = cut_text(text, tokens)
    if kept == text:
        assert text == "" or count_tokens(text) <= tokens
    else:
        assert kept == "" or text.startswith(kept.removesuffix(CUT))
        assert count_tokens(kept) <= max(tokens, 0)
