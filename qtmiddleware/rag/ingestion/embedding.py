"""The third stage: a vector for every text of this run that has none yet."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Final

from qtmiddleware.errors import EmbeddingError
from qtmiddleware.protocols import Embedder
from qtmiddleware.rag.ingestion.contexts import build_embedded_text
from qtmiddleware.rag.ingestion.ledger import Ledger

BATCH: Final = 64
"""Texts that are embedded, and then kept, in one step."""

_MISSING: Final = """
INSERT INTO todo (chunk) SELECT min(c.id) FROM publishing p JOIN chunks c ON c.id = p.chunk
WHERE NOT EXISTS (SELECT 1 FROM vectors v WHERE v.embedding = ? AND v.hash = c.hash) GROUP BY c.hash ORDER BY 1
"""
_TODO: Final = """
SELECT t.n, c.hash, c.text, x.text FROM todo t JOIN chunks c ON c.id = t.chunk LEFT JOIN contexts x ON x.key = c.context
WHERE t.n > ? ORDER BY t.n LIMIT ?
"""


def identify_embedding(embedder: Embedder | None) -> str:
    """What two vectors must share to be of one kind; nothing where the store embeds."""
    return "" if embedder is None else f"{embedder.name}/{embedder.dimension}"


def embed_missing(ledger: Ledger, embedder: Embedder, progress: Callable[[int, int], None]) -> int:
    """Embed the texts that are to be published and were never embedded, each once. Returns how many there were.

    Raises `EmbeddingError` where the vectors are not what was promised, and whatever the embedder raises.
    """
    embedding = identify_embedding(embedder)
    total = ledger.fill_todo(_MISSING, [embedding])
    done = 0
    for page in ledger.pages(_TODO, BATCH):
        vectors = embedder.embed([build_embedded_text(text, context) for _, _, text, context in page])
        blobs = _encode_vectors(vectors, len(page), embedder)
        ledger.many(
            "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)",
            [(embedding, row[1], blob) for row, blob in zip(page, blobs, strict=True)],
        )
        done += len(page)
        progress(done, total)
    return done


def decode_vector(blob: bytes) -> list[float]:
    """A vector as it was embedded, to single precision; raises `struct.error` or `TypeError` for what is none."""
    return [number for (number,) in struct.iter_unpack("<f", memoryview(blob))]


def _encode_vectors(vectors: Sequence[Sequence[float]], count: int, embedder: Embedder) -> list[bytes]:
    """*vectors* in single precision, little endian; raises `EmbeddingError` unless there are *count* sound ones."""
    if len(vectors) != count:
        raise EmbeddingError(f"{embedder.name} returned {len(vectors)} vectors for {count} texts")
    layout = struct.Struct(f"<{embedder.dimension}f")
    blobs = []
    for vector in vectors:
        try:
            blobs.append(layout.pack(*vector))
        except (TypeError, OverflowError, struct.error):
            # What stands there in place of numbers may be a text, and Python quotes it.
            message = f"{embedder.name} returned something else than lists of {embedder.dimension} numbers"
            raise EmbeddingError(message) from None
        if not all(map(math.isfinite, vector)):
            raise EmbeddingError(f"{embedder.name} returned a number that is not finite")
    return blobs
