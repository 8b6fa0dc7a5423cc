from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.kit.stores.words import extract_index_words, extract_query_words

HAN = st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), min_size=1, max_size=12)


@given(text=st.text(max_size=60))
def test_every_word_of_a_query_is_among_the_words_of_the_same_text(text: str) -> None:
    assert set(extract_query_words(text)) <= set(extract_index_words(text).split(" "))


@given(text=HAN, start=st.integers(0, 11), length=st.integers(1, 12))
def test_any_part_of_a_text_without_spaces_is_found(text: str, start: int, length: int) -> None:
    part = text[start : start + length]
    assert set(extract_query_words(part)) <= set(extract_index_words(text).split(" "))


def test_a_query_is_cut_into_words_without_repeats() -> None:
    text = "What's new, in v2.0? new 東京都 猫 iPhone手机"
    words = ["what", "s", "new", "in", "v2", "0", "東京", "京都", "猫", "iphone", "手机"]
    assert extract_query_words(text) == words
