"""Store passages in one SQLite file, and compare a query with all their vectors in numpy."""

from __future__ import annotations

import json
import re
import sqlite3
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from itertools import islice, takewhile
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

from qtmiddleware.errors import MissingExtra, StoreError
from qtmiddleware.kit.stores.database import MEMORY, connect, explain_errors, open_database
from qtmiddleware.kit.stores.filters import build_matcher
from qtmiddleware.protocols import Filter, Passage, Record
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.runtime.forking import make_lock

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

# The number of passages per batch of a write. Only one batch is in memory at a time.
BATCH: Final = 500
# The number of decimals of a score. More would be rounding errors, and sort ties randomly.
DIGITS: Final = 6

_VERSION: Final = 5
# The word index has letters, numbers, marks and characters of private use as words.
_TABLES: Final = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
    """CREATE TABLE passages (
        row INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        vector BLOB NOT NULL,
        text TEXT NOT NULL,
        metadata TEXT NOT NULL
    )""",
    """CREATE VIRTUAL TABLE words USING fts5 (
        text, tokenize="unicode61 remove_diacritics 2 categories 'L* N* M* Co'"
    )""",
)
_DELETE_WORDS: Final = "DELETE FROM words WHERE rowid = (SELECT row FROM passages WHERE id = ?)"
_DELETE_PASSAGE: Final = "DELETE FROM passages WHERE id = ?"
_INSERT_PASSAGE: Final = "INSERT INTO passages (id, text, metadata, vector) VALUES (?, ?, ?, ?)"
_INSERT_WORDS: Final = "INSERT INTO words (rowid, text) SELECT row, ? FROM passages WHERE id = ?"
# The column "rank" is lower for better matches, so its sign is changed.
_KEYWORDS: Final = (
    "SELECT id, -rank FROM words JOIN passages ON row = words.rowid WHERE words MATCH ?"
    " ORDER BY rank"
)

# Scripts without spaces between words, and Hangul, whose words include their particles.
_UNSPACED: Final = (
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff"
    r"\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
)
_LETTER: Final = r"[\p{L}\p{N}\p{M}\p{Co}]"
_WORDS: Final = f"(?V1)([{_LETTER}&&{_UNSPACED}]+)|([{_LETTER}--{_UNSPACED}]+)"


