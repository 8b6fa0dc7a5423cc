"""Doubles for the tests of those who use this package."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.types import Deadline, Operation

Pieces = Sequence[str | float | Exception]
Script = str | Mapping[str, Any] | Pieces | Exception | Callable[[Prompt], "Script"]

_PIECE_CHARS = 8


class ScriptedModel:
    """A language model that answers from a script.

    *script* is what it replies: a text as it is, a mapping as JSON, an exception by raising it, or
    a function of the prompt that returns one of these. A list is a reply in its pieces, as it is
    streamed: texts, pauses in seconds, and an exception where it breaks off. *seconds* is how long
    each reply takes to begin. *prompts* collects what it was asked.
    """

    can_async = True

    def __init__(self, script: Script, *, name: str = "scripted", seconds: float = 0.0) -> None:
        self.name = name
        self.prompts: list[Prompt] = []
        self._script = script
        self._seconds = seconds

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The scripted reply; raises `ModelError` ``timeout`` at the deadline if it takes longer."""
        *_, reply = self.stream(prompt, deadline)
        return cast("Reply", reply)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The scripted reply; raises `ModelError` ``timeout`` at the deadline if it takes longer."""
        *_, reply = [piece async for piece in self.astream(prompt, deadline)]
        return cast("Reply", reply)

    def stream(self, prompt: Prompt, deadline: Deadline) -> Iterator[str | Reply]:
        """The scripted reply in pieces of a few characters, or in those of the script, and last the whole."""
        pieces: list[str] = []
        for piece in self._play(prompt):
            if isinstance(piece, str):
                pieces.append(piece)
                yield piece
            else:
                _pause(piece, deadline)
        yield Reply("".join(pieces))

    async def astream(self, prompt: Prompt, deadline: Deadline) -> AsyncIterator[str | Reply]:
        """The scripted reply in pieces of a few characters, or in those of the script, and last the whole."""
        pieces: list[str] = []
        for piece in self._play(prompt):
            if isinstance(piece, str):
                pieces.append(piece)
                yield piece
            else:
                await _apause(piece, deadline)
        yield Reply("".join(pieces))

    def _play(self, prompt: Prompt) -> Iterator[str | float]:
        """The reply's pieces and pauses; a text is cut into pieces of a few characters."""
        self.prompts.append(prompt)
        yield self._seconds
        script: Any = self._script
        while callable(script):
            script = script(prompt)
        if isinstance(script, Exception):
            raise script
        if isinstance(script, Mapping):
            script = json.dumps(script, ensure_ascii=False)
        if isinstance(script, str):
            script = [script[at : at + _PIECE_CHARS] for at in range(0, len(script), _PIECE_CHARS)]
        for piece in script:
            if isinstance(piece, Exception):
                raise piece
            yield piece


def _pause(seconds: float, deadline: Deadline) -> None:
    if seconds:
        time.sleep(min(seconds, deadline.remaining()))
    _check(deadline)


async def _apause(seconds: float, deadline: Deadline) -> None:
    if seconds:
        await asyncio.sleep(min(seconds, deadline.remaining()))
    _check(deadline)


def _check(deadline: Deadline) -> None:
    if deadline.passed:
        raise ModelError("timeout")


class RecordingObserver:
    """An observer that collects what it hears: *started* as they start, *ended* as they end."""

    def __init__(self) -> None:
        self.started: list[Operation] = []
        self.ended: list[Operation] = []

    def on_start(self, operation: Operation) -> None:
        """Append it to *started*."""
        self.started.append(operation)

    def on_end(self, operation: Operation) -> None:
        """Append it to *ended*."""
        self.ended.append(operation)
