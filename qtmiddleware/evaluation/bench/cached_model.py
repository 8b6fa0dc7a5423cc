"""A language model that keeps every reply on disk."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

from qtmiddleware.errors import StoreError
from qtmiddleware.evaluation.bench.cache_file import CacheFile
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.providers.llms.openai.replies import MOST_BYTES
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Deadline

_log = get_logger("qtmiddleware.bench")


class CachedModel:
    """Asks *inner*, and answers what it has answered before out of the file at *path*.

    A reply is kept with its tokens, its cost and the seconds it took, and counts for as much when it is replayed, so
    that a question costs what it would without the cache. It is kept under the sha256 of all that decides it: the
    model's name, the prompt and *options*, which says how and where the model is asked. The prompt itself is not kept.

    Failures and truncated replies are never kept. Where the file cannot be read or written, which is logged, the model
    is asked as if there were no cache. Safe with many threads, event loops and processes. Raises `StoreError` for a
    file that is no cache.
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
        """The name of the model that answers."""
        return self._inner.name

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*; raises what the inner model raises."""
        key = self._key(prompt)
        if (known := self._known(key)) is not None:
            return known
        began = perf_counter()
        reply = self._inner.complete(prompt, deadline)
        self._keep(key, reply, perf_counter() - began)
        return reply

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*; raises what the inner model raises."""
        key = self._key(prompt)
        if (known := self._known(key)) is not None:
            return known
        began = perf_counter()
        reply = await self._inner.acomplete(prompt, deadline)
        self._keep(key, reply, perf_counter() - began)
        return reply

    def close(self) -> None:
        """Let go of the file; the model inside stays as it is."""
        self._file.close()

    def _key(self, prompt: Prompt) -> bytes:
        fields = [asdict(field) for field in prompt.fields]
        decisive = [self.name, self._options, prompt.mode, prompt.version, prompt.system, prompt.user, fields]
        return hashlib.sha256(json.dumps([*decisive, prompt.max_tokens]).encode()).digest()

    def _known(self, key: bytes) -> Reply | None:
        try:
            with self._file.run() as run:
                row = run.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
        except StoreError as error:
            _log.warning("a reply could not be looked up: %s", error)
            return None
        try:
            return None if row is None else _read(row[0])
        except (TypeError, ValueError, RecursionError):
            _log.warning("a reply in the cache is damaged and is asked for again")
            return None

    def _keep(self, key: bytes, reply: Reply, seconds: float) -> None:
        if reply.truncated:
            return
        # One that was itself replayed took what it says it took.
        kept = replace(reply, seconds=reply.seconds or seconds)
        try:
            with self._file.run() as run:
                run.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (key, json.dumps(asdict(kept))))
        except StoreError as error:
            _log.warning("a reply could not be kept: %s", error)


def _read(kept: Any) -> Reply:
    """The reply that was *kept*; raises `TypeError` or `ValueError` where no model could have given it."""
    reply = Reply(**json.loads(kept))
    text: Any = reply.text
    counts = (reply.input_tokens, reply.output_tokens, reply.calls)
    amounts = (0.0 if reply.cost_usd is None else reply.cost_usd, reply.seconds)
    if not isinstance(text, str) or len(text) > MOST_BYTES or reply.truncated is not False:
        raise ValueError
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError
    if not all(type(amount) in (int, float) and isfinite(amount) and amount >= 0 for amount in amounts):
        raise ValueError
    return reply
