"""Compute the vectors of a BERT sentence encoder with numpy.

The texts of a batch are concatenated without padding, so a text's vector does not depend on the
other texts. The attention of consecutive texts of equal length is computed in one step.

Source: Devlin et al. 2019 (BERT). Layers and epsilon are as in the model's configuration.
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

# The normal distribution function is 0.5 + x * P(x^2) / Q(x^2) within 2.2e-8 * max(1, 1/|x|), up to
# |x| = 5.5; beyond that it is 0 or 1 in single precision. The coefficients, lowest power first, are
# a rational least-squares fit to the error function, reweighted towards equal error, made for this
# file.
_EDGE: Final = 5.5
_P: Final = (0.398941986, 0.0351402263, 4.76147356e-3, 1.82834047e-4, 6.53031601e-6, 2.22160943e-8)
_Q: Final = (1.0, 0.254747077, 0.0293974515, 1.96230293e-3, 7.86010668e-5, 1.19537052e-6)
_BLOCK: Final = 16
"""The number of rows per step of the activation function.

Its scratch arrays are then small enough to stay in the processor's cache.
"""
_SCORES: Final = 1 << 18
"""The maximum number of attention scores per step, so that they stay in the processor's cache.

A single text of 256 tokens exceeds this limit threefold, because texts are not split.
"""


@dataclass(frozen=True, slots=True)
class Dense:
    """A dense layer of the network: a matrix multiplication and an addition.

    Attributes:
        weight: The weights, of shape (inputs, outputs).
        bias: The bias, of shape (outputs,).
    """

    weight: Floats
    bias: Floats

    def __call__(self, rows: Floats) -> Floats:
        """Return *rows* times the weights, plus the bias."""
        outputs: Floats = rows @ self.weight
        outputs += self.bias
        return outputs


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer normalisation of the network.

    Attributes:
        scale: The factors for the normalised columns, of shape (384,).
        shift: The numbers to add to the scaled columns, of shape (384,).
    """

    scale: Floats
    shift: Floats

    def __call__(self, rows: Floats) -> Floats:
        """Normalise each row to mean 0 and variance 1, then scale and shift it.

        Changes *rows* in place, and returns *rows*.
        """
        import numpy as np

        rows -= rows.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", rows, rows) / HIDDEN
        rows *= (1.0 / np.sqrt(variance + EPSILON))[:, None]
        rows *= self.scale
        rows += self.shift
        return rows


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one transformer layer.

    Attributes:
        qkv: Computes queries, keys and values in one multiplication.
        attended: Projects the attention's output.
        attended_norm: Normalises the projected output after the residual connection.
        inner: The first layer of the feed-forward network.
        outer: The second layer of the feed-forward network.
        outer_norm: Normalises the network's output after the residual connection.
    """

    qkv: Dense
    attended: Dense
    attended_norm: Norm
    inner: Dense
    outer: Dense
    outer_norm: Norm


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of the model.

    Attributes:
        words: The embeddings of the vocabulary's tokens, of shape (30522, 384).
        positions: The embeddings of the positions in a text, of shape (512, 384).
        norm: Normalises the sum of token and position embeddings.
        layers: The transformer layers.
    """

    words: Floats
    positions: Floats
    norm: Norm
    layers: tuple[Layer, ...]


