"""The passages that an ingest of some documents would make, without an index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, UnreadableDocument
from qtmiddleware.protocols import Passage
from qtmiddleware.providers.stores.sqlite.files import MEMORY
from qtmiddleware.rag.documents import find_documents
from qtmiddleware.rag.ingestion.ledger import Ledger
from qtmiddleware.rag.ingestion.names import Root, absolute
from qtmiddleware.rag.ingestion.reading import Reader
from qtmiddleware.runtime.logs import get_logger

_PASSAGES: Final = """
SELECT d.name || '#' || c.ordinal, c.text, c.metadata
FROM target t JOIN documents d ON d.id = t.document JOIN chunks c ON c.document = d.id ORDER BY c.id
"""

logger: Final = get_logger("qtmiddleware.testsets")


def passages_of(paths: Sequence[Path], settings: Settings) -> tuple[Passage, ...]:
    """The documents at *paths*, each a file, a folder or a glob, cut into passages as an ingest cuts them.

    Ids and metadata are those that ingesting the same paths in the same order into a new index gives. A document that
    cannot be read is left out and logged; one that lies in two of the paths is there once. Raises `ConfigError` where a
    path holds no documents or none of them can be read, and `MissingExtra` for a PDF without pypdf.
    """
    with closing(Ledger(MEMORY)) as ledger:
        unread: list[UnreadableDocument] = []
        for path in paths:
            reader = Reader(ledger, settings, Root.of(path), flavour="")
            for document in {absolute(it): it for it in find_documents(path)}.values():
                try:
                    reader.take(document)
                except UnreadableDocument as error:
                    logger.warning("%s", error)
                    unread.append(error)
        rows = ledger.rows(_PASSAGES)
    if not rows:
        why = f": {unread[0]}" if unread else ""
        raise ConfigError(f"there are no passages to ask questions about{why}", path="paths")
    return tuple(Passage(id_, text, json.loads(metadata)) for id_, text, metadata in rows)
