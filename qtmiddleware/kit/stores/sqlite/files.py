"""Create and open the SQLite files of this package.

A new file can be read only by its owner. Each file has an ``application_id``, so that files of
other programs are recognised and rejected.
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
from qtmiddleware.kit.files import make_private_folders, resolve_trusted_link
from qtmiddleware.runtime.files import PRIVATE

MEMORY: Final = ":memory:"
BUSY_SECONDS: Final = 30.0
"""How long to wait for another process to finish writing, in seconds."""
LOG_BYTES: Final = 64 << 20
"""The size, in bytes, to which the write-ahead log is truncated after a long write."""
_PAGE_BYTES: Final = 16 << 10
"""The page size in bytes. With the usual 4 KB, passages with vectors would waste half the space."""
_SHORT_BYTES: Final = 100_000
"""The maximum size, in bytes, of a value that is read to check a file."""
_RETRY_SECONDS: Final = 0.01
_UNDECODED: Final = "Could not decode to UTF-8"
"""The beginning of Python's error message if a text in a file is not UTF-8."""


@dataclass(frozen=True, slots=True)
class FileType:
    """A type of SQLite file, such as a store, with its tables and the texts of its error messages.

    Attributes:
        application_id: the number that marks files of this type.
        version: the version of the tables.
        statements: the SQL statements that create the tables.
        subject: the phrase that names the file in error messages; contains ``{path}``.
        busy: the reason and the advice to show if another process is using the file.
        remedy: the advice if the file is damaged or of another type.
    """

    application_id: int
    version: int
    statements: tuple[str, ...]
    subject: str
    busy: str
    remedy: str


def open_file(
    path: str,
    file_type: FileType,
    *,
    timeout_seconds: float,
    is_exclusive: bool = False,
    meta_values: Mapping[str, Any] | None = None,
    check_database: Callable[[sqlite3.Connection], None] | None = None,
) -> sqlite3.Connection:
    """Open or create the SQLite file at *path*, and return a connection.

    Creates missing folders, too. Only the owner can read a new file. If the file cannot be used,
    raises `StoreError` and leaves the file unchanged.

    Args:
        path: the path of the file.
        file_type: the type that the file must have.
        timeout_seconds: how long to wait for another process, in seconds.
        is_exclusive: whether to block all other connections until this connection is closed.
        meta_values: keys and values for the table ``meta`` of a new file.
        check_database: a function that takes the connection, and raises an exception to reject the
            file.
    """
    subject = file_type.subject.format(path=path)
    try:
        if path != MEMORY:
            create_private_file(Path(path))
            if not Path(path).is_file():
                raise StoreError(
                    f"{subject} cannot be opened: it is not a file; {file_type.remedy}"
                )
        connection: sqlite3.Connection = connect_to_existing_file(path, timeout=timeout_seconds)
        try:
            if is_exclusive:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                # In this mode, SQLite keeps a lock until the connection is closed. The empty
                # transaction takes the lock now.
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute("COMMIT")
            _prepare_database(connection, file_type, meta_values or {})
            if check_database is not None:
                check_database(connection)
        except BaseException:
            connection.close()
            raise
    except OSError as error:
        raise StoreError(
            f"{subject} cannot be opened: {error.strerror}; name a file that can be written"
        ) from error
    except FAILURES as error:
        # The cause may quote a text of the file.
        raise StoreError(f"{subject} {_explain_open_failure(error, file_type)}") from (
            None if is_damage_error(error) else error
        )
    return connection


def _explain_open_failure(error: Exception, file_type: FileType) -> str:
    """Return the reason why a file of this type could not be opened, and advice, as one text."""
    if is_wrong_file_error(error):
        return (
            f"cannot be used ({describe_sqlite_error(error)}); it was not changed:"
            f" {file_type.remedy}"
        )
    if get_sqlite_result_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"cannot be opened: {file_type.busy}"
    return (
        f"cannot be opened: {error}; it must be a file that can be written, in a folder that can be"
        " written, with room on the disk"
    )


