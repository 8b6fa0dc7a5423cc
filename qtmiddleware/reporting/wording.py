"""Texts of others as they can be shown: on one line, of bounded length, and without what changes the text around."""

from __future__ import annotations

import re
from typing import Final
from unicodedata import combining, east_asian_width

REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
# Controls, marks that turn the reading direction of what follows, halves of characters, and what is no character.
_UNSHOWABLE: Final = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u061c\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_ELLIPSIS: Final = "…"
_NARROW, _CAPITAL, _WIDE = 0.63, 0.78, 1.15
_BROAD: Final = frozenset("MWmw@%—…")


def shown(text: str) -> str:
    """*text* on one line, with a replacement character for each one that would act instead of being seen."""
    return _UNSHOWABLE.sub(REPLACED, " ".join(text.split()))


def ending(text: str, length: int) -> str:
    """The end of *text* as it is shown, in at most *length* characters: ids begin alike and end apart."""
    whole = shown(text[-4 * length :])
    if len(whole) <= length and len(text) <= 4 * length:
        return whole
    return _ELLIPSIS + whole[1 - length :].lstrip()


def short(text: str, length: int) -> str:
    """*text* as it is shown, in at most *length* characters."""
    # What cannot be seen does not have to be read: a passage may be a whole book.
    whole = shown(text[: 4 * length])
    if len(whole) <= length and len(text) <= 4 * length:
        return whole
    return whole[: length - 1].rstrip() + _ELLIPSIS


def width_of(text: str) -> float:
    """How wide *text* is at most, about, in units of the font's size, whatever the font; bold takes a tenth more."""
    return sum(_width(character) for character in text)


def fitted(text: str, width: float) -> str:
    """*text* as it is shown, cut to what is *width* wide in units of the font's size."""
    whole = short(text, max(2, int(width / 0.2)))
    if width_of(whole) <= width:
        return whole
    left = width - _WIDE
    for place, character in enumerate(whole):
        left -= _width(character)
        if left < 0:
            return whole[:place].rstrip() + _ELLIPSIS
    return whole


def _width(character: str) -> float:
    if combining(character):
        return 0.0
    # Signs outside of the first plane are mostly pictures.
    if character in _BROAD or east_asian_width(character) in "WF" or ord(character) > 0xFFFF:
        return _WIDE
    return _NARROW if character.isascii() and not character.isupper() else _CAPITAL
