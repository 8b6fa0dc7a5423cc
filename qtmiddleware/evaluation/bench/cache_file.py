"""The file in which a bench keeps what costs time or money: vectors and replies."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Final

from qtmiddleware.errors import StoreError
from qtmiddleware.providers.stores.sqlite.files import (
    BUSY_SECONDS,
    FAILURES,
    check_layout,
    connect_file,
    describe_error,
    is_damage,
    is_empty,
    is_foreign,
    make_file,
    read_mark,
    use_write_ahead_log,
)
from qtmiddleware.runtime.files import set_aside
from qtmiddleware.runtime.logs import get_logger

APPLICATION_ID: Final = 0x71746D62
"""Marks the file as ours: "qtmb" in ASCII."""
VERSION: Final = 1
MOST_BYTES: Final = 1 << 23
"""A row that is larger is none of ours: a reply of a megabyte may take six where it is written as JSON."""

# Keys are hashes. "seconds" is how long it took to make a vector.
_SCHEMA: Final = (
    "CREATE TABLE vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL, seconds REAL NOT NULL)",
    "CREATE TABLE replies (key BLOB PRIMARY KEY, reply TEXT NOT NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)

_log: Final = get_logger("qtmiddleware.bench")


class CacheFile:
    """The SQLite file at *path*, made with its folders where there is none, readable by its owner alone.

    Any number of threads and processes may use it; open it after forking. One that is found damaged when it is opened
    is renamed to ``NAME.corrupt-1`` (or the next free number) and made anew, which is warned of: what was in it has to
    be made or paid for again. Raises `StoreError`, which names the file, where it cannot be used; the database of
    another program or version, and a file whose damage shows later, are left as they are.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).expanduser()
        self._lock = Lock()
        with self._named_errors():
            self._connection: sqlite3.Connection | None = self._opened()

    def __repr__(self) -> str:
        return f"CacheFile({str(self._path)!r})"

    @contextmanager
    def run(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time; raises `StoreError`."""
        with self._lock, self._named_errors():
            if self._connection is None:
                raise StoreError(f"{self._path} is closed")
            yield self._connection

    def close(self) -> None:
        """Let go of the file; closing twice does no harm."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"the cache {self._path} cannot be opened: {error.strerror}") from error
        except FAILURES as error:
            # The cause may quote a text of the file.
            cause = None if is_damage(error) else error
            raise StoreError(
                f"the cache {self._path} cannot be used ({describe_error(error)}); {_advice(error)}"
            ) from cause

    def _opened(self) -> sqlite3.Connection:
        """A connection to the cache; one that is damaged is set aside first."""
        try:
            return self._prepared(*self._connected())
        except _Damaged as damaged:
            # Of two that come at once the second finds another file there, and opens that.
            copy = set_aside(self._path, damaged.file)
            if copy is not None:
                _log.warning("the cache %s is damaged; it was kept as %s, and a new one is made", self._path, copy)
        try:
            return self._prepared(*self._connected())
        except _Damaged as damaged:
            raise damaged.error from None

    def _connected(self) -> tuple[sqlite3.Connection, os.stat_result]:
        make_file(self._path)
        found = self._path.stat()
        return connect_file(str(self._path), timeout=BUSY_SECONDS), found

    def _prepared(self, connection: sqlite3.Connection, found: os.stat_result) -> sqlite3.Connection:
        try:
            self._prepare(connection)
        except FAILURES as error:
            connection.close()
            raise (_Damaged(error, found) if is_damage(error) else error) from None
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if not is_empty(connection):
            self._check(connection)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
        connection.execute("PRAGMA synchronous = NORMAL")
        use_write_ahead_log(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Of two that come at once the second finds it made.
            if is_empty(connection):
                for statement in _SCHEMA:
                    connection.execute(statement)
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        self._check(connection)

    def _check(self, connection: sqlite3.Connection) -> None:
        if read_mark(connection) != (APPLICATION_ID, VERSION):
            raise StoreError(
                f"{self._path} is no cache of this version of qtmiddleware; it was left as it is: move it away, or "
                "name another folder"
            )
        check_layout(connection, _SCHEMA)


def _advice(error: Exception) -> str:
    if is_foreign(error):
        return "it was left as it is: move it away, or name another folder"
    return "it must be a file that can be written, with room on the disk"


class _Damaged(Exception):
    """The *file* that was opened cannot be read, as *error* says."""

    def __init__(self, error: Exception, file: os.stat_result) -> None:
        super().__init__()
        self.error = error
        self.file = file
