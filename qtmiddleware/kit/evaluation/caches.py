"""Keep model replies in a file, so that a second measurement does not pay again."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Final

from qtmiddleware.kit.stores.database import open_database
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Deadline

_VERSION: Final = 3
_TABLES: Final = ("CREATE TABLE cached (key BLOB PRIMARY KEY, value BLOB NOT NULL)",)
_log: Final = get_logger("qtmiddleware.bench")


class KeepingModel:
    """A model that asks the model *inner*, and keeps the replies. A subclass says where."""

    def __init__(self, inner: LanguageModel) -> None:
        self._inner = inner
        self.can_async: bool = getattr(inner, "can_async", True)

    @property
    def name(self) -> str:
        """The name of the model inside."""
        return self._inner.name

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the kept reply to *prompt*, or ask the model. Its errors pass through."""
        start = perf_counter()
        kept = self._find(prompt)
        if kept is not None:
            return kept
        return self._keep_timed(prompt, self._inner.complete(prompt, deadline), start)

    async def acomplete(
        self,
        prompt: Prompt,
        deadline: Deadline,
    ) -> Reply:
        """Return the kept reply to *prompt*, or ask the model. Its errors pass through."""
        start = perf_counter()
        kept = self._find(prompt)
        if kept is not None:
            return kept
        return self._keep_timed(prompt, await self._inner.acomplete(prompt, deadline), start)

    def _keep_timed(self, prompt: Prompt, reply: Reply, start: float) -> Reply:
        seconds = reply.seconds or perf_counter() - start
        self._keep(prompt, replace(reply, seconds=seconds))
        return reply

    def _find(self, _prompt: Prompt) -> Reply | None:
        return None

    def _keep(self, prompt: Prompt, reply: Reply) -> None:
        raise NotImplementedError


class CachedModel(KeepingModel):
    """A model that keeps its replies, with the time that they took, in an SQLite file.

    Threads and processes may share the file, which only its owner can read. If reading or writing
    fails later, a warning is logged, and the reply is not kept. Truncated replies are not kept.
    *options* decide a reply beside the prompt.
    """

    def __init__(self, inner: LanguageModel, path: str | Path, *, options: str = "") -> None:
        super().__init__(inner)
        self._path = Path(path).expanduser()
        self._options = options
        self._lock = Lock()
        self._connection = open_database(
            str(self._path), _TABLES, version=_VERSION, subject=f"the cache {self._path}"
        )

    def close(self) -> None:
        """Close the file. The model inside stays open."""
        with self._lock:
            self._connection.close()

    def _compute_key(self, prompt: Prompt) -> bytes:
        fields = [asdict(field) for field in prompt.fields]
        decisive = [self.name, self._options, prompt.mode, prompt.version, prompt.system]
        decisive += [prompt.user, json.dumps([fields, prompt.max_tokens])]
        return hashlib.sha256(json.dumps(decisive).encode()).digest()

    def _find(self, prompt: Prompt) -> Reply | None:
        with self._tolerate_failures(), self._lock:
            statement = "SELECT value FROM cached WHERE key = ?"
            row = self._connection.execute(statement, (self._compute_key(prompt),)).fetchone()
            return None if row is None else Reply(**json.loads(row[0]))
        return None

    def _keep(self, prompt: Prompt, reply: Reply) -> None:
        if reply.truncated:
            return
        value = json.dumps(asdict(reply)).encode()
        statement = "INSERT OR REPLACE INTO cached VALUES (?, ?)"
        with self._tolerate_failures(), self._lock, self._connection:
            self._connection.execute(statement, (self._compute_key(prompt), value))

    @contextmanager
    def _tolerate_failures(self) -> Iterator[None]:
        try:
            yield
        # Another version may have written a reply with other fields.
        except (sqlite3.Error, TypeError, ValueError) as error:
            kind = type(error).__name__
            _log.warning("the cache %s failed: %s", self._path, kind, event="bench_cache_failed")
