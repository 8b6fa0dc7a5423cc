"""One connection to a store's file."""

from __future__ import annotations

import sqlite3
import weakref
from typing import Any

from qtmiddleware.providers.stores.sqlite.files import BUSY_SECONDS, LOG_BYTES, connect_file
from qtmiddleware.providers.stores.words import index_text


class Connection(sqlite3.Connection):
    """A connection that knows what interrupted a function of ours, such as Ctrl-C: SQLite keeps that to itself."""

    interruption: BaseException | None = None


def connect(path: str) -> Connection:
    """One more connection to a store's file that was opened before."""
    connection: Connection = connect_file(path, timeout=BUSY_SECONDS, factory=Connection)
    try:
        tune(connection)
    except BaseException:
        connection.close()
        raise
    return connection


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
