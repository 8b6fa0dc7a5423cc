"""Cache vectors and model replies on disk, because they cost time or money."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from math import inf, isfinite
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, Final

from qtmiddleware.errors import StoreError
from qtmiddleware.kit.engines import Engine
from qtmiddleware.kit.index.ingestion.embedding import (
    HUB_SECRETS,
    Texts,
    Vectors,
    build_batch_embedder,
    build_embedding_name,
    can_run_in_workers,
    decode_vector,
)
from qtmiddleware.kit.stores.sqlite.files import (
    BUSY_SECONDS,
    FAILURES,
    check_tables,
    connect_to_existing_file,
    create_private_file,
    describe_sqlite_error,
    is_damage_error,
    is_new_database,
    is_wrong_file_error,
    read_application_id_and_version,
    use_write_ahead_log,
)
from qtmiddleware.protocols import Embedder, LanguageModel, Prompt, Reply
from qtmiddleware.providers.llms.openai.replies import MOST_BYTES
from qtmiddleware.runtime.environment import declare_needed_secrets
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Deadline

APPLICATION_ID: Final = 0x71746D62
"""The number that marks the file as a cache of qtmiddleware: "qtmb" in ASCII."""
VERSION: Final = 1
"""The version of the file's layout."""
MOST_ROW_BYTES: Final = 1 << 23
"""The maximum size of a row in bytes. A reply of one megabyte can take six megabytes as JSON."""

# Keys are hashes. "seconds" is how long it took to compute a vector.
_SCHEMA: Final = (
    "CREATE TABLE vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL, seconds REAL NOT NULL)",
    "CREATE TABLE replies (key BLOB PRIMARY KEY, reply TEXT NOT NULL)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {VERSION}",
)

_log: Final = get_logger("qtmiddleware.bench")


