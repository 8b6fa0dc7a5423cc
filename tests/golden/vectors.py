"""Vectors of the built-in embedding model, made once and stored without the texts they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np

from qtmiddleware.kit.embedding import find_embedder

DIMENSION: Final = 384

Vector = Any
"""An array of `DIMENSION` numbers."""


class StoredVectors:
    """The vectors of one file, found by the SHA-256 of their text.

    A text without a vector is a `LookupError`, unless *make* makes one.
    """

    def __init__(self, path: Path, *, make: Callable[[str], Vector] | None = None) -> None:
        self._path = path
        self._make = make
        self._by_key: dict[bytes, Vector] = {}
        self._asked: set[bytes] = set()
        if path.exists():
            with np.load(path, allow_pickle=False) as file:
                keys = [key.tobytes() for key in file["keys"]]
                vectors = file["vectors"].astype(np.float64)
            self._by_key = dict(zip(keys, vectors, strict=True))

    def find(self, text: str) -> Vector:
        """The vector of *text*, in double precision, so that the sum's order of addition does not show."""
        key = _key(text)
        self._asked.add(key)
        if key not in self._by_key:
            if self._make is None:
                raise LookupError("no vector is stored for this text; run: python -m tests.golden")
            self._by_key[key] = np.asarray(self._make(text), dtype=np.float16).astype(np.float64)
        return self._by_key[key]

    def save(self, texts: Iterable[str]) -> None:
        """Keep the vectors of *texts* in their order, then those of other texts that were asked for."""
        first = [_key(text) for text in texts if self.find(text) is not None]
        keys = list(dict.fromkeys([*first, *sorted(self._asked)]))
        np.savez_compressed(
            self._path,
            keys=np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), -1),
            vectors=np.stack([self._by_key[key] for key in keys]).astype(np.float16),
        )


def _key(text: str) -> bytes:
    return sha256(text.encode()).digest()


load_embedder = cache(find_embedder)


def embed(text: str) -> Vector:
    """The vector that the built-in model makes of *text*."""
    return np.asarray(load_embedder("all-MiniLM-L6-v2").embed([text])[0])