class SQLiteStore:
    """Keeps passages in one SQLite file, and finds them by vector or by word.

    Use this store for up to about 100,000 passages: each search compares the query with all
    vectors, in memory, by cosine. Writes by other processes are visible in the next search.

    Thread-safe; a context manager. In a file, searches do not wait for writes. A write is saved
    completely or not at all, even if the process is killed.

    Args:
        path: the path of a file, or ``":memory:"``. Only the owner can read a new file.
        embedding_model: the model of all vectors; saved in the file.
        dimension: the length of all vectors; saved in the file.

    Raises:
        StoreError: if the file was created for another model or dimension, or if it cannot be
            opened, read or written.
        InvalidQuery: for an invalid filter.
        MissingExtra: if numpy is not installed.
    """

    def __init__(self, path: str | Path, *, embedding_model: str, dimension: int) -> None:
        identity = uuid4().hex
        is_memory = str(path) == MEMORY
        self._path = f"{MEMORY}{identity}" if is_memory else str(Path(path).expanduser())
        self._subject = f"the index {path if is_memory else self._path}"
        self._dimension = dimension
        self._closed = False
        # The connections to a database in memory would block each other.
        self._one_user = RLock() if is_memory else nullcontext()
        self._cache_lock = make_lock()
        self._changes = -1
        self._ids: list[str] = []
        self._vectors: Any = None
        self._metadata: list[Any] | None = None
        meta = {
            "embedding_model": embedding_model,
            "dimension": dimension,
            "identity": identity,
            "changes": 0,
        }
        # Each use opens a connection of its own. A database in memory needs one that stays open.
        self._keeper = open_database(
            self._path, _TABLES, version=_VERSION, subject=self._subject, meta=meta
        )
        if not is_memory:
            self._keeper.close()
        with self._open_transaction() as connection:
            saved = dict(connection.execute("SELECT key, value FROM meta LIMIT 10"))
        model, vector_length = saved.get("embedding_model"), saved.get("dimension")
        if (model, vector_length) != (embedding_model, dimension):
            raise StoreError(
                f"{self._subject} was made with {str(model)[:100]!r} ({vector_length} numbers per"
                f" vector), not with {embedding_model!r} ({dimension}); use that embedding model,"
                " or ingest into another path"
            )
        self._identity = str(saved.get("identity"))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._subject}, dimension {self._dimension}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def identity(self) -> str:
        """The store's random name, created with the store. Copies of the store have it, too."""
        return self._identity

    def write(
        self, passages: Iterable[tuple[Passage, Sequence[float]]], *, delete: Sequence[str] = ()
    ) -> None:
        """Write *passages* with their vectors, and remove those with the ids in *delete*, at once.

        *passages* are read a few hundred at a time. If their iterator raises an exception, nothing
        is written. Of several passages with one id, the last one is stored.
        """
        pairs = iter(passages)
        with self._open_transaction("BEGIN IMMEDIATE") as connection:
            _delete_passages(connection, delete)
            while batch := list(islice(pairs, BATCH)):
                self._write_batch(connection, batch)
            connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'changes'")

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

        The score is the cosine, from -1 to 1. Passages with equal scores are sorted by id.
        """
        vector = _normalise(self._convert_vectors([query]))[0]
        import numpy as np

        with self._open_transaction() as connection:
            ids, vectors, metadata = self._load(connection, with_metadata=bool(filter))
            positions = np.arange(len(ids))
            if filter:
                matches = build_matcher(filter)
                positions = positions[[matches(value) for value in metadata]]
            scores = np.round(vectors @ vector, DIGITS)[positions]
            if 0 < top_k < len(positions):
                # All vectors with the lowest score are kept for now: they are sorted by id below.
                lowest_score = np.partition(scores, -top_k)[-top_k]
                is_candidate = scores >= lowest_score
                positions, scores = positions[is_candidate], scores[is_candidate]
            names = (ids[position] for position in positions.tolist())
            # A score in single precision has more decimals than it had before.
            rounded = (round(score, DIGITS) for score in scores.tolist())
            return _read_best(connection, zip(names, rounded, strict=True), top_k)

    def keyword_search(
        self,
        text: str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """Return the *top_k* passages that best match the words of *text* and meet *filter*.

        The search covers each passage's text and the field ``context`` of its metadata. The score
        is BM25 (k1 1.2, b 0.75; Robertson and Zaragoza 2009); greater is better.
        """
        words = " OR ".join(f'"{word}"' for word in extract_words(text, for_index=False))
        if not words or top_k < 1:
            return []
        with self._open_transaction() as connection:
            allowed = None
            if filter:
                matches = build_matcher(filter)
                ids, _, metadata = self._load(connection, with_metadata=True)
                pairs = zip(ids, metadata, strict=True)
                allowed = {id_ for id_, value in pairs if matches(value)}
            with closing(connection.execute(_KEYWORDS, (words,))) as cursor:
                ranked = (match for match in cursor if allowed is None or match[0] in allowed)
                best = list(islice(ranked, top_k))
                # SQLite returns equal scores in any order, so all ties are sorted by id below.
                best += takewhile(lambda match: match[1] == best[-1][1], ranked)
            return _read_best(connection, best, top_k)

    def close(self) -> None:
        """Close the store; you can call this more than once."""
        self._closed = True
        self._vectors = self._metadata = None
        self._keeper.close()

    @contextmanager
    def _open_transaction(self, begin: str = "BEGIN") -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction. If the ``with`` block raises, no change is saved."""
        # While a file is read, odd values in it have the same cause as odd pages.
        kinds = (ValueError, TypeError, RecursionError) if begin == "BEGIN" else ()
        with self._one_user, explain_errors(self._subject, *kinds):
            if self._closed:
                raise StoreError(f"{self._subject} cannot be used: it is closed")
            # The passages to write may raise an OSError of their own, which passes unchanged.
            with explain_errors(self._subject, OSError):
                opened = connect(self._path)
            # Closing the connection takes an unfinished transaction back.
            with closing(opened) as connection:
                connection.execute(begin)
                yield connection
                connection.execute("COMMIT")

    def _write_batch(
        self, connection: sqlite3.Connection, batch: Sequence[tuple[Passage, Sequence[float]]]
    ) -> None:
        # Of several passages with one id, the last stays.
        by_id = {passage.id: (passage, vector) for passage, vector in batch}
        vectors = self._convert_vectors([vector for _, vector in by_id.values()])
        rows, words = [], []
        # Vectors have the same byte order on every machine.
        for (passage, _), vector in zip(by_id.values(), vectors.astype("<f4"), strict=True):
            try:
                metadata = json.dumps(dict(passage.metadata))
            except (TypeError, ValueError) as error:
                raise StoreError(
                    f"the metadata of the passage {passage.id!r} must be JSON"
                    f" ({type(error).__name__}); nothing was written"
                ) from None
            text = replace_surrogates(passage.text)
            rows.append((passage.id, text, metadata, vector.tobytes()))
            context = passage.metadata.get("context", "")
            found = extract_words(f"{text}\n{context}", for_index=True)
            words.append((" ".join(found), passage.id))
        _delete_passages(connection, by_id)
        connection.executemany(_INSERT_PASSAGE, rows)
        connection.executemany(_INSERT_WORDS, words)

    def _convert_vectors(self, vectors: Sequence[Sequence[float]]) -> Floats:
        """Return *vectors* as an array with one row per vector, or raise `StoreError`."""
        try:
            import numpy as np
        except ImportError as error:
            raise MissingExtra("numpy", "local") from error
        with suppress(TypeError, ValueError), np.errstate(over="ignore"):
            array = np.array(vectors, dtype=np.float32)
            if array.shape == (len(vectors), self._dimension) and np.isfinite(array).all():
                return array
        # An embedder may have returned the text instead, and numpy's message quotes it.
        raise StoreError(f"each vector must be a list of {self._dimension} finite numbers")

    def _load(
        self, connection: sqlite3.Connection, *, with_metadata: bool
    ) -> tuple[list[str], Any, Sequence[Any]]:
        """Return ids, vectors and metadata, in one order; the file is read only after a change."""
        import numpy as np

        with self._cache_lock:
            find = "SELECT value FROM meta WHERE key = 'changes'"
            changes = connection.execute(find).fetchone()[0]
            if changes != self._changes or self._vectors is None:
                select = "SELECT id, vector FROM passages ORDER BY row"
                records = connection.execute(select).fetchall()
                # An array over a bytearray can be scaled in place, without a second copy.
                flat = np.frombuffer(bytearray().join(blob for _, blob in records), "<f4")
                vectors = flat.reshape(len(records), self._dimension)
                if not np.isfinite(vectors).all():
                    raise ValueError
                self._ids = [id_ for id_, _ in records]
                self._vectors = _normalise(vectors.astype(np.float32, copy=False))
                self._metadata, self._changes = None, changes
            if with_metadata and self._metadata is None:
                found = connection.execute("SELECT metadata FROM passages ORDER BY row").fetchall()
                # All metadata is parsed as one text, so that equal keys share one object.
                parsed = json.loads(f"[{','.join(metadata for (metadata,) in found)}]")
                if not all(isinstance(metadata, dict) for metadata in parsed):
                    raise TypeError
                self._metadata = parsed
            return self._ids, self._vectors, self._metadata or ()


