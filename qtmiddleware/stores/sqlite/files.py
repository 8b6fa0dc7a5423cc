"""SQLite files of ours: made for their owner alone, marked, and told from what is something else."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Final

MEMORY: Final = ":memory:"
BUSY_SECONDS: Final = 30.0
"""How long is waited for another process to finish writing."""
LOG_BYTES: Final = 64 << 20
"""What is left of the write-ahead log after a long write."""
_RETRY_SECONDS: Final = 0.01


def make_file(path: Path) -> None:
    """Create an empty file, for its owner alone, where there is none; what SQLite puts beside it follows its mode.

    One that is there is not opened, not even for a moment: a process that closes any descriptor of a file lets go of
    all its locks on it, those of SQLite too; another process would then remove the log this one writes to, and writes
    would be lost (https://www.sqlite.org/howtocorrupt.html, 2.2). Raises `OSError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o600))


def mark_of(connection: sqlite3.Connection) -> tuple[int, int]:
    """Whose file it is (``application_id``) and the version of its layout (``user_version``); zeros where not said."""
    owner: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return owner, version


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether nothing was ever put into the database."""
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return tables == 0 and mark_of(connection) == (0, 0)


def use_wal(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. SQLite does not wait for another process that does so now; we do."""
    deadline = monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if kind_of(error) != sqlite3.SQLITE_BUSY or monotonic() >= deadline:
                raise
            sleep(_RETRY_SECONDS)
        else:
            return


def kind_of(error: sqlite3.Error) -> int:
    """SQLite's primary result code of *error*, 0 where it has none, as one of Python's own."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def is_damage(error: sqlite3.Error) -> bool:
    """Whether *error* comes of what is in a file, and not of a place that cannot be read or written."""
    return kind_of(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_foreign(error: sqlite3.Error) -> bool:
    """Whether *error*, met while a file is opened, says that it is damaged or none of ours."""
    # A table that is not there is an error of no kind of its own.
    return is_damage(error) or kind_of(error) == sqlite3.SQLITE_ERROR
