"""Open the SQLite files of this package, such as an index."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import QtMiddlewareError, StoreError
from qtmiddleware.kit.files import make_private_folders
from qtmiddleware.runtime.files import PRIVATE, refuse_link

MEMORY: Final = ":memory:"
# How long to wait for another process to finish writing, in seconds.
BUSY_SECONDS: Final = 30.0

_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DISK: Final = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)
# SQLite itself makes the tables of a full-text index and of its statistics.
_SCHEMA: Final = """
SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT GLOB 'sqlite_*'
AND NOT (type = 'table' AND name GLOB 'words_*') LIMIT 100
"""


def open_database(
    path: str,
    statements: Sequence[str],
    *,
    version: int,
    subject: str,
    meta: Mapping[str, Any] | None = None,
    busy_seconds: float = BUSY_SECONDS,
) -> sqlite3.Connection:
    """Open the SQLite file at *path*, or create it with its folders, and return a connection.

    Only the owner can read a new file. A link, and a file with other tables, is refused and stays
    as it is.

    Raises:
        StoreError: If the file cannot be used.
    """
    with explain_errors(subject, OSError):
        if not path.startswith(MEMORY):
            _create_private_file(Path(path))
        connection = connect(path, busy_seconds=busy_seconds)
        try:
            _prepare_tables(connection, statements, version, meta or {})
        except BaseException:
            connection.close()
            raise
        # Two processes may switch a new file at the same time. It works in both modes.
        with suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode = WAL")
    return connection


def connect(path: str, *, busy_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
    """Return a new connection to the existing database at *path*, with transactions by hand.

    Paths that begin with ``:memory:`` name a database in memory, which exists until its last
    connection is closed. Raises `OSError` if *path* is a link.
    """
    is_memory = path.startswith(MEMORY)
    connection = sqlite3.connect(
        f"file:{path}?mode=memory&cache=shared"
        if is_memory
        else f"{Path(path).absolute().as_uri()}?mode=rw",
        uri=True,
        isolation_level=None,
        timeout=busy_seconds,
        # Another thread may use or close the connection later.
        check_same_thread=False,
    )
    try:
        # Nothing has been written yet, in case that somebody has just put the link there.
        if not is_memory:
            refuse_link(Path(path))
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def explain_errors(subject: str, *more: type[Exception]) -> Iterator[None]:
    """Convert an error of SQLite, or one of *more*, into a `StoreError`.

    *subject* names the file in the message. The message never quotes a text of the file.
    """
    # SQLite quotes damaged pages in messages that are not UTF-8.
    kinds: tuple[type[Exception], ...] = (sqlite3.Error, UnicodeDecodeError, *more)
    try:
        yield
    except QtMiddlewareError:
        raise
    except kinds as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        reason = "it is damaged, or not of this version; delete it and ingest again"
        if isinstance(error, OSError):
            reason = f"{error.strerror}; name a file that can be written"
        elif code in _BUSY:
            reason = "another process is writing to it; try again when that has ended"
        elif code in _DISK:
            reason = f"{error}; it needs a folder that can be written, with room on the disk"
        raise StoreError(f"{subject} cannot be used: {reason}") from None


def _create_private_file(path: Path) -> None:
    make_private_folders(path.parent)
    refuse_link(path)
    # With O_EXCL, this follows no link that somebody creates now.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, PRIVATE))
    if not path.is_file():
        raise IsADirectoryError(errno.EISDIR, "it is not a file")


def _prepare_tables(
    connection: sqlite3.Connection,
    statements: Sequence[str],
    version: int,
    meta: Mapping[str, Any],
) -> None:
    """Create the tables in a new database, or check that it has exactly these tables."""
    # With the usual 4 KB, passages with vectors would waste half of the space.
    connection.execute("PRAGMA page_size = 16384")
    if not connection.execute(_SCHEMA).fetchall():
        connection.execute("BEGIN IMMEDIATE")
        # Another process may have created the tables meanwhile.
        if not connection.execute(_SCHEMA).fetchall():
            for statement in (*statements, f"PRAGMA user_version = {version}"):
                connection.execute(statement)
            for row in meta.items():
                connection.execute("INSERT INTO meta VALUES (?, ?)", row)
        connection.execute("COMMIT")
    schema = {sql for (sql,) in connection.execute(_SCHEMA)}
    found_version = connection.execute("PRAGMA user_version").fetchone()[0]
    if found_version != version or schema != set(statements):
        raise sqlite3.DatabaseError("these are other tables")
