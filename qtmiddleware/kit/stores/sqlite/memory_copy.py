"""What a store holds of its file in memory: all vectors as one matrix and, once a filter asks for it, all metadata."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.kit.stores.filters import build_matcher
from qtmiddleware.kit.stores.passages import DIGITS, normalise
from qtmiddleware.kit.stores.sqlite.files import Damage
from qtmiddleware.protocols import Filter
from qtmiddleware.runtime.forking import ForkLock

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from qtmiddleware.kit.stores.passages import Floats

    Rows = NDArray[np.int64]


NO_OBJECT: Final = "the metadata of a passage is not a JSON object"
_REMEMBERED: Final = 32
"""Filters whose rows are kept until the file changes."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Vectors of length 1 with the *rows* and *ids* they belong to; never changed, so that many threads may search."""

    rows: Rows
    ids: tuple[str, ...]
    vectors: Floats

    def find_nearest(
        self, vector: Floats, top_k: int, among: Rows | None = None
    ) -> list[tuple[int, float]]:
        """Return the *top_k* rows of the highest cosine *among* some or all, best first, those of equal score by id."""
        import numpy as np

        places = (
            np.arange(len(self.rows))
            if among is None
            else np.flatnonzero(np.isin(self.rows, among))
        )
        count = len(places)
        if top_k < 1 or not count:
            return []
        scores = np.round(self.vectors @ normalise(vector[None].copy())[0], DIGITS)[places]
        if top_k < count:
            edge = np.partition(scores, count - top_k)[count - top_k]
            # All that tie with the last one come along, or chance would choose among them.
            found = np.flatnonzero(scores >= edge)
            places, scores = places[found], scores[found]
        best = sorted(
            zip(places.tolist(), scores.tolist(), strict=True),
            key=lambda one: (-one[1], self.ids[one[0]]),
        )
        return [(int(self.rows[at]), round(score, DIGITS)) for at, score in best[:top_k]]


class MemoryCopy:
    """Holds vectors and metadata as of one version of the file, and reads them anew once that has changed.

    A reader's view begins with its first look, which happens here, one reader at a time: so none
    ever meets vectors that are newer than its view.
    """

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._lock = ForkLock()
        self._changes = 0
        self._matrix: Matrix | None
        self._metadata: tuple[Rows, list[Mapping[str, Any]]] | None
        self._met: dict[str, Rows]
        self._drop()

    def clear(self) -> None:
        """Let go of all of it."""
        with self._lock.free:
            self._drop()

    def vectors(self, run: sqlite3.Connection) -> Matrix:
        """Return all vectors."""
        with self._lock.free:
            self._drop_outdated(run)
            if self._matrix is None:
                self._matrix = _read_matrix(run, self._dimension)
            return self._matrix

    def rows(self, run: sqlite3.Connection, filter: Filter) -> Rows:  # noqa: A002
        """Return the rows whose metadata meets *filter*; raises `InvalidQuery`."""
        import numpy as np

        meets, key = build_matcher(filter), repr(filter)
        with self._lock.free:
            self._drop_outdated(run)
            if self._metadata is None:
                self._metadata = _read_metadata(run)
            if key not in self._met:
                rows, values = self._metadata
                if len(self._met) >= _REMEMBERED:
                    self._met.clear()
                self._met[key] = rows[
                    np.fromiter(map(meets, values), dtype=np.bool_, count=len(values))
                ]
            return self._met[key]

    def _drop_outdated(self, run: sqlite3.Connection) -> None:
        changes = read_meta(run, "changes")
        if changes != self._changes:
            self._drop()
            self._changes = changes

    def _drop(self) -> None:
        self._matrix = self._metadata = None
        self._met = {}


def read_meta(run: sqlite3.Connection, key: str) -> Any:
    """Return what the store says of itself under *key*."""
    found = run.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    if found is None:
        raise Damage("its description of itself is missing")
    return found[0]


def _read_matrix(run: sqlite3.Connection, dimension: int) -> Matrix:
    import numpy as np

    found = run.execute("SELECT row, id, vector FROM passages ORDER BY row").fetchall()
    rows = np.fromiter((row for row, _, _ in found), dtype=np.int64, count=len(found))
    try:
        # A bytearray, so that the array over it can be written to and no second copy of all vectors
        # is made.
        flat = np.frombuffer(bytearray().join(blob for _, _, blob in found), dtype="<f4")
        vectors = flat.reshape(len(found), dimension).astype(np.float32, copy=False)
    except (TypeError, ValueError):
        raise Damage("a vector does not have its stored length") from None
    return Matrix(rows, tuple(id_ for _, id_, _ in found), normalise(vectors))


def _read_metadata(run: sqlite3.Connection) -> tuple[Rows, list[Mapping[str, Any]]]:
    import numpy as np

    found = run.execute("SELECT row, metadata FROM passages").fetchall()
    # Read as one text, in which equal keys become one object.
    try:
        values = json.loads(f"[{','.join(metadata for _, metadata in found)}]")
    except (TypeError, ValueError):
        values = []
    if len(values) != len(found) or not all(isinstance(value, dict) for value in values):
        raise Damage(NO_OBJECT)
    return np.fromiter((row for row, _ in found), dtype=np.int64, count=len(found)), values
