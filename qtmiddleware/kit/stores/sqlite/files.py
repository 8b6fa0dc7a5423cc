"""Create and open SQLite files of this package.

Files are created for their owner alone, laid out and marked, so that a file of another program is
recognised.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any, Final

from qtmiddleware.errors import StoreError
from qtmiddleware.runtime.files import PRIVATE, check_link, make_private_folders

MEMORY: Final = ":memory:"
BUSY_SECONDS: Final = 30.0
"""How long to wait for another process to finish writing."""
LOG_BYTES: Final = 64 << 20
"""Size to which the write-ahead log is cut after a long write."""
_PAGE_BYTES: Final = 16 << 10
"""Page size. On the usual page of 4 kB, a passage with its vector would waste nearly half."""
_SHORT_BYTES: Final = 100_000
"""Longest value, in bytes, that is read while a file is checked."""
_RETRY_SECONDS: Final = 0.01
_UNDECODED: Final = "Could not decode to UTF-8"
"""How Python's message begins if a text in a file is damaged."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """One kind of file: its layout, and what messages say if such a file cannot be opened.

    Attributes:
        application_id: marks files of this kind.
        version: the version of the layout.
        statements: create the tables.
        subject: names the file in messages, with ``{path}``.
        busy: says why the file cannot be had while another process has it.
        remedy: says what to do about a file that is something else.
    """

    application_id: int
    version: int
    statements: tuple[str, ...]
    subject: str
    busy: str
    remedy: str


def open_file(
    path: str,
    kind: FileKind,
    *,
    timeout: float,
    exclusive: bool = False,
    facts: Mapping[str, Any] | None = None,
    check: Callable[[sqlite3.Connection], None] | None = None,
) -> sqlite3.Connection:
    """Open the file at *path*, or create it with its folders, for its owner alone.

    A file that is refused, or is something else, is left as it is. Every failure raises
    `StoreError`.

    Args:
        path: the file.
        kind: the kind of file that it must be.
        timeout: how many seconds to wait for another process.
        exclusive: whether to keep all other connections out until this one is closed.
        facts: rows for the table ``meta`` of a new file.
        check: may refuse an existing file by raising.
    """
    subject = kind.subject.format(path=path)
    try:
        if path != MEMORY:
            make_file(Path(path))
            if not Path(path).is_file():
                raise StoreError(f"{subject} cannot be opened: it is not a file; {kind.remedy}")
        connection: sqlite3.Connection = connect_file(path, timeout=timeout)
        try:
            if exclusive:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                # In this mode a lock, once taken, is kept. The empty transaction takes it now.
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute("COMMIT")
            _prepare_database(connection, kind, facts or {})
            if check is not None:
                check(connection)
        except BaseException:
            connection.close()
            raise
    except OSError as error:
        raise StoreError(
            f"{subject} cannot be opened: {error.strerror}; name a file that can be written"
        ) from error
    except FAILURES as error:
        # The cause may quote a text of the file.
        raise StoreError(f"{subject} {_describe_refusal(error, kind)}") from (
            None if is_damage(error) else error
        )
    return connection


def _describe_refusal(error: Exception, kind: FileKind) -> str:
    """Say in words why a file cannot be opened, and what to do."""
    if is_foreign(error):
        return f"cannot be used ({describe_error(error)}); it was not changed: {kind.remedy}"
    if get_result_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"cannot be opened: {kind.busy}"
    return (
        f"cannot be opened: {error}; it must be a file that can be written, in a folder that can be"
        " written, with room on the disk"
    )


def _prepare_database(
    connection: sqlite3.Connection, kind: FileKind, facts: Mapping[str, Any]
) -> None:
    """Lay out an empty database; check any other one before anything is written to it."""
    if is_empty(connection):
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    else:
        check_kind(connection, kind)
    use_write_ahead_log(connection)
    set_connection_options(connection)
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        # Two processes may create the file at the same time; the second one finds it laid out.
        if is_empty(connection):
            for statement in kind.statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {kind.application_id}")
            connection.execute(f"PRAGMA user_version = {kind.version}")
            for fact in facts.items():
                connection.execute("INSERT INTO meta VALUES (?, ?)", fact)
    check_kind(connection, kind)


def set_connection_options(connection: sqlite3.Connection) -> None:
    """Set the options that hold for one connection, not for its file."""
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")


def check_kind(connection: sqlite3.Connection, kind: FileKind) -> None:
    """Raise `Damage` unless the database has this *kind* and version."""
    owner, version = read_mark(connection)
    if owner != kind.application_id:
        raise Damage("it is the SQLite database of another program")
    if version != kind.version:
        raise Damage(f"it has the layout {version}, this version reads {kind.version}")
    check_layout(connection, kind.statements)


def make_file(path: Path) -> None:
    """Create an empty file with its folders, for its owner alone.

    The files that SQLite puts beside it get its mode. An existing file is not opened, not even
    briefly: a process that closes any descriptor of a file loses all its locks on that file,
    SQLite's too. Another process would then remove the log that this one writes to, and writes
    would be lost (https://www.sqlite.org/howtocorrupt.html, 2.2).

    Raises `OSError`, also for a link that may not be followed, as `check_link` says.
    """
    check_link(path)
    make_private_folders(path.parent)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, PRIVATE))


def connect_file(path: str, **options: Any) -> Any:
    """Connect to the existing file at *path*, whose content has not been checked yet.

    No file is created, and no link that was put in its place in the meantime is followed. *options*
    are those of `sqlite3.connect`. Raises `OSError`, also for a link, as `check_link` says, and
    whatever SQLite raises.
    """
    # Transactions are begun and ended explicitly. Whoever lends a connection out lets one thread
    # use it at a time.
    options |= {"isolation_level": None, "check_same_thread": False}
    if path == MEMORY or os.name == "nt":
        return sqlite3.connect(path, **options)
    real = check_link(Path(path))
    connection = sqlite3.connect(f"{real.as_uri()}?mode=rw", uri=True, **options)
    # SQLite reports the file that it opened, with links resolved. A name need not be UTF-8.
    connection.text_factory = bytes
    opened = connection.execute("PRAGMA database_list").fetchone()[2]
    connection.text_factory = str
    if opened == os.fsencode(real):
        return connection
    connection.close()
    raise OSError(errno.ELOOP, "a link was put in its place", path)


def read_mark(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the file's ``application_id`` and ``user_version``; zeros if they are not set.

    They say whose file it is, and which version its layout has.
    """
    owner: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return owner, version


def is_empty(connection: sqlite3.Connection) -> bool:
    """Return whether nothing was ever written to the database."""
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return tables == 0 and read_mark(connection) == (0, 0)


def check_layout(connection: sqlite3.Connection, statements: tuple[str, ...]) -> None:
    """Raise `Damage` unless the database has exactly the objects that *statements* create.

    Objects are tables, indexes and triggers. A view or a trigger from somebody else's file is a
    program that would run in this process, and might never end.
    """
    connection.execute("PRAGMA trusted_schema = OFF")
    with short_values(connection):
        if _list_objects(connection) != _list_expected_objects(statements):
            raise Damage("its tables are not those of such a file")


@contextmanager
def short_values(connection: sqlite3.Connection, max_bytes: int = _SHORT_BYTES) -> Iterator[None]:
    """Read no value of more than *max_bytes* inside the block; raises `Damage` for a longer one.

    A value in somebody else's file could fill all memory.
    """
    before = connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max_bytes)
    try:
        yield
    except sqlite3.DataError:
        raise Damage("it holds a value that is too long") from None
    finally:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, before)


