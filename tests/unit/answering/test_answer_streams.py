"""Answers that come in pieces, are broken off, or are not wanted to their end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.runtime.io import Tasks, Threads, drive
from qtmiddleware.runtime.services import ModelOnly, Services
from qtmiddleware.runtime.streaming import Piece, stream_reply
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline
from tests.support.answer_world import (
    BROAD,
    PARTS,
    Telling,
    every_stream,
    scripted,
    stages,
    synthesis,
    troubles,
)
from tests.support.retrieval_world import QUERY, Way, ids
from tests.support.waiting import PATIENCE, with_enough_time

PROMPT = Prompt("answer", "1", "", "", (), QUERY)
SYNC = Way("sync")


def awaited(model: Any, deadline: Deadline) -> AsyncGenerator[Piece, None]:
    """The pieces of *model*'s reply for an asynchronous caller."""
    performer = ModelOnly(model)
    return stream_reply(model, PROMPT, deadline, Services(Tasks(performer.bulkhead), performer))


def read(model: Any, deadline: Deadline) -> Iterator[Piece]:
    """The pieces of *model*'s reply for a blocking caller."""
    performer = ModelOnly(model)
    pieces = stream_reply(model, PROMPT, deadline, Services(Threads(performer.bulkhead), performer))
    with suppress(StopAsyncIteration):
        while True:
            yield drive(pieces.asend(None))


@every_stream
def test_pieces_come_as_the_model_says_them(telling: Telling) -> None:
    searched = telling.way.wrap(
        script=scripted(answer=["Jaco ", "is", " fit [", "1", "].", " Very."])
    )
    answer, pieces = telling.told(searched, QUERY)
    assert pieces == ["Jaco", " is", " fit", " [1].", " Very."]
    assert answer.text == "Jaco is fit [1]. Very."
    assert [it.number for it in answer.citations] == [1]


@every_stream
@pytest.mark.parametrize("mark", ["NO_ANSWER", "**NO_ANSWER**"])
def test_the_marker_is_never_shown(telling: Telling, mark: str) -> None:
    searched = telling.way.wrap(
        script=scripted(answer=[*mark, ":", " His", " age", " is missing."])
    )
    answer, pieces = telling.told(searched, QUERY)
    assert pieces[0] == "His"
    assert "".join(pieces) == answer.text == "His age is missing."
    assert not answer.found


@every_stream
def test_a_stream_that_breaks_off_raises_after_what_came(telling: Telling) -> None:
    searched = telling.way.wrap(
        script=scripted(answer=["Jaco is", " fit", ModelError("unavailable")])
    )
    shown: list[str] = []

    def read() -> None:
        shown.extend(searched.wrapped.stream_answer(QUERY))

    async def aread() -> None:
        nonlocal shown
        async for piece in searched.wrapped.astream_answer(QUERY):
            shown += (piece,)

    with pytest.raises(ModelError) as caught:
        read() if telling.way.name == "sync" else asyncio.run(aread())
    assert shown == ["Jaco is", " fit"]
    assert caught.value.reason == "unavailable"
    assert ids(caught.value.retrieval)[0] == "health"


@every_stream
def test_a_synthesis_that_breaks_off_leaves_the_best_part_as_the_answer(telling: Telling) -> None:
    said = dict.fromkeys(PARTS, "Well [1].")
    script = scripted(sub_answer=said, synthesis=["Overview: ", "he ", ModelError("unavailable")])
    answer, pieces = telling.told(telling.way.wrap(script=script, config=synthesis()), BROAD)
    assert "".join(pieces) == "Overview: he"
    assert answer.text == "Well [1]."
    assert troubles(answer) == [("synthesis", "unavailable")]


def test_the_passages_are_there_before_the_first_piece() -> None:
    searched = SYNC.wrap(script=scripted(answer="Fit."))
    with searched.wrapped.stream_answer(QUERY) as stream:
        assert ids(stream.retrieval)[0] == "health"
        assert searched.model.prompts == []
        assert list(stream) == ["Fit."]
        assert stream.retrieval is stream.answer.retrieval

    async def read() -> None:
        stream = searched.wrapped.astream_answer(QUERY)
        assert stream.retrieval is None
        async with stream:
            assert ids(stream.retrieval)[0] == "health"

    asyncio.run(read())


def test_there_is_no_answer_before_the_end() -> None:
    with SYNC.wrap(script=scripted(answer="Jaco is really fit.")).wrapped.stream_answer(
        QUERY
    ) as stream:
        next(stream)
        with pytest.raises(RuntimeError, match="read to its end"):
            _ = stream.answer
    with pytest.raises(RuntimeError):
        _ = stream.answer


class Endless(ScriptedModel):
    """Says the same for ever, and knows when it was stopped."""

    def __init__(self) -> None:
        super().__init__("")
        self.stopped = Event()

    def stream(self, prompt: Prompt, deadline: Deadline) -> Iterator[str | Reply]:
        try:
            while True:
                yield "on and on "
        finally:
            self.stopped.set()

    async def astream(self, prompt: Prompt, deadline: Deadline) -> AsyncIterator[str | Reply]:
        try:
            while True:
                await asyncio.sleep(0)
                yield "on and on "
        finally:
            self.stopped.set()


