"""SQLite files of ours: made for their owner alone, laid out, marked, and told from what is something else."""

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
"""How long is waited for another process to finish writing."""
LOG_BYTES: Final = 64 << 20
"""What is left of the write-ahead log after a long write."""
_PAGE_BYTES: Final = 16 << 10
"""Of the usual page of 4 kB a passage with its vector would leave nearly half unused."""
_SHORT_BYTES: Final = 100_000
_RETRY_SECONDS: Final = 0.01
_UNDECODED: Final = "Could not decode to UTF-8"
"""What Python's own error begins with where a text in a file is damaged."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """What files of one kind hold, and what is said where one cannot be opened.

    *application_id* and *version* mark a file, *statements* make its tables. *subject* names it,
    with ``{path}``;
    *busy* says why it cannot be had where somebody else has it, *remedy* what to do about one that
    is something else.
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
    """Return a connection to the file at *path*, made with its folders where there is none, for its owner alone.

    *timeout* is how many seconds another process is waited for. An *exclusive* connection keeps all
    others out until it is closed. *facts* are put into the table ``meta`` of a new file; *check*
    may refuse one that is there. What is refused, or something else, is left as it is. Raises
    `StoreError`.
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
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute("COMMIT")
            _prepare(connection, kind, facts or {})
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
    if is_foreign(error):
        return f"cannot be used ({describe_error(error)}); it was not changed: {kind.remedy}"
    if result_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"cannot be opened: {kind.busy}"
    return (
        f"cannot be opened: {error}; it must be a file that can be written, in a folder that can be"
        " written, with room on the disk"
    )


def _prepare(connection: sqlite3.Connection, kind: FileKind, facts: Mapping[str, Any]) -> None:
    """Lay out an empty database, or check one that is not empty before anything is written to it."""
    if is_empty(connection):
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    else:
        check_kind(connection, kind)
    use_write_ahead_log(connection)
    tune(connection)
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        # Of two processes that come at once the second finds it made.
        if is_empty(connection):
            for statement in kind.statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {kind.application_id}")
            connection.execute(f"PRAGMA user_version = {kind.version}")
            for fact in facts.items():
                connection.execute("INSERT INTO meta VALUES (?, ?)", fact)
    check_kind(connection, kind)


def tune(connection: sqlite3.Connection) -> None:
    """Set what holds for one connection and not for its file."""
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")


def check_kind(connection: sqlite3.Connection, kind: FileKind) -> None:
    """Raise `Damage` unless the database is one of this *kind* and version."""
    owner, version = read_mark(connection)
    if owner != kind.application_id:
        raise Damage("it is the SQLite database of another program")
    if version != kind.version:
        raise Damage(f"it has the layout {version}, this version reads {kind.version}")
    check_layout(connection, kind.statements)


def make_file(path: Path) -> None:
    """Create an empty file, with its folders, for its owner alone; what SQLite puts beside it follows its mode.

    One that is there is not opened, not even for a moment: a process that closes any descriptor of
    a file lets go of all its locks on it, those of SQLite too; another process would then remove
    the log this one writes to, and writes would be lost (https://www.sqlite.org/howtocorrupt.html,
    2.2). Raises `OSError`, also for a link that is not to be followed, as `check_link` says.
    """
    check_link(path)
    make_private_folders(path.parent)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, PRIVATE))


def connect_file(path: str, **options: Any) -> Any:
    """Return a connection to the file at *path*, which is there; nothing was asked of it yet, and it may be anything.

    Nothing is made, and no link followed that was put in its place meanwhile. *options* are those
    of `sqlite3.connect`. Raises `OSError`, also for a link, as `check_link` says, and what SQLite
    raises.
    """
    # Transactions are begun and ended by hand; whoever lends a connection out lets one thread in at
    # a time.
    options |= {"isolation_level": None, "check_same_thread": False}
    if path == MEMORY or os.name == "nt":
        return sqlite3.connect(path, **options)
    real = check_link(Path(path))
    connection = sqlite3.connect(f"{real.as_uri()}?mode=rw", uri=True, **options)
    # SQLite says where links have led it. A name need not be UTF-8.
    connection.text_factory = bytes
    opened = connection.execute("PRAGMA database_list").fetchone()[2]
    connection.text_factory = str
    if opened == os.fsencode(real):
        return connection
    connection.close()
    raise OSError(errno.ELOOP, "a link was put in its place", path)


def read_mark(connection: sqlite3.Connection) -> tuple[int, int]:
    """Whose file it is (``application_id``) and the version of its layout (``user_version``); zeros where not said."""
    owner: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return owner, version


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether nothing was ever put into the database."""
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return tables == 0 and read_mark(connection) == (0, 0)