@cache
def _list_expected_objects(statements: tuple[str, ...]) -> frozenset[tuple[Any, ...]]:
    """Return the objects that *statements* create in an empty database."""
    with closing(sqlite3.connect(MEMORY, isolation_level=None)) as fresh:
        for statement in statements:
            fresh.execute(statement)
        return _list_objects(fresh)


def _list_objects(connection: sqlite3.Connection) -> frozenset[tuple[Any, ...]]:
    """Return the tables, indexes and other objects of the database, in a comparable form."""
    # The statistics of ANALYZE do no harm. Each version of SQLite creates the inner tables of a
    # full-text table in its own way, so only their names are compared.
    rows = connection.execute(
        "SELECT type, name, CASE WHEN name GLOB 'words_*' AND type = 'table' THEN '' ELSE sql END,"
        " rootpage > 0 FROM sqlite_master WHERE name NOT GLOB 'sqlite_stat*' LIMIT 100"
    )
    return frozenset(
        (kind, name, " ".join((sql or "").split()), is_stored)
        for kind, name, sql, is_stored in rows
    )


def use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch the file to the write-ahead log.

    SQLite does not wait if another process switches at the same time, so this function does.
    """
    deadline = monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if get_result_code(error) != sqlite3.SQLITE_BUSY or monotonic() >= deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def get_result_code(error: Exception) -> int:
    """Return SQLite's primary result code of *error*, or 0 if it is one of Python's errors."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


class Damage(sqlite3.DatabaseError):
    """A file has content that was never written to it like this, though SQLite can read it."""


FAILURES: Final = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite's module raises.

`UnicodeDecodeError` is raised for a damaged file whose names and texts are not UTF-8.
"""


def is_damage(error: Exception) -> bool:
    """Return whether *error* is caused by a file's content, not by its place or access rights."""
    return (
        isinstance(error, Damage | UnicodeDecodeError)
        or get_result_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        or _UNDECODED in str(error)
    )


def is_foreign(error: Exception) -> bool:
    """Return whether *error*, raised when a file is opened, shows a damaged or foreign file."""
    # SQLite reports a missing table as a general error.
    return is_damage(error) or get_result_code(error) == sqlite3.SQLITE_ERROR


def describe_error(error: Exception) -> str:
    """Return the message of *error*, without any text from the file."""
    # If a text is not UTF-8, Python's message quotes all of it.
    undecoded = isinstance(error, UnicodeDecodeError) or _UNDECODED in str(error)
    return "a text in it is not UTF-8" if undecoded else str(error)
