"""Vectors of the built-in embedding model, made once and stored without the texts they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np

import qtmiddleware as qtm

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


class _AskedStore:
    """A store of one's own that keeps the vectors it is searched by."""

    embeds = False
    atomic = True
    identity = "asked"

    def __init__(self) -> None:
        self.vectors: list[Sequence[float]] = []

    def search(self, query: Sequence[float], top_k: int, **_: Any) -> list[dict[str, Any]]:
        self.vectors.append(query)
        return [{"id": "only", "score": 1.0, "text": "the only passage", "metadata": {}}]

    def count(self) -> int:
        return 1

    def close(self) -> None:
        pass

    def write(self, passages: Any, *, delete: Sequence[str] = ()) -> None:
        raise NotImplementedError

    def upsert(self, passages: Any, vectors: Any) -> None:
        raise NotImplementedError

    def delete(self, ids: Sequence[str]) -> None:
        raise NotImplementedError


class BuiltInModel:
    """The built-in embedding model, through the door a user has: the search over a store of one's own."""

    def __init__(self) -> None:
        self._store = _AskedStore()
        self._middleware = qtm.QueryMiddleware("off", store=self._store)

    def __call__(self, text: str) -> Vector:
        self._middleware.retriever.retrieve(text)
        return np.asarray(self._store.vectors[-1])