def _prepare_database(
    connection: sqlite3.Connection, file_type: FileType, meta_values: Mapping[str, Any]
) -> None:
    """Create the tables of *file_type* if the database is new; otherwise check its tables.

    *meta_values* are the keys and values for the table ``meta`` of a new database. Also switches
    the file to write-ahead logging. Raises `Damage` if another program created the file.
    """
    if is_new_database(connection):
        # With write-ahead logging, the page size can no longer change.
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    else:
        check_file_type(connection, file_type)
    use_write_ahead_log(connection)
    set_connection_options(connection)
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        # Two processes may create the file at the same time; the second one finds the tables.
        if is_new_database(connection):
            for statement in file_type.statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {file_type.application_id}")
            connection.execute(f"PRAGMA user_version = {file_type.version}")
            for key_and_value in meta_values.items():
                connection.execute("INSERT INTO meta VALUES (?, ?)", key_and_value)
    check_file_type(connection, file_type)


def set_connection_options(connection: sqlite3.Connection) -> None:
    """Set the options that each new connection needs, because an SQLite file does not save them."""
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")


def check_file_type(connection: sqlite3.Connection, file_type: FileType) -> None:
    """Check that the database is of the type *file_type*.

    Raises `Damage` if another program created the database, or if its version or its tables differ.
    """
    owner, version = read_application_id_and_version(connection)
    if owner != file_type.application_id:
        raise Damage("it is the SQLite database of another program")
    if version != file_type.version:
        raise Damage(f"it has the layout {version}, this version reads {file_type.version}")
    check_tables(connection, file_type.statements)


def create_private_file(path: Path) -> None:
    """Create an empty file and missing folders at *path*. Only their owner can access them.

    Does nothing if the file exists. Raises `OSError` if the file cannot be created, or if *path* is
    an unsafe link (see `resolve_trusted_link`).
    """
    resolve_trusted_link(path)
    make_private_folders(path.parent)
    # An existing file must not be opened here, not even briefly. Closing it would release all locks
    # of this process on the file, including SQLite's. Another process could then remove the log
    # that this process writes to, and writes would be lost
    # (https://www.sqlite.org/howtocorrupt.html, 2.2).
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, PRIVATE))


def connect_to_existing_file(path: str, **options: Any) -> Any:
    """Open a connection to the existing file at *path*, without checking its content.

    Does not create the file, and does not follow a link that has replaced the file. *options* are
    passed to `sqlite3.connect`. Raises SQLite's errors, and `OSError` if *path* is an unsafe link
    (see `resolve_trusted_link`).
    """
    # Python begins no transactions by itself. A connection may move between threads, but only one
    # thread at a time uses it.
    options |= {"isolation_level": None, "check_same_thread": False}
    if path == MEMORY or os.name == "nt":
        return sqlite3.connect(path, **options)
    real_path = resolve_trusted_link(Path(path))
    connection = sqlite3.connect(f"{real_path.as_uri()}?mode=rw", uri=True, **options)
    # SQLite reports the path of the file that it opened, with links resolved. The path may not be
    # UTF-8, so it is read as bytes.
    connection.text_factory = bytes
    opened = connection.execute("PRAGMA database_list").fetchone()[2]
    connection.text_factory = str
    if opened == os.fsencode(real_path):
        return connection
    connection.close()
    raise OSError(errno.ELOOP, "a link was put in its place", path)


