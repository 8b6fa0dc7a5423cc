"""The ledger: what was read, written by the model and embedded, kept as soon as it is there."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import StoreError
from qtmiddleware.protocols import Store
from qtmiddleware.providers.stores import MemoryStore
from qtmiddleware.providers.stores.sqlite.files import FAILURES, MEMORY, describe_error, is_damage
from qtmiddleware.rag.ingestion.schema import open_ledger

_RUN_TABLES: Final = ("target", "publishing", "todo")

Values = Sequence[Any] | Mapping[str, Any]


class Ledger:
    """The database at *path*, for one run at a time. Raises `StoreError` for whatever goes wrong with it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.in_use = threading.Lock()
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._connection = open_ledger(path)

    def __del__(self) -> None:
        # That of a store in memory ends with it.
        self.close()

    def rows(self, statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Everything *statement* answers; it is written where it stands outside of a transaction."""
        with self._used() as run:
            return run.execute(statement, values).fetchall()

    def value(self, statement: str, values: Values = ()) -> Any:
        """The one value *statement* answers, or ``None``."""
        found = self.rows(statement, values)
        return found[0][0] if found else None

    def stream(self, statement: str, values: Values = ()) -> Iterator[tuple[Any, ...]]:
        """What *statement* answers, row by row, as it is asked for.

        Until it has ended the log of what is written meanwhile only grows.
        """
        with self._used() as run:
            cursor = run.execute(statement, values)
        while True:
            with self._used():
                row = cursor.fetchone()
            if row is None:
                return
            yield row

    def pages(self, statement: str, size: int) -> Iterator[list[tuple[Any, ...]]]:
        """What *statement* answers, *size* rows at a time; in between the ledger may be written to at length.

        The statement takes the number behind which to go on and how many rows, and answers that number first.
        """
        last = 0
        while page := self.rows(statement, [last, size]):
            last = page[-1][0]
            yield page

    def insert(self, statement: str, values: Values) -> int:
        """Perform *statement*; answers the number of the row it made."""
        with self._used() as run:
            return run.execute(statement, values).lastrowid or 0

    def many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Perform *statement* for each of *rows*, all or none."""
        with self.transaction(), self._used() as run:
            run.executemany(statement, rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is written inside, or nothing; one inside of another is part of it."""
        with self._lock:
            with self._used() as run:
                nested = run.in_transaction
                if not nested:
                    run.execute("BEGIN IMMEDIATE")
            try:
                yield
                if not nested:
                    with self._used() as run:
                        run.execute("COMMIT")
            finally:
                if not nested and self._connection is not None and self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def clear_run(self) -> None:
        """Forget what one run works at."""
        with self.transaction():
            for table in _RUN_TABLES:
                self.rows(f"DELETE FROM temp.{table}")

    def close(self) -> None:
        """Let go of the file; closing twice does no harm."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _used(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._connection is None:
                raise StoreError(f"{self.path} is closed")
            try:
                yield self._connection
            except FAILURES as error:
                if is_damage(error):
                    # The cause may quote a text of the file.
                    raise self.damaged(describe_error(error)) from None
                raise StoreError(f"{self.path}, which ingest keeps beside the index, failed: {error}") from error

    def damaged(self, why: str) -> StoreError:
        """The error for something in the file that cannot be what was written there."""
        return StoreError(
            f"{self.path}, which ingest keeps beside the index, is damaged ({why}); move it away, and everything is "
            "embedded again"
        )


# A store in memory lives as long as its object, and so does the ledger of what it holds.
_of_memory: Final[WeakKeyDictionary[Store, Ledger]] = WeakKeyDictionary()
_making: Final = threading.Lock()


def ledger_path(settings: Settings) -> str:
    """The ledger's file. What several namespaces of Pinecone hold is told apart, though they share an ``indexPath``."""
    path, options = Path(settings.index_path).expanduser(), settings.store
    if options.kind != "pinecone":
        return f"{path}.ingest"
    place = "\0".join((options.host or options.index or "", options.namespace))
    return f"{path}.{hashlib.sha256(place.encode('utf-8', 'replace')).hexdigest()[:8]}.ingest"


@contextmanager
def ledger_for(settings: Settings, store: Store | None) -> Iterator[Ledger]:
    """The ledger beside the index, or in memory where that is, held by nobody else until the end of the block."""
    if isinstance(store, MemoryStore):
        with _making:
            if store not in _of_memory:
                _of_memory[store] = Ledger(MEMORY)
            ledger = _of_memory[store]
        if not ledger.in_use.acquire(blocking=False):
            raise StoreError("another ingest is running into this store; wait until it has ended")
        try:
            yield ledger
        finally:
            ledger.clear_run()
            ledger.in_use.release()
        return
    in_memory = store is None and (settings.store.kind == "memory" or settings.index_path == MEMORY)
    ledger = Ledger(MEMORY if in_memory else ledger_path(settings))
    try:
        yield ledger
    finally:
        ledger.close()
