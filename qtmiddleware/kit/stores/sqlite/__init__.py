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
    check_query,
    check_slices,
    filter_ids,
    index_text,
    query_words,
)
from qtmiddleware.kit.stores.sqlite.connections import Connections
from qtmiddleware.kit.stores.sqlite.files import MEMORY, Damage
from qtmiddleware.kit.stores.sqlite.memory_copy import NO_OBJECT, MemoryCopy, read_meta
from qtmiddleware.protocols import Filter, Passage, Record

if TYPE_CHECKING:
    from qtmiddleware.kit.stores.passages import Floats

_INSERT: Final = "INSERT INTO passages (id, text, metadata, vector) VALUES (?, ?, ?, ?)"
_INSERT_WORDS: Final = "INSERT INTO words (rowid, text) VALUES (?, ?)"
# The full-text table keeps no copy of what it was given, and wants it back to forget it.
_DELETE_WORDS: Final = "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)"
_KEYWORDS: Final = "SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank"


class SQLiteStore(LocalStore):
    """Keeps passages, their vectors and their words in one file, and finds them by either; good to about 100,000.

    *path* is a file, made with its folders if it is not there and readable by its owner alone, or
    ``":memory:"``.
    *embedding_model* and *dimension* are kept in it; opening it with others raises `StoreError`.

    Vectors are searched exactly, by cosine, in memory; metadata is held there too once a filter was
    used. What another process has written is seen by the next search. Safe to share among threads,
    and a search waits for no write where there is a file; a forked process has connections of its
    own. A write is kept whole or not at all, also when the process is killed; a power cut may take
    back the last writes, each whole.

    Raises `StoreError` whenever the file cannot be opened, read or written, `InvalidQuery` for an
    impossible filter and `MissingExtra` without numpy.
    """

    def __init__(self, path: str | Path, *, embedding_model: str, dimension: int) -> None:
        self._path = MEMORY if str(path) == MEMORY else str(Path(path).expanduser())
        self._dimension = dimension
        self._held = MemoryCopy(dimension)
        self._connections = Connections(
            self._path, embedding_model=embedding_model, dimension=dimension
        )
        with self._connections.reading() as run:
            self._identity = str(read_meta(run, "identity"))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._path!r}, dimension={self._dimension})"

    def write(
        self, passages: Iterable[tuple[Passage, Sequence[float]]], *, delete: Sequence[str] = ()
    ) -> None:
        """Write *passages*, replacing those of the same id, and remove those of the ids *delete*, as one change.

        *passages* are taken as they come, a few hundred at a time; what they raise passes through
        and nothing is written. Of several with one id the last stays; an id in both is written, not
        removed. A store in memory takes all of *passages* before it writes, as its readers would
        have to wait.
        """
        slices: Iterable[tuple[list[Row], Floats]] = check_slices(passages, self._dimension)
        if self._connections.in_memory:
            slices = list(slices)
        with self._connections.writing() as run:
            for id_ in filter_ids(delete):
                _delete_row(run, id_)
            for rows, vectors in slices:
                for row, vector in zip(rows, vectors.astype("<f4"), strict=True):
                    _write_row(run, row, vector.tobytes())
            run.execute("UPDATE meta SET value = value + 1 WHERE key = 'changes'")

    def count(self) -> int:
        """How many passages there are."""
        with self._connections.reading() as run:
            found: int = run.execute("SELECT count(*) FROM passages").fetchone()[0]
        return found

    def search(
        self,
        query: Sequence[float] | str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """The nearest passages that meet *filter*, best first, as ``{"id", "score", "text", "metadata"}``.

        The score is the cosine, -1 to 1, to six decimals; passages of equal score come by id.
        *query* is a vector; a text raises `StoreError`.
        """
        vector = check_query(query, self._dimension)
        with self._connections.reading() as run:
            matrix = self._held.vectors(run)
            allowed = self._held.rows(run, filter) if filter else None
            return [
                _read_record(run, row, score)
                for row, score in matrix.find_nearest(vector, top_k, allowed)
            ]

    def keyword_search(
        self,
        text: str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """The passages that share the weightiest words with *text* and meet *filter*, in the shape of `search`.

        The words of a text in the metadata's ``context`` count as the passage's own. The score is
        BM25 (k1 1.2, b 0.75; Robertson and Zaragoza 2009), greater is better, and passages of equal
        score come by id. Nothing in *text* is read as query syntax; of scripts without spaces every
        pair of neighbouring characters is a word.
        """
        words = " OR ".join(f'"{word}"' for word in query_words(text))
        if not words or top_k < 1:
            return []
        # A query that is left open would keep its view of the file for the connection's next
        # reader.
        with (
            self._connections.reading() as run,
            closing(run.execute(_KEYWORDS, (words,))) as cursor,
        ):
            ranked: Iterator[tuple[int, float]] = cursor
            if filter:
                allowed = frozenset(self._held.rows(run, filter).tolist())
                ranked = (one for one in ranked if one[0] in allowed)
            found = [_read_record(run, row, score) for row, score in _take_with_ties(ranked, top_k)]
        return sorted(found, key=lambda one: (-one["score"], one["id"]))[:top_k]

    def close(self) -> None:
        """Let go of the file; closing twice does no harm."""
        self._connections.close()
        self._held.clear()


def _take_with_ties(ranked: Iterator[tuple[int, float]], top_k: int) -> list[tuple[int, float]]:
    """The first *top_k*, and all that tie with the last of them, or chance would choose among those."""
    found = list(islice(ranked, top_k))
    return [*found, *takewhile(lambda one: one[1] == found[-1][1], ranked)]


def _write_row(run: sqlite3.Connection, row: Row, vector: bytes) -> None:
    """Write *row* with its *vector* in place of the one of the same id."""
    id_, text, metadata = row
    _delete_row(run, id_)
    number = run.execute(_INSERT, (id_, text, metadata, vector)).lastrowid
    run.execute(_INSERT_WORDS, (number, index_text(text, metadata)))


def _delete_row(run: sqlite3.Connection, id_: str) -> None:
    """Remove the row of this id, if there is one, and its words."""
    for row, text, metadata in run.execute(
        "SELECT row, text, metadata FROM passages WHERE id = ?", (id_,)
    ).fetchall():
        try:
            words = index_text(text, metadata)
        except (TypeError, ValueError, AttributeError):
            raise Damage(NO_OBJECT) from None
        run.execute(_DELETE_WORDS, (row, words))
        run.execute("DELETE FROM passages WHERE row = ?", (row,))


def _read_record(run: sqlite3.Connection, row: int, score: float) -> Record:
    """Returns the passage in *row*."""
    held = run.execute("SELECT id, text, metadata FROM passages WHERE row = ?", (row,)).fetchone()
    if held is None:
        raise Damage("an index of it names passages that are not there")
    id_, text, metadata = held
    try:
        facts = dict(json.loads(metadata))
    except (TypeError, ValueError):
        raise Damage(NO_OBJECT) from None
    return {"id": id_, "score": score, "text": text, "metadata": facts}


def open_store(settings: Settings, *, embedding_model: str, dimension: int) -> SQLiteStore:
    """The store that *settings* describe, for vectors of *embedding_model*; raises `StoreError`."""
    return SQLiteStore(settings.index_path, embedding_model=embedding_model, dimension=dimension)