class MemoryStore(SQLiteStore):
    """A store in memory, without a file. Closing the store deletes its content.

    *embedding_model* is the model of all vectors, and *dimension* is their length. Only one thread
    at a time can read or write.
    """

    def __init__(self, *, embedding_model: str = "", dimension: int) -> None:
        super().__init__(MEMORY, embedding_model=embedding_model, dimension=dimension)


def extract_words(text: str, *, for_index: bool) -> list[str]:
    """Return the words of *text* in lower case: to index, or without repeats to look up.

    In scripts without spaces, each pair of adjacent characters is a word. A single character is a
    word in the index, and in a query only if it stands alone. The index removes accents.
    """
    import regex

    if text.isascii():
        # The pattern below finds the same words, but takes ten times as long.
        runs = [("", word) for word in re.findall("[a-z0-9]+", text.lower())]
    else:
        normal = unicodedata.normalize("NFKC", text).casefold()
        runs = regex.findall(_WORDS, normal)
    words: list[str] = []
    for unspaced, word in runs:
        if word:
            words.append(word)
            continue
        if for_index or len(unspaced) == 1:
            words += unspaced
        words += (unspaced[left : left + 2] for left in range(len(unspaced) - 1))
    return words if for_index else list(dict.fromkeys(words))


def _normalise(vectors: Floats) -> Floats:
    """Scale each vector to length 1 in place. A vector of length 0 is not changed."""
    import numpy as np

    # In single precision, the squares of the largest numbers would overflow.
    squares = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
    lengths = np.sqrt(squares)[:, None]
    lengths[lengths == 0] = 1
    np.divide(vectors, lengths, out=vectors, casting="same_kind")
    return vectors


def _delete_passages(connection: sqlite3.Connection, ids: Iterable[str]) -> None:
    rows = [(id_,) for id_ in ids]
    connection.executemany(_DELETE_WORDS, rows)
    connection.executemany(_DELETE_PASSAGE, rows)


def _read_best(
    connection: sqlite3.Connection, matches: Iterable[tuple[str, float]], top_k: int
) -> list[Record]:
    """Return the *top_k* best of *matches*, which are ids with scores, as records."""
    best = sorted(matches, key=lambda match: (-match[1], match[0]))[: max(0, top_k)]
    records: list[Record] = []
    for id_, score in best:
        find = "SELECT text, metadata FROM passages WHERE id = ?"
        text, metadata = connection.execute(find, (id_,)).fetchone()
        if not isinstance(text, str):
            raise TypeError
        metadata = dict(json.loads(metadata))
        records.append({"id": id_, "score": score, "text": text, "metadata": metadata})
    return records
