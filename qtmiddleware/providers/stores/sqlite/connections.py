"""Connections to a store's file: one that writes, and one for each reader of the moment."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from qtmiddleware.errors import StoreError
from qtmiddleware.providers.stores.sqlite.connection import Connection, connect
from qtmiddleware.providers.stores.sqlite.files import FAILURES, MEMORY, is_damage, kind_of, said
from qtmiddleware.providers.stores.sqlite.schema import open_database
from qtmiddleware.runtime.forking import renew_after_fork

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
        connection = self._lent()
        try:
            with self._transaction(connection, "BEGIN", "read") as run:
                yield run
        finally:
            self._taken_back(connection)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """All that is written inside, or nothing."""
        with self._writing:
            if self._is_forked and self._writer is not None:
                self._writer, self._is_forked = self._connected("written to"), False
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

    def _lent(self) -> Connection:
        with self._lending:
            if self._closed:
                raise self._failed("read", "it is closed")
            if self._idle:
                return self._idle.pop()
        return self._connected("read")

    def _connected(self, doing: str) -> Connection:
        try:
            return connect(self._path)
        except OSError as error:
            raise self._failed(doing, error.strerror) from None
        except FAILURES as error:
            raise self._failed(doing, said(error)) from None

    def _taken_back(self, connection: Connection) -> None:
        with self._lending:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    @contextmanager
    def _transaction(self, run: Connection | None, begin: str, doing: str) -> Iterator[Connection]:
        if run is None:
            raise self._failed(doing, "it is closed")
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
            if kind_of(error) == sqlite3.SQLITE_BUSY:
                raise self._failed(doing, "another process is writing to it; try again when that is done") from error
            if is_damage(error):
                # The cause may quote a text of the file.
                raise self._failed(doing, f"it is damaged ({said(error)}); move it away and ingest again") from None
            raise self._failed(doing, error) from error

    def _failed(self, doing: str, why: object) -> StoreError:
        return StoreError(f"the store {self._path} could not be {doing}: {why}")
