"""Split documents into passages, choose passages to ask about, and find relevant passages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents import Converter
from qtmiddleware.kit.evaluation.testsets.filtering import normalize_words, split_quote
from qtmiddleware.kit.index.ledger import Ledger
from qtmiddleware.kit.index.sources import DocumentReader, Root
from qtmiddleware.kit.stores.database import MEMORY
from qtmiddleware.preprocessing.text import split_tokens
from qtmiddleware.protocols import Passage
from qtmiddleware.runtime.logs import get_logger

LEAST_WORDS: Final = 8
"""A quote of at least this many words identifies other passages with the same content."""
MIN_WORDS: Final = 20
"""A passage to ask about has at least this many words in whole phrases."""
PHRASE_WORDS: Final = 6
"""A phrase has at least this many words. A heading, label or list item has fewer."""

# The end of a line in a table of contents or an index: dots or spaces, and a page number.
_ENTRY: Final = re.compile(r"(?:\.{2,}|(?:\. ){2,}|…|·{2,}|\s)\s*(?:\d{1,4}|[ivxlc]{1,7})$")
_ENTRY_CHARS: Final = 20
# The end of a phrase. A line that begins with a small letter continues the phrase before it.
_PHRASE_END: Final = re.compile(
    r"[.!?](?=\s|$)|[。！？؟।]|\n[^\S\n]*+(?=\n)|\n\s*+(?![^\W\d_A-ZÀ-ÞΑ-ΩА-Я])"
)

logger: Final = get_logger("qtmiddleware.testsets")


def passages_of(paths: Sequence[Path], settings: Settings) -> tuple[Passage, ...]:
    """Read the documents at *paths*, and split them into passages as `ingest` would.

    Ids and metadata are the same as after ingesting *paths*, in this order, into a new index. If a
    document cannot be read, the document is skipped and a warning is logged. A document in two of
    the paths is read once.

    Args:
        paths: Files, folders or globs.
        settings: The settings for splitting documents.

    Raises:
        ConfigError: A path has no documents, or no document can be read.
        MissingExtra: The package for reading a file named in *paths* is not installed.
    """
    passages: list[Passage] = []
    errors: list[Exception] = []
    with closing(Ledger(MEMORY)) as ledger, Converter() as converter:
        files: set[str] = set()
        for path in paths:
            root = Root.from_data_path(path)
            reader = DocumentReader(ledger, settings, root, converter)
            for file in root.find_documents(path, all_files=False):
                try:
                    document = reader.read(file)
                except (UnreadableDocument, MissingExtra) as error:
                    # The user named this file, so skipping it would be a surprise.
                    if isinstance(error, MissingExtra) and root.is_file:
                        raise
                    logger.warning("%s", error, event="document_unreadable")
                    errors.append(error)
                    continue
                if document is not None and document.file not in files:
                    files.add(document.file)
                    passages += document.passages
    if not passages:
        why = f": {errors[0]}" if errors else ""
        raise ConfigError(f"there are no passages to write questions about{why}", path="paths")
    return tuple(passages)


def draw_passages(passages: Sequence[Passage], seed: int) -> list[Passage]:
    """Return the passages that are suitable to ask about, in a random order that *seed* decides.

    The documents take turns, so that the first passages cover many documents. A passage's metadata
    names the document as ``source``. A passage without a source counts as a separate document. Of
    several passages with the same words, only one is returned.
    """
    chance = Random(seed)
    seen: set[str] = set()
    documents: dict[object, list[Passage]] = {}
    for passage in passages:
        words = normalize_words(passage.text)
        if words not in seen and is_storable_id(passage.id) and is_prose(passage.text):
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


def is_storable_id(record_id: str) -> bool:
    """Return whether *record_id* can be stored in a file of judgements.

    The id must have at least one character, no tabs or line breaks, and no white space at its ends.
    """
    return (
        bool(record_id)
        and record_id == record_id.strip()
        and not set("\t\r\n") & set(record_id)
        and "\ufeff" not in record_id
    )


def is_prose(text: str) -> bool:
    """Return whether *text* has enough whole phrases to ask about.

    A table of contents, a list of headings or a few words are not prose.
    """
    # The pattern sees only the end of a line, which keeps the time linear.
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    entries = sum(bool(_ENTRY.search(line[-_ENTRY_CHARS:])) for line in lines)
    if len(lines) > 2 and 2 * entries >= len(lines):
        return False
    lengths = (len(split_tokens(phrase)) for phrase in _PHRASE_END.split(text))
    return sum(length for length in lengths if length >= PHRASE_WORDS) >= MIN_WORDS


class Relevance:
    """Finds all passages that answer a question, including overlapping chunks and copies."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._words = {
            passage.id: normalize_words(passage.text)
            for passage in passages
            if is_storable_id(passage.id)
        }

    def list_relevant_ids(self, passage: Passage, quote: str) -> list[str]:
        """Return the ids of the passages that answer a question about *passage*.

        These are *passage* itself and passages with the same words. If *quote* has at least
        `LEAST_WORDS` words, passages that contain the quote are also relevant.
        """
        parts = split_quote(quote)
        # A short quote may occur in any passage, so it does not show that a passage is relevant.
        is_long_enough = sum(len(part.split()) for part in parts) >= LEAST_WORDS
        passage_words = self._words[passage.id]
        return [
            id_
            for id_, words in self._words.items()
            if words == passage_words or (is_long_enough and all(part in words for part in parts))
        ]
