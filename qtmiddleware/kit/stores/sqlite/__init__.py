"""Store passages in one SQLite file, and compare a query with all their vectors in numpy."""

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
    ClosingStore,
    Row,
    build_row_batches,
    convert_query_vector,
    extract_index_words,
    extract_query_words,
    pair_vectors,
    select_storable_ids,
)
from qtmiddleware.kit.stores.sqlite.connections import Connections
from qtmiddleware.kit.stores.sqlite.files import MEMORY, Damage
from qtmiddleware.kit.stores.sqlite.memory_copy import NO_OBJECT, MemoryCopy, read_meta_value
from qtmiddleware.protocols import Filter, Passage, Record

if TYPE_CHECKING:
    from qtmiddleware.kit.stores.passages import Floats

_INSERT: Final = "INSERT INTO passages (id, text, metadata, vector) VALUES (?, ?, ?, ?)"
_INSERT_WORDS: Final = "INSERT INTO words (rowid, text) VALUES (?, ?)"
# The full-text table has no copy of its texts, so removing an entry needs the text again.
_DELETE_WORDS: Final = "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)"
# The column "rank" is lower for better matches, so its sign is changed.
_KEYWORDS: Final = "SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank"


class SQLiteStore(ClosingStore):
    """Keeps passages in one SQLite file, and finds them by vector or by word.

    Use this store for up to about 100,000 passages. Each search compares the query with all
    vectors, in memory, by cosine. After the first search with a filter, the metadata is in memory,
    too. Writes by other processes are visible in the next search.

    Thread-safe. In a file, searches do not wait for writes. After a fork, the child process opens
    its own connections. A write is saved completely or not at all, even if the process is killed. A
    power failure may undo the last writes, each of them completely.

    Args:
        path: the path of a file, or ``":memory:"``. The store creates the file and its folders if
            they do not exist. Only the owner can read a new file.
        embedding_model: the model of all vectors; saved in the file.
        dimension: the length of all vectors; saved in the file.

    Raises:
        StoreError: if the file was created for another model or dimension, or if it cannot be
            opened, read or written.
        InvalidQuery: for an invalid filter.
        MissingExtra: if numpy is not installed.
    """

    embeds: Final = False
    atomic: Final = True

    def __init__(self, path: str | Path, *, embedding_model: str, dimension: int) -> None:
        self._path = MEMORY if str(path) == MEMORY else str(Path(path).expanduser())
        self._dimension = dimension
        self._memory_copy = MemoryCopy(dimension)
        self._connections = Connections(
            self._path, embedding_model=embedding_model, dimension=dimension
        )
        with self._connections.open_read_transaction() as connection:
            self._identity = str(read_meta_value(connection, "identity"))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._path!r}, dimension={self._dimension})"

    @property
    def identity(self) -> str:
        """The store's random name, created with the store. Copies of the store have it, too."""
        return self._identity

    def write(
        self, passages: Iterable[tuple[Passage, Sequence[float]]], *, delete: Sequence[str] = ()
    ) -> None:
        """Write *passages* with their vectors, and remove the passages with the ids in *delete*.

        All changes are one transaction. A passage replaces the stored passage with the same id. If
        several passages have the same id, the last one is stored. If an id is in both *passages*
        and *delete*, the passage is written.

        *passages* are read a few hundred at a time. If their iterator raises an exception, nothing
        is written. A store in memory reads all *passages* before it writes, because searches wait
        during the write.
        """
        batches: Iterable[tuple[list[Row], Floats]] = build_row_batches(passages, self._dimension)
        if self._connections.is_in_memory:
            batches = list(batches)
        with self._connections.open_write_transaction() as connection:
            # Removed first, so that a passage with a removed id is written.
            for id_ in select_storable_ids(delete):
                _delete_passage(connection, id_)
            for rows, vectors in batches:
                # The file can be moved between machines with different byte orders.
                for row, vector in zip(rows, vectors.astype("<f4"), strict=True):
                    _write_passage(connection, row, vector.tobytes())
            connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'changes'")

    def upsert(self, passages: Sequence[Passage], vectors: Sequence[Sequence[float]]) -> None:
        """Write *passages* with their *vectors*, in one transaction.

        A passage replaces the stored passage with the same id. If several passages have the same
        id, the last one is stored.
        """
        self.write(pair_vectors(passages, vectors))

    def delete(self, ids: Sequence[str]) -> None:
        """Remove the passages with these *ids*, in one transaction. Unknown ids are ignored."""
        self.write((), delete=ids)

    def count(self) -> int:
        """Return the number of passages."""
        with self._connections.open_read_transaction() as connection:
            count: int = connection.execute("SELECT count(*) FROM passages").fetchone()[0]
        return count

    def search(
        self,
        query: Sequence[float] | str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """Return the *top_k* passages nearest to the vector *query* that meet *filter*, best first.

        Each result is a dictionary with the keys ``id``, ``score``, ``text`` and ``metadata``. The
        score is the cosine, from -1 to 1, rounded to six decimals. Passages with equal scores are
        sorted by id. Raises `StoreError` if *query* is a text.
        """
        vector = convert_query_vector(query, self._dimension)
        with self._connections.open_read_transaction() as connection:
            matrix = self._memory_copy.read_vectors(connection)
            allowed = self._memory_copy.find_matching_rows(connection, filter) if filter else None
            return [
                _read_record(connection, row, score)
                for row, score in matrix.find_nearest_vectors(vector, top_k, allowed)
            ]

    def keyword_search(
        self,
        text: str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """Return the *top_k* passages that best match the words of *text* and meet *filter*.

        The best passage comes first. Results have the same keys as those of `search`. The score is
        BM25 (k1 1.2, b 0.75; Robertson and Zaragoza 2009); greater is better. Passages with equal
        scores are sorted by id.

        The search covers each passage's text and the field ``context`` of its metadata. *text* has
        no query syntax. In scripts without spaces, each pair of adjacent characters is a word.
        """
        words = " OR ".join(f'"{word}"' for word in extract_query_words(text))
        if not words or top_k < 1:
            return []
        # An open cursor would show the connection's next reader an outdated view of the file.
        with (
            self._connections.open_read_transaction() as connection,
            closing(connection.execute(_KEYWORDS, (words,))) as cursor,
        ):
            ranked: Iterator[tuple[int, float]] = cursor
            if filter:
                allowed = frozenset(
                    self._memory_copy.find_matching_rows(connection, filter).tolist()
                )
                ranked = (match for match in ranked if match[0] in allowed)
            # SQLite returns equal scores in any order, so they are sorted by id below.
            records = [
                _read_record(connection, row, score)
                for row, score in _take_best_matches_with_ties(ranked, top_k)
            ]
        return sorted(records, key=lambda record: (-record["score"], record["id"]))[:top_k]

    def close(self) -> None:
        """Close the file; you can call this more than once."""
        self._connections.close()
        self._memory_copy.clear()


def _take_best_matches_with_ties(
    ranked_matches: Iterator[tuple[int, float]], top_k: int
) -> list[tuple[int, float]]:
    """Return the first *top_k* matches, and all later matches that tie with the last of them.

    *ranked_matches* are (row number, score) pairs, best first. The caller can then sort tied
    matches by id.
    """
    matches = list(islice(ranked_matches, top_k))
    return [*matches, *takewhile(lambda match: match[1] == matches[-1][1], ranked_matches)]


def _write_passage(connection: sqlite3.Connection, row: Row, vector_bytes: bytes) -> None:
    """Write a passage with its vector, replacing the stored passage with the same id."""
    id_, text, metadata = row
    _delete_passage(connection, id_)
    number = connection.execute(_INSERT, (id_, text, metadata, vector_bytes)).lastrowid
    connection.execute(_INSERT_WORDS, (number, extract_index_words(text, metadata)))


def _delete_passage(connection: sqlite3.Connection, id_: str) -> None:
    """Remove the passage with this id, and its words from the word index. Ignore an unknown id."""
    for row, text, metadata in connection.execute(
        "SELECT row, text, metadata FROM passages WHERE id = ?", (id_,)
    ).fetchall():
        try:
            words = extract_index_words(text, metadata)
        except (TypeError, ValueError, AttributeError):
            raise Damage(NO_OBJECT) from None
        connection.execute(_DELETE_WORDS, (row, words))
        connection.execute("DELETE FROM passages WHERE row = ?", (row,))


def _read_record(connection: sqlite3.Connection, row_number: int, score: float) -> Record:
    """Return a record of the passage in the row *row_number*, with this *score*."""
    columns = connection.execute(
        "SELECT id, text, metadata FROM passages WHERE row = ?", (row_number,)
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
    """Open the SQLite store at ``indexPath``, for vectors of *embedding_model*.

    Raises `StoreError` if the store cannot be opened.
    """
    return SQLiteStore(settings.index_path, embedding_model=embedding_model, dimension=dimension)
