"""Compute the vectors of texts, in this process or on a Ray cluster."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from qtmiddleware.errors import EmbeddingError
from qtmiddleware.kit.embedding import MiniLMEmbedder, SentenceTransformersEmbedder
from qtmiddleware.protocols import Embedder
from qtmiddleware.providers.embedding import read_vectors

# A batch of texts to embed, as (hash, text) pairs.
Texts = list[tuple[bytes, str]]
# The vectors of a batch of texts, as (vector, hash) pairs: single precision, little endian.
Vectors = list[tuple[bytes, bytes]]

BATCH: Final = 64
# The batch size of a local model: larger ones are no faster, and progress is shown less often.
COMPUTED_BATCH: Final = 16


def build_embedding_name(embedder: Embedder) -> str:
    """Return a name such as ``all-MiniLM-L6-v2/384``; only vectors of one name can be compared."""
    return f"{embedder.name}/{embedder.dimension}"


def embed_batches(embedder: Embedder, texts: Texts, *, on_ray: bool) -> Iterator[Vectors]:
    """Yield the vectors of *texts*, batch by batch. With *on_ray*, batches may change places.

    Raises `EmbeddingError` for invalid vectors. Exceptions of *embedder* are raised unchanged.
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


def build_batch_embedder(embedder: Embedder, expected_name: str) -> Callable[[Texts], Vectors]:
    """Return a function that embeds a batch; each worker of a cluster builds its own.

    Raises `EmbeddingError` if the worker has other model files than *expected_name*.
    """
    name = build_embedding_name(embedder)
    if name != expected_name:
        raise EmbeddingError(
            "all workers must have the same model files; one worker embeds with"
            f" {name}, not {expected_name}"
        )

    def embed_batch(texts: Texts) -> Vectors:
        returned = embedder.embed([text for _, text in texts])
        vectors = read_vectors(returned, len(texts), embedder.name, embedder.dimension)
        layout = struct.Struct(f"<{embedder.dimension}f")
        try:
            packed = [layout.pack(*vector) for vector in vectors]
        except OverflowError:
            message = f"{embedder.name} must return numbers of single precision"
            raise EmbeddingError(message) from None
        return [(vector, key) for vector, (key, _) in zip(packed, texts, strict=True)]

    return embed_batch
