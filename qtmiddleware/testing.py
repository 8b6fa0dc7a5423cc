"""Test doubles for your own tests: a scripted language model and a recording observer."""

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
    """A language model that replies from a script, and keeps the *prompts* that it received.

    Args:
        script: A text (sent unchanged), a mapping (sent as JSON), an exception (raised), or a list:
            a streamed reply of texts, pauses in seconds and exceptions. A function takes the prompt
            and returns the script for this call.
        name: The name that the model reports.
        seconds: The delay before each reply, in seconds.
    """

    # This attribute says that `acomplete` works too.
    can_async = True

    def __init__(self, script: Script, *, name: str = "scripted", seconds: float = 0.0) -> None:
        self.name = name
        self.prompts: list[Prompt] = []
        self._script = script
        self._seconds = float(seconds)

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the scripted reply. Raises `ModelError` (``timeout``) at the deadline."""
        *_, reply = self.stream(prompt, deadline)
        return cast("Reply", reply)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the scripted reply as `complete` does, without blocking the event loop."""
        *_, reply = [piece async for piece in self.astream(prompt, deadline)]
        return cast("Reply", reply)

    def stream(self, prompt: Prompt, deadline: Deadline) -> Iterator[str | Reply]:
        """Yield the scripted reply in pieces of a list or of a few characters, then the `Reply`."""
        for piece in self._play_script(prompt):
            if isinstance(piece, float):
                time.sleep(min(piece, deadline.remaining()))
                if deadline.passed:
                    raise ModelError("timeout")
            else:
                yield piece

    async def astream(self, prompt: Prompt, deadline: Deadline) -> AsyncIterator[str | Reply]:
        """Yield the scripted reply as `stream` does, without blocking the event loop."""
        for piece in self._play_script(prompt):
            if isinstance(piece, float):
                await asyncio.sleep(min(piece, deadline.remaining()))
                if deadline.passed:
                    raise ModelError("timeout")
            else:
                yield piece

    def _play_script(self, prompt: Prompt) -> Iterator[str | float | Reply]:
        """Yield the pieces of the scripted reply and its pauses in seconds, then the `Reply`."""
        self.prompts.append(prompt)
        yield self._seconds
        script: Any = self._script
        # A function may return another function.
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
            yield piece if isinstance(piece, str) else float(piece)
        yield Reply("".join(piece for piece in script if isinstance(piece, str)))


class RecordingObserver:
    """An observer that collects operations: *started* at their start, *ended* at their end."""

    def __init__(self) -> None:
        self.started: list[Operation] = []
        self.ended: list[Operation] = []

    def on_start(self, operation: Operation) -> None:
        """Append *operation* to *started*."""
        self.started.append(operation)

    def on_end(self, operation: Operation) -> None:
        """Append *operation* to *ended*."""
        self.ended.append(operation)