def check_layout(connection: sqlite3.Connection, statements: tuple[str, ...]) -> None:
    """Raise `Damage` unless the database has the tables, indexes and triggers that *statements* make, and no others.

    A view or a trigger out of somebody else's file is a program that would run in ours, and need
    never end.
    """
    connection.execute("PRAGMA trusted_schema = OFF")
    with short_values(connection):
        if _objects(connection) != _objects_made_by(statements):
            raise Damage("its tables are not those of such a file")


@contextmanager
def short_values(connection: sqlite3.Connection, most: int = _SHORT_BYTES) -> Iterator[None]:
    """Read nothing longer than *most* bytes: a value in somebody else's file may fill all memory.

    Raises `Damage` for one.
    """
    before = connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, most)
    try:
        yield
    except sqlite3.DataError:
        raise Damage("it holds a value that is too long") from None
    finally:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, before)


@cache
def _objects_made_by(statements: tuple[str, ...]) -> frozenset[tuple[Any, ...]]:
    with closing(sqlite3.connect(MEMORY, isolation_level=None)) as fresh:
        for statement in statements:
            fresh.execute(statement)
        return _objects(fresh)


def _objects(connection: sqlite3.Connection) -> frozenset[tuple[Any, ...]]:
    # The statistics of ANALYZE do no harm. What a full-text table is made of each version of SQLite
    # writes in its way.
    rows = connection.execute(
        "SELECT type, name, CASE WHEN name GLOB 'words_*' AND type = 'table' THEN '' ELSE sql END,"
        " rootpage > 0 FROM sqlite_master WHERE name NOT GLOB 'sqlite_stat*' LIMIT 100"
    )
    return frozenset(
        (kind, name, " ".join((sql or "").split()), is_stored)
        for kind, name, sql, is_stored in rows
    )


def use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log. SQLite does not wait for another process that does so now; we do."""
    deadline = monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if result_code(error) != sqlite3.SQLITE_BUSY or monotonic() >= deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def result_code(error: Exception) -> int:
    """SQLite's primary result code of *error*, 0 where it has none, as one of Python's own."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


class Damage(sqlite3.DatabaseError):
    """What stands in a file cannot be what was written there, though SQLite itself could read it."""


FAILURES: Final = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite's module raises; the second for a damaged file whose names and texts are not UTF-8."""


def is_damage(error: Exception) -> bool:
    """Whether *error* comes of what is in a file, and not of a place that cannot be read or written."""
    return (
        isinstance(error, Damage | UnicodeDecodeError)
        or result_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        or _UNDECODED in str(error)
    )


def is_foreign(error: Exception) -> bool:
    """Whether *error*, met while a file is opened, says that it is damaged or none of ours."""
    # A table that is not there is an error of no kind of its own.
    return is_damage(error) or result_code(error) == sqlite3.SQLITE_ERROR


def describe_error(error: Exception) -> str:
    """What *error* says, without any text of a file."""
    # Python quotes the whole text where it is not UTF-8.
    undecoded = isinstance(error, UnicodeDecodeError) or _UNDECODED in str(error)
    return "a text in it is not UTF-8" if undecoded else str(error)
