"""Store all chunks, contexts and vectors of an index in an SQLite file, the ledger."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import StoreError
from qtmiddleware.kit.stores import MemoryStore
from qtmiddleware.kit.stores.sqlite.files import (
    FAILURES,
    MEMORY,
    FileType,
    describe_sqlite_error,
    is_damage_error,
    open_file,
)
from qtmiddleware.protocols import Store

# A row of "documents" is one version of one file. "stored" is 0 if no store was given that version,
# 1 if it may be in the store (a write of it began, and its end was not seen), and 2 if it is in the
# store. "hash" is that of the embedded text: the context, if there is one, and the chunk.
LEDGER_FILE: Final = FileType(
    application_id=0x71746D69,  # "qtmi" in ASCII
    version=1,
    statements=(
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
        """CREATE TABLE documents (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            root TEXT NOT NULL,
            file TEXT NOT NULL,
            name TEXT NOT NULL,
            source TEXT NOT NULL,
            fingerprint TEXT NOT NULL,
            contextual INTEGER NOT NULL,
            complete INTEGER NOT NULL DEFAULT 0,
            stored INTEGER NOT NULL DEFAULT 0
        )""",
        "CREATE INDEX documents_file ON documents (file)",
        "CREATE INDEX documents_name ON documents (name)",
        """CREATE TABLE chunks (
            id INTEGER PRIMARY KEY,
            document INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
            ordinal INTEGER NOT NULL,
            start INTEGER NOT NULL,
            stop INTEGER NOT NULL,
            text TEXT NOT NULL,
            metadata TEXT NOT NULL,
            context BLOB,
            hash BLOB NOT NULL,
            UNIQUE (document, ordinal)
        )""",
        "CREATE INDEX chunks_hash ON chunks (hash)",
        "CREATE INDEX chunks_context ON chunks (context) WHERE context IS NOT NULL",
        "CREATE TABLE contexts (key BLOB PRIMARY KEY, text TEXT NOT NULL)",
        """CREATE TABLE vectors (
            embedding TEXT NOT NULL,
            hash BLOB NOT NULL,
            vector BLOB NOT NULL,
            PRIMARY KEY (embedding, hash)
        )""",
    ),
    subject="{path}, the ledger beside the index,",
    busy="another ingest is writing to this index; wait until it ends",
    remedy="move the file away to embed everything again",
)
_RUN: Final = (
    "PRAGMA foreign_keys = ON",
    # The work of one run. These tables vanish with the connection, even if the process is killed.
    "CREATE TEMP TABLE target (document INTEGER PRIMARY KEY, file TEXT NOT NULL UNIQUE)",
    "CREATE TEMP TABLE publishing (chunk INTEGER PRIMARY KEY)",
    "CREATE TEMP TABLE todo (n INTEGER PRIMARY KEY, chunk INTEGER NOT NULL)",
)


_RUN_TABLES: Final = ("target", "publishing", "todo")

Values = Sequence[Any] | Mapping[str, Any]


class Ledger:
    """The SQLite database at *path* that stores the chunks, contexts and vectors of an index.

    Only one process at a time can open the database. If this process ends for any reason, the
    operating system releases the lock. Methods raise `StoreError` if the database fails.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.run_lock = threading.Lock()
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        # Waiting is no use: another run keeps the ledger open until the run ends.
        self._connection = open_file(path, LEDGER_FILE, timeout_seconds=0, is_exclusive=True)
        for statement in _RUN:
            self.execute(statement)

    def __del__(self) -> None:
        # Nothing else closes the ledger of a store in memory: the ledger lives as long as the
        # store.
        self.close()

    def execute(self, statement: str, sql_values: Values = ()) -> list[tuple[Any, ...]]:
        """Run the SQL *statement* with *sql_values*, and return all resulting rows.

        Changes are saved at once. Inside an `open_transaction` block, they are saved at its end.
        """
        with self._use_connection() as connection:
            return connection.execute(statement, sql_values).fetchall()

    def fetch_first_value(self, statement: str, sql_values: Values = ()) -> Any:
        """Return the first column of the first row that the SQL *statement* selects.

        Returns ``None`` if there is no row.
        """
        rows = self.execute(statement, sql_values)
        return rows[0][0] if rows else None

    def stream_rows(self, statement: str, sql_values: Values = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that the SQL *statement* selects, one by one.

        You may write to the ledger between two rows, but only a little: the write-ahead log cannot
        shrink until the last row is read.
        """
        with self._use_connection() as connection:
            cursor = connection.execute(statement, sql_values)
        while True:
            with self._use_connection():
                # The lock is held per row: between two rows, the caller may write to the ledger.
                row = cursor.fetchone()
            if row is None:
                return
            yield row

    def fetch_row_pages(self, statement: str, page_size: int) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows that the SQL *statement* selects, in pages of up to *page_size* rows.

        The first selected column must be a row number. The statement must have two parameters: the
        last row number of the previous page, and the page size. You may write to the ledger between
        two pages.
        """
        last_number = 0
        while page := self.execute(statement, [last_number, page_size]):
            last_number = page[-1][0]
            yield page

    def fill_work_table(self, statement: str, sql_values: Values = ()) -> int:
        """Fill the table ``todo`` with the rows that *statement* inserts, and return their number.

        The table lists the chunks to process next. Its old rows are deleted first.
        """
        with self.open_transaction():
            self.execute("DELETE FROM todo")
            self.execute(statement, sql_values)
        count: int = self.fetch_first_value("SELECT count(*) FROM todo")
        return count

    def insert_row(self, statement: str, sql_values: Values) -> int:
        """Run the SQL *statement*, which inserts one row, and return the new row's number."""
        with self._use_connection() as connection:
            return connection.execute(statement, sql_values).lastrowid or 0

    def execute_many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run the SQL *statement* once per row in *rows*, in one transaction."""
        with self.open_transaction(), self._use_connection() as connection:
            connection.executemany(statement, rows)

    @contextmanager
    def open_transaction(self) -> Iterator[None]:
        """Save all changes of the ``with`` block at its end, or no change if the block raises.

        The changes of an inner transaction are saved with the outer transaction.
        """
        with self._lock:
            with self._use_connection() as connection:
                # SQLite has no nested transactions, so an inner one joins the outer one.
                is_nested = connection.in_transaction
                if not is_nested:
                    connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                if not is_nested:
                    with self._use_connection() as connection:
                        connection.execute("COMMIT")
            finally:
                # After an error in the block or in COMMIT itself, nothing of the transaction may
                # stay.
                if (
                    not is_nested
                    and self._connection is not None
                    and self._connection.in_transaction
                ):
                    self._connection.execute("ROLLBACK")

    def clear_run_tables(self) -> None:
        """Empty the temporary tables, which list the documents and chunks of the current run."""
        with self.open_transaction():
            for table in _RUN_TABLES:
                self.execute(f"DELETE FROM temp.{table}")

    def close(self) -> None:
        """Close the ledger's file; you can call this more than once."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _use_connection(self) -> Iterator[sqlite3.Connection]:
        """Lock the ledger, yield its connection, and convert database errors into `StoreError`."""
        with self._lock:
            if self._connection is None:
                raise StoreError(f"{self.path} is closed")
            try:
                yield self._connection
            except FAILURES as error:
                if is_damage_error(error):
                    # The cause may quote a text of the file.
                    raise self.build_damage_error(describe_sqlite_error(error)) from None
                raise StoreError(
                    f"{self.path}, the ledger beside the index, failed: {error}"
                ) from error

    def build_damage_error(self, reason: str) -> StoreError:
        """Return the error to raise if the ledger is damaged, with *reason* as its cause."""
        return StoreError(
            f"{self.path}, the ledger beside the index, is damaged ({reason}); move it away, and"
            " everything is embedded again"
        )


# The ledger of a store in memory lives exactly as long as the store object.
_memory_ledgers: Final[WeakKeyDictionary[Store, Ledger]] = WeakKeyDictionary()
_creating: Final = threading.Lock()


def build_ledger_path(settings: Settings) -> str:
    """Return the path of the ledger: ``indexPath`` with ``.ingest`` appended.

    For Pinecone, the path includes a hash of the index and namespace, because several namespaces
    may share one ``indexPath``.
    """
    path, options = Path(settings.index_path).expanduser(), settings.store
    if options.kind != "pinecone":
        return f"{path}.ingest"
    namespace_key = "\0".join((options.host or options.index or "", options.namespace))
    return (
        f"{path}.{hashlib.sha256(namespace_key.encode('utf-8', 'replace')).hexdigest()[:8]}.ingest"
    )


@contextmanager
def open_ledger(settings: Settings, store: Store | None) -> Iterator[Ledger]:
    """Open the index's ledger, and close it at the end of the ``with`` block.

    *store* is the open store that the user passed in, if any. If the index is in memory, the ledger
    is in memory, too. The ledger of a `MemoryStore` stays open for the next run. Raises
    `StoreError` if another run uses the ledger.
    """
    if isinstance(store, MemoryStore):
        with _creating:
            if store not in _memory_ledgers:
                _memory_ledgers[store] = Ledger(MEMORY)
            ledger = _memory_ledgers[store]
        # A database in memory has no file to lock, so this lock keeps two runs apart.
        if not ledger.run_lock.acquire(blocking=False):
            raise StoreError("another ingest is writing to this store; wait until it ends")
        try:
            yield ledger
        finally:
            # This connection stays open for the next run, so its temporary tables do, too.
            ledger.clear_run_tables()
            ledger.run_lock.release()
        return
    in_memory = store is None and (settings.store.kind == "memory" or settings.index_path == MEMORY)
    ledger = Ledger(MEMORY if in_memory else build_ledger_path(settings))
    try:
        yield ledger
    finally:
        ledger.close()
