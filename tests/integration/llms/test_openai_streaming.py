"""Streamed completions of the real client over real HTTP, and of servers that have bad days."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from threading import Event
from typing import Any

import pytest
from werkzeug import Response

from qtmiddleware.config.settings import LlmSettings
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, StreamingModel
from qtmiddleware.providers.llms.openai import OpenAIModel
from qtmiddleware.types import Deadline
from tests.support.completions import chunk
from tests.support.llm_fixtures import SECRET
from tests.support.model_server import ModelServer

USAGE = {"prompt_tokens": 120, "completion_tokens": 30, "total_tokens": 150}
USED = {**chunk(None), "choices": [], "usage": USAGE}
WHOLE = (
    chunk(None, role="assistant"),
    chunk("Jaco "),
    chunk("is fit [1]."),
    chunk(None, finish="stop"),
    USED,
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def sse(*chunks: Any, done: bool = True) -> bytes:
    lines = [chunk if isinstance(chunk, str) else f"data: {json.dumps(chunk)}" for chunk in chunks]
    return "".join(f"{line}\n\n" for line in [*lines, *(["data: [DONE]"] if done else [])]).encode()


def at(url: str) -> OpenAIModel:
    return OpenAIModel("gpt-4o-mini", LlmSettings(base_url=url))


def serve(server: ModelServer, body: bytes) -> OpenAIModel:
    server.reply = Response(body, content_type="text/event-stream")
    return at(server.url)


Listen = Callable[..., list[Any]]


@pytest.fixture(params=["sync", "async"])
def listen(request: pytest.FixtureRequest) -> Listen:
    """Hears a stream to its end in one of the two ways; what came before an error is its `heard`."""

    async def hear(model: OpenAIModel, prompt: Prompt, deadline: Deadline, heard: list) -> None:
        async for piece in model.astream(prompt, deadline):
            heard += (piece,)

    def listened(model: OpenAIModel, prompt: Prompt, seconds: float = 30.0) -> list[Any]:
        heard: list[Any] = []
        deadline = Deadline.after(seconds)
        try:
            if request.param == "sync":
                heard.extend(model.stream(prompt, deadline))
            else:
                asyncio.run(hear(model, prompt, deadline, heard))
        except ModelError as error:
            error.heard = heard  # type: ignore[attr-defined]
            raise
        finally:
            model.close()
        return heard

    return listened


@pytest.fixture
def question(make_prompt: Any) -> Prompt:
    """A prompt for plain text, as those of answers are."""
    prompt: Prompt = make_prompt(fields=(), mode="answer")
    return prompt


def text_of(heard: list[Any]) -> str:
    return "".join(piece for piece in heard if isinstance(piece, str))


def test_pieces_come_and_last_the_whole_with_its_tokens_and_its_cost(
    listen, question, model_server: ModelServer
) -> None:
    model = serve(model_server, sse(*WHOLE))
    assert isinstance(model, StreamingModel)
    heard = listen(model, question)
    reply = heard[-1]
    assert heard[:2] == ["Jaco ", "is fit [1]."]
    assert text_of(heard) == reply.text == "Jaco is fit [1]."
    assert (reply.input_tokens, reply.output_tokens, reply.calls) == (120, 30, 1)
    assert reply.cost_usd == pytest.approx((120 * 0.15 + 30 * 0.60) / 1e6)
    (sent,) = model_server.bodies
    assert (sent["stream"], sent["stream_options"]) == (True, {"include_usage": True})
    assert "response_format" not in sent


@pytest.mark.parametrize(
    "body",
    [
        sse(*WHOLE).replace(b"\n", b"\r\n"),
        sse(": keep alive", *WHOLE[:2], ": keep alive", *WHOLE[2:]),
        sse(*WHOLE, done=False),
        sse({**chunk(None), "choices": []}, {"choices": None}, {}, *WHOLE),
        sse(*WHOLE[:3], chunk(None), chunk(""), *WHOLE[3:]),
        sse(*WHOLE[:3], {"choices": [{"index": 1, "delta": {"content": "no"}}]}, *WHOLE[3:]),
        sse(chunk([{"type": "text", "text": "Jaco is fit [1]."}]), *WHOLE[3:]),
        sse(chunk(None, reasoning_content="hmm"), *WHOLE),
    ],
)
def test_servers_differ_and_the_answer_is_the_same(
    listen, question, model_server: ModelServer, body: bytes
) -> None:
    *_, reply = listen(serve(model_server, body), question)
    assert (reply.text, reply.output_tokens) == ("Jaco is fit [1].", 30)


FAULTS = [
    (sse(chunk("Jaco "), done=False), "unavailable", "Jaco "),
    (sse(chunk("Jaco "), "data: nonsense"), "unparsable", "Jaco "),
    (sse(chunk("Jaco "), {"error": {"message": SECRET, "code": 429}}), "rate_limited", "Jaco "),
    (sse({"error": {"message": SECRET}}), "unavailable", ""),
    (sse(chunk("Jaco "), chunk(None, finish="content_filter")), "refused", "Jaco "),
    (sse(chunk(refusal="I cannot")), "refused", ""),
    (sse(chunk(None, finish="stop")), "empty", ""),
    (sse(chunk(None, finish="length")), "truncated", ""),
    (sse(), "unparsable", ""),
    (b"<html>Not here</html>", "unparsable", ""),
]


@pytest.mark.parametrize(("body", "reason", "heard"), FAULTS)
def test_what_is_no_answer_is_an_error_after_what_came(
    listen, question, model_server: ModelServer, body: bytes, reason: str, heard: str
) -> None:
    with pytest.raises(ModelError) as caught:
        listen(serve(model_server, body), question)
    assert (caught.value.reason, text_of(caught.value.heard)) == (reason, heard)  # type: ignore[attr-defined]
    assert SECRET not in f"{caught.value} {caught.value.__context__!r}"


def silent(wire: Any, connection: socket.socket) -> None:
    connection.sendall(HEAD + sse(chunk("Jaco "), done=False))
    wire.ended.wait()


def test_a_server_that_falls_silent_is_given_up_at_the_deadline(listen, question, wire) -> None:
    with pytest.raises(ModelError) as caught:
        listen(at(wire(silent).url()), question, 0.5)
    assert (caught.value.reason, text_of(caught.value.heard)) == ("timeout", "Jaco ")  # type: ignore[attr-defined]


def stay(wire: Any, connection: socket.socket) -> None:
    connection.sendall(HEAD + sse(*WHOLE[:-1], done=False))
    wire.ended.wait()


def test_an_answer_is_whole_though_its_server_keeps_the_stream_open(listen, question, wire) -> None:
    *pieces, reply = listen(at(wire(stay).url()), question, 0.5)
    assert "".join(pieces) == reply.text == "Jaco is fit [1]."


def talk_until_closed(closed: Event, _: Any, connection: socket.socket) -> None:
    connection.sendall(HEAD + sse(chunk("Jaco "), done=False))
    while connection.recv(1024):
        pass
    closed.set()


def test_whoever_stops_listening_closes_the_connection(question, wire) -> None:
    closed = Event()
    model = at(wire(partial(talk_until_closed, closed)).url())
    stream = model.stream(question, Deadline.after(30))
    assert next(stream) == "Jaco "
    stream.close()
    assert closed.wait(20)
    closed.clear()

    async def leave() -> None:
        pieces = model.astream(question, Deadline.after(30))
        assert await anext(pieces) == "Jaco "
        await pieces.aclose()

    asyncio.run(leave())
    assert closed.wait(20)
    model.close()


async def test_a_cancelled_reader_is_cancelled_and_closes_the_connection(question, wire) -> None:
    heard, closed = asyncio.Event(), Event()
    model = at(wire(partial(talk_until_closed, closed)).url())

    async def read() -> None:
        async with aclosing(model.astream(question, Deadline.after(30))) as pieces:
            async for _ in pieces:
                heard.set()

    reading = asyncio.create_task(read())
    await heard.wait()
    await asyncio.sleep(0.05)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await asyncio.to_thread(closed.wait, 20)
    model.close()


def test_a_reader_cancelled_at_the_end_of_its_loop_leaves_no_error_behind(
    question, wire, caplog: pytest.LogCaptureFixture
) -> None:
    model = at(wire(silent).url())

    async def read() -> None:
        async for _ in model.astream(question, Deadline.after(30)):
            pass

    async def leave() -> None:
        # The loop ends as soon as the reader is cancelled.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read(), 0.3)

    for _ in range(5):
        asyncio.run(leave())
    assert [row.getMessage() for row in caplog.records if row.name == "asyncio"] == []
    model.close()