def list_tensor_shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape that each tensor in the weights file must have, keyed by tensor name."""
    square, row = (HIDDEN, HIDDEN), (HIDDEN,)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCABULARY, HIDDEN),
        "embeddings.position_embeddings.weight": (POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
        "embeddings.LayerNorm.weight": row,
        "embeddings.LayerNorm.bias": row,
    }
    part_shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
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
        for part, (weight, bias) in part_shapes.items():
            shapes[f"encoder.layer.{layer}.{part}.weight"] = weight
            shapes[f"encoder.layer.{layer}.{part}.bias"] = bias
    return shapes


def arrange_weights(tensors: Mapping[str, Any]) -> Weights:
    """Return the model's weights, arranged for fast multiplication.

    *tensors* must have the names and shapes that `list_tensor_shapes` returns.
    """
    import numpy as np

    def build_dense(*layer_names: str) -> Dense:
        """Return one dense layer that joins the layers with the names *layer_names*.

        The weights and the bias of a query layer are divided by the square root of the head size.
        """
        # Attention scores are divided by the square root of the head size. Scaling the query
        # weights has the same effect, and is done only once.
        scales = [
            np.float32(1.0 / sqrt(HEAD_SIZE) if name.endswith(".query") else 1.0)
            for name in layer_names
        ]
        weight, bias = (
            np.concatenate(
                [
                    tensors[f"{name}.{part}"] * scale
                    for name, scale in zip(layer_names, scales, strict=True)
                ]
            )
            for part in ("weight", "bias")
        )
        return Dense(np.ascontiguousarray(weight.T, dtype=np.float32), bias.astype(np.float32))

    def build_norm(layer_name: str) -> Norm:
        """Return the layer normalisation with the name *layer_name*."""
        return Norm(
            *(tensors[f"{layer_name}.{part}"].astype(np.float32) for part in ("weight", "bias"))
        )

    def build_layer(name_prefix: str) -> Layer:
        """Return the transformer layer whose tensors have names that begin with *name_prefix*."""
        return Layer(
            qkv=build_dense(
                *(f"{name_prefix}.attention.self.{part}" for part in ("query", "key", "value"))
            ),
            attended=build_dense(f"{name_prefix}.attention.output.dense"),
            attended_norm=build_norm(f"{name_prefix}.attention.output.LayerNorm"),
            inner=build_dense(f"{name_prefix}.intermediate.dense"),
            outer=build_dense(f"{name_prefix}.output.dense"),
            outer_norm=build_norm(f"{name_prefix}.output.LayerNorm"),
        )

    prefix = "embeddings"
    # All tokens have the first token type, so its embedding is added to all positions here.
    positions = (
        tensors[f"{prefix}.position_embeddings.weight"]
        + tensors[f"{prefix}.token_type_embeddings.weight"][0]
    )
    return Weights(
        words=tensors[f"{prefix}.word_embeddings.weight"].astype(np.float32),
        positions=positions.astype(np.float32),
        norm=build_norm(f"{prefix}.LayerNorm"),
        layers=tuple(build_layer(f"encoder.layer.{number}") for number in range(LAYERS)),
    )


def encode_texts(weights: Weights, token_ids: Sequence[Sequence[int]]) -> Floats:
    """Return one vector per text, as float32 of shape (texts, 384).

    A text's vector is the mean of its tokens' vectors, normalised to length 1. *token_ids* has one
    list of 1 to 512 ids per text. Texts of equal length are encoded faster if they are adjacent.
    """
    import numpy as np

    lengths = np.array([len(ids) for ids in token_ids])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    pooled: Floats = np.add.reduceat(encode_tokens(weights, token_ids), starts, axis=0)
    pooled /= lengths[:, None].astype(np.float32)
    pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    return pooled


def encode_tokens(weights: Weights, token_ids: Sequence[Sequence[int]]) -> Floats:
    """Return one vector per token, as float32 of shape (tokens, 384).

    *token_ids* has one list per text. The rows for the first text come first, without gaps between
    the texts.
    """
    import numpy as np

    lengths = [len(ids) for ids in token_ids]
    rows: Floats = weights.words[
        np.concatenate([np.asarray(ids, dtype=np.int64) for ids in token_ids])
    ]
    rows += weights.positions[np.concatenate([np.arange(length) for length in lengths])]
    rows = weights.norm(rows)
    for layer in weights.layers:
        mixed = layer.attended(_compute_attention(layer.qkv(rows), lengths))
        mixed += rows
        rows = layer.attended_norm(mixed)
        inner = layer.inner(rows)
        _apply_gelu(inner)
        outer = layer.outer(inner)
        outer += rows
        rows = layer.outer_norm(outer)
    return rows


def _group_equal_lengths(lengths: Sequence[int]) -> Iterator[tuple[slice, int, int]]:
    """Yield groups of consecutive texts of equal length.

    *lengths* are the texts' lengths in tokens. Each group is a tuple: the slice of the group's
    token rows, the number of texts, and the length of each text. A group's size is limited, so that
    its attention scores fit into the processor's cache.
    """
    start = 0
    for length, group in groupby(lengths):
        remaining = sum(1 for _ in group)
        max_texts = max(1, _SCORES // (HEADS * length * length))
        while remaining:
            texts = min(remaining, max_texts)
            yield slice(start, start + texts * length), texts, length
            start += texts * length
            remaining -= texts


def _compute_attention(qkv: Floats, lengths: Sequence[int]) -> Floats:
    """Return the scaled dot-product attention within each text, for all heads.

    *qkv* contains the queries, keys and values of all tokens, with one row per token. The queries
    must already be divided by the square root of the head size. *lengths* are the texts' lengths in
    tokens.
    """
    import numpy as np

    outputs = np.empty((len(qkv), HIDDEN), dtype=np.float32)
    for rows, texts, length in _group_equal_lengths(lengths):
        heads = qkv[rows].reshape(texts, length, 3, HEADS, HEAD_SIZE)
        query, key, value = (heads[:, :, part].transpose(0, 2, 1, 3) for part in range(3))
        # Scores are stored with keys as rows, because numpy reduces along the first of two axes
        # several times faster than along the last.
        scores: Floats = key @ query.transpose(0, 1, 3, 2)
        # Subtracting the maximum keeps `exp` from overflowing, and does not change the result.
        scores -= scores.max(axis=-2, keepdims=True)
        np.exp(scores, out=scores)
        total = scores.sum(axis=-2)[..., None]
        # Dividing the result instead of the scores touches 32 numbers per token, not one per pair
        # of tokens.
        attended = (scores.transpose(0, 1, 3, 2) @ value) / total
        outputs[rows].reshape(texts, length, HEADS, HEAD_SIZE)[:] = attended.transpose(0, 2, 1, 3)
    return outputs


def _apply_gelu(rows: Floats) -> None:
    """Apply the activation function GELU (Gaussian error linear unit) to *rows*, in place.

    GELU multiplies x by the cumulative normal distribution function of x. The error is at most
    2e-6. Source: Hendrycks and Gimpel 2016.
    """
    import numpy as np

    numerator, denominator = (
        [np.float32(number) for number in reversed(numbers)] for numbers in (_P, _Q)
    )
    scratch = np.empty((4, _BLOCK, rows.shape[1]), dtype=np.float32)
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        clipped, square, above, below = scratch[:, : len(block)]
        np.clip(block, -_EDGE, _EDGE, out=clipped)
        np.multiply(clipped, clipped, out=square)
        for numbers, value in ((numerator, above), (denominator, below)):
            np.multiply(square, numbers[0], out=value)
            np.add(value, numbers[1], out=value)
            for number in numbers[2:]:
                np.multiply(value, square, out=value)
                np.add(value, number, out=value)
        above /= below
        above *= clipped
        above += np.float32(0.5)
        block *= above
