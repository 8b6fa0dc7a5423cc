"""Questions to a small index, answered by a script in every way there is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest

import qtmiddleware as qtm
from qtmiddleware.protocols import Prompt
from tests.support.retrieval_world import QUERY, REPLIES, Respond, Searched, Way, search

BROAD: Final = "What is known about Jaco, the vet and the fees?"
PARTS: Final = (
    "Does Jaco have health concerns?",
    "What does the vet check?",
    "When is the fee due?",
)
PATIENT: Final = {"llmTimeoutMs": 50_000, "deadlineMs": 55_000}


def scripted(**replies: Any) -> Callable[[Prompt], Any]:
    """A script with *replies* by mode, else those of the retrieval world, with the parts above."""

    def reply(prompt: Prompt) -> Any:
        if prompt.mode in replies:
            said = replies[prompt.mode]
            return said.get(prompt.query, "NO_ANSWER") if isinstance(said, Mapping) else said
        known = dict(REPLIES[prompt.mode])
        if prompt.mode in ("decompose", "combined"):
            known["sub_queries"] = list(PARTS)
        if any(field.name == "standalone" for field in prompt.fields):
            known["standalone"] = BROAD
        return known

    return reply


@dataclass
class Told:
    """An answer, its pieces if it was streamed, and the search and the model that were asked."""

    answer: qtm.Answer
    pieces: list[str]
    searched: Searched

    @property
    def troubles(self) -> list[tuple[str, str]]:
        return [(it.stage, it.reason) for it in self.answer.degradations]

    @property
    def stages(self) -> list[tuple[str, str]]:
        return [(it.name, it.status) for it in self.answer.retrieval.trace.stages]

    def prompts(self, mode: str) -> list[dict[str, Any]]:
        """What the prompts of *mode* showed the model."""
        asked = self.searched.model.prompts
        return [json.loads(prompt.user) for prompt in asked if prompt.mode == mode]


class Telling:
    """One way of being answered: whole, or in pieces."""

    def __init__(self, way: str, *, streams: bool) -> None:
        self.way = Way(way)
        self.streams = streams

    def __repr__(self) -> str:
        return f"{self.way}-{'stream' if self.streams else 'whole'}"

    def ask(
        self,
        query: str = QUERY,
        *,
        respond: Respond = search,
        config: Any = None,
        model: Any = None,
        options: Mapping[str, Any] | None = None,
        **replies: Any,
    ) -> Told:
        """Ask with the *options* of a call; the model replies with *replies* by mode."""
        searched = self.way.wrap(respond, config=config, script=scripted(**replies))
        if model is not None:
            searched.wrapped.middleware.engine.chat_model = model
        pieces: list[str] = []
        if self.way.name == "sync":
            answer = self._ask(searched.wrapped, pieces, query, options or {})
        else:
            answer = asyncio.run(self._aask(searched.wrapped, pieces, query, options or {}))
        return Told(answer, pieces, searched)

    def _ask(
        self, wrapped: Any, pieces: list[str], query: str, options: Mapping[str, Any]
    ) -> qtm.Answer:
        if not self.streams:
            return wrapped.answer(query, **options)  # type: ignore[no-any-return]
        with wrapped.stream_answer(query, **options) as stream:
            pieces.extend(stream)
        return stream.answer  # type: ignore[no-any-return]

    async def _aask(
        self, wrapped: Any, pieces: list[str], query: str, options: Mapping[str, Any]
    ) -> qtm.Answer:
        if not self.streams:
            return await wrapped.aanswer(query, **options)  # type: ignore[no-any-return]
        async with wrapped.astream_answer(query, **options) as stream:
            pieces.extend([piece async for piece in stream])
        return stream.answer  # type: ignore[no-any-return]


STREAMS: Final = (Telling("sync", streams=True), Telling("async", streams=True))
WHOLE: Final = (Telling("sync", streams=False), Telling("threads", streams=False))
every_telling: Final = pytest.mark.parametrize("telling", WHOLE + STREAMS, ids=repr)
every_stream: Final = pytest.mark.parametrize("telling", STREAMS, ids=repr)
