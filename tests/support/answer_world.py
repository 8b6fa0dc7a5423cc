"""Questions to a small index, answered by a script in every way there is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

import qtmiddleware as qtm
from qtmiddleware.protocols import Prompt
from tests.support.retrieval_world import REPLIES, WAYS, Searched, Way

BROAD: Final = "What is known about Jaco, the vet and the fees?"
PARTS: Final = (
    "Does Jaco have health concerns?",
    "What does the vet check?",
    "When is the fee due?",
)
PATIENT: Final = {"llmTimeoutMs": 50_000, "deadlineMs": 55_000}


def scripted(**replies: Any) -> Callable[[Prompt], Any]:
    """A script with *replies* by mode; the transformations are those of the retrieval world, the parts ours."""

    def reply(prompt: Prompt) -> Any:
        if prompt.mode in replies:
            said = replies[prompt.mode]
            return said.get(prompt.query, "NO_ANSWER") if isinstance(said, Mapping) else said
        if prompt.mode in ("decompose", "combined"):
            return {**REPLIES[prompt.mode], "sub_queries": list(PARTS)}
        return REPLIES[prompt.mode]

    return reply


def synthesis(**more: Any) -> dict[str, Any]:
    """A configuration that answers part by part."""
    return {
        "transformationType": "decompose",
        "limits": PATIENT,
        **more,
        "answer": {"mode": "synthesis"},
    }


class Telling:
    """One way of being answered: whole, or in pieces."""

    def __init__(self, way: Way, *, streams: bool) -> None:
        self.way = way
        self.streams = streams

    def __repr__(self) -> str:
        return f"{self.way}-{'stream' if self.streams else 'whole'}"

    def answer(self, searched: Searched, *args: Any, **kwargs: Any) -> qtm.Answer:
        wrapped: Any = searched.wrapped
        if not self.streams:
            if self.way.name == "sync":
                return wrapped.answer(*args, **kwargs)
            return asyncio.run(wrapped.aanswer(*args, **kwargs))
        answer, pieces = self.told(searched, *args, **kwargs)
        if not answer.degradations:
            assert "".join(pieces) == answer.text
        return answer

    def told(self, searched: Searched, *args: Any, **kwargs: Any) -> tuple[qtm.Answer, list[str]]:
        wrapped: Any = searched.wrapped
        if self.way.name == "sync":
            with wrapped.stream_answer(*args, **kwargs) as stream:
                pieces = list(stream)
            assert stream.shown == "".join(pieces)
            return stream.answer, pieces

        async def read() -> tuple[qtm.Answer, list[str]]:
            async with wrapped.astream_answer(*args, **kwargs) as stream:
                pieces = [piece async for piece in stream]
            assert stream.shown == "".join(pieces)
            return stream.answer, pieces

        return asyncio.run(read())


TELLINGS: Final = tuple(Telling(way, streams=streams) for way in WAYS for streams in (False, True))
every_telling: Final = pytest.mark.parametrize("telling", TELLINGS, ids=repr)
every_stream: Final = pytest.mark.parametrize(
    "telling", [it for it in TELLINGS if it.streams], ids=repr
)


def asked(searched: Searched, mode: str) -> list[dict[str, Any]]:
    """What the prompts of *mode* showed the model."""
    return [json.loads(prompt.user) for prompt in searched.model.prompts if prompt.mode == mode]


def troubles(answer: qtm.Answer) -> list[tuple[str, str]]:
    return [(it.stage, it.reason) for it in answer.degradations]


def stages(answer: qtm.Answer) -> list[tuple[str, str]]:
    return [(it.name, it.status) for it in answer.retrieval.trace.stages]