class CacheFile:
    """An SQLite file of vectors and replies. Only the owner can read the file.

    The class is thread-safe. Several processes may use the same file, but each process must open
    the file after forking. A damaged file, or a file of another program or version, stays
    unchanged.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the file at *path*. If the file does not exist, create the file and its folders.

        Raises `StoreError` with the file's name if the file cannot be used.
        """
        self._path = Path(path).expanduser()
        self._lock = Lock()
        with self._convert_errors():
            create_private_file(self._path)
            self._connection: sqlite3.Connection = connect_to_existing_file(
                str(self._path), timeout=BUSY_SECONDS
            )
            try:
                self._prepare_file()
            except BaseException:
                self._connection.close()
                raise

    def __repr__(self) -> str:
        return f"CacheFile({str(self._path)!r})"

    @contextmanager
    def use_connection(self) -> Iterator[sqlite3.Connection]:
        """Yield the database connection. Only one thread can use it at a time.

        Database errors in the ``with`` block become `StoreError`.
        """
        with self._lock, self._convert_errors():
            yield self._connection

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Turn file and database errors in the ``with`` block into `StoreError`."""
        try:
            yield
        except OSError as error:
            raise StoreError(
                f"the cache {self._path} cannot be opened: {error.strerror}"
            ) from error
        except FAILURES as error:
            advice = "the file must be writable, with free space on the disk"
            if is_wrong_file_error(error):
                advice = "the file was not changed: move it away, or name another folder"
            # The error of a damaged file may quote its content, so it is not the cause.
            cause = None if is_damage_error(error) else error
            raise StoreError(
                f"the cache {self._path} cannot be used ({describe_sqlite_error(error)}); {advice}"
            ) from cause

    def _prepare_file(self) -> None:
        """Check the version of an existing file, or create the tables in a new file."""
        connection = self._connection
        if not is_new_database(connection):
            # Check first: another program's file must not be changed.
            self._check_version()
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_ROW_BYTES)
        connection.execute("PRAGMA synchronous = NORMAL")
        use_write_ahead_log(connection)
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            # Two processes may create the file at the same time. The second one finds it complete.
            for statement in _SCHEMA if is_new_database(connection) else ():
                connection.execute(statement)
        # Another program may have created the file after the first check.
        self._check_version()

    def _check_version(self) -> None:
        """Raise `StoreError` unless the file is a cache of this version."""
        if read_application_id_and_version(self._connection) != (APPLICATION_ID, VERSION):
            raise StoreError(
                f"{self._path} is not a cache of this version of qtmiddleware; it was not changed:"
                " move it away, or name another folder"
            )
        check_tables(self._connection, _SCHEMA)


class CachedEmbedder:
    """Wraps an embedder, and caches its vectors in a file.

    The file contains no text: a vector's key is the sha256 of the model's name, the dimension and
    the text. Several threads and processes may share the file. The embedder's exceptions pass
    through. If the file cannot be used, the methods raise `StoreError`.
    """

    def __init__(self, inner: Embedder, path: str | Path) -> None:
        """Wrap *inner*, and open the cache file at *path*."""
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
            self._store_vectors(
                (keys[text], vector, seconds_per_text) for text, vector in embedded.items()
            )
            vectors |= embedded
        return [vectors[text] for text in texts]

    def embed_missing_texts(
        self,
        text_batches: Iterable[Sequence[str]],
        engine: Engine,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Let *engine* embed the texts without a cached vector, and cache the vectors for `embed`.

        Each text is embedded once. If the embedder calls a service or is your own class, this
        method does nothing, and `embed` embeds the texts.

        Args:
            text_batches: Batches of texts.
            engine: Embeds the texts in other processes.
            progress: Receives the number of texts done and their total.

        Raises:
            EmbeddingError: A vector is not valid.
            EngineError: The engine failed.
            StoreError: The file cannot be used.
        """
        if not can_run_in_workers(self._inner):
            return
        batches = list(self._select_missing_texts(text_batches))
        done, total = 0, sum(map(len, batches))
        build = partial(_build_timed_embedder, self._inner, build_embedding_name(self._inner))
        for vectors, seconds_per_text in engine.map(build, batches):
            self._store_vectors(
                (key, decode_vector(blob), seconds_per_text) for key, blob in vectors
            )
            done += len(vectors)
            if progress is not None:
                progress(done, total)

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

    def _select_missing_texts(self, text_batches: Iterable[Sequence[str]]) -> Iterator[Texts]:
        """Yield, for each batch, the (key, text) pairs of the texts without a cached vector."""
        # A text may occur on several pages, before its vector is in the file.
        seen: set[bytes] = set()
        for text_batch in text_batches:
            keys = self._compute_keys(text_batch)
            vectors = self._look_up_vectors(keys)
            if missing := [
                (key, text) for text, key in keys.items() if text not in vectors and key not in seen
            ]:
                seen.update(key for key, _ in missing)
                yield missing

    def _store_vectors(self, timed_vectors: Iterable[tuple[bytes, Sequence[float], float]]) -> None:
        """Write *timed_vectors* to the file: cache keys, vectors and embedding times in seconds."""
        rows = [(key, _pack_vector(vector), seconds) for key, vector, seconds in timed_vectors]
        with self._file.use_connection() as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)

    def _look_up_vectors(self, keys_by_text: Mapping[str, bytes]) -> dict[str, list[float]]:
        """Return the cached vectors by text, without the texts that have no cached vector.

        *keys_by_text* has the cache key of each text. Inside `record_replays`, this method also
        records the seconds that each vector took originally.
        """
        vectors: dict[str, list[float]] = {}
        with self._file.use_connection() as connection:
            for text, key in keys_by_text.items():
                row = connection.execute(
                    "SELECT vector, seconds FROM vectors WHERE key = ?", (key,)
                ).fetchone()
                vector = _unpack_vector(row[0], self.dimension) if row else None
                if vector is not None and isinstance(row[1], float):
                    vectors[text] = vector
                    if self._replayed is not None:
                        self._replayed[text] = row[1]
        return vectors


