"""Extract the words for a word index, in any script."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

# The Unicode categories of characters in words: letters, numbers, marks and private use.
CATEGORIES: Final = "L* N* M* Co"

_PLAIN_WORD: Final = re.compile("[a-z0-9]+")
_WORD: Final = r"[\p{L}\p{N}\p{M}\p{Co}]+"
# Scripts without spaces between words, and Hangul, whose words include their particles.
_UNSPACED: Final = (
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff"
    r"\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)


def extract_index_words(text: str) -> str:
    """Return the words to index, separated by spaces, in lower case.

    In scripts without spaces, each character and each pair of adjacent characters is a word.
    Accents stay; the index removes them.
    """
    if text.isascii():
        # This is ten times as fast as the general way below, and finds the same words.
        return " ".join(_PLAIN_WORD.findall(text.lower()))
    return " ".join(_split_words(text, with_single_characters=True))


def extract_query_words(text: str) -> list[str]:
    """Return the words of a query to look up in the word index, without repeats.

    In scripts without spaces, each pair of adjacent characters is a word. A single character is a
    word only if it stands alone.
    """
    return list(dict.fromkeys(_split_words(text, with_single_characters=False)))


def _split_words(text: str, *, with_single_characters: bool) -> Iterator[str]:
    import regex

    for word in regex.findall(_WORD, unicodedata.normalize("NFKC", text).casefold()):
        for part in regex.splititer(f"({_UNSPACED})", word):
            if not regex.match(_UNSPACED, part):
                yield from [part] if part else ()
                continue
            if with_single_characters or len(part) == 1:
                yield from part
            yield from (part[left : left + 2] for left in range(len(part) - 1))
