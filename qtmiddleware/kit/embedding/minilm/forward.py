"""The arithmetic of a BERT-shaped sentence encoder, in numpy alone.

The texts of a batch are laid end to end without padding, so the large multiplications run over real
tokens only and a text's vector does not depend on what it was batched with. Attention is taken over
runs of texts of equal length.
Source: Devlin et al. 2019 (BERT); the order of operations and the epsilon are those of the model's
own configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import sqrt
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

LAYERS: Final = 6
HIDDEN: Final = 384
HEADS: Final = 12
HEAD_SIZE: Final = HIDDEN // HEADS
INNER: Final = 1536
VOCABULARY: Final = 30522
POSITIONS: Final = 512
EPSILON: Final = 1e-12

# The normal distribution function is 0.5 + x * P(x^2) / Q(x^2) within 2.2e-8 * max(1, 1/|x|) up to
# |x| = 5.5, beyond which it is 0 or 1 in single precision. Coefficients, lowest power first: a
# rational least-squares fit to the error function, reweighted towards equal error, made for this
# file.
_EDGE: Final = 5.5
_P: Final = (0.398941986, 0.0351402263, 4.76147356e-3, 1.82834047e-4, 6.53031601e-6, 2.22160943e-8)
_Q: Final = (1.0, 0.254747077, 0.0293974515, 1.96230293e-3, 7.86010668e-5, 1.19537052e-6)
_BLOCK: Final = 16
"""Rows the activation takes at once, few enough for its scratch arrays to stay in the processor's cache."""
_SCORES: Final = 1 << 18
"""Attention scores held at once, for the same reason; one text of 256 tokens has three times as many."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A weight matrix, laid out to be multiplied from the right, and its bias."""

    weight: Floats
    bias: Floats

    def __call__(self, rows: Floats) -> Floats:
        """*rows* times the weights, plus the bias."""
        out: Floats = rows @ self.weight
        out += self.bias
        return out


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer normalisation."""

    scale: Floats
    shift: Floats

    def __call__(self, rows: Floats) -> Floats:
        """*rows*, each brought to mean 0 and variance 1, scaled and shifted; changed in place."""
        import numpy as np

        rows -= rows.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", rows, rows) / HIDDEN
        rows *= (1.0 / np.sqrt(variance + EPSILON))[:, None]
        rows *= self.scale
        rows += self.shift
        return rows


@dataclass(frozen=True, slots=True)
class Layer:
    """One transformer layer; *qkv* makes queries, keys and values in one multiplication."""

    qkv: Dense
    attended: Dense
    attended_norm: Norm
    inner: Dense
    outer: Dense
    outer_norm: Norm


@dataclass(frozen=True, slots=True)
class Weights:
    """All of the model's numbers."""

    words: Floats
    positions: Floats
    norm: Norm
    layers: tuple[Layer, ...]


def list_shapes() -> dict[str, tuple[int, ...]]:
    """The tensors this arithmetic needs, by their names in the file, with their shapes."""
    square, row = (HIDDEN, HIDDEN), (HIDDEN,)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCABULARY, HIDDEN),
        "embeddings.position_embeddings.weight": (POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
        "embeddings.LayerNorm.weight": row,
        "embeddings.LayerNorm.bias": row,
    }
    parts: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "attention.self.query": (square, row),
        "attention.self.key": (square, row),
        "attention.self.value": (square, row),
        "attention.output.dense": (square, row),
        "attention.output.LayerNorm": (row, row),
        "intermediate.dense": ((INNER, HIDDEN), (INNER,)),
        "output.dense": ((HIDDEN, INNER), row),
        "output.LayerNorm": (row, row),
    }
    for layer in range(LAYERS):
        for part, (weight, bias) in parts.items():
            shapes[f"encoder.layer.{layer}.{part}.weight"] = weight
            shapes[f"encoder.layer.{layer}.{part}.bias"] = bias
    return shapes


def arrange_weights(tensors: Mapping[str, Any]) -> Weights:
    """The weights, arranged for multiplication, from *tensors* that have the `list_shapes`."""
    import numpy as np

    def dense(*names: str) -> Dense:
        """The named maps side by side, as one; queries are scaled here once, in place of every score later."""
        scales = [
            np.float32(1.0 / sqrt(HEAD_SIZE) if name.endswith(".query") else 1.0) for name in names
        ]
        weight, bias = (
            np.concatenate(
                [
                    tensors[f"{name}.{part}"] * scale
                    for name, scale in zip(names, scales, strict=True)
                ]
            )
            for part in ("weight", "bias")
        )
        return Dense(np.ascontiguousarray(weight.T, dtype=np.float32), bias.astype(np.float32))

    def norm(name: str) -> Norm:
        return Norm(*(tensors[f"{name}.{part}"].astype(np.float32) for part in ("weight", "bias")))

    def layer(at: str) -> Layer:
        return Layer(
            qkv=dense(*(f"{at}.attention.self.{part}" for part in ("query", "key", "value"))),
            attended=dense(f"{at}.attention.output.dense"),
            attended_norm=norm(f"{at}.attention.output.LayerNorm"),
            inner=dense(f"{at}.intermediate.dense"),
            outer=dense(f"{at}.output.dense"),
            outer_norm=norm(f"{at}.output.LayerNorm"),
        )

    at = "embeddings"
    # All tokens are of the first type, so its row is added to the positions once and for all.
    positions = (
        tensors[f"{at}.position_embeddings.weight"]
        + tensors[f"{at}.token_type_embeddings.weight"][0]
    )
    return Weights(
        words=tensors[f"{at}.word_embeddings.weight"].astype(np.float32),
        positions=positions.astype(np.float32),
        norm=norm(f"{at}.LayerNorm"),
        layers=tuple(layer(f"encoder.layer.{number}") for number in range(LAYERS)),
    )


