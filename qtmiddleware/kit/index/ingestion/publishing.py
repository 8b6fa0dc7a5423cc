"""Write new passages to the store, and remove outdated ones: the last stage of ingestion."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Final

from qtmiddleware.kit.index.ingestion.embedding import decode_vector
from qtmiddleware.kit.index.ingestion.ledger import Ledger
from qtmiddleware.kit.index.ingestion.reading import Root
from qtmiddleware.protocols import Passage, Store
from qtmiddleware.runtime.logs import get_logger

_STORED_CHUNKS: Final = (
    "SELECT count(*) FROM chunks c JOIN documents d ON d.id = c.document AND d.stored = 2"
)
_OF_OTHER_ROOTS: Final = """
INSERT OR IGNORE INTO target
SELECT id, file FROM documents WHERE root <> ? AND complete AND stored ORDER BY stored DESC, id DESC
"""
_ALL: Final = (
    "INSERT INTO publishing SELECT c.id FROM target t JOIN chunks c ON c.document = t.document"
)
# A chunk that is already in the store, from an earlier version of its document, is not written
# again.
_NEW: Final = """
INSERT INTO publishing
SELECT c.id FROM target t JOIN documents d ON d.id = t.document AND d.stored < 2 \
JOIN chunks c ON c.document = d.id
WHERE NOT EXISTS (
    SELECT 1 FROM documents o JOIN chunks p ON p.document = o.id AND p.ordinal = c.ordinal
    WHERE o.file = d.file AND o.stored = 2 AND p.hash = c.hash AND p.context IS c.context \
AND p.metadata = c.metadata
)
"""
_STALE: Final = """
SELECT DISTINCT d.name || '#' || c.ordinal FROM documents d JOIN chunks c ON c.document = d.id
WHERE d.stored AND (d.root = :root OR :all) AND d.id NOT IN (SELECT document FROM target)
AND NOT EXISTS (
    SELECT 1 FROM target t JOIN chunks p ON p.document = t.document AND p.ordinal = c.ordinal \
WHERE t.file = d.file
)
"""
# Run before the write. If the write is interrupted, the store may have some passages of these files
# and lack others.
_UNSURE: Final = """
UPDATE documents SET stored = 1 WHERE (stored = 2 OR id IN (SELECT document FROM target)) \
AND file IN (
    SELECT t.file FROM target t JOIN documents d ON d.id = t.document WHERE d.stored < 2 OR :all
    UNION
    SELECT file FROM documents WHERE root = :root AND stored \
AND id NOT IN (SELECT document FROM target)
)
"""
_GONE: Final = (
    "DELETE FROM documents WHERE (root = :root OR (:all AND stored)) AND id NOT IN (SELECT document"
    " FROM target)"
)
_PASSAGES: Final = """
SELECT d.name || '#' || c.ordinal, c.text, c.metadata, x.text, v.vector
FROM publishing p JOIN chunks c ON c.id = p.chunk JOIN documents d ON d.id = c.document
LEFT JOIN contexts x ON x.key = c.context LEFT JOIN vectors v ON v.embedding = ? AND v.hash = c.hash
ORDER BY p.chunk
"""
_REMOVED: Final = """
SELECT count(DISTINCT file) FROM documents WHERE root = :root AND stored \
AND file NOT IN (SELECT file FROM target)
"""
_UNUSED_VECTORS: Final = """
DELETE FROM vectors WHERE embedding <> ? OR \
NOT EXISTS (SELECT 1 FROM chunks c WHERE c.hash = vectors.hash)
"""
_STEP: Final = 500
"""The number of passages between two progress reports."""

logger: Final = get_logger("qtmiddleware.ingest")


class Publication:
    """Writes the new passages of one run to a store, and removes outdated passages.

    Args:
        ledger: the file with all chunks, contexts and vectors.
        root: the data path whose documents the run indexes.
        store: the store to write to.
        embedding_name: the name that `build_embedding_name` gives the vectors; ``""`` if the store
            embeds texts itself.
    """

    def __init__(self, ledger: Ledger, root: Root, store: Store, embedding_name: str) -> None:
        self._ledger = ledger
        self._store = store
        self._embedding_name = embedding_name
        self._store_key = f"{store.identity} {embedding_name}"
        self._writes_all = self._should_write_all_passages()
        self._scope = {"root": root.key, "all": self._writes_all}

    def _should_write_all_passages(self) -> bool:
        """Return whether to write all passages again, not only the new ones.

        True in the first run, after the store or the embedding model changed, and if the store has
        lost passages. Logs a warning if the ledger is new but the store has passages.
        """
        ledger = self._ledger
        stored_key = ledger.fetch_first_value("SELECT value FROM meta WHERE key = 'place'")
        if stored_key != self._store_key:
            # A ledger without this value is new, or replaces a deleted one. The index should be
            # empty then.
            is_new = stored_key is None and not ledger.fetch_first_value(
                "SELECT 1 FROM documents WHERE stored"
            )
            if is_new and (unknown_count := self._store.count()):
                logger.warning(
                    "the index holds %d passages that %s, which ingest keeps beside it, does not"
                    " know of; those of documents that are gone, or were cut in another way, stay"
                    " in it: for a clean index, ingest into a new one",
                    unknown_count,
                    ledger.path,
                    event="index_unknown_passages",
                    count=unknown_count,
                )
            return True
        held_count, stored_count = (
            self._store.count(),
            int(ledger.fetch_first_value(_STORED_CHUNKS)),
        )
        # A store that is not atomic may count new passages late. Only if it is empty has it surely
        # lost passages.
        return held_count < stored_count if self._store.atomic else held_count == 0 < stored_count

    def select_and_count_passages(self) -> int:
        """Select the passages to write to the store, and return the number of these passages.

        Selects the new and changed passages; for a new store, selects all passages.
        """
        ledger = self._ledger
        with ledger.open_transaction():
            # A new store also lacks the documents of other data paths.
            if self._writes_all:
                ledger.execute(_OF_OTHER_ROOTS, [self._scope["root"]])
            ledger.execute(_ALL if self._writes_all else _NEW)
        count: int = ledger.fetch_first_value("SELECT count(*) FROM publishing")
        return count

    def write_changes(self, report_progress: Callable[[int, int], None]) -> int:
        """Write the selected passages to the store and remove outdated passages, in one write.

        Returns the number of removed documents. If the write is interrupted, the next run repeats
        the write. *report_progress* is called with the number of written passages and the total.
        """
        ledger, scope = self._ledger, self._scope
        stale_ids = [id_ for (id_,) in ledger.execute(_STALE, scope)]
        total: int = ledger.fetch_first_value("SELECT count(*) FROM publishing")
        # Without changes, the store is not touched, so that other processes need not reload it.
        if total or stale_ids:
            ledger.execute(_UNSURE, scope)
            self._store.write(self._read_passages(total, report_progress), delete=stale_ids)
        return self._record_success()

    def _read_passages(
        self, total: int, report_progress: Callable[[int, int], None]
    ) -> Iterator[tuple[Passage, list[float]]]:
        """Yield each selected passage with its vector.

        *total* is the number of selected passages, to pass to *report_progress*. Raises
        `StoreError` if the ledger is damaged.
        """
        rows = self._ledger.stream_rows(_PASSAGES, [self._embedding_name])
        report_progress(0, total)
        for done, (id_, text, metadata, context, vector) in enumerate(rows, 1):
            try:
                facts = dict(json.loads(metadata))
                numbers = decode_vector(vector) if self._embedding_name else []
            # The error is not chained, as it may quote a text of the file.
            except (TypeError, ValueError, struct.error):
                raise self._ledger.build_damage_error(
                    "metadata or a vector in it cannot be read"
                ) from None
            if context is not None:
                facts["context"] = context
            yield Passage(id_, text, facts), numbers
            if done % _STEP == 0 or done == total:
                report_progress(done, total)

    def _record_success(self) -> int:
        """Record in the ledger that the store is up to date.

        Deletes removed documents and unused vectors from the ledger, and returns the number of
        removed documents.
        """
        ledger, scope = self._ledger, self._scope
        with ledger.open_transaction():
            removed: int = ledger.fetch_first_value(_REMOVED, scope)
            ledger.execute(_GONE, scope)
            ledger.execute(
                "UPDATE documents SET stored = 2 WHERE stored < 2 AND id IN (SELECT document FROM"
                " target)"
            )
            ledger.execute("INSERT OR REPLACE INTO meta VALUES ('place', ?)", [self._store_key])
            # Contexts stay: they are small, and each was paid for.
            ledger.execute(_UNUSED_VECTORS, [self._embedding_name])
        return removed
