"""A wrapper that records what another model answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.providers.llms.recorded.base import normal, read_lines, shaped
from qtmiddleware.runtime.files import append_line, make_private_folders
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Deadline

_MOST_BRACES: Final = 16
"""So many places in a reply are tried for the beginning of its JSON; prose full of braces is given up on."""

_log = get_logger("qtmiddleware.llms")


class RecordingModel:
    """Passes every prompt on to *inner* and appends what it answered to the recording at *path*.

    One line a query and mode, whole or not at all, from any number of threads; what is in the file already is not
    written again. A reply that is no JSON object is passed on and not recorded, and so is every reply where the file
    cannot be written (both are logged, without any text). The file holds the queries and replies: that is its purpose;
    it is made for its owner alone, and one that is there keeps its permissions.
    """

    def __init__(self, inner: LanguageModel, path: str | Path) -> None:
        self._inner = inner
        self._path = Path(path)
        self._lock = ForkLock()
        self._written: set[tuple[str, str]] | None = None
        self.can_async: bool = getattr(inner, "can_async", True)

    def __repr__(self) -> str:
        return f"RecordingModel({self._inner!r}, {str(self._path)!r})"

    @property
    def name(self) -> str:
        """The name of the model that answers."""
        return self._inner.name

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply of the inner model to *prompt*; raises what it raises."""
        return self._kept(prompt, self._inner.complete(prompt, deadline))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply of the inner model to *prompt*; raises what it raises."""
        return self._kept(prompt, await self._inner.acomplete(prompt, deadline))

    def _kept(self, prompt: Prompt, reply: Reply) -> Reply:
        found = _first_object(reply.text)
        answer = {wanted.name: value for wanted in prompt.fields if (value := shaped(found.get(wanted.name), wanted))}
        if not answer:
            _log.warning("a reply of mode %s was not recorded: it holds none of the fields asked for", prompt.mode)
            return reply
        history = [{"role": message.role, "content": message.content} for message in prompt.history]
        key = _identity(prompt)
        record = {"_id": key, "query": prompt.query, "history": history, "mode": prompt.mode, **answer}
        try:
            with self._lock.free:
                self._append(key, prompt.mode, record)
        except ConfigError as error:
            _log.warning("a reply could not be recorded: %s", error)
        except OSError as error:
            why = error.strerror or type(error).__name__
            _log.warning("a reply could not be recorded in %s: %s", self._path, why)
        return reply

    def _append(self, key: str, mode: str, record: Mapping[str, Any]) -> None:
        if self._written is None:
            lines = read_lines(self._path) if self._path.exists() else ()
            self._written = {(str(line.get("_id")), str(line.get("mode"))) for line in lines}
        if (key, mode) in self._written:
            return
        make_private_folders(self._path.parent)
        append_line(self._path, _line(record))
        self._written.add((key, mode))


def _line(record: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # Lone surrogates can be escaped but not encoded.
        return json.dumps(record).encode()


def _first_object(text: str) -> dict[str, Any]:
    """The first JSON object in *text*, which may stand in a fence or after a preamble; else an empty one."""
    start = -1
    for _ in range(_MOST_BRACES):
        start = text.find("{", start + 1)
        if start < 0:
            break
        try:
            return dict(json.JSONDecoder().raw_decode(text, start)[0])
        except (ValueError, RecursionError):
            continue
    return {}


def _identity(prompt: Prompt) -> str:
    parts = [normal(prompt.query), *(f"{message.role}: {message.content}" for message in prompt.history)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
