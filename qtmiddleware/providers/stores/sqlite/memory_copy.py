"""What a store holds of its file in memory: all vectors as one matrix and, once a filter asks for it, all metadata."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.providers.stores.filters import Condition
from qtmiddleware.providers.stores.passages import DIGITS, normalise
from qtmiddleware.providers.stores.sqlite.files import Damage
from qtmiddleware.runtime.forking import ForkLock

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from qtmiddleware.providers.stores.passages import Floats

    Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Vectors of length 1 with the *rows* and *ids* they belong to, as of the change numbered *changes*.

    Never changed once made, so that any number of threads may search it while another makes its successor.
    """

    changes: int
    deletions: int
    rows: NDArray[np.int64]
    ids: tuple[str, ...]
    vectors: Floats

    def update(self, changes: int, new: Sequence[tuple[int, str, bytes]]) -> Matrix:
        """This matrix with *new* rows (row, id, vector) in place of the old ones or, if there are none, at the end."""
        import numpy as np

        if not len(new):
            return replace(self, changes=changes)
        rows = np.fromiter((row for row, _, _ in new), dtype=np.int64, count=len(new))
        vectors = normalise(_read_vectors([blob for _, _, blob in new], self.vectors.shape[1]))
        known = np.isin(rows, self.rows)
        old = self.vectors
        if known.any():
            old = old.copy()
            order = np.argsort(self.rows)
            old[order[np.searchsorted(self.rows, rows[known], sorter=order)]] = vectors[known]
        return Matrix(
            changes,
            self.deletions,
            np.concatenate([self.rows, rows[~known]]),
            self.ids + tuple(id_ for (_, id_, _), old_one in zip(new, known, strict=True) if not old_one),
            np.concatenate([old, vectors[~known]]) if len(old) else vectors,
        )

    def drop_deleted(self, deletions: int, left: Sequence[tuple[int]]) -> Matrix:
        """This matrix without the rows that are not among those *left*."""
        import numpy as np

        kept = np.isin(self.rows, np.fromiter((row for (row,) in left), dtype=np.int64, count=len(left)))
        ids = tuple(id_ for id_, stays in zip(self.ids, kept, strict=True) if stays)
        return Matrix(self.changes, deletions, self.rows[kept], ids, self.vectors[kept])

    def find_nearest(
        self, vector: Floats, top_k: int, among: NDArray[np.int64] | None = None
    ) -> list[tuple[int, float]]:
        """The *top_k* rows of the highest cosine *among* some or all, best first, those of equal score by id."""
        import numpy as np

        places = np.arange(len(self.rows)) if among is None else np.flatnonzero(np.isin(self.rows, among))
        count = len(places)
        if top_k < 1 or not count:
            return []
        scores = np.round(self.vectors @ normalise(vector[None].copy())[0], DIGITS)[places]
        if top_k < count:
            edge = np.partition(scores, count - top_k)[count - top_k]
            # All that tie with the last one come along, or chance would choose among them.
            found = np.flatnonzero(scores >= edge)
            places, scores = places[found], scores[found]
        best = sorted(zip(places.tolist(), scores.tolist(), strict=True), key=lambda one: (-one[1], self.ids[one[0]]))
        return [(int(self.rows[at]), round(score, DIGITS)) for at, score in best[:top_k]]


def empty_matrix(dimension: int) -> Matrix:
    """A matrix without rows, from before the first change."""
    import numpy as np

    return Matrix(0, 0, np.empty(0, dtype=np.int64), (), np.empty((0, dimension), dtype=np.float32))


def _read_vectors(blobs: Sequence[bytes], dimension: int) -> Floats:
    import numpy as np

    # A bytearray, so that the array over it can be written to and no second copy of all vectors is made.
    flat = np.frombuffer(bytearray().join(blobs), dtype="<f4")
    return flat.reshape(len(blobs), dimension).astype(np.float32, copy=False)


_REMEMBERED: Final = 32
"""Filters whose rows are kept until the file changes."""


@dataclass(frozen=True, slots=True)
class _Metadata:
    """The metadata of all passages with the *rows* they belong to, as of one version of the file."""

    version: tuple[int, int]
    rows: Rows
    values: list[Mapping[str, Any]]
    _met: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def find_rows(self, condition: Condition) -> Rows:
        """The rows whose metadata meets *condition*."""
        import numpy as np

        met = self._met.get(condition.key)
        if met is None:
            met = np.fromiter(map(condition.meets, self.values), dtype=np.bool_, count=len(self.values))
            if len(self._met) >= _REMEMBERED:
                self._met.clear()
            self._met[condition.key] = met
        return self.rows[met]


class MemoryCopy:
    """Brings vectors and metadata up to date with the view of the file a reader has, reading what is new alone.

    A reader's view begins with its first look, which happens here, one reader at a time: so none ever meets vectors
    that are newer than its view.
    """

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._lock = ForkLock()
        self._matrix: Matrix | None = None
        self._metadata: _Metadata | None = None

    def clear(self) -> None:
        """Let go of all of it."""
        with self._lock.free:
            self._matrix = self._metadata = None

    def vectors(self, run: sqlite3.Connection, condition: Condition | None) -> tuple[Matrix, Rows | None]:
        """All vectors and, if there is a *condition*, the rows whose metadata meets it."""
        with self._lock.free:
            changes, deletions = _read_version(run)
            matrix = self._current_matrix(run, changes, deletions)
            metadata = self._current_metadata(run, (changes, deletions)) if condition else None
        return matrix, metadata.find_rows(condition) if metadata and condition else None

    def rows(self, run: sqlite3.Connection, condition: Condition) -> Rows:
        """The rows whose metadata meets *condition*."""
        with self._lock.free:
            metadata = self._current_metadata(run, _read_version(run))
        return metadata.find_rows(condition)

    def _current_matrix(self, run: sqlite3.Connection, changes: int, deletions: int) -> Matrix:
        matrix = self._matrix or empty_matrix(self._dimension)
        if matrix.deletions != deletions:
            matrix = matrix.drop_deleted(deletions, run.execute("SELECT row FROM passages").fetchall())
        if matrix.changes != changes:
            query = "SELECT row, id, vector FROM passages WHERE changed > ? ORDER BY row"
            try:
                matrix = matrix.update(changes, run.execute(query, (matrix.changes,)).fetchall())
            except (TypeError, ValueError):
                raise Damage("a vector is not of the length it was stored with") from None
        self._matrix = matrix
        return matrix

    def _current_metadata(self, run: sqlite3.Connection, version: tuple[int, int]) -> _Metadata:
        import numpy as np

        if self._metadata is None or self._metadata.version != version:
            found = run.execute("SELECT row, metadata FROM passages").fetchall()
            # Read as one text, in which equal keys become one object.
            try:
                values = json.loads(f"[{','.join(metadata for _, metadata in found)}]")
            except (TypeError, ValueError):
                values = []
            if len(values) != len(found) or not all(isinstance(value, dict) for value in values):
                raise Damage("the metadata of a passage is no JSON object")
            rows = np.fromiter((row for row, _ in found), dtype=np.int64, count=len(found))
            self._metadata = _Metadata(version, rows, values)
        return self._metadata


def _read_version(run: sqlite3.Connection) -> tuple[int, int]:
    """The numbers of changes and deletions the view has seen."""
    held = dict(run.execute("SELECT key, value FROM meta WHERE key IN ('changes', 'deletions')"))
    changes, deletions = held.get("changes"), held.get("deletions")
    if not isinstance(changes, int) or not isinstance(deletions, int):
        raise Damage("its own account of changes is missing")
    return changes, deletions
