"""Answers that come in pieces, are broken off, or are not wanted to their end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline
from tests.support.answer_world import Telling, every_stream, scripted
from tests.support.retrieval_world import QUERY, Way, ids
from tests.support.waiting import PATIENCE

SYNC = Way("sync")


@every_stream
@pytest.mark.parametrize(
    ("said", "pieces"),
    [
        (
            ["Jaco ", "is", " fit [", "1", "].", " Very."],
            ["Jaco", " is", " fit", " [1].", " Very."],
        ),
        ([*"**NO_ANSWER**", ":", " His", " age"], ["His", " age"]),
    ],
)
def test_pieces_come_as_the_model_says_them_and_the_marker_never(
    telling: Telling, said: list[str], pieces: list[str]
) -> None:
    told = telling.ask(answer=said)
    assert told.pieces == pieces
    assert told.answer.text == "".join(pieces)
    assert len(told.answer.citations) == told.answer.found


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_stream_that_breaks_off_raises_after_what_came(way: str) -> None:
    script = scripted(answer=["Jaco is", " fit", ModelError("unavailable")])
    wrapped = Way(way).wrap(script=script).wrapped
    shown: list[str] = []

    async def aread() -> None:
        nonlocal shown
        async for piece in wrapped.astream_answer(QUERY):
            shown += (piece,)

    with pytest.raises(ModelError) as caught:
        shown.extend(wrapped.stream_answer(QUERY)) if way == "sync" else asyncio.run(aread())
    assert shown == ["Jaco is", " fit"]
    assert caught.value.reason == "unavailable"
    assert ids(caught.value.retrieval)[0] == "health"


def test_the_passages_are_there_before_the_first_piece_and_the_answer_after_the_last() -> None:
    searched = SYNC.wrap(script=scripted(answer="Jaco is really fit."))
    with searched.wrapped.stream_answer(QUERY) as stream:
        assert ids(stream.retrieval)[0] == "health"
        assert searched.model.prompts == []
        next(stream)
        with pytest.raises(AttributeError, match="answer is not known yet: iterate"):
            _ = stream.answer
        list(stream)
        assert stream.retrieval is stream.answer.retrieval

    async def read() -> None:
        stream = searched.wrapped.astream_answer(QUERY)
        with pytest.raises(AttributeError, match="retrieval is not known yet: iterate"):
            _ = stream.retrieval
        async with stream:
            assert ids(stream.retrieval)[0] == "health"

    asyncio.run(read())


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


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("reads", [False, True])
async def test_a_closed_stream_stops_the_model_and_is_logged_once(
    is_async: bool, reads: bool, tmp_path: Path
) -> None:
    def search(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        return [{"id": "a", "score": 1.0, "text": "Jaco is fit."}]

    model, log = Endless(), tmp_path / "log"
    wrapped = qtm.QueryMiddleware({"log": {"path": str(log)}}, client=model).wrap(search)
    stream: Any
    if is_async:
        async with wrapped.astream_answer(QUERY) as stream:
            assert not reads or (await anext(stream)).startswith("on and on")
        assert [piece async for piece in stream] == []
        await stream.aclose()
    else:
        with wrapped.stream_answer(QUERY) as stream:
            assert not reads or next(stream).startswith("on and on")
        assert list(stream) == []
        stream.close()
    assert not reads or model.stopped.wait(20)
    (line,) = log.read_text(encoding="utf-8").splitlines()
    trace = json.loads(line)["trace"]
    assert trace["llm_calls"] == reads
    assert (trace["stages"][-1]["name"], trace["stages"][-1]["detail"]) == ("answer", "closed")


async def test_a_reader_that_leaves_a_stream_in_a_thread_stops_the_model() -> None:
    model = Endless()
    wrapped = qtm.QueryMiddleware(client=model).wrap(lambda query: [{"text": "Jaco is fit."}])

    async def read() -> None:
        async with asyncio.timeout(0.1), wrapped.stream_answer(QUERY) as pieces:
            async for _ in pieces:
                pass

    with pytest.raises(TimeoutError):
        await read()
    assert await asyncio.to_thread(model.stopped.wait, PATIENCE)


class Waiting(ScriptedModel):
    """Says a word, and the rest once it may go on."""

    def __init__(self) -> None:
        super().__init__("fit.")
        self.go_on = Event()

    def stream(self, prompt: Prompt, deadline: Deadline) -> Iterator[Any]:
        yield None  # As OpenAI's first chunk.
        yield "Jaco is "
        assert self.go_on.wait(20)
        yield from super().stream(prompt, deadline)


def wrap_waiting() -> tuple[Waiting, qtm.Wrapped]:
    model = Waiting()
    row = {"id": "a", "score": 1.0, "text": "Jaco is fit."}
    return model, qtm.QueryMiddleware("rules", client=model).wrap(lambda query, top_k=4: [row])


@pytest.mark.parametrize("enters", [False, True])
async def test_an_event_loop_stays_free_though_it_reads_a_blocking_stream(enters: bool) -> None:
    """As Starlette's StreamingResponse does."""
    model, wrapped = wrap_waiting()

    async def tick() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        model.go_on.set()

    stream = wrapped.stream_answer(QUERY)
    async with stream if enters else nullcontext():
        pieces = [await anext(stream)]
        ticking = asyncio.create_task(tick())
        pieces += [piece async for piece in stream]
    await ticking
    assert "".join(pieces) == stream.answer.text == "Jaco is fit."


def test_a_blocking_stream_is_read_after_the_loop_that_it_was_made_in() -> None:
    model, wrapped = wrap_waiting()
    model.go_on.set()

    async def make() -> tuple[str, qtm.AnswerStream]:
        stream = wrapped.stream_answer(QUERY)
        return next(stream), stream

    piece, stream = asyncio.run(make())
    assert piece + "".join(stream) == stream.answer.text == "Jaco is fit."


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration])
@pytest.mark.parametrize("method", ["__call__", "retrieve", "answer", "stream_answer"])
def test_an_exception_that_ends_an_iteration_passes_through(
    error: type[Exception], method: str
) -> None:
    def fail(query: str, top_k: int = 4) -> Any:
        raise error("mine")

    wrapped = qtm.QueryMiddleware("rules", client=ScriptedModel("")).wrap(fail)
    with pytest.raises(error, match="mine"):
        getattr(wrapped, method)(QUERY)
