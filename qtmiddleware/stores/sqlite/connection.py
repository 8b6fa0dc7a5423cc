"""One connection to a store's file."""

from __future__ import annotations

import sqlite3
import weakref
from typing import Any

from qtmiddleware.stores.sqlite.files import BUSY_SECONDS, LOG_BYTES
from qtmiddleware.stores.words import index_text


class Connection(sqlite3.Connection):
    """A connection that knows what interrupted a function of ours, such as Ctrl-C: SQLite keeps that to itself."""

    interruption: BaseException | None = None


def connect(path: str) -> Connection:
    """One more connection to a store's file that was opened before."""
    connection = connection_to(path)
    try:
        tune(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def connection_to(path: str) -> Connection:
    """A connection that nothing was asked of yet; the file may be anything."""
    # Transactions are begun and ended by hand; whoever lends a connection out lets one thread in at a time.
    return sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, factory=Connection
    )


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
