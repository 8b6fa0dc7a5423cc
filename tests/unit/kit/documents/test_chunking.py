"""Chunks rejoin to the document, keep their size, and end where a reader would pause."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from qtmiddleware.kit.documents.chunking import cut_into_chunks

WORDS = ["word ", "Dr. ", "3.14 ", "e.g. this ", "End. ", 'said so." ', "1. ", "...", "x" * 30]
SPACES = ["\n", "\r\n", "\n\n", " ", "\t", "\u2028", "\x85"]
SCRIPTS = ["漢字。", "كتاب؟ ", "नमस्ते। ", "e\u0301", "👩\u200d👩\u200d👧", "🇩🇪", "\u0301", "\ud800"]
FRAGMENTS = st.sampled_from(WORDS + SPACES + SCRIPTS)
TEXTS = st.lists(FRAGMENTS | st.text(max_size=8), max_size=60).map("".join)
CLUSTERS = ["e\u0301", "🇩🇪", "👍🏽", "각", "x", "क्षि", "漢"]


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    size = draw(st.integers(1, 60) | st.integers(1, 400))
    return size, draw(st.integers(0, size - 1))


@given(text=TEXTS, sizes=sizes())
# The overlap would reach to before the chunk that it is of.
@example(text="xxxxxxx xxxxxxx xxxxxx", sizes=(10, 9))
@example(text="Aa bb cc. " * 6 + "Ab. " + "x" * 90, sizes=(60, 50))
def test_chunks_rejoin_to_the_document_and_each_brings_half_of_what_it_could(
    text: str, sizes: Any
) -> None:
    size, overlap = sizes
    chunks = list(cut_into_chunks(iter(text), size=size, overlap=overlap))
    assert bool(chunks) == bool(text.strip())
    if chunks:
        assert (chunks[0].start, chunks[-1].end) == (0, len(text))
    for chunk in chunks:
        assert 0 < len(chunk.text) <= size
        assert text[chunk.start : chunk.end] == chunk.text
    for one, two in pairwise(chunks):
        assert one.start < two.start <= one.end < two.end
        assert one.end - two.start <= overlap
        assert two.end - one.end >= (size - overlap) // 2 or two is chunks[-1]


@given(text=TEXTS, sizes=sizes())
def test_by_character_the_windows_are_those_of_the_plain_loop(text: str, sizes: Any) -> None:
    size, overlap = sizes
    windows = [text[i : i + size] for i in range(0, len(text), size - overlap)]
    chunks = cut_into_chunks([text], size=size, overlap=overlap, boundary="character")
    assert [chunk.text for chunk in chunks] == (windows if text.strip() else [])


# Hypothesis finds its own clusters; these are shorter than the smallest size.
@given(text=st.lists(st.sampled_from(CLUSTERS)).map("".join), size=st.integers(12, 90))
def test_no_chunk_ends_within_what_readers_see_as_one_character(text: str, size: int) -> None:
    whole = {it.start() for it in regex.finditer(r"\X", text)} | {len(text)}
    for overlap in (0, size // 3):
        for chunk in cut_into_chunks([text], size=size, overlap=overlap):
            assert {chunk.start, chunk.end} <= whole


@pytest.mark.parametrize(
    ("text", "size", "first"),
    [
        ("The list of it all is long.\n\nA heading\nThe text", 39, "The list of it all is long."),
        ("Ein langer Satz hier. Kam Dr. Weber auch vorbei?", 30, "Ein langer Satz hier."),
        ("A longer sentence. Pi is 3.14 and more than that.", 26, "A longer sentence."),
        ("Words of all the line\nand of the next one", 30, "Words of all the line"),
        ("No end of it is near here, only words are", 30, "No end of it is near here,"),
        ("今日は天気がいいですね。明日も晴れるでしょう。", 16, "今日は天気がいいですね。"),
        ("هل هذا هو السؤال؟ نعم هذا هو", 20, "هل هذا هو السؤال؟"),
    ],
)
def test_a_chunk_ends_where_a_reader_would_pause(text: str, size: int, first: str) -> None:
    assert next(cut_into_chunks([text], size=size, overlap=0)).text.strip() == first


def test_the_overlap_begins_with_a_sentence_else_with_a_word() -> None:
    text = "First sentence of it. Second one comes. Third is here. Fourth and last of all."
    one, two = list(cut_into_chunks([text], size=60, overlap=40))[:2]
    assert one.text == "First sentence of it. Second one comes. Third is here. "
    assert two.text.startswith("Second one comes.")
    # A sentence in the later half of the overlap would share too little.
    late = (
        "Alpha beta gamma delta epsilon zeta eta theta iota. Kappa lambda mu nu xi omicron pi rho."
    )
    assert [it.text[:5] for it in cut_into_chunks([late], size=60, overlap=40)][1] == "delta"
    words = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda"
    for chunk in cut_into_chunks([words], size=24, overlap=10):
        assert chunk.text.split()[0] in words.split()
