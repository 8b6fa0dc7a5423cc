"""All vectors of a store in memory, as one matrix, and the exact search over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qtmiddleware.providers.stores.checks import DIGITS, normalised

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from qtmiddleware.providers.stores.checks import Floats


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

    def updated(self, changes: int, new: Sequence[tuple[int, str, bytes]]) -> Matrix:
        """This matrix with *new* rows (row, id, vector) in place of the old ones or, if there are none, at the end."""
        import numpy as np

        if not len(new):
            return replace(self, changes=changes)
        rows = np.fromiter((row for row, _, _ in new), dtype=np.int64, count=len(new))
        vectors = normalised(_from_bytes([blob for _, _, blob in new], self.vectors.shape[1]))
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

    def without_deleted(self, deletions: int, left: Sequence[tuple[int]]) -> Matrix:
        """This matrix without the rows that are not among those *left*."""
        import numpy as np

        kept = np.isin(self.rows, np.fromiter((row for (row,) in left), dtype=np.int64, count=len(left)))
        ids = tuple(id_ for id_, stays in zip(self.ids, kept, strict=True) if stays)
        return Matrix(self.changes, deletions, self.rows[kept], ids, self.vectors[kept])

    def nearest(self, vector: Floats, top_k: int, among: NDArray[np.int64] | None = None) -> list[tuple[int, float]]:
        """The *top_k* rows of the highest cosine *among* some or all, best first, those of equal score by id."""
        import numpy as np

        places = np.arange(len(self.rows)) if among is None else np.flatnonzero(np.isin(self.rows, among))
        count = len(places)
        if top_k < 1 or not count:
            return []
        scores = np.round(self.vectors @ normalised(vector[None].copy())[0], DIGITS)[places]
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


def _from_bytes(blobs: Sequence[bytes], dimension: int) -> Floats:
    import numpy as np

    # A bytearray, so that the array over it can be written to and no second copy of all vectors is made.
    flat = np.frombuffer(bytearray().join(blobs), dtype="<f4")
    return flat.reshape(len(blobs), dimension).astype(np.float32, copy=False)
