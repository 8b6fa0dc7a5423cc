"""Remember what an ingest has done, in an SQLite file beside the index, the ledger."""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.stores import MemoryStore
from qtmiddleware.kit.stores.database import MEMORY, explain_errors, open_database
from qtmiddleware.protocols import Store

_VERSION: Final = 4
# "chunks" is how many passages of a document may be in the store. "fingerprint" is empty unless the
# store surely has the document as a whole. The document "file" was the last to use a vector.
_TABLES: Final = (
    """CREATE TABLE documents (
        file TEXT PRIMARY KEY,
        root TEXT NOT NULL,
        name TEXT NOT NULL UNIQUE,
        chunks INTEGER NOT NULL,
        fingerprint TEXT NOT NULL DEFAULT ''
    ) WITHOUT ROWID""",
    "CREATE TABLE vectors (key BLOB PRIMARY KEY, file TEXT, vector BLOB NOT NULL)",
    "CREATE INDEX vectors_of_files ON vectors (file)",
    "CREATE TABLE contexts (key BLOB PRIMARY KEY, text TEXT NOT NULL)",
)


class Ledger:
    """The SQLite database at *path* that has the documents, vectors and contexts of an index.

    Only one process at a time can open the database. Methods raise `StoreError`.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._subject = f"{path}, the ledger beside the index,"
        # Contexts come from several threads.
        self._lock = threading.RLock()
        # Waiting is no use: another run keeps the ledger open until the run ends.
        self._connection = open_database(
            path, _TABLES, version=_VERSION, subject=self._subject, busy_seconds=0
        )
        try:
            self.execute("PRAGMA locking_mode = EXCLUSIVE")
            # In this mode, SQLite keeps a lock from the first write until the connection is closed.
            with self.open_transaction():
                pass
        except BaseException:
            self.close()
            raise

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run the SQL *statement* with *values*, and return all resulting rows."""
        with self._lock, explain_errors(self._subject, ValueError):
            return self._connection.execute(statement, values).fetchall()

    def find_value(self, statement: str, *values: Any) -> Any:
        """Return the first column of the first row that *statement* selects, or ``None``."""
        rows = self.execute(statement, *values)
        return rows[0][0] if rows else None

    def execute_many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run the SQL *statement* once per row in *rows*."""
        with self._lock, explain_errors(self._subject):
            self._connection.executemany(statement, rows)

    @contextmanager
    def open_transaction(self) -> Iterator[None]:
        """Save all changes of the ``with`` block at its end, or no change if the block raises."""
        with self._lock:
            self.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self.execute("ROLLBACK")

    def read_vector(self, key: bytes) -> list[float]:
        """Return the vector of the text with the hash *key*, or raise `StoreError`."""
        vector = self.find_value("SELECT vector FROM vectors WHERE key = ?", key)
        with explain_errors(self._subject, struct.error, TypeError):
            return [number for (number,) in struct.iter_unpack("<f", vector)]

    def keep_vectors(self, file: str, keys: Iterable[bytes]) -> None:
        """Keep the vectors of *keys* for a document, and delete the document's other vectors."""
        self.execute("UPDATE vectors SET file = NULL WHERE file = ?", file)
        keep = "UPDATE vectors SET file = ? WHERE key = ?"
        self.execute_many(keep, [(file, key) for key in keys])
        self.execute("DELETE FROM vectors WHERE file IS NULL")

    def close(self) -> None:
        """Close the ledger's file; you can call this more than once."""
        self._connection.close()


def open_ledger(settings: Settings, store: Store | None) -> Ledger:
    """Open the ledger; that of a store in memory is in memory, too."""
    path, options = settings.index_path, settings.store
    in_memory = store is None and (options.kind == "memory" or path == MEMORY)
    if in_memory or isinstance(store, MemoryStore):
        return Ledger(f"{MEMORY}{uuid4().hex}")
    path = str(Path(path).expanduser())
    if options.kind == "pinecone":
        namespace = "\0".join((options.host or options.index or "", options.namespace))
        path += f".{hashlib.sha256(namespace.encode('utf-8', 'replace')).hexdigest()[:8]}"
    return Ledger(f"{path}.ingest")