def endless(path: Path) -> tuple[Any, Endless]:
    import qtmiddleware as qtm

    def search(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        return [{"id": "a", "score": 1.0, "text": "Jaco is fit."}]

    model = Endless()
    return qtm.QueryMiddleware({"log": {"path": str(path)}}, client=model).wrap(search), model


def test_a_model_nobody_listens_to_is_stopped_and_the_call_is_logged(tmp_path: Path) -> None:
    wrapped, model = endless(tmp_path / "log")
    with wrapped.stream_answer(QUERY) as stream:
        assert next(stream).startswith("on and on")
    assert model.stopped.wait(20)
    assert list(stream) == []
    stream.close()
    (line,) = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    trace = json.loads(line)["trace"]
    assert trace["llm_calls"] == 1
    assert (trace["stages"][-1]["name"], trace["stages"][-1]["detail"]) == ("answer", "closed")


async def test_a_model_nobody_awaits_is_stopped_and_the_call_is_logged(tmp_path: Path) -> None:
    wrapped, model = endless(tmp_path / "log")
    async with wrapped.astream_answer(QUERY) as stream:
        assert (await anext(stream)).startswith("on and on")
    assert model.stopped.is_set()
    assert [piece async for piece in stream] == []
    await stream.aclose()
    assert len((tmp_path / "log").read_text(encoding="utf-8").splitlines()) == 1


def test_a_stream_that_was_never_read_costs_no_call(tmp_path: Path) -> None:
    wrapped, _ = endless(tmp_path / "log")
    wrapped.stream_answer(QUERY).close()
    (line,) = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    trace = json.loads(line)["trace"]
    assert trace["llm_calls"] == 0
    assert (trace["stages"][-1]["name"], trace["stages"][-1]["detail"]) == ("answer", "closed")


async def test_a_cancelled_listener_stops_the_model(tmp_path: Path) -> None:
    wrapped, model = endless(tmp_path / "log")
    heard = asyncio.Event()

    async def listen() -> None:
        async with wrapped.astream_answer(QUERY) as stream:
            async for _ in stream:
                heard.set()

    task = asyncio.create_task(listen())
    await heard.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.stopped.is_set()


def test_a_slow_listener_gets_everything() -> None:
    said = Event()

    class Quick(ScriptedModel):
        def stream(self, prompt: Prompt, deadline: Deadline) -> Iterator[str | Reply]:
            yield from ("a", "b", Reply("ab"))
            said.set()

    deadline = Deadline.after(30)
    pieces = read(Quick(""), deadline)
    assert next(pieces) == "a"
    assert said.wait(20)
    deadline.cancel()
    assert list(pieces) == ["b", Reply("ab")]


def test_a_model_that_blocks_its_thread_holds_nobody() -> None:
    released = Event()

    class Stuck(ScriptedModel):
        can_async = False

        def stream(self, prompt: Prompt, deadline: Deadline) -> Iterator[str | Reply]:
            yield "Jaco"
            released.wait(PATIENCE)

    heard: list[Piece] = []

    def hear(seconds: float) -> None:
        with pytest.raises(ModelError, match="in time"):
            heard.extend(read(Stuck(""), Deadline.after(seconds)))

    async def ahear(seconds: float) -> None:
        pieces = awaited(Stuck(""), Deadline.after(seconds))
        with suppress(ModelError):
            heard.append(await anext(pieces))
            heard.append(await anext(pieces))

    try:
        with_enough_time(hear, lambda _: heard)
        with_enough_time(lambda seconds: asyncio.run(ahear(seconds)), lambda _: len(heard) > 1)
        assert heard == ["Jaco", "Jaco"]
    finally:
        released.set()


def test_a_stream_without_a_last_word_is_an_answer_too() -> None:
    class Wordless(ScriptedModel):
        def stream(self, prompt: Prompt, deadline: Deadline) -> Iterator[str | Reply]:
            yield "Jaco is fit [1]."

    searched = SYNC.wrap(script=scripted())
    searched.wrapped.middleware.engine.chat_model = Wordless("")
    with searched.wrapped.stream_answer(QUERY) as stream:
        assert "".join(stream) == stream.answer.text == "Jaco is fit [1]."
    assert stream.answer.retrieval.trace.llm_calls == 1


@every_stream
def test_a_cut_answer_is_kept_and_noted(telling: Telling) -> None:
    class Cut(ScriptedModel):
        def stream(self, prompt: Prompt, deadline: Deadline) -> Iterator[str | Reply]:
            yield from ("Jaco is", Reply("Jaco is", truncated=True))

        async def astream(self, prompt: Prompt, deadline: Deadline) -> AsyncIterator[str | Reply]:
            yield "Jaco is"
            yield Reply("Jaco is", truncated=True)

    searched = telling.way.wrap(script=scripted())
    searched.wrapped.middleware.engine.chat_model = Cut("")
    answer, pieces = telling.told(searched, QUERY)
    assert "".join(pieces) == answer.text == "Jaco is"
    assert troubles(answer) == [("answer", "truncated")]
    assert stages(answer)[-1] == ("answer", "degraded")


WORDS = [
    "Fit",
    " ",
    "[1]",
    "[",
    "2",
    "]",
    "[9",
    "9]",
    ", 1]",
    ".",
    "\n",
    "NO_",
    "ANSWER",
    "`",
    "（",
]
PIECES = st.lists(st.sampled_from(WORDS), max_size=20)


@given(PIECES)
def test_what_is_shown_is_what_a_whole_answer_would_be(pieces: list[str]) -> None:
    searched = SYNC.wrap(script=scripted(answer=["x", *pieces]))
    whole = searched.wrapped.answer(QUERY)
    with searched.wrapped.stream_answer(QUERY) as stream:
        shown = "".join(stream)
    assert shown == stream.answer.text == whole.text
    assert [(it.number, it.start, it.end) for it in stream.answer.citations] == [
        (it.number, it.start, it.end) for it in whole.citations
    ]
    assert stream.answer.degradations == whole.degradations
