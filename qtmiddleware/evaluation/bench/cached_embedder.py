"""An embedder that keeps every vector on disk."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Final

from qtmiddleware.evaluation.bench.cache_file import CacheFile
from qtmiddleware.protocols import Embedder

# Looked at in this order, nothing is read of a row that is too large to be a vector.
_FIND: Final = (
    "SELECT vector, seconds FROM vectors WHERE key = ? AND typeof(vector) = 'blob' AND length(vector) <= ?"
    " AND typeof(seconds) = 'real'"
)


class CachedEmbedder:
    """Embeds by *inner*, and what it has embedded before out of the file at *path*.

    A vector is kept under the model's name, its dimension and the sha256 of the text, which itself is not kept. It
    comes back as it was: in 32 bits a number where that is exact, else in 64. Safe with many threads and processes.
    Raises what *inner* raises, and `StoreError` where the file cannot be used.
    """

    def __init__(self, inner: Embedder, path: str | Path) -> None:
        self._inner = inner
        self._file = CacheFile(path)
        self._listener: dict[str, float] | None = None

    def __repr__(self) -> str:
        return f"CachedEmbedder({self._inner!r}, {self._file!r})"

    @cached_property
    def name(self) -> str:
        """The name of the model that embeds."""
        return self._inner.name

    @cached_property
    def dimension(self) -> int:
        """The length of every vector."""
        return self._inner.dimension

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in the texts' order; equal texts are embedded once."""
        keys = {text: self._key(text) for text in texts}
        found = self._known(keys)
        missing = [text for text in keys if text not in found]
        if missing:
            began = perf_counter()
            made = dict(zip(missing, self._inner.embed(missing), strict=True))
            share = (perf_counter() - began) / len(missing)
            rows = [(keys[text], _packed(vector), share) for text, vector in made.items()]
            with self._file.run() as run:
                run.execute("BEGIN IMMEDIATE")
                try:
                    run.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)
                    run.execute("COMMIT")
                finally:
                    if run.in_transaction:
                        run.execute("ROLLBACK")
            found |= made
        return [found[text] for text in texts]

    @contextmanager
    def replaying(self) -> Iterator[Mapping[str, float]]:
        """The texts whose vectors come out of the file meanwhile, with the seconds each took at first.

        For one question at a time: it does not know who asks.
        """
        heard: dict[str, float] = {}
        self._listener = heard
        try:
            yield heard
        finally:
            self._listener = None

    def close(self) -> None:
        """Let go of the file; the embedder inside stays as it is."""
        self._file.close()

    def _key(self, text: str) -> bytes:
        head = f"{self.name}\n{self.dimension}\n".encode(errors="surrogatepass")
        return hashlib.sha256(head + text.encode(errors="surrogatepass")).digest()

    def _known(self, keys: Mapping[str, bytes]) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        listener = self._listener
        with self._file.run() as run:
            for text, key in keys.items():
                row = run.execute(_FIND, (key, 8 * self.dimension)).fetchone()
                vector = None if row is None else _unpacked(row[0], self.dimension)
                if vector is not None:
                    found[text] = vector
                    if listener is not None:
                        listener[text] = row[1]
        return found


def _packed(vector: Sequence[float]) -> bytes:
    """*vector* in 32 bits a number where none is changed by that."""
    try:
        small = struct.pack(f"<{len(vector)}f", *vector)
    except OverflowError:
        small = b""
    exact = bool(small) and struct.unpack(f"<{len(vector)}f", small) == tuple(vector)
    return small if exact else struct.pack(f"<{len(vector)}d", *vector)


def _unpacked(packed: bytes, dimension: int) -> list[float] | None:
    """The vector; ``None`` where these are the bytes of none, and the text is embedded again."""
    try:
        vector = list(struct.unpack(f"<{dimension}{'f' if len(packed) == 4 * dimension else 'd'}", packed))
    except (struct.error, TypeError):
        return None
    return vector if all(map(isfinite, vector)) else None