@declare_needed_secrets(*HUB_SECRETS)
def _build_timed_embedder(
    embedder: Embedder, embedding_id: str
) -> Callable[[Texts], tuple[Vectors, float]]:
    """Return a function that embeds texts and returns the vectors and the seconds per text.

    *embedding_id* identifies the embedding model, from `build_embedding_name`.
    """
    embed_batch = build_batch_embedder(embedder, embedding_id)

    def embed_and_measure(texts: Texts) -> tuple[Vectors, float]:
        start = perf_counter()
        vectors = embed_batch(texts)
        return vectors, (perf_counter() - start) / len(texts)

    return embed_and_measure


def _pack_vector(vector: Sequence[float]) -> bytes:
    """Return *vector* as bytes: little-endian 64-bit floats."""
    return struct.pack(f"<{len(vector)}d", *vector)


def _unpack_vector(packed: object, dimension: int) -> list[float] | None:
    """Return the vector in *packed*, or ``None`` if *packed* is damaged."""
    if not isinstance(packed, bytes) or len(packed) != 8 * dimension:
        return None
    vector = list(struct.unpack(f"<{dimension}d", packed))
    return vector if all(map(isfinite, vector)) else None


class CachedModel:
    """Wraps a model, and caches its replies in a file.

    A cached reply reports the tokens, cost and seconds of the original reply. The file contains no
    prompt: a reply's key is the sha256 of the model's name, the prompt and *options*.

    Failures and truncated replies are not stored. If the file cannot be read or written, a warning
    is logged and the model is asked. Several threads, event loops and processes may share the file.
    """

    def __init__(self, inner: LanguageModel, path: str | Path, *, options: str = "") -> None:
        """Open the file for the replies of *inner*.

        Args:
            inner: The model.
            path: The file.
            options: The model's options and address as text. This text is a part of every key.

        Raises:
            StoreError: The file is not a cache.
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
        ]
        return hashlib.sha256(json.dumps([*decisive, prompt.max_tokens]).encode()).digest()

    def _look_up_reply(self, key: bytes) -> Reply | None:
        """Return the cached reply with *key*, or ``None`` if it is missing or damaged."""
        # A cache that fails costs another model call, but does not end the measurement.
        try:
            with self._file.use_connection() as connection:
                row = connection.execute(
                    "SELECT reply FROM replies WHERE key = ?", (key,)
                ).fetchone()
        except StoreError as error:
            _log.warning("a reply could not be looked up: %s", error, event="reply_cache_failed")
            return None
        try:
            return _parse_reply(row[0]) if row else None
        except (TypeError, ValueError, RecursionError):
            _log.warning(
                "a reply in the cache is damaged; the model is called again",
                event="reply_cache_damaged",
            )
            return None

    def _store_reply(self, key: bytes, reply: Reply, seconds: float) -> None:
        """Write *reply* to the file, unless it is truncated. *seconds* is the measured time."""
        if reply.truncated:
            return
        # A reply that reports its own time, such as an estimate, keeps this time.
        timed = replace(reply, seconds=reply.seconds or seconds)
        try:
            with self._file.use_connection() as connection:
                connection.execute(
                    "INSERT OR REPLACE INTO replies VALUES (?, ?)", (key, json.dumps(asdict(timed)))
                )
        except StoreError as error:
            _log.warning("a reply could not be cached: %s", error, event="reply_cache_failed")


def _parse_reply(reply_json: Any) -> Reply:
    """Return the reply in *reply_json*. Raises `TypeError` or `ValueError` for damaged JSON."""
    reply = Reply(**json.loads(reply_json))
    text: Any = reply.text
    amounts = [
        reply.input_tokens,
        reply.output_tokens,
        reply.calls,
        reply.seconds,
        reply.cost_usd or 0.0,
    ]
    if (
        not isinstance(text, str)
        or len(text) > MOST_BYTES
        or not all(0 <= amount < inf for amount in amounts)
    ):
        raise ValueError
    return reply
