"""Finds what stands in quotation marks."""

from __future__ import annotations

import re
from functools import lru_cache

CLOSERS = {
    '"': '"”', "“": "”\"“", "„": "“”\"", "”": "”", "«": "»", "»": "«", "‹": "›",
    "'": "'’", "‘": "’'", "‚": "‘’", "`": "`", "「": "」", "『": "』", "《": "》",
}  # fmt: skip
"""Every opening mark with the marks that may close it."""

SINGLE = "'’‘"
"""Marks that are apostrophes too."""


def find_quotes(text: str) -> list[tuple[int, int]]:
    """Start and end of every quoted phrase of *text*, marks included, from left to right, none inside another.

    A mark without its partner is no quote. An apostrophe is none either: a single mark opens only before and closes
    only after a word.
    """
    found: list[tuple[int, int]] = []
    hopeless: set[str] = set()
    places = [match.start() for match in _marks().finditer(text)]
    index = 0
    while index < len(places):
        mark = text[places[index]]
        partner = _partner(text, places, index) if mark not in hopeless and _opens(text, places[index]) else index
        if partner is None:
            # Nothing further on closes this mark, so the search need not be made again: that keeps it linear.
            hopeless.add(mark)
        elif partner > index:
            found.append((places[index], places[partner] + 1))
            index = partner
        index += 1
    return found


def _partner(text: str, places: list[int], index: int) -> int | None:
    """Which of *places* closes the quote that opens at ``places[index]``; the same *index* for an empty one."""
    start = places[index]
    closers = CLOSERS[text[start]]
    for later in range(index + 1, len(places)):
        place = places[later]
        if text[place] in closers and _closes(text, place):
            return later if text[start + 1 : place].strip() else index
    return None


def _opens(text: str, place: int) -> bool:
    """Whether the mark at *place* can open a quote."""
    mark, after = text[place], text[place + 1 : place + 2]
    if mark not in CLOSERS or (place and text[place - 1].isalnum()):
        return False
    # '90s and 'tis: a year without its century is no quote.
    return not (mark in SINGLE and (after.isspace() or after.isdigit()))


def _closes(text: str, place: int) -> bool:
    """Whether the mark at *place* can close a quote."""
    if text[place + 1 : place + 2].isalnum():
        return False
    return text[place] not in SINGLE or not text[place - 1].isspace()


@lru_cache(1)
def _marks() -> re.Pattern[str]:
    """A pattern for one quotation mark."""
    marks = set("".join(CLOSERS.values())) | set(CLOSERS)
    return re.compile("[" + re.escape("".join(sorted(marks))) + "]")
