"""Create the tables of an SQLite store, and manage the connections to the store's file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final
from uuid import uuid4

from qtmiddleware.errors import StoreError
from qtmiddleware.kit.stores.passages import CATEGORIES, check_stored_model
from qtmiddleware.kit.stores.sqlite.files import (
    BUSY_SECONDS,
    FAILURES,
    MEMORY,
    FileType,
    connect_to_existing_file,
    describe_sqlite_error,
    get_sqlite_result_code,
    is_damage_error,
    limit_value_size,
    open_file,
    set_connection_options,
)
from qtmiddleware.runtime.forking import leave_to_parent, register_fork_reset

# The full-text table has no copy of the texts, only the words from `extract_index_words`. A change
# of this function therefore needs a new version. "changes" in "meta" counts the writes, so that
# readers know when to reload their copy in memory.
STORE_FILE: Final = FileType(
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
    """Open or create the store's file at *path*, and return a connection.

    Raises `StoreError` if the file is not a store, or was created for another embedding model or
    dimension. The file then stays unchanged.
    """
    meta_values = {
        "embedding_model": embedding_model,
        "dimension": dimension,
        "identity": uuid4().hex,
        "changes": 0,
    }

    def check_embedding_model(connection: sqlite3.Connection) -> None:
        with limit_value_size(connection):
            meta = dict(connection.execute("SELECT key, value FROM meta LIMIT 100"))
        check_stored_model(
            path, meta.get("embedding_model"), meta.get("dimension"), embedding_model, dimension
        )

    return open_file(
        path,
        STORE_FILE,
        timeout_seconds=BUSY_SECONDS,
        meta_values=meta_values,
        check_database=check_embedding_model,
    )


class Connections:
    """Lets many threads read a store's file while one thread writes to the file.

    A read transaction sees only the writes that ended before its beginning. A database in memory
    has only one connection, so its readers and writers wait for each other.
    """

    def __init__(self, path: str, *, embedding_model: str, dimension: int) -> None:
        self._path = path
        self._writer: sqlite3.Connection | None = open_database(
            path, embedding_model=embedding_model, dimension=dimension
        )
        self._idle: list[sqlite3.Connection] = []
        self._closed = False
        self._create_locks()
        register_fork_reset(self)

    def _create_locks(self) -> None:
        """Create new, unlocked locks.

        Also call this method after a fork, because other threads may have held the old locks.
        """
        # If the iterator of a write's passages starts another write, SQLite raises an error. A lock
        # that is not re-entrant would hang.
        self._write_lock = threading.RLock()
        self._pool_lock = threading.Lock()

    def reset_state(self) -> None:
        """Drop the connections of the parent process after a fork, without closing them.

        SQLite connections must be neither used nor closed in a forked process.
        """
        self._create_locks()
        if not self.is_in_memory:
            leave_to_parent(*self._idle, self._writer)
            self._idle, self._writer = [], None

    @property
    def is_in_memory(self) -> bool:
        """Whether the database is in memory, so that its readers wait for writers."""
        return self._path == MEMORY

    @contextmanager
    def open_read_transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a read transaction.

        The connection does not see writes by other connections during the ``with`` block.
        """
        if self.is_in_memory:
            with (
                self._write_lock,
                self._open_transaction(self._writer, "BEGIN", "read") as connection,
            ):
                yield connection
            return
        reader = self._take_read_connection()
        try:
            with self._open_transaction(reader, "BEGIN", "read") as connection:
                yield connection
        finally:
            self._return_read_connection(reader)

    @contextmanager
    def open_write_transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection that writes, and save all changes at the end of the ``with`` block.

        If the block raises an exception, no change is saved.
        """
        with self._write_lock:
            # After a fork, the child process needs a new connection.
            if self._writer is None and not self._closed:
                self._writer = self._open_connection("written to")
            with self._open_transaction(
                self._writer, "BEGIN IMMEDIATE", "written to"
            ) as connection:
                yield connection

    def close(self) -> None:
        """Close idle connections at once, and busy connections after their transaction."""
        # A connection that is still reading is closed by `_return_read_connection`.
        with self._pool_lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        with self._write_lock:
            if self._writer is not None:
                self._writer.close()
            self._writer = None

    def __del__(self) -> None:
        # Since Python 3.13, unclosed connections issue a warning. If `__init__` failed, attributes
        # are missing.
        with suppress(AttributeError):
            self.close()

    def _take_read_connection(self) -> sqlite3.Connection:
        """Return an idle read connection, or open a new connection if all are in use."""
        with self._pool_lock:
            if self._closed:
                raise self._build_store_error("read", "it is closed")
            if self._idle:
                return self._idle.pop()
        return self._open_connection("read")

    def _open_connection(self, failed_action: str) -> sqlite3.Connection:
        """Open a new connection to the store's existing file.

        *failed_action* is the action that the error message names, such as ``read``.
        """
        try:
            connection: sqlite3.Connection = connect_to_existing_file(
                self._path, timeout=BUSY_SECONDS
            )
            set_connection_options(connection)
        except OSError as error:
            raise self._build_store_error(failed_action, error.strerror) from None
        except FAILURES as error:
            raise self._build_store_error(failed_action, describe_sqlite_error(error)) from None
        return connection

    def _return_read_connection(self, connection: sqlite3.Connection) -> None:
        """Keep *connection* for the next reader, or close it if the store is closed."""
        with self._pool_lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    @contextmanager
    def _open_transaction(
        self, connection: sqlite3.Connection | None, begin_statement: str, failed_action: str
    ) -> Iterator[sqlite3.Connection]:
        """Run the ``with`` block as one transaction, and convert SQLite's errors into `StoreError`.

        *begin_statement* is the SQL statement that begins the transaction. *failed_action* is the
        action that the error message names, such as ``read``.
        """
        if connection is None:
            raise self._build_store_error(failed_action, "it is closed")
        try:
            connection.execute(begin_statement)
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except FAILURES as error:
            if get_sqlite_result_code(error) == sqlite3.SQLITE_BUSY:
                raise self._build_store_error(
                    failed_action, "another process is writing to it; try again later"
                ) from error
            if is_damage_error(error):
                # The cause may quote a text of the file.
                raise self._build_store_error(
                    failed_action,
                    f"it is damaged ({describe_sqlite_error(error)}); move it away and ingest"
                    " again",
                ) from None
            raise self._build_store_error(failed_action, error) from error

    def _build_store_error(self, failed_action: str, reason: object) -> StoreError:
        return StoreError(f"the store {self._path} could not be {failed_action}: {reason}")
