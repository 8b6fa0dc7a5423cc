"""A text is cut at the end of a word, and its tokens are counted on the high side."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qtmiddleware.tools.tokens import CUT, count_tokens, cut_text
from tests.support.token_counts import SAMPLES, load_tokenizer

ROOT = Path(__file__).parents[3]
PICK = random.Random(1)


def pick(letters: str, count: int, words: int = 1) -> str:
    return " ".join("".join(PICK.choices(letters, k=count)) for _ in range(words))


PLACES = (*range(0, 0xD800, 0x400), *range(0xE000, 0x20000, 0x400), 0x20000, 0xE0000)
RANDOM = {
    **{f"U+{at:X}": pick("".join(map(chr, range(at, at + 128))), 600) for at in PLACES},
    **{f"{letters} of {count}": pick(letters, count, 500)
       for letters in (string.ascii_lowercase, string.ascii_letters, "bcdfghjklmnpqrstvwxz")
       for count in (3, 5, 8, 13, 20)},
    "punctuation": pick(string.punctuation, 3_000),
    "marks alone": pick(string.punctuation, 1, 3_000),
    "everything": pick(string.printable, 3_000),
}  # fmt: skip


@pytest.mark.thorough
def test_no_fewer_tokens_are_counted_than_a_models_tokenizer_makes_and_of_prose_not_twice() -> None:
    encode = load_tokenizer()
    for name, text in {**SAMPLES, **RANDOM}.items():
        assert len(encode(text)) <= count_tokens(text), name
    for name, text in SAMPLES.items():
        assert count_tokens(text) <= 2.5 * len(encode(text)) + 4, name
    for page in ("README.md", "SECURITY.md", "docs/agents.md"):
        text = (ROOT / page).read_text(encoding="utf-8")[:20_000]
        assert len(encode(text)) <= count_tokens(text) <= 1.85 * len(encode(text)), page


TEXT = "Dr. Wong saw Jaco in May. He is fine. He weighs 4.2 kg, e.g. after lunch. Call again."


@pytest.mark.parametrize(
    ("text", "tokens", "kept"),
    [
        (TEXT, 100, TEXT),
        (TEXT, 14, "Dr. Wong saw […]"),
        (TEXT, 1, ""),
    ],
)
def test_a_text_ends_with_a_word(text: str, tokens: int, kept: str) -> None:
    assert cut_text(text, tokens) == kept


@given(st.text(), st.integers(-10, 60))
@example("\ud800" * 9, 8)
@example("aB" * 50_000, 30)
@example("word " * 5_000, 30)
def test_whatever_the_text_it_is_kept_whole_or_cut_within_its_tokens(
    text: str, tokens: int
) -> None:
    kept = cut_text(text, tokens)
    assert kept in (text, "") or text.startswith(kept.removesuffix(CUT))
    assert count_tokens(kept) <= max(tokens, 0)
