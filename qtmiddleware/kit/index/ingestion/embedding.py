"""Compute a vector for each text that has none: the third stage of ingestion."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from qtmiddleware.errors import EmbeddingError
from qtmiddleware.kit.embedding import MiniLMEmbedder, SentenceTransformersEmbedder
from qtmiddleware.kit.index.ingestion.contexts import build_embedded_text
from qtmiddleware.kit.index.ingestion.ledger import Ledger
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

_MISSING: Final = """
INSERT INTO todo (chunk) SELECT min(c.id) FROM publishing p JOIN chunks c ON c.id = p.chunk
WHERE NOT EXISTS (SELECT 1 FROM vectors v WHERE v.embedding = ? AND v.hash = c.hash) \
GROUP BY c.hash ORDER BY 1
"""
_TODO: Final = """
SELECT t.n, c.hash, c.text, x.text FROM todo t JOIN chunks c ON c.id = t.chunk \
LEFT JOIN contexts x ON x.key = c.context
WHERE t.n > ? ORDER BY t.n LIMIT ?
"""


def build_embedding_name(embedder: Embedder | None) -> str:
    """Return a name for the vectors of *embedder*, such as ``all-MiniLM-L6-v2/384``.

    Vectors with different names cannot be compared. Returns ``""`` if *embedder* is ``None``,
    because the store embeds texts itself.
    """
    return "" if embedder is None else f"{embedder.name}/{embedder.dimension}"


def embed_missing_texts(
    ledger: Ledger,
    embedder: Embedder,
    report_progress: Callable[[int, int], None],
    *,
    on_ray: bool,
) -> int:
    """Embed the texts of this run that have no vector yet, and return how many there were.

    Args:
        ledger: the database with the texts, in which the vectors are saved.
        embedder: the embedder that computes the vectors.
        report_progress: a function that is called with the number of embedded texts and the total.
        on_ray: whether to run *embedder* on a Ray cluster, if it is a built-in local model.

    Raises:
        EmbeddingError: if the embedder returns a wrong number of vectors, or invalid vectors.
            Exceptions from the embedder are raised unchanged.
    """
    embedding = build_embedding_name(embedder)
    total = ledger.fill_work_table(_MISSING, [embedding])
    if not total:
        return 0
    done = 0
    report_progress(done, total)
    build_embedder = partial(build_batch_embedder, embedder, embedding)
    is_local_model = isinstance(embedder, MiniLMEmbedder | SentenceTransformersEmbedder)
    batches = _read_text_batches(ledger, COMPUTED_BATCH if is_local_model else BATCH)
    vector_batches: Iterator[Vectors] = map(build_embedder(), batches)
    if on_ray and is_local_model:
        from qtmiddleware.kit.ray_data import map_on_ray

        vector_batches = map_on_ray(build_embedder, batches)
    for vectors in vector_batches:
        # Saved batch by batch, so that a killed run never embeds these texts again.
        ledger.execute_many(
            "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)",
            [(embedding, *row) for row in vectors],
        )
        done += len(vectors)
        report_progress(done, total)
    return done


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


def _read_text_batches(ledger: Ledger, batch_size: int) -> Iterator[Texts]:
    for page in ledger.fetch_row_pages(_TODO, batch_size):
        yield [(key, build_embedded_text(text, context)) for _, key, text, context in page]


def decode_vector(blob: bytes) -> list[float]:
    """Return the vector that is stored as *blob*, as a list of numbers.

    Raises `struct.error` or `TypeError` if *blob* is not a vector.
    """
    return [number for (number,) in struct.iter_unpack("<f", memoryview(blob))]


def _encode_vectors(
    vectors: Sequence[Sequence[float]], text_count: int, embedder: Embedder
) -> list[bytes]:
    """Return each vector as bytes: single-precision numbers, little endian.

    Raises `EmbeddingError` unless *embedder* has returned *text_count* vectors of the right length,
    with finite numbers only.
    """
    if len(vectors) != text_count:
        raise EmbeddingError(
            f"{embedder.name} returned {len(vectors)} vectors for {text_count} texts"
        )
    layout = struct.Struct(f"<{embedder.dimension}f")
    blobs = []
    for vector in vectors:
        try:
            blobs.append(layout.pack(*vector))
        except (TypeError, OverflowError, struct.error):
            # The embedder may have returned a text in place of numbers, and Python's message quotes
            # it.
            message = f"{embedder.name} must return lists of {embedder.dimension} numbers"
            raise EmbeddingError(message) from None
        if not all(map(math.isfinite, vector)):
            raise EmbeddingError(f"{embedder.name} must return finite numbers")
    return blobs
