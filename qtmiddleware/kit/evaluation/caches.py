"""Keep vectors and model replies in a file, so that a second measurement does not pay again."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from math import inf, isfinite
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, Final

from qtmiddleware.kit.stores.database import open_database
from qtmiddleware.protocols import Embedder, LanguageModel, Prompt, Reply
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Deadline

_VERSION: Final = 3
_TABLES: Final = ("CREATE TABLE cached (key BLOB PRIMARY KEY, value BLOB NOT NULL)",)
_log: Final = get_logger("qtmiddleware.bench")


class CacheFile:
    """A table of values by key in an SQLite file that only its owner can read.

    Threads and processes may share the file. If reading or writing fails later, a warning is
    logged, and the value is not cached.
    """

    def __init__(self, path: str | Path) -> None:
        """Open or create the file. Raises `StoreError` if it cannot be used as a cache."""
        self._path = Path(path).expanduser()
        self._lock = Lock()
        self._connection = open_database(
            str(self._path), _TABLES, version=_VERSION, subject=f"the cache {self._path}"
        )

    def __repr__(self) -> str:
        return f"CacheFile({str(self._path)!r})"

    def read(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the values of those *keys* that are cached."""
        values: dict[bytes, bytes] = {}
        statement = "SELECT CAST(value AS BLOB) FROM cached WHERE key = ?"
        with self._tolerate_failures(), self._lock:
            for key in keys:
                if row := self._connection.execute(statement, (key,)).fetchone():
                    values[key] = row[0]
        return values

    def write(self, values: Mapping[bytes, bytes]) -> None:
        """Cache *values* by key."""
        with self._tolerate_failures(), self._lock, self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(
                "INSERT OR REPLACE INTO cached VALUES (?, ?)", values.items()
            )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _tolerate_failures(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            _log.warning("the cache %s failed: %s", self._path, error, event="bench_cache_failed")


class CachedEmbedder:
    """An embedder that keeps each vector, with the time that it took, in the file at *path*."""

    def __init__(self, inner: Embedder, path: str | Path) -> None:
        self._inner = inner
        self._file = CacheFile(path)
        self._replayed: dict[str, float] | None = None

    def __repr__(self) -> str:
        return f"CachedEmbedder({self._inner!r}, {self._file!r})"

    @property
    def name(self) -> str:
        """The name of the model inside."""
        return self._inner.name

    @property
    def dimension(self) -> int:
        """The length of a vector."""
        return self._inner.dimension

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text. Texts without a cached vector are embedded in one call."""
        head = f"{self.name}\n{self.dimension}\n"
        keys = {
            text: hashlib.sha256((head + text).encode(errors="surrogatepass")).digest()
            for text in texts
        }
        vectors = self._look_up_vectors(keys)
        missing = [text for text in keys if text not in vectors]
        if missing:
            start = perf_counter()
            embedded = dict(zip(missing, self._inner.embed(missing), strict=True))
            seconds = (perf_counter() - start) / len(missing)
            self._file.write(
                {
                    keys[text]: struct.pack(f"<{1 + self.dimension}d", seconds, *vector)
                    for text, vector in embedded.items()
                }
            )
            vectors |= embedded
        return [vectors[text] for text in texts]

    @contextmanager
    def record_replays(self) -> Iterator[Mapping[str, float]]:
        """Yield a mapping of the texts whose vectors are read in the ``with`` block.

        Its values are the seconds that the vectors took originally.
        """
        replayed: dict[str, float] = {}
        self._replayed = replayed
        try:
            yield replayed
        finally:
            self._replayed = None

    def close(self) -> None:
        """Close the file. The embedder inside stays open."""
        self._file.close()

    def _look_up_vectors(self, keys: Mapping[str, bytes]) -> dict[str, list[float]]:
        packed = self._file.read(keys.values())
        vectors: dict[str, list[float]] = {}
        for text, key in keys.items():
            value = packed.get(key, b"")
            if len(value) != 8 * (1 + self.dimension):
                continue
            seconds, *vector = struct.unpack(f"<{1 + self.dimension}d", value)
            if isfinite(seconds) and all(map(isfinite, vector)):
                vectors[text] = vector
                if self._replayed is not None:
                    self._replayed[text] = seconds
        return vectors


class CachedModel:
    """A model that keeps its replies, with the time that they took, in the file at *path*.

    *options* are the settings that decide a reply beside the prompt. Truncated replies are not
    kept.
    """

    def __init__(self, inner: LanguageModel, path: str | Path, *, options: str = "") -> None:
        self._inner = inner
        self._file = CacheFile(path)
        self._options = options
        self.can_async: bool = getattr(inner, "can_async", True)

    def __repr__(self) -> str:
        return f"CachedModel({self._inner!r}, {self._file!r})"

    @property
    def name(self) -> str:
        """The name of the model inside."""
        return self._inner.name

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the cached reply to *prompt*, or ask the model."""
        key, start = self._compute_key(prompt), perf_counter()
        return self._look_up_reply(key) or self._keep(
            key, start, self._inner.complete(prompt, deadline)
        )

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the cached reply to *prompt*, or ask the model."""
        key, start = self._compute_key(prompt), perf_counter()
        return self._look_up_reply(key) or self._keep(
            key, start, await self._inner.acomplete(prompt, deadline)
        )

    def close(self) -> None:
        """Close the file. The model inside stays open."""
        self._file.close()

    def _compute_key(self, prompt: Prompt) -> bytes:
        fields = [asdict(field) for field in prompt.fields]
        decisive: list[Any] = [self.name, self._options, prompt.mode, prompt.version]
        decisive += [prompt.system, prompt.user, fields, prompt.max_tokens]
        return hashlib.sha256(json.dumps(decisive).encode()).digest()

    def _look_up_reply(self, key: bytes) -> Reply | None:
        try:
            reply = Reply(**json.loads(self._file.read([key])[key]))
            text: Any = reply.text
            amounts = [reply.input_tokens, reply.output_tokens, reply.calls, reply.seconds]
            is_whole = isinstance(text, str) and all(
                0 <= amount < inf for amount in (*amounts, reply.cost_usd or 0.0)
            )
        except (KeyError, TypeError, ValueError, RecursionError):
            return None
        return reply if is_whole else None

    def _keep(self, key: bytes, start: float, reply: Reply) -> Reply:
        if not reply.truncated:
            timed = replace(reply, seconds=reply.seconds or perf_counter() - start)
            self._file.write({key: json.dumps(asdict(timed)).encode()})
        return reply
