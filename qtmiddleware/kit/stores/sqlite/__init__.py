"""A store in one file: SQLite for passages, vectors and words, numpy for exact search."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.stores.passages import (
    LocalStore,
    Row,
    check_batches,
    check_query,
    extract_index_words,
    extract_query_words,
    filter_ids,
)
from qtmiddleware.kit.stores.sqlite.connections import Connections
from qtmiddleware.kit.stores.sqlite.files import MEMORY, Damage
from qtmiddleware.kit.stores.sqlite.memory_copy import NO_OBJECT, MemoryCopy, read_meta
from qtmiddleware.protocols import Filter, Passage, Record

if TYPE_CHECKING:
    from qtmiddleware.kit.stores.passages import Floats

_INSERT: Final = "INSERT INTO passages (id, text, metadata, vector) VALUES (?, ?, ?, ?)"
_INSERT_WORDS: Final = "INSERT INTO words (rowid, text) VALUES (?, ?)"
# The full-text table keeps no copy of its texts, so it has to be given a text again to remove it.
_DELETE_WORDS: Final = "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)"
_KEYWORDS: Final = "SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank"


class SQLiteStore(LocalStore):
    """Keeps passages with their vectors and words in one file, and finds them by either.

    It is good for up to about 100,000 passages. Vectors are searched exactly, by cosine, in memory.
    The metadata is held in memory too, once a filter was used. The next search sees what another
    process has written.

    It is thread-safe. A search does not wait for a write if there is a file; a forked process has
    connections of its own. A write is saved completely or not at all, even if the process is
    killed; a power cut may undo the last writes, each one as a whole.

    Args:
        path: a file, created with its folders if it does not exist, and readable by its owner
            alone; or ``":memory:"``.
        embedding_model: the model of all vectors; saved in the file.
        dimension: the length of all vectors; saved in the file.

    Raises:
        StoreError: if the file was made with another model or dimension, or cannot be opened, read
            or written.
        InvalidQuery: for an impossible filter.
        MissingExtra: without numpy.
    """

    def __init__(self, path: str | Path, *, embedding_model: str, dimension: int) -> None:
        self._path = MEMORY if str(path) == MEMORY else str(Path(path).expanduser())
        self._dimension = dimension
        self._memory_copy = MemoryCopy(dimension)
        self._connections = Connections(
            self._path, embedding_model=embedding_model, dimension=dimension
        )
        with self._connections.reading() as connection:
            self._identity = str(read_meta(connection, "identity"))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._path!r}, dimension={self._dimension})"

    def write(
        self, passages: Iterable[tuple[Passage, Sequence[float]]], *, delete: Sequence[str] = ()
    ) -> None:
        """Write *passages*, and remove the passages with the ids *delete*, as one change.

        A passage replaces the one with the same id. Of several passages with one id, the last one
        stays. A passage whose id is also in *delete* is written, not removed.

        *passages* are read a few hundred at a time. If their iterator raises, the exception is
        passed on and nothing is written. A store in memory reads all of them before it writes, as
        its readers would have to wait.
        """
        batches: Iterable[tuple[list[Row], Floats]] = check_batches(passages, self._dimension)
        if self._connections.in_memory:
            batches = list(batches)
        with self._connections.writing() as connection:
            for id_ in filter_ids(delete):
                _delete_row(connection, id_)
            for rows, vectors in batches:
                for row, vector in zip(rows, vectors.astype("<f4"), strict=True):
                    _write_row(connection, row, vector.tobytes())
            connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'changes'")

    def count(self) -> int:
        """Return the number of passages."""
        with self._connections.reading() as connection:
            count: int = connection.execute("SELECT count(*) FROM passages").fetchone()[0]
        return count

    def search(
        self,
        query: Sequence[float] | str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """Return the nearest passages that meet *filter*, best first.

        Each is ``{"id", "score", "text", "metadata"}``. The score is the cosine, from -1 to 1,
        rounded to six decimals; passages with equal scores are sorted by id. *query* is a vector; a
        text raises `StoreError`.
        """
        vector = check_query(query, self._dimension)
        with self._connections.reading() as connection:
            matrix = self._memory_copy.read_vectors(connection)
            allowed = self._memory_copy.find_rows(connection, filter) if filter else None
            return [
                _read_record(connection, row, score)
                for row, score in matrix.find_nearest(vector, top_k, allowed)
            ]

    def keyword_search(
        self,
        text: str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """Return the passages that match the words of *text* best and meet *filter*, best first.

        They have the same form as those of `search`. The words of the text ``context`` in the
        metadata count as the passage's own. The score is BM25 (k1 1.2, b 0.75; Robertson and
        Zaragoza 2009); greater is better, and passages with equal scores are sorted by id. Nothing
        in *text* is read as query syntax. In scripts without spaces, every pair of neighbouring
        characters is a word.
        """
        words = " OR ".join(f'"{word}"' for word in extract_query_words(text))
        if not words or top_k < 1:
            return []
        # The cursor is closed: an open query would keep its view of the file for the connection's
        # next reader.
        with (
            self._connections.reading() as connection,
            closing(connection.execute(_KEYWORDS, (words,))) as cursor,
        ):
            ranked: Iterator[tuple[int, float]] = cursor
            if filter:
                allowed = frozenset(self._memory_copy.find_rows(connection, filter).tolist())
                ranked = (match for match in ranked if match[0] in allowed)
            records = [
                _read_record(connection, row, score)
                for row, score in _take_with_ties(ranked, top_k)
            ]
        return sorted(records, key=lambda record: (-record["score"], record["id"]))[:top_k]

    def close(self) -> None:
        """Close the file; closing it twice does no harm."""
        self._connections.close()
        self._memory_copy.clear()


def _take_with_ties(ranked: Iterator[tuple[int, float]], top_k: int) -> list[tuple[int, float]]:
    """Return the first *top_k* matches, and all others with the score of the last one.

    Without the others, chance would choose among matches with equal scores.
    """
    matches = list(islice(ranked, top_k))
    return [*matches, *takewhile(lambda match: match[1] == matches[-1][1], ranked)]


def _write_row(connection: sqlite3.Connection, row: Row, vector: bytes) -> None:
    """Write *row* with its *vector*, in place of the row with the same id."""
    id_, text, metadata = row
    _delete_row(connection, id_)
    number = connection.execute(_INSERT, (id_, text, metadata, vector)).lastrowid
    connection.execute(_INSERT_WORDS, (number, extract_index_words(text, metadata)))


def _delete_row(connection: sqlite3.Connection, id_: str) -> None:
    """Remove the row with this id, if there is one, and its words."""
    for row, text, metadata in connection.execute(
        "SELECT row, text, metadata FROM passages WHERE id = ?", (id_,)
    ).fetchall():
        try:
            words = extract_index_words(text, metadata)
        except (TypeError, ValueError, AttributeError):
            raise Damage(NO_OBJECT) from None
        connection.execute(_DELETE_WORDS, (row, words))
        connection.execute("DELETE FROM passages WHERE row = ?", (row,))


def _read_record(connection: sqlite3.Connection, row: int, score: float) -> Record:
    """Return the passage in *row* as a record."""
    columns = connection.execute(
        "SELECT id, text, metadata FROM passages WHERE row = ?", (row,)
    ).fetchone()
    if columns is None:
        raise Damage("an index of it names passages that are not there")
    id_, text, metadata = columns
    try:
        fields = dict(json.loads(metadata))
    except (TypeError, ValueError):
        raise Damage(NO_OBJECT) from None
    return {"id": id_, "score": score, "text": text, "metadata": fields}


def open_store(settings: Settings, *, embedding_model: str, dimension: int) -> SQLiteStore:
    """Open the store at ``indexPath``, for vectors of *embedding_model*; raises `StoreError`."""
    return SQLiteStore(settings.index_path, embedding_model=embedding_model, dimension=dimension)
