"""The layout of a store's file, and a connection to it for each reader of the moment."""

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
    is_damage,
    open_file,
    result_code,
    short_values,
    tune,
)
from qtmiddleware.runtime.forking import renew_after_fork

# The full-text table keeps no copy of the texts. It is given what `index_text` makes of a passage;
# whoever changes that function changes the layout. "changes" in "meta" counts the writes, so that a
# reader knows when to read anew.
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
            (text, content='', tokenize="unicode61 remove_diacritics 2 categories '{CATEGORIES}'")""",
    ),
    subject="the store {path}",
    busy="another process is writing to it; try again",
    remedy=(
        "name another path, the kind it was made with (store.kind), or move it away and ingest"
        " again"
    ),
)


def open_database(path: str, *, embedding_model: str, dimension: int) -> sqlite3.Connection:
    """Return a connection to the store's file, made where there is none; raises `StoreError`.

    A file that is something else, or was made with another embedding model, is left as it is.
    """
    facts = {
        "embedding_model": embedding_model,
        "dimension": dimension,
        "identity": uuid4().hex,
        "changes": 0,
    }

    def check(connection: sqlite3.Connection) -> None:
        with short_values(connection):
            held = dict(connection.execute("SELECT key, value FROM meta LIMIT 100"))
        check_model(
            path, held.get("embedding_model"), held.get("dimension"), embedding_model, dimension
        )

    return open_file(path, STORE_FILE, timeout=BUSY_SECONDS, facts=facts, check=check)


_LEFT: Final[list[sqlite3.Connection | None]] = []
"""The connections of the parent of a forked process, kept so that nothing ever closes them here."""


class Connections:
    """Lets any number of threads read a store's file, each its own consistent view, while one of them writes.

    A database in memory belongs to a single connection; there readers and writers take turns.
    """

    def __init__(self, path: str, *, embedding_model: str, dimension: int) -> None:
        self._path = path
        self._writer: sqlite3.Connection | None = open_database(
            path, embedding_model=embedding_model, dimension=dimension
        )
        self._idle: list[sqlite3.Connection] = []
        self._closed = False
        self._new_locks()
        renew_after_fork(self)

    def _new_locks(self) -> None:
        # Re-entrant, so that a writer that is started by its own passages is refused by SQLite and
        # does not hang.
        self._writing = threading.RLock()
        self._lending = threading.Lock()

    def renew(self) -> None:
        """Leave the connections of the parent process to themselves: SQLite's do not survive a fork, nor their end."""
        self._new_locks()
        if not self.in_memory:
            _LEFT.extend((*self._idle, self._writer))
            self._idle, self._writer = [], None

    @property
    def in_memory(self) -> bool:
        """Whether readers have to wait for a writer."""
        return self._path == MEMORY

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent view of the file, from the first look inside."""
        if self.in_memory:
            with self._writing, self._transaction(self._writer, "BEGIN", "read") as run:
                yield run
            return
        connection = self._lend()
        try:
            with self._transaction(connection, "BEGIN", "read") as run:
                yield run
        finally:
            self._take_back(connection)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside, or nothing."""
        with self._writing:
            if self._writer is None and not self._closed:
                self._writer = self._connect("written to")
            with self._transaction(self._writer, "BEGIN IMMEDIATE", "written to") as run:
                yield run

    def close(self) -> None:
        """Let go of the file; what is being read is read to its end, what is being written is written."""
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
        # From Python 3.13 on a connection that is not closed warns of it. One that was never made
        # is none.
        with suppress(AttributeError):
            self.close()

    def _lend(self) -> sqlite3.Connection:
        with self._lending:
            if self._closed:
                raise self._make_error("read", "it is closed")
            if self._idle:
                return self._idle.pop()
        return self._connect("read")

    def _connect(self, doing: str) -> sqlite3.Connection:
        try:
            connection: sqlite3.Connection = connect_file(self._path, timeout=BUSY_SECONDS)
            tune(connection)
        except OSError as error:
            raise self._make_error(doing, error.strerror) from None
        except FAILURES as error:
            raise self._make_error(doing, describe_error(error)) from None
        return connection

    def _take_back(self, connection: sqlite3.Connection) -> None:
        with self._lending:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    @contextmanager
    def _transaction(
        self, run: sqlite3.Connection | None, begin: str, doing: str
    ) -> Iterator[sqlite3.Connection]:
        if run is None:
            raise self._make_error(doing, "it is closed")
        try:
            run.execute(begin)
            try:
                yield run
                run.execute("COMMIT")
            finally:
                if run.in_transaction:
                    run.execute("ROLLBACK")
        except FAILURES as error:
            if result_code(error) == sqlite3.SQLITE_BUSY:
                raise self._make_error(
                    doing, "another process is writing to it; try again later"
                ) from error
            if is_damage(error):
                # The cause may quote a text of the file.
                raise self._make_error(
                    doing, f"it is damaged ({describe_error(error)}); move it away and ingest again"
                ) from None
            raise self._make_error(doing, error) from error

    def _make_error(self, doing: str, why: object) -> StoreError:
        return StoreError(f"the store {self._path} could not be {doing}: {why}")
