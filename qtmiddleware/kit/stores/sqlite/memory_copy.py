"""Hold a copy of a store's vectors and metadata in memory, for fast searches.

The vectors are one matrix. The metadata is loaded at the first search with a filter.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.kit.stores.filters import build_matcher
from qtmiddleware.kit.stores.passages import DIGITS, normalise_vectors
from qtmiddleware.kit.stores.sqlite.files import Damage
from qtmiddleware.protocols import Filter
from qtmiddleware.runtime.forking import make_lock

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from qtmiddleware.kit.stores.passages import Floats

    Rows = NDArray[np.int64]


NO_OBJECT: Final = "the metadata of a passage is not a JSON object"
_REMEMBERED: Final = 32
"""The maximum number of filters whose matching rows are cached."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """All vectors of a store, as a matrix that many threads can search at once.

    Attributes:
        rows: for each vector, the number of the passage's row in the file.
        ids: for each vector, the passage's id.
        vectors: the vectors, scaled to length 1.
    """

    rows: Rows
    ids: tuple[str, ...]
    vectors: Floats

    def find_nearest_vectors(
        self, vector: Floats, top_k: int, allowed_rows: Rows | None = None
    ) -> list[tuple[int, float]]:
        """Return the *top_k* vectors nearest to *vector*, as (row number, cosine) pairs.

        The nearest vector comes first. Vectors with equal cosines are sorted by id. With
        *allowed_rows*, searches only the vectors with these row numbers.
        """
        import numpy as np

        positions = (
            np.arange(len(self.rows))
            if allowed_rows is None
            else np.flatnonzero(np.isin(self.rows, allowed_rows))
        )
        count = len(positions)
        if top_k < 1 or not count:
            return []
        scores = np.round(self.vectors @ normalise_vectors(vector[None].copy())[0], DIGITS)[
            positions
        ]
        if top_k < count:
            lowest_score = np.partition(scores, count - top_k)[count - top_k]
            # All vectors with the lowest score are kept for now, because the choice among them
            # would be random here. They are sorted by id below.
            selected = np.flatnonzero(scores >= lowest_score)
            positions, scores = positions[selected], scores[selected]
        best = sorted(
            zip(positions.tolist(), scores.tolist(), strict=True),
            key=lambda match: (-match[1], self.ids[match[0]]),
        )
        return [
            (int(self.rows[position]), round(score, DIGITS)) for position, score in best[:top_k]
        ]


class MemoryCopy:
    """A copy of a store's vectors and metadata in memory, reloaded when the store's file changes.

    In a read transaction, use the copy before any other read. Otherwise the copy could be newer
    than the data that the transaction reads.
    """

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._lock = make_lock()
        self._changes = 0
        self._matrix: Matrix | None
        self._metadata: tuple[Rows, list[Mapping[str, Any]]] | None
        self._rows_by_filter: dict[str, Rows]
        self._drop_data()

    def clear(self) -> None:
        """Drop the vectors and the metadata from memory."""
        with self._lock:
            self._drop_data()

    def read_vectors(self, connection: sqlite3.Connection) -> Matrix:
        """Return all vectors of the store; reread the file only if it has changed."""
        with self._lock:
            self._drop_outdated_data(connection)
            if self._matrix is None:
                self._matrix = _read_matrix(connection, self._dimension)
            return self._matrix

    def find_matching_rows(self, connection: sqlite3.Connection, filter: Filter) -> Rows:  # noqa: A002
        """Return the row numbers of the passages whose metadata meets *filter*.

        Raises `InvalidQuery` for an invalid filter.
        """
        import numpy as np

        matcher, key = build_matcher(filter), repr(filter)
        with self._lock:
            self._drop_outdated_data(connection)
            if self._metadata is None:
                self._metadata = _read_rows_and_metadata(connection)
            if key not in self._rows_by_filter:
                rows, values = self._metadata
                # Each user may have another filter, so the cache must not grow without limit.
                if len(self._rows_by_filter) >= _REMEMBERED:
                    self._rows_by_filter.clear()
                self._rows_by_filter[key] = rows[
                    np.fromiter(map(matcher, values), dtype=np.bool_, count=len(values))
                ]
            return self._rows_by_filter[key]

    def _drop_outdated_data(self, connection: sqlite3.Connection) -> None:
        """Drop the vectors and the metadata if the file has changed since they were read."""
        # This first read begins the transaction's view of the file, while the lock is held.
        changes = read_meta_value(connection, "changes")
        if changes != self._changes:
            self._drop_data()
            self._changes = changes

    def _drop_data(self) -> None:
        self._matrix = self._metadata = None
        self._rows_by_filter = {}


def read_meta_value(connection: sqlite3.Connection, meta_key: str) -> Any:
    """Return the value that the store's table ``meta`` has for *meta_key*.

    Raises `Damage` if the key is missing.
    """
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (meta_key,)).fetchone()
    if row is None:
        raise Damage("its description of itself is missing")
    return row[0]


def _read_matrix(connection: sqlite3.Connection, dimension: int) -> Matrix:
    """Read all vectors of the store, and return them as one matrix.

    Raises `Damage` if a vector does not have *dimension* numbers.
    """
    import numpy as np

    records = connection.execute("SELECT row, id, vector FROM passages ORDER BY row").fetchall()
    rows = np.fromiter((row for row, _, _ in records), dtype=np.int64, count=len(records))
    try:
        # An array over a bytearray can be changed in place, so scaling needs no second copy of all
        # vectors.
        flat = np.frombuffer(bytearray().join(blob for _, _, blob in records), dtype="<f4")
        vectors = flat.reshape(len(records), dimension).astype(np.float32, copy=False)
    except (TypeError, ValueError):
        raise Damage("a vector does not have its stored length") from None
    return Matrix(rows, tuple(id_ for _, id_, _ in records), normalise_vectors(vectors))


def _read_rows_and_metadata(connection: sqlite3.Connection) -> tuple[Rows, list[Mapping[str, Any]]]:
    """Return the row numbers of all passages, and their metadata in the same order.

    Raises `Damage` if the metadata of a passage is not a JSON object.
    """
    import numpy as np

    records = connection.execute("SELECT row, metadata FROM passages").fetchall()
    # All metadata is parsed as one text, so that equal keys share one object in memory.
    try:
        values = json.loads(f"[{','.join(metadata for _, metadata in records)}]")
    except (TypeError, ValueError):
        values = []
    if len(values) != len(records) or not all(isinstance(value, dict) for value in values):
        raise Damage(NO_OBJECT)
    return np.fromiter((row for row, _ in records), dtype=np.int64, count=len(records)), values
