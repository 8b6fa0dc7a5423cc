"""Compute the vectors of texts, in this process or on a Ray cluster."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from qtmiddleware.errors import EmbeddingError
from qtmiddleware.kit.embedding import MiniLMEmbedder, SentenceTransformersEmbedder
from qtmiddleware.protocols import Embedder

Texts = list[tuple[bytes, str]]
"""A batch of texts to embed, as (hash, text) pairs."""
Vectors = list[tuple[bytes, bytes]]
"""The vectors of a batch of texts, as (hash, vector) pairs: single precision, little endian."""

BATCH: Final = 64
"""The number of texts per batch, unless a local model embeds them."""
COMPUTED_BATCH: Final = 16
"""The number of texts per batch for a local model.

Larger batches are no faster, and the progress bar moves less often.
"""


def build_embedding_name(embedder: Embedder) -> str:
    """Return a name for the vectors of *embedder*, such as ``all-MiniLM-L6-v2/384``.

    Vectors with different names cannot be compared.
    """
    return f"{embedder.name}/{embedder.dimension}"


def embed_batches(embedder: Embedder, texts: Texts, *, on_ray: bool) -> Iterator[Vectors]:
    """Yield the vectors of *texts*, batch by batch. With *on_ray*, batches may change places.

    Raises `EmbeddingError` if *embedder* returns a wrong number of vectors, or invalid vectors.
    Exceptions from *embedder* are raised unchanged.
    """
    build = partial(build_batch_embedder, embedder, build_embedding_name(embedder))
    is_local_model = isinstance(embedder, MiniLMEmbedder | SentenceTransformersEmbedder)
    size = COMPUTED_BATCH if is_local_model else BATCH
    batches = (texts[start : start + size] for start in range(0, len(texts), size))
    if not (on_ray and is_local_model):
        yield from map(build(), batches)
        return
    from qtmiddleware.kit.ray_data import map_on_ray

    yield from map_on_ray(build, batches)


def build_batch_embedder(
    embedder: Embedder, expected_embedding_name: str
) -> Callable[[Texts], Vectors]:
    """Return a function that embeds a batch of texts with *embedder*.

    Each worker of a cluster builds its own function. Raises `EmbeddingError` if *embedder* has
    another name than *expected_embedding_name*, which means that the worker has other model files.
    """
    actual_embedding = build_embedding_name(embedder)
    if actual_embedding != expected_embedding_name:
        raise EmbeddingError(
            f"all workers must have the same model files; one worker embeds with"
            f" {actual_embedding}, not {expected_embedding_name}"
        )

    def embed_batch(texts: Texts) -> Vectors:
        blobs = _encode_vectors(embedder.embed([text for _, text in texts]), len(texts), embedder)
        return [(key, blob) for (key, _), blob in zip(texts, blobs, strict=True)]

    return embed_batch


def decode_vector(blob: bytes) -> list[float]:
    """Return the vector that is stored as *blob*. Raises `struct.error` if it is not a vector."""
    return [number for (number,) in struct.iter_unpack("<f", blob)]


def _encode_vectors(
    vectors: Sequence[Sequence[float]], text_count: int, embedder: Embedder
) -> Iterator[bytes]:
    """Yield each vector as bytes. Raises `EmbeddingError` unless all vectors are valid."""
    if len(vectors) != text_count:
        raise EmbeddingError(
            f"{embedder.name} returned {len(vectors)} vectors for {text_count} texts"
        )
    layout = struct.Struct(f"<{embedder.dimension}f")
    for vector in vectors:
        try:
            blob = layout.pack(*vector)
        except (TypeError, OverflowError, struct.error):
            # The embedder may have returned a text in place of numbers, and Python's message quotes
            # it.
            message = f"{embedder.name} must return lists of {embedder.dimension} numbers"
            raise EmbeddingError(message) from None
        if not all(map(math.isfinite, vector)):
            raise EmbeddingError(f"{embedder.name} must return finite numbers")
        yield blob
