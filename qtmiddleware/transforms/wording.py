"""Plain facts about a text: its clean form, its normal form and its words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from qtmiddleware.preprocessing.base import APOSTROPHES

# Control, zero-width, bidi, soft-hyphen, tag and surrogate characters: nothing a reader sees, much that can hide.
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
# Joiners are part of the spelling between letters of Arabic and Indic scripts, and invisible everywhere else.
_JOINER: Final = re.compile("(?<![\u0600-\u0dff])[\u200c\u200d]|[\u200c\u200d](?![\u0600-\u0dff])")
_ACCENT: Final = re.compile("[\u0300-\u036f]")
_OPENING: Final = "\"'“”‘’«»„`¿¡ "
_FINAL: Final = "\"'“”‘’«»„`.?!。？！…,;:、 "
_WORD: Final = re.compile(r"[^\W_]+(?:['’][^\W\d_]+)*")
# Where there is no apostrophe, the words of plain ASCII are what anything but letters and digits leaves between.
_APART: Final = bytes(code if code < 128 and chr(code).isalnum() else 32 for code in range(256))
_OPENING_CHARS: Final = 300
_CJK: Final = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")


def clean(text: str) -> str:
    """*text* on one line, with single spaces and no character that cannot be seen."""
    if text.isascii() and text.isprintable() and "  " not in text and text == text.strip(" "):
        return text
    spaced = " ".join(text.split())
    if spaced.isascii() and spaced.isprintable():
        return spaced
    previous = ""
    # Taking a character out may leave a joiner that stands at an edge now.
    while previous != text:
        previous, text = text, _JOINER.sub("", _UNSEEN.sub("", text))
    return " ".join(text.split())


def shorten(text: str, limit: int) -> str:
    """*text* if it has at most *limit* characters, else as many whole words of it as fit."""
    if len(text) <= limit:
        return text
    head = text[: limit + 1]
    at_word = head.rpartition(" ")[0]
    return at_word if len(at_word) > limit // 2 else text[:limit]


def normal(text: str) -> str:
    """What two spellings of one question have in common: no case, no spacing, no outer quotes, no final punctuation."""
    whole = clean(text)
    if whole.isascii():
        return whole.lower().lstrip(_OPENING).rstrip(_FINAL)
    folded = unicodedata.normalize("NFKC", whole).casefold()
    return " ".join(folded.split()).lstrip(_OPENING).rstrip(_FINAL)


def folded(text: str) -> str:
    """*text* without case and accents, with one kind of apostrophe and hyphen."""
    if text.isascii():
        return text.lower()
    apart = unicodedata.normalize("NFKD", text.casefold())
    whole = unicodedata.normalize("NFC", _ACCENT.sub("", apart))
    return re.sub("[‐‑‒–—−]", "-", whole.translate(APOSTROPHES))


def words(text: str) -> list[str]:
    """The words of *text* in their order, as they are written."""
    if text.isascii() and "'" not in text:
        return text.encode().translate(_APART).decode().split()
    return _WORD.findall(text)


def tokens(text: str) -> list[str]:
    """The folded words of *text*; in scripts without spaces, the pairs of neighbouring characters."""
    if text.isascii():
        found = words(text.lower())
        return [word.removesuffix("'s") for word in found] if "'" in text else found
    found = []
    for word in words(folded(text)):
        run = _CJK.search(word)
        if run is None:
            found.append(word.removesuffix("'s"))
        elif len(word) == 1:
            found.append(word)
        else:
            found.extend(word[i : i + 2] for i in range(len(word) - 1))
    return found


def is_blank(text: str) -> bool:
    """Whether *text* holds no letter and no digit."""
    return not any(map(str.isalnum, text))


def listed(text: str) -> frozenset[str]:
    """The words of a list that is written as running text."""
    return frozenset(text.split())


def opening_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """One pattern for a folded text that opens as any of *patterns* says."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


def opens_with(pattern: re.Pattern[str], text: str, query: str) -> bool:
    """Whether *text* opens as *pattern* says, in words that are not all the query's own."""
    match = pattern.match(folded(clean(text[:_OPENING_CHARS])).lstrip("\"'*_([ "))
    return match is not None and not (match.group() and set(words(match.group())) <= set(words(folded(query))))
