"""Store passages in one SQLite file, and compare a query with all their vectors in numpy."""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from itertools import islice, takewhile
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from qtmiddleware.errors import StoreError
from qtmiddleware.kit.stores.database import MEMORY, connect, explain_errors, open_database
from qtmiddleware.kit.stores.filters import build_matcher
from qtmiddleware.kit.stores.passages import (
    CATEGORIES,
    ClosingStore,
    build_row,
    convert_vectors,
    extract_index_words,
    extract_query_words,
    normalise_vectors,
    pair_vectors,
)
from qtmiddleware.protocols import Filter, Passage, Record
from qtmiddleware.runtime.forking import leave_to_parent, make_lock, register_fork_reset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from qtmiddleware.kit.stores.passages import Floats

    Rows = NDArray[np.int64]

BATCH: Final = 500
"""The number of passages per batch of a write. Only one batch is in memory at a time."""
DIGITS: Final = 6
"""The number of decimals of a score. More would be rounding errors, and sort ties randomly."""

_VERSION: Final = 5
_TABLES: Final = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
    """CREATE TABLE passages (
        row INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        vector BLOB NOT NULL,
        text TEXT NOT NULL,
        metadata TEXT NOT NULL
    )""",
    f"""CREATE VIRTUAL TABLE words USING fts5 (
        text, tokenize="unicode61 remove_diacritics 2 categories '{CATEGORIES}'"
    )""",
)
_DELETE_WORDS: Final = "DELETE FROM words WHERE rowid = (SELECT row FROM passages WHERE id = ?)"
_DELETE_PASSAGE: Final = "DELETE FROM passages WHERE id = ?"
_INSERT_PASSAGE: Final = "INSERT INTO passages (id, text, metadata, vector) VALUES (?, ?, ?, ?)"
_INSERT_WORDS: Final = "INSERT INTO words (rowid, text) SELECT row, ? FROM passages WHERE id = ?"
# The column "rank" is lower for better matches, so its sign is changed.
_KEYWORDS: Final = "SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank"
_MOST_FILTERS: Final = 32
"""The maximum number of filters whose rows are cached. Each user may have another filter."""


