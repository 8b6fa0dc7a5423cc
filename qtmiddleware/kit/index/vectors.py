"""Compute the vectors of texts, in this process or on a Ray cluster."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from typing import Final

from qtmiddleware.errors import EmbeddingError
from qtmiddleware.kit.embedding import MiniLMEmbedder, SentenceTransformersEmbedder
from qtmiddleware.kit.ray_data import map_on_ray
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
    is_local_model = isinstance(embedder, MiniLMEmbedder | SentenceTransformersEmbedder)
    size = COMPUTED_BATCH if is_local_model else BATCH
    batches = (texts[start : start + size] for start in range(0, len(texts), size))
    if on_ray and is_local_model:
        # Each worker builds `partial(_embed_batch, embedder)`, and so loads the model once.
        yield from map_on_ray(partial(partial, _embed_batch, embedder), batches)
    else:
        yield from map(partial(_embed_batch, embedder), batches)


def _embed_batch(embedder: Embedder, texts: Texts) -> Vectors:
    returned = embedder.embed([text for _, text in texts])
    vectors = read_vectors(returned, len(texts), embedder.name, embedder.dimension)
    layout = struct.Struct(f"<{embedder.dimension}f")
    try:
        packed = [layout.pack(*vector) for vector in vectors]
    except OverflowError:
        raise EmbeddingError(f"{embedder.name} must return single-precision numbers") from None
    return [(vector, key) for vector, (key, _) in zip(packed, texts, strict=True)]
