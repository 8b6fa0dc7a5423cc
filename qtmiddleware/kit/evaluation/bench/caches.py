"""Cache vectors and model replies on disk, because they cost time or money."""

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

VERSION: Final = 3
"""The version of the file's layout."""
_TABLES: Final = ("CREATE TABLE cached (key BLOB PRIMARY KEY, value BLOB NOT NULL)",)

_log: Final = get_logger("qtmiddleware.bench")


class CacheFile:
    """An SQLite file with one table, which has a value for each key. Only the owner can read it.

    Keys are hashes, so the file contains no question and no passage. Several threads and processes
    may use the file. Once the file is open, a failure costs time or money, but ends nothing: a
    warning is logged, and the value counts as missing.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the file at *path*. If the file does not exist, create the file and its folders.

        Raises `StoreError` with the file's name if the file cannot be used.
        """
        self._path = Path(path).expanduser()
        self._lock = Lock()
        self._connection = open_database(
            str(self._path), _TABLES, version=VERSION, subject=f"the cache {self._path}"
        )

    def __repr__(self) -> str:
        return f"CacheFile({str(self._path)!r})"

    def read(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the values of *keys*, by key. Missing keys are left out."""
        values: dict[bytes, bytes] = {}
        with self._tolerate_failures(), self._lock:
            for key in keys:
                # SQLite quotes a text that is not UTF-8 in its error message, but never a blob.
                row = self._connection.execute(
                    "SELECT CAST(value AS BLOB) FROM cached WHERE key = ?", (key,)
                ).fetchone()
                if row is not None:
                    values[key] = row[0]
        return values

    def write(self, values: Mapping[bytes, bytes]) -> None:
        """Store *values* by key. A value that the file has already is replaced."""
        with self._tolerate_failures(), self._lock, self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(
                "INSERT OR REPLACE INTO cached VALUES (?, ?)", values.items()
            )

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _tolerate_failures(self) -> Iterator[None]:
        """Log database errors in the ``with`` block as a warning, and continue after the block."""
        try:
            yield
        except sqlite3.Error as error:
            _log.warning("the cache %s failed: %s", self._path, error, event="bench_cache_failed")


class CachedEmbedder:
    """Wraps an embedder, and caches its vectors in a file.

    A vector's key is the sha256 of the model's name, the dimension and the text. A damaged vector
    is computed again. Several threads and processes may share the file. The embedder's exceptions
    pass through.
    """

    def __init__(self, inner: Embedder, path: str | Path) -> None:
        """Wrap *inner*, and open the cache file at *path*.

        Raises `StoreError` if the file cannot be used.
        """
        self._inner = inner
        self._file = CacheFile(path)
        self._replayed: dict[str, float] | None = None

    def __repr__(self) -> str:
        return f"CachedEmbedder({self._inner!r}, {self._file!r})"

    @property
    def name(self) -> str:
        """The name of the embedding model."""
        return self._inner.name

    @property
    def dimension(self) -> int:
        """The length of every vector."""
        return self._inner.dimension

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*.

        Only texts without a cached vector are embedded, each of them once. The new vectors are
        cached.
        """
        keys = self._compute_keys(texts)
        vectors = self._look_up_vectors(keys)
        missing = [text for text in keys if text not in vectors]
        if missing:
            start = perf_counter()
            embedded = dict(zip(missing, self._inner.embed(missing), strict=True))
            # Texts are embedded together, so each text counts with the mean time.
            seconds_per_text = (perf_counter() - start) / len(missing)
            self._file.write(
                {
                    keys[text]: _pack_vector(vector, seconds_per_text)
                    for text, vector in embedded.items()
                }
            )
            vectors |= embedded
        return [vectors[text] for text in texts]

    @contextmanager
    def record_replays(self) -> Iterator[Mapping[str, float]]:
        """Yield a mapping that records the texts whose vectors come from the file.

        The mapping has the seconds that each text's embedding took originally. Record one question
        at a time, or the texts of several questions are mixed.
        """
        replayed: dict[str, float] = {}
        self._replayed = replayed
        try:
            yield replayed
        finally:
            self._replayed = None

    def close(self) -> None:
        """Close the file. The inner embedder stays open."""
        self._file.close()

    def _compute_keys(self, texts: Sequence[str]) -> dict[str, bytes]:
        """Return the cache key (a sha256) of each distinct text, by text."""
        head = f"{self.name}\n{self.dimension}\n"
        return {
            text: hashlib.sha256((head + text).encode(errors="surrogatepass")).digest()
            for text in texts
        }

    def _look_up_vectors(self, keys_by_text: Mapping[str, bytes]) -> dict[str, list[float]]:
        """Return the cached vectors by text, without the texts that have no cached vector.

        *keys_by_text* has the cache key of each text. Inside `record_replays`, this method also
        records the seconds that each vector took originally.
        """
        packed = self._file.read(keys_by_text.values())
        vectors: dict[str, list[float]] = {}
        for text, key in keys_by_text.items():
            numbers = _unpack_vector(packed.get(key, b""), self.dimension)
            if numbers is not None:
                seconds, *vectors[text] = numbers
                if self._replayed is not None:
                    self._replayed[text] = seconds
        return vectors


def _pack_vector(vector: Sequence[float], seconds: float) -> bytes:
    """Return *seconds* and *vector* as bytes: little-endian 64-bit floats."""
    return struct.pack(f"<{1 + len(vector)}d", seconds, *vector)


def _unpack_vector(packed: bytes, dimension: int) -> tuple[float, ...] | None:
    """Return the seconds and the vector in *packed*, or ``None`` if *packed* is damaged."""
    if len(packed) != 8 * (1 + dimension):
        return None
    numbers = struct.unpack(f"<{1 + dimension}d", packed)
    return numbers if all(map(isfinite, numbers)) else None


class CachedModel:
    """Wraps a model, and caches its replies in a file.

    A cached reply reports the tokens, cost and seconds of the original reply. A reply's key is the
    sha256 of the model's name, the prompt and *options*. Failures and truncated replies are not
    stored, and a damaged reply is asked for again. Several threads, event loops and processes may
    share the file.
    """

    def __init__(self, inner: LanguageModel, path: str | Path, *, options: str = "") -> None:
        """Open the file for the replies of *inner*.

        Args:
            inner: The model.
            path: The file.
            options: The model's options and address as text. This text is a part of every key.

        Raises:
            StoreError: The file cannot be used.
        """
        self._inner = inner
        self._file = CacheFile(path)
        self._options = options
        self.can_async: bool = getattr(inner, "can_async", True)

    def __repr__(self) -> str:
        return f"CachedModel({self._inner!r}, {self._file!r})"

    @property
    def name(self) -> str:
        """The name of the inner model."""
        return self._inner.name

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the cached reply to *prompt*, or ask the model and cache its reply.

        Exceptions of the inner model pass through.
        """
        key = self._compute_key(prompt)
        if (cached := self._look_up_reply(key)) is not None:
            return cached
        start = perf_counter()
        reply = self._inner.complete(prompt, deadline)
        self._store_reply(key, reply, perf_counter() - start)
        return reply

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the cached reply to *prompt*, or ask the model and cache its reply.

        Exceptions of the inner model pass through.
        """
        key = self._compute_key(prompt)
        if (cached := self._look_up_reply(key)) is not None:
            return cached
        start = perf_counter()
        reply = await self._inner.acomplete(prompt, deadline)
        self._store_reply(key, reply, perf_counter() - start)
        return reply

    def close(self) -> None:
        """Close the file. The inner model stays open."""
        self._file.close()

    def _compute_key(self, prompt: Prompt) -> bytes:
        """Return the cache key (a sha256) of the reply to *prompt*."""
        fields = [asdict(field) for field in prompt.fields]
        decisive = [
            self.name,
            self._options,
            prompt.mode,
            prompt.version,
            prompt.system,
            prompt.user,
            fields,
            prompt.max_tokens,
        ]
        return hashlib.sha256(json.dumps(decisive).encode()).digest()

    def _look_up_reply(self, key: bytes) -> Reply | None:
        """Return the cached reply with *key*, or ``None`` if it is missing or damaged."""
        reply_json = self._file.read([key]).get(key)
        return None if reply_json is None else _parse_reply(reply_json)

    def _store_reply(self, key: bytes, reply: Reply, seconds: float) -> None:
        """Write *reply* to the file, unless it is truncated. *seconds* is the measured time."""
        if reply.truncated:
            return
        # A reply that reports its own time, such as an estimate, keeps this time.
        timed = replace(reply, seconds=reply.seconds or seconds)
        self._file.write({key: json.dumps(asdict(timed)).encode()})


def _parse_reply(reply_json: bytes) -> Reply | None:
    """Return the reply in *reply_json*, or ``None`` if *reply_json* is damaged."""
    try:
        reply = Reply(**json.loads(reply_json))
        text: Any = reply.text
        amounts = [
            reply.input_tokens,
            reply.output_tokens,
            reply.calls,
            reply.seconds,
            reply.cost_usd or 0.0,
        ]
        is_whole = isinstance(text, str) and all(0 <= amount < inf for amount in amounts)
    except (TypeError, ValueError, RecursionError):
        return None
    return reply if is_whole else None
