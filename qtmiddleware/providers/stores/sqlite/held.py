"""What a store holds of its file in memory: all vectors and, once a filter asks for it, all metadata."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.providers.stores.filters import Condition
from qtmiddleware.providers.stores.sqlite.files import Damage
from qtmiddleware.providers.stores.sqlite.matrix import Matrix, empty_matrix
from qtmiddleware.runtime.forking import ForkLock

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]


_REMEMBERED: Final = 32
"""Filters whose rows are kept until the file changes."""


@dataclass(frozen=True, slots=True)
class _Metadata:
    """The metadata of all passages with the *rows* they belong to, as of one version of the file."""

    version: tuple[int, int]
    rows: Rows
    values: list[Mapping[str, Any]]
    _met: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def meeting(self, condition: Condition) -> Rows:
        """The rows whose metadata meets *condition*."""
        import numpy as np

        met = self._met.get(condition.key)
        if met is None:
            met = np.fromiter(map(condition.meets, self.values), dtype=np.bool_, count=len(self.values))
            if len(self._met) >= _REMEMBERED:
                self._met.clear()
            self._met[condition.key] = met
        return self.rows[met]


class Held:
    """Brings vectors and metadata up to date with the view of the file a reader has, reading what is new alone.

    A reader's view begins with its first look, which happens here, one reader at a time: so none ever meets vectors
    that are newer than its view.
    """

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._lock = ForkLock()
        self._matrix: Matrix | None = None
        self._metadata: _Metadata | None = None

    def forget(self) -> None:
        """Let go of all of it."""
        with self._lock.free:
            self._matrix = self._metadata = None

    def vectors(self, run: sqlite3.Connection, condition: Condition | None) -> tuple[Matrix, Rows | None]:
        """All vectors and, if there is a *condition*, the rows whose metadata meets it."""
        with self._lock.free:
            changes, deletions = _version(run)
            matrix = self._current_matrix(run, changes, deletions)
            metadata = self._current_metadata(run, (changes, deletions)) if condition else None
        return matrix, metadata.meeting(condition) if metadata and condition else None

    def rows(self, run: sqlite3.Connection, condition: Condition) -> Rows:
        """The rows whose metadata meets *condition*."""
        with self._lock.free:
            metadata = self._current_metadata(run, _version(run))
        return metadata.meeting(condition)

    def _current_matrix(self, run: sqlite3.Connection, changes: int, deletions: int) -> Matrix:
        matrix = self._matrix or empty_matrix(self._dimension)
        if matrix.deletions != deletions:
            matrix = matrix.without_deleted(deletions, run.execute("SELECT row FROM passages").fetchall())
        if matrix.changes != changes:
            query = "SELECT row, id, vector FROM passages WHERE changed > ? ORDER BY row"
            try:
                matrix = matrix.updated(changes, run.execute(query, (matrix.changes,)).fetchall())
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


def _version(run: sqlite3.Connection) -> tuple[int, int]:
    """The numbers of changes and deletions the view has seen."""
    held = dict(run.execute("SELECT key, value FROM meta WHERE key IN ('changes', 'deletions')"))
    changes, deletions = held.get("changes"), held.get("deletions")
    if not isinstance(changes, int) or not isinstance(deletions, int):
        raise Damage("its own account of changes is missing")
    return changes, deletions
