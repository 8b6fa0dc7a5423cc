"""Doubles for the tests of those who use this package."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from time import sleep
from typing import Any

from qtmiddleware.deadline import Deadline
from qtmiddleware.errors import ModelError
from qtmiddleware.ports import Prompt, Reply

Script = str | Mapping[str, Any] | Exception | Callable[[Prompt], "Script"]


class ScriptedModel:
    """A language model that answers from a script.

    *script* is what it replies: a text as it is, a mapping as JSON, an exception by raising it, or a function of the
    prompt that returns one of these. *seconds* is how long each reply takes. *prompts* collects what it was asked.
    """

    can_sync = True
    can_async = True

    def __init__(self, script: Script, *, name: str = "scripted", seconds: float = 0.0) -> None:
        self.name = name
        self.prompts: list[Prompt] = []
        self._script = script
        self._seconds = seconds

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The scripted reply; raises `ModelError` ``timeout`` at the deadline if it takes longer."""
        self.prompts.append(prompt)
        if self._seconds:
            sleep(min(self._seconds, deadline.remaining()))
        return self._replied(prompt, deadline)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The scripted reply; raises `ModelError` ``timeout`` at the deadline if it takes longer."""
        self.prompts.append(prompt)
        if self._seconds:
            await asyncio.sleep(min(self._seconds, deadline.remaining()))
        return self._replied(prompt, deadline)

    def _replied(self, prompt: Prompt, deadline: Deadline) -> Reply:
        if deadline.passed:
            raise ModelError("timeout")
        script: Any = self._script
        while callable(script):
            script = script(prompt)
        if isinstance(script, Exception):
            raise script
        return Reply(script if isinstance(script, str) else json.dumps(script, ensure_ascii=False))
