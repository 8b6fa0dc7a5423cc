"""The third stage: a vector for every text of this run that has none yet."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from qtmiddleware.errors import EmbeddingError
from qtmiddleware.kit.embedding import MiniLMEmbedder
from qtmiddleware.kit.engines import Engine, LocalEngine
from qtmiddleware.kit.index.ingestion.contexts import build_embedded_text
from qtmiddleware.kit.index.ingestion.ledger import Ledger
from qtmiddleware.protocols import Embedder
from qtmiddleware.providers.embedders import SentenceTransformersEmbedder
from qtmiddleware.runtime.environment import needs_secrets

Texts = list[tuple[bytes, str]]
"""What is embedded in one step: the hash of each text, and the text."""
Vectors = list[tuple[bytes, bytes]]
"""What comes of it: the hash of each text, and its vector in single precision, little endian."""

HUB_SECRETS: Final = (
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
)
"""The secrets that a worker may need to load a model of the hub: the proxies may have a password."""
BATCH: Final = 64
"""Texts that are embedded, and then kept, in one step."""
COMPUTED_BATCH: Final = 16
"""The same if they are embedded on this machine: no slower, and the progress bar moves more often."""

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


def can_be_sent(embedder: Embedder) -> bool:
    """Whether *embedder* computes on the machine it is on, so that an engine's workers can each have it."""
    return isinstance(embedder, MiniLMEmbedder | SentenceTransformersEmbedder)


def embed_missing(
    ledger: Ledger, embedder: Embedder, engine: Engine, progress: Callable[[int, int], None]
) -> int:
    """Embed the texts that are to be published and were never embedded, each once. Returns how many there were.

    *engine* does it where the embedder computes; what asks a service, or is the user's own, is
    called in this process. Raises `EmbeddingError` where the vectors are not what was promised, and
    whatever the embedder raises.
    """
    embedding = identify_embedding(embedder)
    total = ledger.fill_todo(_MISSING, [embedding])
    if not total:
        return 0
    done = 0
    progress(done, total)
    build = partial(build_embed_batch, embedder, embedding)
    is_computed = can_be_sent(embedder)
    used, size = (engine, COMPUTED_BATCH) if is_computed else (LocalEngine(), BATCH)
    for vectors in used.map(build, _read_texts(ledger, size)):
        ledger.many(
            "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)",
            [(embedding, *row) for row in vectors],
        )
        done += len(vectors)
        progress(done, total)
    return done


@needs_secrets(*HUB_SECRETS)
def build_embed_batch(embedder: Embedder, embedding: str) -> Callable[[Texts], Vectors]:
    """A function that embeds batches of texts, for an `Engine` to make in each of its workers.

    Raises `EmbeddingError` where *embedder*, there, is not of the kind *embedding*: the files of
    its model are others.
    """
    found = identify_embedding(embedder)
    if found != embedding:
        raise EmbeddingError(
            f"all workers must have the same model files; one worker embeds with {found}, not"
            f" {embedding}"
        )

    def embed_batch(texts: Texts) -> Vectors:
        blobs = _encode_vectors(embedder.embed([text for _, text in texts]), len(texts), embedder)
        return [(key, blob) for (key, _), blob in zip(texts, blobs, strict=True)]

    return embed_batch


def _read_texts(ledger: Ledger, size: int) -> Iterator[Texts]:
    for page in ledger.pages(_TODO, size):
        yield [(key, build_embedded_text(text, context)) for _, key, text, context in page]


def decode_vector(blob: bytes) -> list[float]:
    """A vector as it was embedded, to single precision; raises `struct.error` or `TypeError` for what is none."""
    return [number for (number,) in struct.iter_unpack("<f", memoryview(blob))]


def _encode_vectors(
    vectors: Sequence[Sequence[float]], count: int, embedder: Embedder
) -> list[bytes]:
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
            message = f"{embedder.name} must return lists of {embedder.dimension} numbers"
            raise EmbeddingError(message) from None
        if not all(map(math.isfinite, vector)):
            raise EmbeddingError(f"{embedder.name} must return finite numbers")
    return blobs
