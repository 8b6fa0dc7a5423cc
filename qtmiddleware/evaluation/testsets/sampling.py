"""Which passages are asked about, and in which order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from random import Random
from typing import Final

from qtmiddleware.evaluation.testsets.wording import plain
from qtmiddleware.preprocessing.text import split_tokens
from qtmiddleware.protocols import Passage

MIN_WORDS: Final = 20
"""A passage with fewer words in whole phrases has hardly anything to ask for."""
PHRASE_WORDS: Final = 6
"""Fewer words than these in a row are a heading, a label or an item."""

# A line of a table of contents or an index: what it is about, dots or a gap, and a page.
_ENTRY: Final = re.compile(r"(?:\.{2,}|(?:\. ){2,}|…|·{2,}|\s)\s*(?:\d{1,4}|[ivxlc]{1,7})$")
_ENTRY_CHARS: Final = 20
# Where a phrase ends. A line that goes on in a small letter is the same one, broken for the page.
_PHRASE_END: Final = re.compile(r"[.!?](?=\s|$)|[。！？؟।]|\n[^\S\n]*+(?=\n)|\n\s*+(?![^\W\d_A-ZÀ-ÞΑ-ΩА-Я])")


def sampled(passages: Sequence[Passage], seed: int) -> list[Passage]:
    """The *passages* that a question can be asked about, in an order that *seed* decides.

    Of each document in turn there is one, so that every beginning of the order is spread over all of them; a
    document is what ``source`` in the metadata names, else each passage its own. Of passages with the same words there
    is one.
    """
    chance = Random(seed)
    seen: set[str] = set()
    documents: dict[object, list[Passage]] = {}
    for passage in passages:
        words = plain(passage.text)
        if words not in seen and can_be_judged(passage.id) and is_prose(passage.text):
            seen.add(words)
            source = passage.metadata.get("source")
            documents.setdefault(("source", source) if isinstance(source, str) else passage.id, []).append(passage)
    order = list(documents.values())
    chance.shuffle(order)
    for document in order:
        chance.shuffle(document)
    return [passage for turn in zip_longest(*order) for passage in turn if passage is not None]


def can_be_judged(id_: str) -> bool:
    """Whether *id_* can stand in a file of judgements, whose columns are parted by tabs and stripped of white space."""
    return bool(id_) and id_ == id_.strip() and not set("\t\r\n") & set(id_) and "\ufeff" not in id_


def is_prose(text: str) -> bool:
    """Whether *text* says something in whole phrases: no heap of headings, no table of contents, no few words."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    entries = sum(bool(_ENTRY.search(line[-_ENTRY_CHARS:])) for line in lines)
    if len(lines) > 2 and 2 * entries >= len(lines):
        return False
    lengths = (len(split_tokens(phrase)) for phrase in _PHRASE_END.split(text))
    return sum(length for length in lengths if length >= PHRASE_WORDS) >= MIN_WORDS
