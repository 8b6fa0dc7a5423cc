"""Opening a store's file: its layout, what a file must be to be one, and a connection for each reader of the moment."""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from qtmiddleware.errors import StoreError
from qtmiddleware.providers.stores.passages import CATEGORIES, check_model, index_text, raise_other_layout
from qtmiddleware.providers.stores.sqlite.files import (
    BUSY_SECONDS,
    FAILURES,
    LOG_BYTES,
    MEMORY,
    check_layout,
    connect_file,
    describe_error,
    is_damage,
    is_empty,
    is_foreign,
    make_file,
    read_mark,
    result_code,
    short_values,
    use_write_ahead_log,
)
from qtmiddleware.runtime.forking import renew_after_fork


class Connection(sqlite3.Connection):
    """A connection that knows what interrupted a function of ours, such as Ctrl-C: SQLite keeps that to itself."""

    interruption: BaseException | None = None


def connect(path: str) -> Connection:
    """One more connection to a store's file that was opened before."""
    connection: Connection = connect_file(path, timeout=BUSY_SECONDS, factory=Connection)
    try:
        tune(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def tune(connection: Connection) -> None:
    """Set what holds for one connection and not for its file."""
    # SQLite keeps the function; were the connection part of it, it would never be given up.
    itself: Any = weakref.proxy(connection)

    def searchable(text: str, metadata: str) -> str:
        try:
            return index_text(text, metadata)
        except (KeyboardInterrupt, SystemExit) as error:
            itself.interruption = error
            raise

    connection.create_function("searchable", 2, searchable, deterministic=True)
    # The triggers call a function of ours, which some builds of SQLite allow only where the schema is trusted.
    connection.execute("PRAGMA trusted_schema = ON")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")


APPLICATION_ID: Final = 0x71746D73
"""Marks the file as ours: "qtms" in ASCII."""
VERSION: Final = 3
PAGE_BYTES: Final = 16 << 10
"""Of the usual page of 4 kB a passage with its vector would leave nearly half unused."""
_FTS_MODULE: Final = "fts5"

# The full-text table keeps no copy of the texts; the triggers keep it in step within the very transaction that writes.
# It is given what "searchable" makes of a passage; whoever changes that function changes the layout.
# "changed" numbers the transaction that last wrote a row, so that a reader fetches only what is new to it. A row's
# number is never used again, so that a reader may know rows by it.
_SCHEMA: Final = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE passages (
    row INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    changed INTEGER NOT NULL,
    vector BLOB NOT NULL,
    text TEXT NOT NULL,
    metadata TEXT NOT NULL
);
CREATE INDEX passages_changed ON passages (changed);
CREATE VIRTUAL TABLE words USING fts5
    (text, content='', tokenize="unicode61 remove_diacritics 2 categories '{CATEGORIES}'");
CREATE TRIGGER words_insert AFTER INSERT ON passages BEGIN
    INSERT INTO words (rowid, text) VALUES (new.row, searchable(new.text, new.metadata));
END;
CREATE TRIGGER words_delete AFTER DELETE ON passages BEGIN
    INSERT INTO words (words, rowid, text) VALUES ('delete', old.row, searchable(old.text, old.metadata));
END;
CREATE TRIGGER words_update AFTER UPDATE OF text, metadata ON passages
WHEN old.text <> new.text OR old.metadata <> new.metadata BEGIN
    INSERT INTO words (words, rowid, text) VALUES ('delete', old.row, searchable(old.text, old.metadata));
    INSERT INTO words (rowid, text) VALUES (new.row, searchable(new.text, new.metadata));
END;
INSERT INTO meta VALUES ('changes', 0), ('deletions', 0);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
"""


def open_database(path: str, *, embedding_model: str, dimension: int) -> Connection:
    """A connection to the store's file, made with its folders where there is none, readable by its owner alone.

    A file that is something else, or was made with another embedding model, is left as it is. Raises `StoreError`.
    """
    try:
        if path != MEMORY:
            make_file(Path(path))
            if not Path(path).is_file():
                raise StoreError(
                    f"the store {path} cannot be opened: it is not a file, as a store of the kind sqlite is; "
                    "name another path, or the kind it was made with (store.kind)"
                )
        connection: Connection = connect_file(path, timeout=BUSY_SECONDS, factory=Connection)
    except OSError as error:
        raise StoreError(
            f"the store {path} cannot be opened: {error.strerror}; name a file that can be written"
        ) from error
    except FAILURES as error:
        raise _opening_error(path, error) from None
    try:
        _prepare(connection, path, embedding_model, dimension)
        tune(connection)
    except FAILURES as error:
        connection.close()
        # The cause may quote a text of the file.
        raise _opening_error(path, error) from (None if is_damage(error) else error)
    except BaseException:
        connection.close()
        raise
    return connection


def _opening_error(path: str, error: Exception) -> StoreError:
    if is_foreign(error):
        return StoreError(
            f"{path} is not a store of this package or is damaged ({describe_error(error)}); "
            "it was left as it is: name another path, or move it away and ingest again"
        )
    if result_code(error) == sqlite3.SQLITE_BUSY:
        return StoreError(f"the store {path} cannot be opened: another process is writing to it; try again")
    return StoreError(
        f"the store {path} cannot be opened: {error}; it must be a file that can be written, in a folder that can be "
        "written, with room on the disk"
    )


def _prepare(connection: Connection, path: str, embedding_model: str, dimension: int) -> None:
    """Lay out an empty database, or check one that is not empty without writing to it."""
    if not connection.execute("SELECT 1 FROM pragma_module_list WHERE name = ?", (_FTS_MODULE,)).fetchone():
        raise StoreError(
            "the SQLite of this Python was built without FTS5, which the store needs for keyword search; use a Python "
            "whose sqlite3 has it (those of python.org, Debian, Homebrew and conda do) or another store"
        )
    if is_empty(connection):
        _create(connection, embedding_model, dimension)
    _check(connection, path, embedding_model, dimension)


def _create(connection: Connection, embedding_model: str, dimension: int) -> None:
    """Lay out the tables in one transaction; of two processes that come at once, the second finds them made."""
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    use_write_ahead_log(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        if is_empty(connection):
            for statement in _statements():
                connection.execute(statement)
            values = [("embedding_model", embedding_model), ("dimension", dimension), ("identity", uuid4().hex)]
            connection.executemany("INSERT INTO meta VALUES (?, ?)", values)
        connection.execute("COMMIT")
    except BaseException:
        # Where the disk is full SQLite has done so itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@cache
def _statements() -> tuple[str, ...]:
    """The schema's statements, one by one, as running a script at once would end the transaction."""
    found: list[str] = []
    held = ""
    for line in _SCHEMA.splitlines(keepends=True):
        held += line
        if sqlite3.complete_statement(held):
            found.append(held)
            held = ""
    return tuple(found)


def _check(connection: Connection, path: str, embedding_model: str, dimension: int) -> None:
    """Raise `StoreError` unless the database is a store of this version, made with this model."""
    owner, version = read_mark(connection)
    if owner != APPLICATION_ID:
        raise StoreError(f"{path} is the SQLite database of another program; it was left as it is: name another path")
    if version != VERSION:
        raise_other_layout(path, version, VERSION)
    check_layout(connection, _statements())
    with short_values(connection):
        held = dict(connection.execute("SELECT key, value FROM meta LIMIT 100"))
    check_model(path, held.get("embedding_model"), held.get("dimension"), embedding_model, dimension)


_LEFT: Final[list[Connection | None]] = []
"""The connections of the parent of a forked process, kept so that nothing ever closes them here."""


class Connections:
    """Lets any number of threads read a store's file, each its own consistent view, while one of them writes.

    A database in memory belongs to a single connection; there readers and writers take turns.
    """

    def __init__(self, path: str, *, embedding_model: str, dimension: int) -> None:
        self._path = path
        self._writer: Connection | None = open_database(path, embedding_model=embedding_model, dimension=dimension)
        self._idle: list[Connection] = []
        self._closed = False
        self._is_forked = False
        self._new_locks()
        renew_after_fork(self)

    def _new_locks(self) -> None:
        # Re-entrant, so that a writer that is started by its own passages is refused by SQLite and does not hang.
        self._writing = threading.RLock()
        self._lending = threading.Lock()

    def renew(self) -> None:
        """Leave the connections of the parent process to themselves: SQLite's do not survive a fork, nor their end."""
        self._new_locks()
        if not self.in_memory:
            _LEFT.extend((*self._idle, self._writer))
            self._idle, self._is_forked = [], True

    @property
    def in_memory(self) -> bool:
        """Whether readers have to wait for a writer."""
        return self._path == MEMORY

    @contextmanager
    def reading(self) -> Iterator[Connection]:
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
    def writing(self) -> Iterator[Connection]:
        """All that is written inside, or nothing."""
        with self._writing:
            if self._is_forked and self._writer is not None:
                self._writer, self._is_forked = self._connect("written to"), False
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
            if self._writer is not None and not self._is_forked:
                self._writer.close()
            self._writer = None

    def _lend(self) -> Connection:
        with self._lending:
            if self._closed:
                raise self._make_error("read", "it is closed")
            if self._idle:
                return self._idle.pop()
        return self._connect("read")

    def _connect(self, doing: str) -> Connection:
        try:
            return connect(self._path)
        except OSError as error:
            raise self._make_error(doing, error.strerror) from None
        except FAILURES as error:
            raise self._make_error(doing, describe_error(error)) from None

    def _take_back(self, connection: Connection) -> None:
        with self._lending:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    @contextmanager
    def _transaction(self, run: Connection | None, begin: str, doing: str) -> Iterator[Connection]:
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
            if run.interruption is not None:
                interruption, run.interruption = run.interruption, None
                raise interruption from None
            if result_code(error) == sqlite3.SQLITE_BUSY:
                raise self._make_error(
                    doing, "another process is writing to it; try again when that is done"
                ) from error
            if is_damage(error):
                # The cause may quote a text of the file.
                raise self._make_error(
                    doing, f"it is damaged ({describe_error(error)}); move it away and ingest again"
                ) from None
            raise self._make_error(doing, error) from error

    def _make_error(self, doing: str, why: object) -> StoreError:
        return StoreError(f"the store {self._path} could not be {doing}: {why}")
