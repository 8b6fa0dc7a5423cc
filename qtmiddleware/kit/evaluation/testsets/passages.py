"""The passages of documents: as an ingest cuts them, which are asked about, and which answer a question."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents import Converter, find_documents
from qtmiddleware.kit.evaluation.testsets.filtering import normalize, split_quote
from qtmiddleware.kit.index.ingestion.ledger import Ledger
from qtmiddleware.kit.index.ingestion.reading import Reader, Root, make_absolute
from qtmiddleware.kit.stores.sqlite.files import MEMORY
from qtmiddleware.preprocessing.text import split_tokens
from qtmiddleware.protocols import Passage
from qtmiddleware.runtime.logs import get_logger

LEAST_WORDS: Final = 8
"""A quote of fewer words may stand in a passage that is about something else."""
MIN_WORDS: Final = 20
"""A passage with fewer words in whole phrases has hardly anything to ask for."""
PHRASE_WORDS: Final = 6
"""Fewer words than these in a row are a heading, a label or an item."""

# A line of a table of contents or an index: what it is about, dots or a gap, and a page.
_ENTRY: Final = re.compile(r"(?:\.{2,}|(?:\. ){2,}|…|·{2,}|\s)\s*(?:\d{1,4}|[ivxlc]{1,7})$")
_ENTRY_CHARS: Final = 20
# Where a phrase ends. A line that goes on in a small letter is the same one, broken for the page.
_PHRASE_END: Final = re.compile(
    r"[.!?](?=\s|$)|[。！？؟।]|\n[^\S\n]*+(?=\n)|\n\s*+(?![^\W\d_A-ZÀ-ÞΑ-ΩА-Я])"
)

_PASSAGES: Final = """
SELECT d.name || '#' || c.ordinal, c.text, c.metadata
FROM target t JOIN documents d ON d.id = t.document JOIN chunks c ON c.document = d.id ORDER BY c.id
"""

logger: Final = get_logger("qtmiddleware.testsets")


def passages_of(paths: Sequence[Path], settings: Settings) -> tuple[Passage, ...]:
    """Read the documents at *paths*, each a file, a folder or a glob, and cut them into passages as an ingest does.

    Ids and metadata are those that ingesting the same paths in the same order into a new index
    gives. A document that cannot be read is left out and logged; one that lies in two of the paths
    is there once. Raises `ConfigError` where a path holds no documents or none of them can be read,
    and `MissingExtra` for a file that a path names and whose packages are not installed.
    """
    with closing(Ledger(MEMORY)) as ledger, Converter() as converter:
        unread: list[Exception] = []
        for path in paths:
            reader = Reader(
                ledger, settings, Root.from_data_path(path), context_version="", converter=converter
            )
            for document in {make_absolute(it): it for it in find_documents(path)}.values():
                try:
                    reader.take(document)
                except (UnreadableDocument, MissingExtra) as error:
                    if isinstance(error, MissingExtra) and reader.is_file:
                        raise
                    logger.warning("%s", error, event="document_unreadable")
                    unread.append(error)
        rows = ledger.execute(_PASSAGES)
    if not rows:
        why = f": {unread[0]}" if unread else ""
        raise ConfigError(f"there are no passages to write questions about{why}", path="paths")
    return tuple(Passage(id_, text, json.loads(metadata)) for id_, text, metadata in rows)


def draw_passages(passages: Sequence[Passage], seed: int) -> list[Passage]:
    """Return the *passages* that a question can be asked about, in an order that *seed* decides.

    Of each document in turn there is one, so that every beginning of the order is spread over all
    of them; a document is what ``source`` in the metadata names, else each passage its own. Of
    passages with the same words there is one.
    """
    chance = Random(seed)
    seen: set[str] = set()
    documents: dict[object, list[Passage]] = {}
    for passage in passages:
        words = normalize(passage.text)
        if words not in seen and can_be_judged(passage.id) and is_prose(passage.text):
            seen.add(words)
            source = passage.metadata.get("source")
            documents.setdefault(
                ("source", source) if isinstance(source, str) else passage.id, []
            ).append(passage)
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


class Relevance:
    """The passages that say the same, as chunks that overlap do, and the PDF and the text of one document."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._words = {
            passage.id: normalize(passage.text) for passage in passages if can_be_judged(passage.id)
        }

    def find_relevant(self, passage: Passage, quote: str) -> list[str]:
        """Return the ids of *passage*, of those with the same words and of those in which all of *quote* stands."""
        parts = split_quote(quote)
        is_telling = sum(len(part.split()) for part in parts) >= LEAST_WORDS
        own = self._words[passage.id]
        return [
            id_
            for id_, words in self._words.items()
            if words == own or (is_telling and all(part in words for part in parts))
        ]
