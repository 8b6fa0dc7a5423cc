"""A text is cut at the end of a sentence, and its tokens are counted on the high side."""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qtmiddleware.tools.tokens import CUT, count_tokens, cut_text
from tests.support.token_counts import SAMPLES, load_tokenizer

ROOT = Path(__file__).parents[3]
PICK = random.Random(1)
CONSONANTS = "bcdfghjklmnpqrstvwxz"


@pytest.fixture(scope="module")
def encode() -> Any:
    return load_tokenizer()


def pick(letters: str, count: int, words: int = 1) -> str:
    return " ".join("".join(PICK.choices(letters, k=count)) for _ in range(words))


RANDOM = {
    **{f"U+{at:X}": pick("".join(map(chr, range(at, at + 128))), 600)
       for at in (*range(0, 0xD800, 0x400), *range(0xE000, 0x20000, 0x400), 0x20000, 0xE0000)},
    **{f"{len(letters)} letters, {count} a word": pick(letters, count, 500)
       for letters in (string.ascii_lowercase, string.ascii_letters, CONSONANTS)
       for count in (3, 5, 8, 13, 20)},
    "syllables": " ".join("".join(pick(CONSONANTS, 1) + pick("aeiou", 1) for _ in range(4)) for _ in range(500)),
    "punctuation": pick(string.punctuation, 3_000),
    "marks alone": pick(string.punctuation, 1, 3_000),
    "everything": pick(string.printable, 3_000),
    "surrogates": "\ud800" * 500,
}  # fmt: skip


@pytest.mark.thorough
def test_no_fewer_tokens_are_counted_than_a_models_tokenizer_makes(encode: Any) -> None:
    for name, text in {**SAMPLES, **RANDOM}.items():
        assert len(encode(text)) <= count_tokens(text), name
    for name, text in SAMPLES.items():
        assert count_tokens(text) <= 2.5 * len(encode(text)) + 4, name


@pytest.mark.thorough
@pytest.mark.parametrize("page", ["README.md", "SECURITY.md", "docs/agents.md"])
def test_the_tokens_of_prose_are_counted_less_than_twice(page: str, encode: Any) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")[:20_000]
    assert len(encode(text)) <= count_tokens(text) <= 1.85 * len(encode(text))


TEXT = "Dr. Wong saw Jaco in May. He is fine. He weighs 4.2 kg, e.g. after lunch. Call again."


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [
        (100, TEXT),
        (28, "Dr. Wong saw Jaco in May. He is fine. […]"),
        (21, "Dr. Wong saw Jaco in May. […]"),
        (14, "Dr. Wong saw […]"),
        (1, ""),
        (-5, ""),
    ],
)
def test_a_text_ends_with_a_sentence_else_with_a_word(tokens: int, kept: str) -> None:
    assert cut_text(TEXT, tokens) == kept


def test_sentences_of_other_scripts_end_where_they_end() -> None:
    kept = cut_text("客户可以退货。请保留收据。谢谢您的来信和支持。", 40)
    assert kept == "客户可以退货。请保留收据。 […]"


@given(st.text(), st.integers(-10, 60))
@example("a" * 10_000, 20)
@example("\ud800" * 9, 8)
@example("aB" * 50_000, 30)
@example("word " * 5_000, 30)
def test_whatever_the_text_it_is_kept_whole_or_cut_within_its_tokens(
    text: str, tokens: int
) -> None:
    kept = cut_text(text, tokens)
    if kept != text:
        assert kept == "" or text.startswith(kept.removesuffix(CUT))
    assert count_tokens(kept) <= max(tokens, 0)
