"""The layout of the ledger's file, and what a file must be to be opened as one."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from qtmiddleware.errors import StoreError
from qtmiddleware.providers.stores.sqlite.files import (
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
)

APPLICATION_ID: Final = 0x71746D69
"""Marks the file as ours: "qtmi" in ASCII."""
VERSION: Final = 1

# A row of "documents" is one version of one file. "stored" is 0 for one that no store was given, 1 for one that may be
# in the store or not, as a write of it began and was not seen to end, and 2 for one that is there. "hash" is that of
# the text that is embedded: the context, if there is one, and the chunk.
_SCHEMA: Final = (
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
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)
# What one run works at; gone when it ends, however it ends.
_RUN: Final = (
    "CREATE TEMP TABLE target (document INTEGER PRIMARY KEY, file TEXT NOT NULL UNIQUE)",
    "CREATE TEMP TABLE publishing (chunk INTEGER PRIMARY KEY)",
    "CREATE TEMP TABLE todo (n INTEGER PRIMARY KEY, chunk INTEGER NOT NULL)",
)


def open_ledger(path: str) -> sqlite3.Connection:
    """A connection to the ledger at *path*, made where there is none, which nobody else can open meanwhile.

    The lock is one of the operating system's, which ends with the process however that ends. Raises `StoreError` where
    another process has the ledger open, or the file is something else; it is left as it is then.
    """
    try:
        if path != MEMORY:
            make_file(Path(path))
            if not Path(path).is_file():
                raise StoreError(f"{path}, which ingest keeps beside the index, is no file; move it away")
        # Nothing is waited for: whoever has the ledger open keeps it for a whole run.
        connection: sqlite3.Connection = connect_file(path, timeout=0)
    except OSError as error:
        raise StoreError(f"{path}, which ingest keeps beside the index, cannot be opened: {error.strerror}") from error
    except FAILURES as error:
        raise _refused(path, error) from error
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        _prepare(connection, path)
    except FAILURES as error:
        connection.close()
        # The cause may quote a text of the file.
        raise _refused(path, error) from (None if is_damage(error) else error)
    except BaseException:
        connection.close()
        raise
    return connection


def _refused(path: str, error: Exception) -> StoreError:
    if result_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(f"another ingest is running into this index (it holds {path}); wait until it has ended")
    if is_foreign(error):
        return StoreError(
            f"{path}, which ingest keeps beside the index, cannot be used ({describe_error(error)}); it was left as it "
            "is: move it away, and everything is embedded again"
        )
    return StoreError(
        f"{path}, which ingest keeps beside the index, cannot be opened: {error}; it must be a file that can be "
        "written, in a folder that can be written, with room on the disk"
    )


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    """Take the lock, lay out an empty database, or check one that is not empty without changing it."""
    connection.execute("PRAGMA foreign_keys = ON")
    # The lock that is taken here is kept until the connection is closed.
    connection.execute("BEGIN EXCLUSIVE")
    is_new = is_empty(connection)
    if not is_new:
        _check(connection, path)
    connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
    if is_new:
        connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("COMMIT")
    for statement in _RUN:
        connection.execute(statement)


def _check(connection: sqlite3.Connection, path: str) -> None:
    owner, version = read_mark(connection)
    if owner != APPLICATION_ID:
        raise StoreError(f"{path} is the SQLite database of another program; it was left as it is: move it away")
    if version != VERSION:
        raise StoreError(f"{path} has the layout {version}, this version reads {VERSION}: move it away, ingest again")
    check_layout(connection, _SCHEMA)