def encode(weights: Weights, token_ids: Sequence[Sequence[int]]) -> Floats:
    """One vector of length 1 for each list of token ids: the mean over its tokens, shape (texts, 384), float32.

    Each list holds 1 to 512 ids. Lists of equal length that stand side by side are the fastest.
    """
    import numpy as np

    lengths = np.array([len(ids) for ids in token_ids])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    pooled: Floats = np.add.reduceat(encode_tokens(weights, token_ids), starts, axis=0)
    pooled /= lengths[:, None].astype(np.float32)
    pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    return pooled


def encode_tokens(weights: Weights, token_ids: Sequence[Sequence[int]]) -> Floats:
    """One vector for each token of each list, one list after the other: shape (tokens, 384), float32."""
    import numpy as np

    lengths = [len(ids) for ids in token_ids]
    rows: Floats = weights.words[
        np.concatenate([np.asarray(ids, dtype=np.int64) for ids in token_ids])
    ]
    rows += weights.positions[np.concatenate([np.arange(length) for length in lengths])]
    rows = weights.norm(rows)
    for layer in weights.layers:
        mixed = layer.attended(_attention(layer.qkv(rows), lengths))
        mixed += rows
        rows = layer.attended_norm(mixed)
        inner = layer.inner(rows)
        _gelu(inner)
        outer = layer.outer(inner)
        outer += rows
        rows = layer.outer_norm(outer)
    return rows


def _runs(lengths: Sequence[int]) -> Iterator[tuple[slice, int, int]]:
    """Each run of equal *lengths*, in parts of bounded size: the rows it covers, how many texts, how long each is."""
    start = 0
    for length, group in groupby(lengths):
        left = sum(1 for _ in group)
        most = max(1, _SCORES // (HEADS * length * length))
        while left:
            texts = min(left, most)
            yield slice(start, start + texts * length), texts, length
            start += texts * length
            left -= texts


def _attention(qkv: Floats, lengths: Sequence[int]) -> Floats:
    """Dot-product attention of every text over its own tokens, for all heads; the queries come scaled."""
    import numpy as np

    out = np.empty((len(qkv), HIDDEN), dtype=np.float32)
    for rows, texts, length in _runs(lengths):
        heads = qkv[rows].reshape(texts, length, 3, HEADS, HEAD_SIZE)
        query, key, value = (heads[:, :, part].transpose(0, 2, 1, 3) for part in range(3))
        # Kept key by query: numpy reduces along the first of two axes several times faster than
        # along the last.
        scores: Floats = key @ query.transpose(0, 1, 3, 2)
        scores -= scores.max(axis=-2, keepdims=True)
        np.exp(scores, out=scores)
        total = scores.sum(axis=-2)[..., None]
        # Dividing what was attended, not the scores, touches 32 numbers a token in place of one for
        # every other token.
        attended = (scores.transpose(0, 1, 3, 2) @ value) / total
        out[rows].reshape(texts, length, HEADS, HEAD_SIZE)[:] = attended.transpose(0, 2, 1, 3)
    return out


def _gelu(rows: Floats) -> None:
    """The exact Gaussian error linear unit, x times the normal distribution function, in place.

    Within 2e-6 of the value in double precision. Source: Hendrycks and Gimpel 2016.
    """
    import numpy as np

    p, q = ([np.float32(number) for number in reversed(numbers)] for numbers in (_P, _Q))
    scratch = np.empty((4, _BLOCK, rows.shape[1]), dtype=np.float32)
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        clipped, square, above, below = scratch[:, : len(block)]
        np.clip(block, -_EDGE, _EDGE, out=clipped)
        np.multiply(clipped, clipped, out=square)
        for numbers, value in ((p, above), (q, below)):
            np.multiply(square, numbers[0], out=value)
            np.add(value, numbers[1], out=value)
            for number in numbers[2:]:
                np.multiply(value, square, out=value)
                np.add(value, number, out=value)
        above /= below
        above *= clipped
        above += np.float32(0.5)
        block *= above
