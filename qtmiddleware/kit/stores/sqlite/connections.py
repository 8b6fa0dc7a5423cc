"""The tables of a SQLite store's file, and the connections that read and write the file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from uuid import uuid4

from qtmiddleware.errors import StoreError
from qtmiddleware.kit.stores.passages import CATEGORIES, check_model
from qtmiddleware.kit.stores.sqlite.files import (
    BUSY_SECONDS,
    FAILURES,
    MEMORY,
    FileKind,
    connect_file,
    describe_error,
    get_result_code,
    is_damage,
    limit_value_size,
    open_file,
    set_connection_options,
)
from qtmiddleware.runtime.forking import renew_after_fork

# The full-text table keeps no copy of the texts. It is given the words that `extract_index_words`
# returns, so a change of that function is a change of the layout. "changes" in "meta" counts the
# writes, so that a reader knows when to read again.
STORE_FILE: Final = FileKind(
    application_id=0x71746D73,  # "qtms" in ASCII
    version=4,
    statements=(
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
        """CREATE TABLE passages (
            row INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            vector BLOB NOT NULL,
            text TEXT NOT NULL,
            metadata TEXT NOT NULL
        )""",
        f"""CREATE VIRTUAL TABLE words USING fts5
            (text, content='', tokenize="unicode61 remove_diacritics 2 categories '{CATEGORIES}'")""",  # noqa: E501
    ),
    subject="the store {path}",
    busy="another process is writing to it; try again",
    remedy=(
        "name another path, the kind it was made with (store.kind), or move it away and ingest"
        " again"
    ),
)


def open_database(path: str, *, embedding_model: str, dimension: int) -> sqlite3.Connection:
    """Open the store's file at *path*, or create it, and return a connection.

    Raises `StoreError`, and leaves the file unchanged, if it is not a store or was created for
    another embedding model.
    """
    facts = {
        "embedding_model": embedding_model,
        "dimension": dimension,
        "identity": uuid4().hex,
        "changes": 0,
    }

    def check(connection: sqlite3.Connection) -> None:
        with limit_value_size(connection):
            meta = dict(connection.execute("SELECT key, value FROM meta LIMIT 100"))
        check_model(
            path, meta.get("embedding_model"), meta.get("dimension"), embedding_model, dimension
        )

    return open_file(path, STORE_FILE, timeout=BUSY_SECONDS, facts=facts, check=check)


_LEFT: Final[list[sqlite3.Connection | None]] = []
"""The parent's connections in a forked process, kept so that nothing ever closes them here."""


class Connections:
    """Connections to a store's file: many threads can read while one thread writes.

    While a thread reads, later writes are invisible to it. A database in memory has only one
    connection, so its readers and writers wait for each other.
    """

    def __init__(self, path: str, *, embedding_model: str, dimension: int) -> None:
        self._path = path
        self._writer: sqlite3.Connection | None = open_database(
            path, embedding_model=embedding_model, dimension=dimension
        )
        self._idle: list[sqlite3.Connection] = []
        self._closed = False
        self._create_locks()
        renew_after_fork(self)

    def _create_locks(self) -> None:
        """Create new locks.

        After a fork, they replace the old locks, which another thread may have held.
        """
        # Re-entrant: if the iterator of a write's passages starts another write, SQLite refuses it.
        # With a plain lock it would hang.
        self._writing = threading.RLock()
        self._lending = threading.Lock()

    def renew(self) -> None:
        """Drop the parent process's connections after a fork, without closing them.

        SQLite connections must be neither used nor closed after a fork.
        """
        self._create_locks()
        if not self.in_memory:
            _LEFT.extend((*self._idle, self._writer))
            self._idle, self._writer = [], None

    @property
    def in_memory(self) -> bool:
        """Whether the database is in memory; if so, its readers wait for writers."""
        return self._path == MEMORY

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection for reading; writes during the ``with`` block are invisible to it."""
        if self.in_memory:
            with self._writing, self._transaction(self._writer, "BEGIN", "read") as connection:
                yield connection
            return
        reader = self._lend_reader()
        try:
            with self._transaction(reader, "BEGIN", "read") as connection:
                yield connection
        finally:
            self._return_reader(reader)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection for writing, and save all changes at the end of the ``with`` block.

        If the block raises an exception, no change is saved.
        """
        with self._writing:
            if self._writer is None and not self._closed:
                self._writer = self._connect("written to")
            with self._transaction(self._writer, "BEGIN IMMEDIATE", "written to") as connection:
                yield connection

    def close(self) -> None:
        """Close the store's file; a running read or write is completed first."""
        with self._lending:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        with self._writing:
            if self._writer is not None:
                self._writer.close()
            self._writer = None

    def __del__(self) -> None:
        # Since Python 3.13, a connection that was not closed issues a warning. The attributes are
        # missing if `__init__` failed.
        with suppress(AttributeError):
            self.close()

    def _lend_reader(self) -> sqlite3.Connection:
        """Return an idle connection for reading; if there is none, open a new one."""
        with self._lending:
            if self._closed:
                raise self._make_error("read", "it is closed")
            if self._idle:
                return self._idle.pop()
        return self._connect("read")

    def _connect(self, action: str) -> sqlite3.Connection:
        """Open a new connection to the store's existing file.

        *action* is what failed, for the error message, such as ``read``.
        """
        try:
            connection: sqlite3.Connection = connect_file(self._path, timeout=BUSY_SECONDS)
            set_connection_options(connection)
        except OSError as error:
            raise self._make_error(action, error.strerror) from None
        except FAILURES as error:
            raise self._make_error(action, describe_error(error)) from None
        return connection

    def _return_reader(self, connection: sqlite3.Connection) -> None:
        """Keep *connection* for the next reader, or close it if the store is closed."""
        with self._lending:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    @contextmanager
    def _transaction(
        self, connection: sqlite3.Connection | None, begin: str, action: str
    ) -> Iterator[sqlite3.Connection]:
        """Run the ``with`` block as one transaction, and convert SQLite's errors into `StoreError`.

        *begin* is the SQL statement that begins the transaction. *action* is what failed, for the
        error message, such as ``read``.
        """
        if connection is None:
            raise self._make_error(action, "it is closed")
        try:
            connection.execute(begin)
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except FAILURES as error:
            if get_result_code(error) == sqlite3.SQLITE_BUSY:
                raise self._make_error(
                    action, "another process is writing to it; try again later"
                ) from error
            if is_damage(error):
                # The cause may quote a text of the file.
                raise self._make_error(
                    action,
                    f"it is damaged ({describe_error(error)}); move it away and ingest again",
                ) from None
            raise self._make_error(action, error) from error

    def _make_error(self, action: str, reason: object) -> StoreError:
        return StoreError(f"the store {self._path} could not be {action}: {reason}")
