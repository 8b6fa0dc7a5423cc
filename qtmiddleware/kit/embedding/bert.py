"""Compute the vectors of a BERT sentence encoder with numpy.

The texts of a batch are concatenated without padding, so a text's vector does not depend on the
other texts. Source: Devlin et al. 2019 (BERT).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

LAYERS: Final = 6
HIDDEN: Final = 384
HEAD_SIZE: Final = 32
EPSILON: Final = 1e-12

# Abramowitz and Stegun 1964, formula 7.1.26 for the error function, with the highest power first.
_POWERS: Final = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0.0)
_SCALE: Final = 0.3275911
# The number of rows per step of the activation function, which then stays in the CPU's cache.
_BLOCK: Final = 16


class BertEncoder:
    """The network of all-MiniLM-L6-v2.

    Args:
        tensors: The weights in single precision, keyed by their names in the weights file.
    """

    def __init__(self, tensors: Mapping[str, Floats]) -> None:
        self._tensors = tensors

    def encode_texts(self, token_ids: Sequence[Sequence[int]]) -> Floats:
        """Return one vector per text, as float32 of shape (texts, 384).

        A text's vector is the mean of its tokens' vectors, normalised to length 1. *token_ids* has
        one list of 1 to 512 ids per text.
        """
        import numpy as np

        lengths = [len(ids) for ids in token_ids]
        starts = np.cumsum([0, *lengths[:-1]])
        positions = np.concatenate([np.arange(length) for length in lengths])
        rows = self._tensors["embeddings.word_embeddings.weight"][np.concatenate(token_ids)]
        rows += self._tensors["embeddings.position_embeddings.weight"][positions]
        rows += self._tensors["embeddings.token_type_embeddings.weight"][0]
        rows = self._normalise("embeddings.LayerNorm", rows)
        for layer in (f"encoder.layer.{number}" for number in range(LAYERS)):
            parts = (
                np.split(self._apply_dense(f"{layer}.attention.self.{part}", rows), starts[1:])
                for part in ("query", "key", "value")
            )
            attended = np.concatenate([_attend(*text) for text in zip(*parts, strict=True)])
            attended = self._apply_dense(f"{layer}.attention.output.dense", attended)
            rows = self._normalise(f"{layer}.attention.output.LayerNorm", rows + attended)
            inner = self._apply_dense(f"{layer}.intermediate.dense", rows)
            _apply_gelu(inner)
            outer = self._apply_dense(f"{layer}.output.dense", inner)
            rows = self._normalise(f"{layer}.output.LayerNorm", rows + outer)
        # Vectors of length 1 are the same for the sum of the tokens' vectors and for their mean.
        sums: Floats = np.add.reduceat(rows, starts, axis=0)
        sums /= np.linalg.norm(sums, axis=1, keepdims=True)
        return sums

    def _apply_dense(self, name: str, rows: Floats) -> Floats:
        outputs: Floats = rows @ self._tensors[f"{name}.weight"].T
        outputs += self._tensors[f"{name}.bias"]
        return outputs

    def _normalise(self, name: str, rows: Floats) -> Floats:
        """Normalise each row to mean 0 and variance 1, then scale and shift it."""
        import numpy as np

        rows = rows - rows.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", rows, rows)[:, None] / HIDDEN
        rows /= np.sqrt(variance + EPSILON)
        rows *= self._tensors[f"{name}.weight"]
        rows += self._tensors[f"{name}.bias"]
        return rows


def _attend(query: Floats, key: Floats, value: Floats) -> Floats:
    """Return the scaled dot-product attention of all heads within one text."""
    import numpy as np

    queries, keys, values = (
        rows.reshape(len(rows), -1, HEAD_SIZE).transpose(1, 0, 2) for rows in (query, key, value)
    )
    # Keys are rows, because numpy reduces the first of two axes several times faster than the last.
    scores: Floats = keys @ (queries * np.float32(HEAD_SIZE**-0.5)).transpose(0, 2, 1)
    # Subtracting the maximum keeps `exp` from overflowing, and does not change the result.
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    attended: Floats = scores.transpose(0, 2, 1) @ values
    attended /= scores.sum(axis=1)[:, :, None]
    return attended.transpose(1, 0, 2).reshape(query.shape)


def _apply_gelu(rows: Floats) -> None:
    """Multiply each number by its cumulative normal distribution, in place.

    Source: Hendrycks and Gimpel 2016 (GELU).
    """
    import numpy as np

    powers = np.array(_POWERS, dtype=np.float32) / 2
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        distance = np.abs(block) * np.float32(0.5**0.5)
        tail = np.polyval(powers, 1 / (1 + np.float32(_SCALE) * distance))
        tail *= np.exp(-distance * distance)
        block *= np.where(block < 0, tail, 1 - tail)
