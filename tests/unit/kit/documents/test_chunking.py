"""Chunks rejoin to the document, keep their size, and end where people end something."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.documents.chunking import Chunk, cut_into_chunks

WORDS = [
    "word ",
    "Dr. ",
    "3.14 ",
    "e.g. this ",
    "End. ",
    'said so." ',
    "1. ",
    "...",
    "a.",
    "x" * 30,
]
SPACES = ["\n", "\r\n", "\n\n", " ", "\t", "\u2028", "\x85"]
SCRIPTS = [
    "漢字。",
    "كتاب؟ ",
    "नमस्ते। ",
    "e\u0301",
    "👩\u200d👩\u200d👧",
    "🇩🇪",
    "\u200d",
    "\u0301",
    "\ud800",
]
FRAGMENTS = st.sampled_from(WORDS + SPACES + SCRIPTS)
TEXTS = st.lists(FRAGMENTS | st.text(max_size=8), max_size=60).map("".join)
BOUNDARIES: Any = st.sampled_from(["sentence", "character"])


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, int]:
    size = draw(st.integers(1, 60) | st.integers(1, 400))
    return {"size": size, "overlap": draw(st.integers(0, size - 1))}


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A text, and the same in pieces."""
    text = draw(TEXTS)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=10)))
    return text, [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


def texts_of(text: str, **options: Any) -> list[str]:
    return [chunk.text for chunk in cut_into_chunks([text], **options)]


def new_texts(text: str, size: int) -> list[str]:
    """The chunks of *text* without overlap and without the white space around them."""
    return [it.strip() for it in texts_of(text, size=size, overlap=0)]


@given(text=TEXTS, options=sizes(), boundary=BOUNDARIES)
def test_chunks_keep_their_size_and_say_where_they_stand(
    text: str, options: Any, boundary: Any
) -> None:
    made = list(cut_into_chunks([text], boundary=boundary, **options))
    assert [chunk.index for chunk in made] == list(range(len(made)))
    for chunk in made:
        assert 0 < len(chunk.text) <= options["size"]
        assert text[chunk.start : chunk.end] == chunk.text


@given(text=TEXTS, options=sizes(), boundary=BOUNDARIES)
# The overlap would reach to before the chunk that it is of.
@example(text="xxxxxxx xxxxxxx xxxxxx", options={"size": 10, "overlap": 9}, boundary="sentence")
def test_chunks_rejoin_to_the_document_and_share_no_more_than_the_overlap(
    text: str, options: Any, boundary: Any
) -> None:
    made = list(cut_into_chunks([text], boundary=boundary, **options))
    assert bool(made) == bool(text.strip())
    if made:
        assert (made[0].start, made[-1].end) == (0, len(text))
    for one, two in pairwise(made):
        assert one.start < two.start <= one.end <= two.end
        assert one.end - two.start <= options["overlap"]
        assert one.end < two.end or boundary == "character"


@given(cut=cut_texts(), options=sizes(), boundary=BOUNDARIES)
def test_how_the_document_comes_in_pieces_makes_no_difference(
    cut: Any, options: Any, boundary: Any
) -> None:
    text, pieces = cut
    whole = list(cut_into_chunks([text], boundary=boundary, **options))
    assert list(cut_into_chunks(pieces, boundary=boundary, **options)) == whole
    assert list(cut_into_chunks(iter(text), boundary=boundary, **options)) == whole


@given(text=TEXTS, options=sizes())
@example(text="Aa bb cc. " * 6 + "Ab. " + "x" * 90, options={"size": 60, "overlap": 50})
def test_each_chunk_brings_at_least_half_of_what_it_could(text: str, options: Any) -> None:
    made = list(cut_into_chunks([text], **options))
    fresh = max(1, (options["size"] - options["overlap"]) // 2)
    for one, two in list(pairwise(made))[:-1]:
        assert two.end - one.end >= fresh


@given(text=TEXTS, options=sizes())
def test_by_character_the_windows_are_those_of_the_plain_loop(text: str, options: Any) -> None:
    size, overlap = options["size"], options["overlap"]
    windows = [text[i : i + size] for i in range(0, len(text), size - overlap)]
    assert texts_of(text, boundary="character", **options) == (windows if text.strip() else [])


def test_by_character_a_last_window_within_the_one_before_stays() -> None:
    assert texts_of("abcdefghij", size=8, overlap=4, boundary="character") == [
        "abcdefgh",
        "efghij",
        "ij",
    ]


# Hypothesis finds its own clusters; these are shorter than the smallest size.
@given(
    text=st.lists(st.sampled_from(["e\u0301", "🇩🇪", "👍🏽", "각", "\r\n", "x", "क्षि", "漢"])).map(
        "".join
    ),
    size=st.integers(12, 90),
)
def test_no_chunk_ends_within_what_readers_see_as_one_character(text: str, size: int) -> None:
    whole = {it.start() for it in regex.finditer(r"\X", text)} | {len(text)}
    for overlap in (0, size // 3):
        for chunk in cut_into_chunks([text], size=size, overlap=overlap):
            assert {chunk.start, chunk.end} <= whole


def test_a_cluster_larger_than_a_chunk_is_cut_all_the_same() -> None:
    text = "a" + "\u0301" * 50
    assert "".join(texts_of(text, size=8, overlap=0)) == text


@pytest.mark.parametrize(
    ("text", "size", "first"),
    [
        ("One two three. Four five six. Seven eight nine.", 36, "One two three. Four five six."),
        ("She asked why? He knew! Nobody else had an idea.", 33, "She asked why? He knew!"),
        (
            'He said "Stop the engine now." Then all was quiet.',
            36,
            'He said "Stop the engine now."',
        ),
        ("The list of it all is long.\n\nA heading\n\nThe text", 39, "The list of it all is long."),
        ("Ein langer Satz hier. Kam Dr. Weber auch vorbei?", 30, "Ein langer Satz hier."),
        ("A longer sentence. Pi is 3.14 and more than that.", 26, "A longer sentence."),
        ("The first sentence. Then J. R. Tolkien wrote it.", 28, "The first sentence."),
        (
            "What is asked here? asked he who was always asking",
            36,
            "What is asked here? asked he who was",
        ),
        ("Here comes the list.\n1. The first and only of it", 28, "Here comes the list."),
        ("Words of all the line\nand of the next one", 30, "Words of all the line"),
        ("No end of it is near here, only words are", 30, "No end of it is near here,"),
        (
            "| a | This is the longest cell of all. | 1 |\n| b | Short. | 2 |",
            60,
            "| a | This is the longest cell of all. | 1 |",
        ),
    ],
)
def test_a_chunk_ends_where_a_reader_would_pause(text: str, size: int, first: str) -> None:
    assert new_texts(text, size)[0] == first


@pytest.mark.parametrize(
    ("text", "size", "first"),
    [
        ("今日は天気がいいですね。明日も晴れるでしょう。", 16, "今日は天気がいいですね。"),
        ("这是第一句话吗？这是第二句话！", 11, "这是第一句话吗？"),
        ("彼は「もう行くよ。」と言った", 12, "彼は「もう行くよ。」"),
        ("هل هذا هو السؤال؟ نعم هذا هو", 20, "هل هذا هو السؤال؟"),
        ("یہ پہلا جملہ ہے۔ یہ دوسرا جملہ ہے۔", 20, "یہ پہلا جملہ ہے۔"),
        ("यह पहला वाक्य है। यह दूसरा है।", 20, "यह पहला वाक्य है।"),
    ],
)
def test_sentences_end_in_other_scripts_too(text: str, size: int, first: str) -> None:
    assert new_texts(text, size)[0] == first


@pytest.mark.parametrize("before", ["Dr.", "e.g.", "Fig.", "z. B.", "No.", "U.S.", "vgl."])
def test_an_abbreviation_ends_no_sentence(before: str) -> None:
    sentence, next_one = "It is the first sentence of this.", f"At {before} Alpha"
    text = f"{sentence} {next_one} and so on it goes"
    assert new_texts(text, len(sentence) + len(next_one))[0] == sentence


def test_the_overlap_begins_with_a_sentence_else_with_a_word() -> None:
    text = "First sentence of it. Second one comes. Third is here. Fourth and last of all."
    one, two = list(cut_into_chunks([text], size=60, overlap=40))[:2]
    assert one.text == "First sentence of it. Second one comes. Third is here. "
    assert two.text.startswith("Second one comes.")
    words = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda"
    for chunk in list(cut_into_chunks([words], size=24, overlap=10))[1:]:
        assert chunk.text.split()[0] in words.split()


def test_a_sentence_that_would_leave_little_of_the_overlap_is_not_waited_for() -> None:
    text = "The overlap is made of words that stand in a sentence. Then it ends. And goes on with more of it."
    one, two = list(cut_into_chunks([text], size=69, overlap=50))[:2]
    assert one.text.endswith("Then it ends. ")
    assert two.text.startswith("of words that stand")


def test_a_line_end_of_two_characters_is_never_cut_in_two() -> None:
    assert texts_of("One two three.\r\nFour five six.", size=15, overlap=0)[0] == "One two three."
    assert (
        texts_of("Ends here so far a b.\r\nMore to come.", size=22, overlap=0)[0]
        == "Ends here so far a b."
    )
    for size in range(2, 20):
        for overlap in range(size - 1):
            for chunk in texts_of("abc\r\n" * 20, size=size, overlap=overlap)[:-1]:
                assert not chunk.endswith("\r")
                assert not chunk.startswith("\n")


def test_a_heading_goes_with_what_it_heads() -> None:
    text = (
        "A sentence that fills the first of them well.\n\nHeading\n\nWhat stands below the heading."
    )
    assert new_texts(text, 62) == ["A sentence that fills the first of them well.", text[47:]]


@pytest.mark.parametrize("tail", ["\n", " \n\n", "\u3000"])
def test_white_space_at_the_end_makes_no_chunk_of_its_own(tail: str) -> None:
    text = "one two three four five six seven " * 3
    text = text.rstrip() + tail
    for size in range(len(text) // 2, len(text)):
        assert all(chunk.strip() for chunk in texts_of(text, size=size, overlap=0))


@pytest.mark.parametrize("pieces", [[], [""], ["", ""], [" "], ["\n" * 5_000, " \t", "\u3000"]])
@pytest.mark.parametrize("boundary", ["sentence", "character"])
def test_a_document_of_nothing_or_white_space_has_no_chunks(
    pieces: list[str], boundary: Any
) -> None:
    assert list(cut_into_chunks(pieces, size=100, overlap=10, boundary=boundary)) == []


@pytest.mark.parametrize(
    ("size", "overlap", "path"),
    [
        (100, 100, "chunkOverlap"),
        (100, 300, "chunkOverlap"),
        (100, -1, "chunkOverlap"),
        (0, 0, "chunkSize"),
    ],
)
def test_impossible_sizes_are_refused_before_anything_is_read(
    size: int, overlap: int, path: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        cut_into_chunks(iter(()), size=size, overlap=overlap)
    assert caught.value.path == path
    assert path in str(caught.value)


def test_the_text_of_a_chunk_is_not_in_its_repr() -> None:
    assert repr(Chunk(0, 0, 6, "secret")) == "Chunk(index=0, start=0, end=6)"


MONOTONOUS = pytest.mark.parametrize(
    "unit",
    [
        "x",
        "a.",
        "a. ",
        ".",
        ". ",
        "\n",
        '."',
        ".)",
        '"',
        " ",
        "Dr. ",
        "1. X\n",
        "\r\n",
        "漢",
        "e\u0301",
        "a \u0301",
        "🇩🇪",
        "\u0301",
    ],
    ids=ascii,
)


@MONOTONOUS
def test_monotonous_text_makes_no_more_chunks_than_other_text(unit: str) -> None:
    text = "x" + unit * (100_000 // len(unit))
    assert len(texts_of(text, size=800, overlap=200)) <= len(text) // 300 + 1


# Hours if the time for a chunk grew with its square, which is what the time limit of each test is
# for.
@MONOTONOUS
def test_a_chunk_of_the_largest_size_takes_time_in_proportion_to_it(unit: str) -> None:
    text = "x" + unit * (1_200_000 // len(unit))
    assert "".join(texts_of(text, size=1_000_000, overlap=0)) == text
