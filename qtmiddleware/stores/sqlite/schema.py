"""The layout of the store's file, and what a file must be to be opened as one."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Final
from uuid import uuid4

from qtmiddleware.errors import StoreError
from qtmiddleware.stores.sqlite.connection import BUSY_SECONDS, Connection, connection_to, tune
from qtmiddleware.stores.words import CATEGORIES

MEMORY: Final = ":memory:"
APPLICATION_ID: Final = 0x71746D73
"""Marks the file as ours: "qtms" in ASCII."""
VERSION: Final = 3
RETRY_SECONDS: Final = 0.01
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
        connection = connection_to(path)
    except OSError as error:
        raise StoreError(
            f"the store {path} cannot be opened: {error.strerror}; name a file that can be written"
        ) from error
    except sqlite3.Error as error:
        raise _refused(path, error) from error
    try:
        _prepare(connection, path, embedding_model, dimension)
        tune(connection)
    except sqlite3.Error as error:
        connection.close()
        raise _refused(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _refused(path: str, error: sqlite3.Error) -> StoreError:
    # A table that is not there is an error of no kind of its own.
    if is_damage(error) or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR:
        return StoreError(
            f"{path} is not a store of this package or is damaged ({error}); "
            "it was left as it is: name another path, or move it away and ingest again"
        )
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
        return StoreError(f"the store {path} cannot be opened: another process is writing to it; try again")
    return StoreError(
        f"the store {path} cannot be opened: {error}; it must be a file that can be written, in a folder that can be "
        "written, with room on the disk"
    )


def make_file(path: Path) -> None:
    """Create an empty file, for its owner alone, where there is none; what SQLite puts beside it follows its mode.

    One that is there is not opened, not even for a moment: a process that closes any descriptor of a file lets go of
    all its locks on it, those of SQLite too; another process would then remove the log this one writes to, and writes
    would be lost (https://www.sqlite.org/howtocorrupt.html, 2.2). Raises `OSError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o600))


def is_damage(error: sqlite3.Error) -> bool:
    """Whether *error* comes of what is in a file, and not of a place that cannot be read or written."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _prepare(connection: Connection, path: str, embedding_model: str, dimension: int) -> None:
    """Lay out an empty database, or check one that is not empty without writing to it."""
    if not connection.execute("SELECT 1 FROM pragma_module_list WHERE name = ?", (_FTS_MODULE,)).fetchone():
        raise StoreError(
            "the SQLite of this Python was built without FTS5, which the store needs for keyword search; use a Python "
            "whose sqlite3 has it (those of python.org, Debian, Homebrew and conda do) or another store"
        )
    if _is_empty(connection):
        _create(connection, embedding_model, dimension)
    _check(connection, path, embedding_model, dimension)


def _is_empty(connection: Connection) -> bool:
    """Whether nothing was ever put into the database."""
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return tables == 0 and _pragma(connection, "application_id") == 0 and _pragma(connection, "user_version") == 0


def _use_wal(connection: Connection) -> None:
    """Switch to the write-ahead log. SQLite does not wait for another process that does so now; we do."""
    deadline = monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() >= deadline:
                raise
            sleep(RETRY_SECONDS)
        else:
            return


def _create(connection: Connection, embedding_model: str, dimension: int) -> None:
    """Lay out the tables in one transaction; of two processes that come at once, the second finds them made."""
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    _use_wal(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _is_empty(connection):
            for statement in _statements():
                connection.execute(statement)
            values = [("embedding_model", embedding_model), ("dimension", dimension), ("identity", uuid4().hex)]
            connection.executemany("INSERT INTO meta VALUES (?, ?)", values)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _statements() -> list[str]:
    """The schema's statements, one by one, as running a script at once would end the transaction."""
    found: list[str] = []
    held = ""
    for line in _SCHEMA.splitlines(keepends=True):
        held += line
        if sqlite3.complete_statement(held):
            found.append(held)
            held = ""
    return found


def _check(connection: Connection, path: str, embedding_model: str, dimension: int) -> None:
    """Raise `StoreError` unless the database is a store of this version, made with this model."""
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise StoreError(f"{path} is the SQLite database of another program; it was left as it is: name another path")
    version = _pragma(connection, "user_version")
    if version != VERSION:
        raise StoreError(f"{path} has the layout {version}, this version reads {VERSION}: move it away, ingest again")
    held = dict(connection.execute("SELECT key, value FROM meta"))
    model, length = held.get("embedding_model"), held.get("dimension")
    if (model, length) != (embedding_model, dimension):
        raise StoreError(
            f"{path} was made with the embedding model {model!r} ({length} numbers a vector) and cannot be used with "
            f"{embedding_model!r} ({dimension}): their vectors mean different things. Use {model!r}, or ingest again "
            "into another path"
        )


def _pragma(connection: Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value
