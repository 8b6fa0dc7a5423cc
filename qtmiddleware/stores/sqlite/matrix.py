"""All vectors of a store in memory, as one matrix, and the exact search over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from qtmiddleware.errors import MissingExtra, StoreError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_DIGITS: Final = 6
"""Decimals of a score. The rest is noise of single precision, which would put equal passages in a random order."""


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
        vectors = _normalised(_from_bytes([blob for _, _, blob in new], self.vectors.shape[1]))
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

    def nearest(self, vector: Floats, top_k: int) -> list[tuple[int, float]]:
        """The *top_k* rows of the highest cosine, best first, those of equal score by id."""
        import numpy as np

        count = len(self.rows)
        if top_k < 1 or not count:
            return []
        scores = np.round(self.vectors @ _normalised(vector[None].copy())[0], _DIGITS)
        if top_k < count:
            edge = np.partition(scores, count - top_k)[count - top_k]
            # All that tie with the last one come along, or chance would choose among them.
            found = np.flatnonzero(scores >= edge)
        else:
            found = np.arange(count)
        best = sorted(found.tolist(), key=lambda at: (-scores[at], self.ids[at]))[:top_k]
        return [(int(self.rows[at]), round(float(scores[at]), _DIGITS)) for at in best]


def empty_matrix(dimension: int, deletions: int) -> Matrix:
    """A matrix without rows, from before the first change."""
    import numpy as np

    return Matrix(0, deletions, np.empty(0, dtype=np.int64), (), np.empty((0, dimension), dtype=np.float32))


def checked_vectors(vectors: Sequence[Sequence[float]], dimension: int) -> Floats:
    """*vectors* as an array of float32, each of *dimension* finite numbers; raises `StoreError` otherwise."""
    try:
        import numpy as np
    except ImportError as error:
        raise MissingExtra("numpy", "local") from error
    if len(vectors) == 0:
        return np.empty((0, dimension), dtype=np.float32)
    try:
        array = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise StoreError(f"vectors must all be {dimension} numbers: {error}") from error
    if array.ndim != 2 or array.shape[1] != dimension:
        raise StoreError(f"vectors must all be {dimension} numbers; these are of the shape {array.shape}")
    if not np.isfinite(array).all():
        at = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        raise StoreError(f"vector number {at} holds a number that is not finite; no distance can be taken to it")
    return array


def _from_bytes(blobs: Sequence[bytes], dimension: int) -> Floats:
    import numpy as np

    # A bytearray, so that the array over it can be written to and no second copy of all vectors is made.
    flat = np.frombuffer(bytearray().join(blobs), dtype="<f4")
    return flat.reshape(len(blobs), dimension).astype(np.float32, copy=False)


def _normalised(vectors: Floats) -> Floats:
    """*vectors*, brought to length 1 in place, so that a product is a cosine; one of length 0 stays as it is."""
    import numpy as np

    lengths: Floats = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    lengths[lengths == 0] = 1
    vectors /= lengths
    return vectors
