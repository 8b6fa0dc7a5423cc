"""Texts as their words alone, which is how a question, a quote and a passage are held against each other."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from qtmiddleware.preprocessing import LANGUAGES, detect_language
from qtmiddleware.preprocessing.lexicon import load
from qtmiddleware.preprocessing.text import split_tokens

_UNSPACED: Final = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


def plain(text: str) -> str:
    """The folded words of *text* with a blank around each: no case, accents, punctuation or line breaks.

    A text stands in another one, word by word, where its plain form is a part of the other's.
    """
    return f" {' '.join(split_tokens(text))} "


def is_unspaced(words: list[str]) -> bool:
    """Whether most of *words*, which are pairs of characters then, are of a script without spaces."""
    return 2 * sum(bool(_UNSPACED.match(word)) for word in words) > len(words)


def content_words(words: list[str], text: str) -> list[bool]:
    """For each of *words*, the words of *text*, whether it says something: no word of a list and none of two letters.

    Where there is no word list for the language, only the letters count.
    """
    small = _small_words(detect_language(text))
    return [not (word in small or (len(word) < 3 and word.isascii() and word.isalpha())) for word in words]


@lru_cache(len(LANGUAGES) + 1)
def _small_words(language: str) -> frozenset[str]:
    if not language:
        return frozenset()
    lexicon = load(language)
    listed = lexicon.stop | lexicon.weak | lexicon.strong
    return frozenset(token for word in listed for token in split_tokens(word))