class SQLiteStore(ClosingStore):
    """Keeps passages in one SQLite file, and finds them by vector or by word.

    Use this store for up to about 100,000 passages. Each search compares the query with all
    vectors, in memory, by cosine. Writes by other processes are visible in the next search.

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

    def __init__(self, path: str | Path, *, embedding_model: str, dimension: int) -> None:
        self._path = MEMORY if str(path) == MEMORY else str(Path(path).expanduser())
        self._subject = f"the index {self._path}"
        self._dimension = dimension
        self._closed = False
        # A database in memory exists in its only connection, so all its users wait for each other.
        self._one_user = RLock() if self._path == MEMORY else nullcontext()
        self._cache_lock = make_lock()
        self._changes = -1
        self._vectors: tuple[Rows, list[str], Floats] | None = None
        self._metadata: tuple[list[int], list[Any]] | None = None
        self._rows_by_filter: dict[str, Rows] = {}
        meta = {
            "embedding_model": embedding_model,
            "dimension": dimension,
            "identity": uuid4().hex,
            "changes": 0,
        }
        first = open_database(
            self._path, _TABLES, version=_VERSION, subject=self._subject, meta=meta
        )
        self._idle = deque([first])
        try:
            self._identity = self._read_identity(embedding_model)
        except BaseException:
            self.close()
            raise
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Leave the connections to the parent process after a fork."""
        if self._path != MEMORY:
            leave_to_parent(*self._idle)
            self._idle = deque()

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
        pairs = iter(list(passages) if self._path == MEMORY else passages)
        # Ids that are not valid text cannot be stored, so they need not be deleted.
        stale_ids = [(id_,) for id_ in delete if id_ == id_.encode("utf-8", "replace").decode()]
        with self._open_transaction("BEGIN IMMEDIATE") as connection:
            _delete_passages(connection, stale_ids)
            while batch := list(islice(pairs, BATCH)):
                self._write_batch(connection, batch)
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
        with self._open_transaction() as connection:
            count: int = connection.execute("SELECT count(*) FROM passages").fetchone()[0]
        return count

    def search(
        self,
        query: Sequence[float],
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """Return the *top_k* passages nearest to the vector *query* that meet *filter*, best first.

        Each result is a dictionary with the keys ``id``, ``score``, ``text`` and ``metadata``. The
        score is the cosine, from -1 to 1, rounded to six decimals. Passages with equal scores are
        sorted by id.
        """
        vector = convert_vectors([query], self._dimension)[0]
        with self._open_transaction() as connection:
            allowed = self._find_rows(connection, filter) if filter else None
            rows, ids, vectors = self._read_vectors(connection)
            return [
                _read_record(connection, row, score)
                for row, score in _find_nearest(rows, ids, vectors, vector, top_k, allowed)
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
        with self._open_transaction() as connection:
            allowed = set(self._find_rows(connection, filter).tolist()) if filter else None
            # An open cursor would show the connection's next reader an outdated view of the file.
            with closing(connection.execute(_KEYWORDS, (words,))) as cursor:
                ranked = (match for match in cursor if allowed is None or match[0] in allowed)
                best = list(islice(ranked, top_k))
                # SQLite returns equal scores in any order, so all ties are sorted by id below.
                best += takewhile(lambda match: match[1] == best[-1][1], ranked)
            records = [_read_record(connection, row, score) for row, score in best]
        return sorted(records, key=lambda record: (-record["score"], record["id"]))[:top_k]

    def close(self) -> None:
        """Close the file; you can call this more than once."""
        self._closed = True
        self._vectors = self._metadata = None
        # A connection that is still in use is closed at the end of its transaction.
        while self._idle:
            self._idle.pop().close()

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self.close()

    @contextmanager
    def _open_transaction(self, begin: str = "BEGIN") -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction. If the ``with`` block raises, no change is saved."""
        # While a file is read, odd values in it have the same cause as odd pages.
        kinds = (ValueError, TypeError, RecursionError) if begin == "BEGIN" else ()
        with self._one_user, explain_errors(self._subject, *kinds):
            if self._closed:
                raise StoreError(f"{self._subject} cannot be used: it is closed")
            try:
                connection = self._idle.pop()
            except IndexError:
                with explain_errors(self._subject, OSError):
                    connection = connect(self._path)
            try:
                connection.execute(begin)
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                self._idle.append(connection)
                if self._closed:
                    self.close()

    def _read_identity(self, embedding_model: str) -> str:
        """Return the store's identity.

        Raises `StoreError` if the stored vectors are from another model.
        """
        with self._open_transaction() as connection:
            meta = dict(connection.execute("SELECT key, value FROM meta LIMIT 10"))
            model, dimension, identity = (
                meta.get(key) for key in ("embedding_model", "dimension", "identity")
            )
        if (model, dimension) != (embedding_model, self._dimension):
            raise StoreError(
                f"{self._subject} was made with the embedding model {model!r} ({dimension} numbers"
                f" a vector) and cannot be used with {embedding_model!r} ({self._dimension}): their"
                f" vectors mean different things. Use {model!r}, or ingest again into another path"
            )
        return str(identity)

    def _write_batch(
        self, connection: sqlite3.Connection, batch: Sequence[tuple[Passage, Sequence[float]]]
    ) -> None:
        """Write the passages of *batch*, replacing stored passages with the same ids."""
        rows = [build_row(passage) for passage, _ in batch]
        ids = [row[0] for row in rows]
        vectors = convert_vectors([vector for _, vector in batch], self._dimension, passage_ids=ids)
        # Of several passages with one id, the last stays. Vectors have the same byte order on
        # every machine.
        by_id = {
            row[0]: (*row, vector.tobytes())
            for row, vector in zip(rows, vectors.astype("<f4"), strict=True)
        }
        _delete_passages(connection, [(id_,) for id_ in by_id])
        connection.executemany(_INSERT_PASSAGE, by_id.values())
        connection.executemany(
            _INSERT_WORDS,
            [(extract_index_words(row[1], row[2]), id_) for id_, row in by_id.items()],
        )

    def _read_vectors(self, connection: sqlite3.Connection) -> tuple[Rows, list[str], Floats]:
        """Return row numbers, ids and vectors of all passages; read the file only if it changed."""
        import numpy as np

        with self._cache_lock:
            self._drop_outdated(connection)
            if self._vectors is None:
                records = connection.execute("SELECT row, id, vector FROM passages").fetchall()
                # An array over a bytearray can be scaled in place, without a second copy.
                flat = np.frombuffer(bytearray().join(blob for _, _, blob in records), "<f4")
                vectors = flat.reshape(len(records), self._dimension)
                if not np.isfinite(vectors).all():
                    raise ValueError
                self._vectors = (
                    np.array([row for row, _, _ in records], dtype=np.int64),
                    [id_ for _, id_, _ in records],
                    normalise_vectors(vectors.astype(np.float32, copy=False)),
                )
            return self._vectors

    def _find_rows(self, connection: sqlite3.Connection, filter: Filter) -> Rows:  # noqa: A002
        """Return the row numbers of the passages whose metadata meets *filter*."""
        import numpy as np

        matches, key = build_matcher(filter), repr(filter)
        with self._cache_lock:
            self._drop_outdated(connection)
            if key not in self._rows_by_filter:
                if len(self._rows_by_filter) >= _MOST_FILTERS:
                    self._rows_by_filter.clear()
                if self._metadata is None:
                    found = connection.execute("SELECT row, metadata FROM passages").fetchall()
                    # All metadata is parsed as one text, so that equal keys share one object.
                    values = json.loads(f"[{','.join(metadata for _, metadata in found)}]")
                    self._metadata = [row for row, _ in found], values
                self._rows_by_filter[key] = np.array(
                    [row for row, value in zip(*self._metadata, strict=True) if matches(value)],
                    dtype=np.int64,
                )
            return self._rows_by_filter[key]

    def _drop_outdated(self, connection: sqlite3.Connection) -> None:
        """Drop what is cached of the file if the file has changed since."""
        changes = connection.execute("SELECT value FROM meta WHERE key = 'changes'").fetchone()[0]
        if changes != self._changes:
            self._changes, self._rows_by_filter = changes, {}
            self._vectors = self._metadata = None


class MemoryStore(SQLiteStore):
    """A store in memory, without a file. Closing the store deletes its content.

    *embedding_model* is the model of all vectors, and *dimension* is their length. Only one thread
    at a time can read or write.
    """

    ledger: Any = None
    """What `ingest` knows of the passages; it lives as long as the store."""

    def __init__(self, *, embedding_model: str = "", dimension: int) -> None:
        super().__init__(MEMORY, embedding_model=embedding_model, dimension=dimension)

    def __repr__(self) -> str:
        return f"MemoryStore(dimension={self._dimension})"


def _find_nearest(
    rows: Rows,
    ids: Sequence[str],
    vectors: Floats,
    vector: Floats,
    top_k: int,
    allowed_rows: Rows | None,
) -> list[tuple[int, float]]:
    """Return the *top_k* vectors nearest to *vector*, as (row number, cosine) pairs, best first."""
    import numpy as np

    positions = np.arange(len(rows))
    if allowed_rows is not None:
        positions = np.flatnonzero(np.isin(rows, allowed_rows))
    count = len(positions)
    if top_k < 1 or not count:
        return []
    scores = np.round(vectors @ normalise_vectors(vector[None].copy())[0], DIGITS)[positions]
    if top_k < count:
        # All vectors with the lowest score are kept for now: they are sorted by id below.
        lowest_score = np.partition(scores, count - top_k)[count - top_k]
        selected = np.flatnonzero(scores >= lowest_score)
        positions, scores = positions[selected], scores[selected]
    best = sorted(
        zip(positions.tolist(), scores.tolist(), strict=True),
        key=lambda match: (-match[1], ids[match[0]]),
    )
    return [(int(rows[position]), round(score, DIGITS)) for position, score in best[:top_k]]


def _delete_passages(connection: sqlite3.Connection, ids: Sequence[tuple[str]]) -> None:
    connection.executemany(_DELETE_WORDS, ids)
    connection.executemany(_DELETE_PASSAGE, ids)


def _read_record(connection: sqlite3.Connection, row_number: int, score: float) -> Record:
    id_, text, metadata = connection.execute(
        "SELECT id, text, metadata FROM passages WHERE row = ?", (row_number,)
    ).fetchone()
    if not (isinstance(id_, str) and isinstance(text, str)):
        raise TypeError
    return {"id": id_, "score": score, "text": text, "metadata": dict(json.loads(metadata))}
