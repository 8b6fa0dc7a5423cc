"""The third stage: a vector for every text of this run that has none yet."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Final

from qtmiddleware.errors import EmbeddingError
from qtmiddleware.protocols import Embedder
from qtmiddleware.rag.ingestion.contexts import embedded_text
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


def embedding_of(embedder: Embedder | None) -> str:
    """What two vectors must share to be of one kind; nothing where the store embeds."""
    return "" if embedder is None else f"{embedder.name}/{embedder.dimension}"


def embed_missing(ledger: Ledger, embedder: Embedder, tell: Callable[[int, int], None]) -> int:
    """Embed the texts that are to be published and were never embedded, each once; answers how many there were.

    Raises `EmbeddingError` where the vectors are not what was promised, and whatever the embedder raises.
    """
    embedding = embedding_of(embedder)
    with ledger.transaction():
        ledger.rows("DELETE FROM todo")
        ledger.rows(_MISSING, [embedding])
    total: int = ledger.value("SELECT count(*) FROM todo")
    done = 0
    for page in ledger.pages(_TODO, BATCH):
        vectors = embedder.embed([embedded_text(text, context) for _, _, text, context in page])
        blobs = _blobs(vectors, len(page), embedder)
        ledger.many(
            "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)",
            [(embedding, row[1], blob) for row, blob in zip(page, blobs, strict=True)],
        )
        done += len(page)
        tell(done, total)
    return done


def vector_of(blob: bytes) -> list[float]:
    """A vector as it was embedded, to single precision."""
    return _swapped(array("f", blob)).tolist()


def _blobs(vectors: Sequence[Sequence[float]], count: int, embedder: Embedder) -> list[bytes]:
    """*vectors* in single precision, little endian; raises `EmbeddingError` unless there are *count* sound ones."""
    if len(vectors) != count:
        raise EmbeddingError(f"{embedder.name} returned {len(vectors)} vectors for {count} texts")
    blobs = []
    for vector in vectors:
        try:
            numbers = array("f", vector)
        except (TypeError, ValueError, OverflowError):
            # What stands there in place of numbers may be a text, and Python quotes it.
            raise EmbeddingError(f"{embedder.name} returned something else than lists of numbers") from None
        if len(numbers) != embedder.dimension:
            raise EmbeddingError(f"{embedder.name} returned {len(numbers)} numbers, not {embedder.dimension}")
        if not all(map(math.isfinite, numbers)):
            raise EmbeddingError(f"{embedder.name} returned a number that is not finite")
        blobs.append(_swapped(numbers).tobytes())
    return blobs


def _swapped(numbers: array[float]) -> array[float]:
    """*numbers* between this machine's order of bytes and little endian."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