def read_application_id_and_version(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the database's ``application_id`` and ``user_version``; 0 if not set.

    The id identifies the program that created the database. The version is that of the tables.
    """
    owner: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return owner, version


def is_new_database(connection: sqlite3.Connection) -> bool:
    """Return whether the database has no tables, no ``application_id`` and no ``user_version``."""
    tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return tables == 0 and read_application_id_and_version(connection) == (0, 0)


def check_tables(connection: sqlite3.Connection, statements: tuple[str, ...]) -> None:
    """Check that the database has exactly the tables that the SQL *statements* create.

    Raises `Damage` if the database has other tables. Indexes, views and triggers are compared, too:
    a view or trigger from another program would run in this process, and might never end.
    """
    connection.execute("PRAGMA trusted_schema = OFF")
    with limit_value_size(connection):
        if _list_database_objects(connection) != _list_schema_objects(statements):
            raise Damage("its tables are not those of such a file")


@contextmanager
def limit_value_size(
    connection: sqlite3.Connection, max_bytes: int = _SHORT_BYTES
) -> Iterator[None]:
    """Raise `Damage` if the ``with`` block reads a database value of more than *max_bytes*.

    Without this limit, a single value in a file from an unknown source could fill the memory.
    """
    old_limit = connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max_bytes)
    try:
        yield
    except sqlite3.DataError:
        raise Damage("it holds a value that is too long") from None
    finally:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, old_limit)


@cache
def _list_schema_objects(statements: tuple[str, ...]) -> frozenset[tuple[Any, ...]]:
    """Return the tables, indexes and other objects that the SQL *statements* create."""
    with closing(sqlite3.connect(MEMORY, isolation_level=None)) as memory_database:
        for statement in statements:
            memory_database.execute(statement)
        return _list_database_objects(memory_database)


def _list_database_objects(connection: sqlite3.Connection) -> frozenset[tuple[Any, ...]]:
    """Return at most 100 of the tables, indexes and other objects of the database.

    Each object is a tuple of its type, its name, its SQL, and whether it has a page in the file.
    """
    # Statistics of ANALYZE are harmless. The SQL of a full-text table's internal tables depends on
    # the version of SQLite, so only their names are compared.
    rows = connection.execute(
        "SELECT type, name, CASE WHEN name GLOB 'words_*' AND type = 'table' THEN '' ELSE sql END,"
        " rootpage > 0 FROM sqlite_master WHERE name NOT GLOB 'sqlite_stat*' LIMIT 100"
    )
    return frozenset(
        (kind, name, " ".join((sql or "").split()), is_stored)
        for kind, name, sql, is_stored in rows
    )


def use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch the file to write-ahead logging.

    Retries for up to `BUSY_SECONDS`, because SQLite fails while another process switches the file.
    """
    deadline = monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if get_sqlite_result_code(error) != sqlite3.SQLITE_BUSY or monotonic() >= deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def get_sqlite_result_code(error: Exception) -> int:
    """Return the primary SQLite result code of *error*; 0 if *error* is not from SQLite."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


class Damage(sqlite3.DatabaseError):
    """Raised if an SQLite file is damaged, or was written by another program or version."""


FAILURES: Final = (sqlite3.Error, UnicodeDecodeError)
"""The exceptions that Python's module `sqlite3` raises.

`UnicodeDecodeError` comes from a damaged file whose names or texts are not UTF-8.
"""


def is_damage_error(error: Exception) -> bool:
    """Return whether *error* is caused by a file's content, such as a damaged page.

    Returns ``False`` if the file cannot be accessed, for example without permissions.
    """
    return (
        isinstance(error, Damage | UnicodeDecodeError)
        or get_sqlite_result_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        or _UNDECODED in str(error)
    )


def is_wrong_file_error(error: Exception) -> bool:
    """Return whether *error*, raised on opening a file, means that it is the wrong file.

    A wrong file is damaged, or was written by another program.
    """
    # SQLite reports a missing table as a general error.
    return is_damage_error(error) or get_sqlite_result_code(error) == sqlite3.SQLITE_ERROR


def describe_sqlite_error(error: Exception) -> str:
    """Return the message of an SQLite *error*, without any text from the file."""
    # If a text is not UTF-8, Python's message quotes the whole text.
    is_undecoded = isinstance(error, UnicodeDecodeError) or _UNDECODED in str(error)
    return "a text in it is not UTF-8" if is_undecoded else str(error)
