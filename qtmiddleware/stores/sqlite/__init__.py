"""A store in one file: SQLite for passages, vectors and words, numpy for exact search."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.errors import StoreError
from qtmiddleware.ports import Passage
from qtmiddleware.stores.sqlite.matrix import Matrix, checked_vectors, empty_matrix
from qtmiddleware.stores.sqlite.schema import MEMORY, open_database

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["SQLiteStore"]

_WORD: Final = r"[\p{L}\p{N}\p{M}\p{Co}]+"
"""What the full-text index takes for a word."""
_SLICE: Final = 500
"""Values in one statement; some builds of SQLite allow no more than 999."""
_UPSERT: Final = """
INSERT INTO passages (id, text, metadata, vector, changed) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (namespace, id) DO UPDATE SET
    text = excluded.text, metadata = excluded.metadata, vector = excluded.vector, changed = excluded.changed
"""
_KEYWORDS: Final = """
SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?
"""


class SQLiteStore:
    """Keeps passages, their vectors and their words in one file, and finds them by either; good to about 100,000.

    *path* is a file, made with its folders if it is not there and readable by its owner alone, or ``":memory:"``.
    *embedding_model* and *dimension* are kept in it; opening it with others raises `StoreError`.

    Vectors are searched exactly, by cosine, in memory. What another process has written is seen by the next search.
    Safe to share among threads; open it after forking, not before. A batch is written whole or not at all, also when
    the process is killed; a power cut may take back the last batches, each whole.

    Raises `StoreError` whenever the file cannot be opened, read or written, and `MissingExtra` without numpy.
    """

    def __init__(self, path: str | Path, *, embedding_model: str, dimension: int) -> None:
        self._path = MEMORY if str(path) == MEMORY else str(Path(path).expanduser())
        self._dimension = dimension
        self._lock = threading.RLock()
        self._matrix: Matrix | None = None
        self._connection = open_database(self._path, embedding_model=embedding_model, dimension=dimension)

    def __repr__(self) -> str:
        return f"SQLiteStore({self._path!r}, dimension={self._dimension})"

    def __enter__(self) -> SQLiteStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def upsert(self, passages: Sequence[Passage], vectors: Sequence[Sequence[float]]) -> None:
        """Write *passages*, replacing those of the same id; all of them or none.

        Of several with one id, the last stays.
        """
        if len(passages) != len(vectors):
            raise StoreError(f"{len(passages)} passages came with {len(vectors)} vectors; each needs its own")
        array = checked_vectors(vectors, self._dimension).astype("<f4")
        rows = [_row(passage) for passage in passages]
        if not rows:
            return
        with self._transaction("written to") as run:
            change = self._next(run, "changes")
            run.executemany(
                _UPSERT, ((*row, vector.tobytes(), change) for row, vector in zip(rows, array, strict=True))
            )

    def delete(self, ids: Sequence[str]) -> int:
        """Remove the passages of these *ids*, all or none; answers how many there were."""
        wanted = list(dict.fromkeys(ids))
        with self._transaction("written to") as run:
            gone = sum(
                run.execute(f"DELETE FROM passages WHERE namespace = '' AND id IN ({_marks(part)})", part).rowcount
                for part in _parts(wanted)
            )
            if gone:
                self._next(run, "deletions")
        return gone

    def count(self) -> int:
        """How many passages there are."""
        with self._reading() as run:
            found: int = run.execute("SELECT count(*) FROM passages").fetchone()[0]
        return found

    def search(self, vector: Sequence[float], top_k: int) -> list[dict[str, Any]]:
        """The nearest passages, best first, as ``{"id", "score", "text", "metadata"}``.

        The score is the cosine, -1 to 1, to six decimals; passages of equal score come by id.
        """
        query = checked_vectors([vector], self._dimension)[0]
        found = self._current().nearest(query, top_k)
        with self._reading() as run:
            return _records(run, found)

    def keyword_search(self, text: str, top_k: int) -> list[dict[str, Any]]:
        """The passages that share most words with *text*, best first, in the shape of `search`.

        The score is BM25 (k1 1.2, b 0.75; Robertson and Zaragoza 2009), greater is better. Nothing in *text* is read as
        query syntax.
        """
        import regex

        words = dict.fromkeys(regex.findall(_WORD, text))
        if not words or top_k < 1:
            return []
        with self._reading() as run:
            return _records(run, run.execute(_KEYWORDS, (" OR ".join(f'"{word}"' for word in words), top_k)).fetchall())

    def close(self) -> None:
        """Let go of the file; closing twice does no harm."""
        with self._lock:
            self._connection.close()
            self._matrix = None

    def _current(self) -> Matrix:
        """The vectors as they stand in the file now; only what changed since the last look is read."""
        with self._reading() as run:
            held = dict(run.execute("SELECT key, value FROM meta WHERE key IN ('changes', 'deletions')"))
            matrix = self._matrix
            if matrix is None or matrix.deletions != held["deletions"]:
                matrix = empty_matrix(self._dimension, held["deletions"])
            if matrix.changes != held["changes"]:
                new = run.execute(
                    "SELECT row, id, vector FROM passages WHERE changed > ?", (matrix.changes,)
                ).fetchall()
                matrix = matrix.updated(held["changes"], new)
            self._matrix = matrix
            return matrix

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent view of the file."""
        with self._locked("read", "BEGIN") as run:
            yield run

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        """All that is written inside, or nothing."""
        with self._locked(doing, "BEGIN IMMEDIATE") as run:
            yield run

    @contextmanager
    def _locked(self, doing: str, begin: str) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock:
                self._connection.execute(begin)
                try:
                    yield self._connection
                    self._connection.execute("COMMIT")
                finally:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise StoreError(f"the store {self._path} could not be {doing}: {error}") from error

    @staticmethod
    def _next(run: sqlite3.Connection, counter: str) -> int:
        """Advance a counter that tells readers of a change."""
        run.execute("UPDATE meta SET value = value + 1 WHERE key = ?", (counter,))
        value: int = run.execute("SELECT value FROM meta WHERE key = ?", (counter,)).fetchone()[0]
        return value


def _row(passage: Passage) -> tuple[str, str, str]:
    """A passage's id, text and metadata as they are stored."""
    try:
        passage.id.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise StoreError(f"the id {passage.id!r} is not text that can be stored; nothing was written") from error
    # A surrogate that stands alone comes of broken decoding and has no UTF-8; the rest of the text is worth keeping.
    text = passage.text.encode("utf-8", "replace").decode()
    return passage.id, text, _json(passage.id, passage.metadata)


def _json(passage_id: str, metadata: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(metadata))
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"the metadata of the passage {passage_id!r} is not JSON ({error}); nothing was written"
        ) from error


def _parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(values), _SLICE):
        yield values[start : start + _SLICE]


def _marks(values: Sequence[Any]) -> str:
    return ",".join("?" * len(values))


def _records(run: sqlite3.Connection, found: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
    """The rows that were found, read; one that another process removed in the meantime is left out."""
    held: dict[int, tuple[str, str, str]] = {}
    for part in _parts([row for row, _ in found]):
        rows = run.execute(f"SELECT row, id, text, metadata FROM passages WHERE row IN ({_marks(part)})", part)
        held.update({row: (id_, text, metadata) for row, id_, text, metadata in rows})
    return [
        {"id": held[row][0], "score": score, "text": held[row][1], "metadata": json.loads(held[row][2])}
        for row, score in found
        if row in held
    ]
