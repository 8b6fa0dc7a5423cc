"""Streamed completions of the real client over real HTTP, and of servers that have bad days."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from threading import Event
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug import Response

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply, StreamingModel
from qtmiddleware.providers.llms.openai import OpenAIModel, replies
from qtmiddleware.providers.llms.openai.replies import EventReader, StreamReader
from qtmiddleware.types import Deadline
from tests.support.completions import chunk, completion
from tests.support.model_server import ModelServer, Said, as_json

SECRET = "sk-verysecret0123456789"
USAGE = {"prompt_tokens": 120, "completion_tokens": 30, "total_tokens": 150}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


USED = {**chunk(None), "choices": [], "usage": USAGE}
WHOLE = (
    chunk(None, role="assistant"),
    chunk("Jaco "),
    chunk("is fit [1]."),
    chunk(None, finish="stop"),
    USED,
)
COMPLETION = completion("Jaco is fit [1].", usage=USAGE)


def sse(*chunks: Any, done: bool = True, end: str = "\n\n") -> bytes:
    lines = [chunk if isinstance(chunk, str) else f"data: {json.dumps(chunk)}" for chunk in chunks]
    return "".join(line + end for line in [*lines, *(["data: [DONE]"] if done else [])]).encode()


def serve(server: ModelServer, body: bytes, content_type: str = "text/event-stream") -> OpenAIModel:
    server.reply = Response(body, content_type=content_type)
    return OpenAIModel("gpt-4o-mini", base_url=server.url)


Listen = Callable[..., tuple[list[str], Reply]]


@pytest.fixture(params=["sync", "async"])
def listen(request: pytest.FixtureRequest) -> Listen:
    """Hears a stream to its end in one of the two ways; what came before an error is its `heard`."""

    def told(model: OpenAIModel, prompt: Prompt, seconds: float = 30.0) -> list[Any]:
        heard: list[Any] = []
        try:
            heard.extend(model.stream(prompt, Deadline.after(seconds)))
        except ModelError as error:
            error.heard = heard  # type: ignore[attr-defined]
            raise
        return heard

    async def atold(model: OpenAIModel, prompt: Prompt, seconds: float = 30.0) -> list[Any]:
        heard: list[Any] = []
        try:
            async for piece in model.astream(prompt, Deadline.after(seconds)):
                heard += (piece,)
        except ModelError as error:
            error.heard = heard  # type: ignore[attr-defined]
            raise
        return heard

    def listened(*args: Any, **kwargs: Any) -> tuple[list[str], Reply]:
        if request.param == "sync":
            *heard, reply = told(*args, **kwargs)
        else:
            *heard, reply = asyncio.run(atold(*args, **kwargs))
        assert isinstance(reply, Reply)
        pieces = [it for it in heard if isinstance(it, str)]
        assert "".join(pieces) == reply.text
        assert {it.text for it in heard if isinstance(it, Reply)} <= {reply.text}
        return pieces, reply

    return listened


@pytest.fixture
def question(make_prompt: Any) -> Prompt:
    """A prompt for plain text, as those of answers are."""
    prompt: Prompt = make_prompt(fields=(), mode="answer")
    return prompt


def failure(listen: Listen, *args: Any, **kwargs: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        listen(*args, **kwargs)
    assert SECRET not in str(caught.value)
    return caught.value


def test_the_model_is_one_that_streams() -> None:
    assert isinstance(OpenAIModel("m"), StreamingModel)


def test_pieces_come_and_last_the_whole_with_its_tokens_and_its_cost(
    listen, question, model_server: ModelServer
) -> None:
    pieces, reply = listen(serve(model_server, sse(*WHOLE)), question)
    assert "".join(pieces) == "Jaco is fit [1]."
    assert (reply.input_tokens, reply.output_tokens, reply.calls, reply.truncated) == (
        120,
        30,
        1,
        False,
    )
    assert reply.cost_usd == pytest.approx((120 * 0.15 + 30 * 0.60) / 1e6)


def test_the_request_asks_for_a_stream_and_its_usage_and_for_plain_text(
    listen, question, model_server
) -> None:
    listen(serve(model_server, sse(*WHOLE)), question)
    (sent,) = model_server.bodies
    assert sent["stream"] is True
    assert sent["stream_options"] == {"include_usage": True}
    assert "response_format" not in sent
    assert sent["max_tokens"] == 800


def test_each_piece_is_heard_before_the_next_is_said(
    listen, question, model_server: ModelServer
) -> None:
    heard = Event()

    def body() -> Iterator[bytes]:
        yield sse(chunk("Jaco "), done=False)
        assert heard.wait(20)
        yield sse(chunk("is fit.", finish="stop"))

    model_server.reply = lambda _: Response(body(), mimetype="text/event-stream")
    model = OpenAIModel("m", base_url=model_server.url)
    stream = model.stream(question, Deadline.after(30))
    assert next(stream) == "Jaco "
    heard.set()
    assert next(stream) == "is fit."
    assert isinstance(next(stream), Reply)

    async def awaited() -> None:
        heard.clear()
        pieces = model.astream(question, Deadline.after(30))
        assert await anext(pieces) == "Jaco "
        heard.set()
        assert await anext(pieces) == "is fit."
        assert isinstance(await anext(pieces), Reply)

    asyncio.run(awaited())


@pytest.mark.parametrize(
    "body",
    [
        sse(*WHOLE, end="\r\n\r\n"),
        sse(*WHOLE, end="\r\r"),
        sse(": keep alive", *WHOLE[:2], ": keep alive", *WHOLE[2:]),
        sse("event: message", *WHOLE),
        sse(*WHOLE, done=False),
        sse(*WHOLE).rstrip(),
        sse(*WHOLE) + b"data: {broken",
        sse(*WHOLE, done=False) + b"data: [DONE]",
        sse({**chunk(None), "choices": []}, {"choices": None}, {}, *WHOLE),
        sse(*WHOLE).replace(b"data: ", b"data:"),
        b"\n\n" + sse(*WHOLE),
        sse(*WHOLE[:3], chunk(None), chunk(""), *WHOLE[3:]),
        sse(
            *WHOLE[:3],
            {**chunk("other"), "choices": [{"index": 1, "delta": {"content": "no"}}]},
            *WHOLE[3:],
        ),
        sse(*WHOLE[:3], USED),
        sse(chunk([{"type": "text", "text": "Jaco is fit [1]."}]), *WHOLE[3:]),
        sse(chunk(None, reasoning_content="hmm"), *WHOLE),
        json.dumps(COMPLETION).encode(),
        b"\n " + json.dumps(COMPLETION, indent=1).encode(),
    ],
)
def test_servers_differ_and_the_answer_is_the_same(
    listen, question, model_server: ModelServer, body: bytes
) -> None:
    _, reply = listen(serve(model_server, body), question)
    assert reply.text == "Jaco is fit [1]."
    assert (reply.input_tokens, reply.output_tokens) == (120, 30)


def test_without_usage_no_tokens_and_no_cost_are_known(
    listen, question, model_server: ModelServer
) -> None:
    _, reply = listen(serve(model_server, sse(*WHOLE[:-1])), question)
    assert (reply.input_tokens, reply.output_tokens, reply.cost_usd) == (0, 0, None)


def test_the_last_usage_counts(listen, question, model_server: ModelServer) -> None:
    growing = chunk("x", usage={"prompt_tokens": 1, "completion_tokens": 1})
    _, reply = listen(serve(model_server, sse(growing, *WHOLE)), question)
    assert reply.output_tokens == 30


def test_an_answer_cut_at_the_token_limit_says_so(
    listen, question, model_server: ModelServer
) -> None:
    _, reply = listen(
        serve(model_server, sse(chunk("Jaco is"), chunk(None, finish="length"))), question
    )
    assert (reply.text, reply.truncated) == ("Jaco is", True)


def test_half_a_character_waits_for_its_other_half(
    listen, question, model_server: ModelServer
) -> None:
    body = sse(chunk("a \ud83d"), chunk("\ude00 b \ud83d", finish="stop"))
    pieces, reply = listen(serve(model_server, body), question)
    assert reply.text == "a 😀 b �"
    assert all("�" not in piece for piece in pieces[:-1])


@pytest.mark.parametrize(
    ("body", "reason", "heard"),
    [
        (sse(chunk("Jaco "), done=False), "unavailable", "Jaco "),
        (sse(chunk("Jaco "), done=False) + b'data: {"choi', "unparsable", "Jaco "),
        (sse(chunk("Jaco "), "data: nonsense"), "unparsable", "Jaco "),
        (sse(chunk("Jaco "), {"error": {"message": SECRET, "code": 429}}), "rate_limited", "Jaco "),
        (sse({"error": "overloaded"}), "unavailable", ""),
        (sse("event: error", {"error": {"message": SECRET}}), "unavailable", ""),
        (sse(chunk("Jaco "), chunk(None, finish="content_filter")), "refused", "Jaco "),
        (sse(chunk(refusal="I cannot")), "refused", ""),
        (sse(chunk("Jaco "), chunk(None, finish="error")), "unavailable", "Jaco "),
        (sse(chunk(None, finish="stop")), "empty", ""),
        (sse(chunk(None, finish="length")), "truncated", ""),
        (sse(chunk(reasoning="hmm"), chunk(None, finish="stop")), "empty", ""),
        (sse(), "empty", ""),
        (b"", "empty", ""),
        (b"<html>Not here</html>", "unparsable", ""),
        (b"data: <html>\n\n", "unparsable", ""),
        (b'{"error": {"code": 401}}', "unauthorized", ""),
        (b'{"choices": [', "unparsable", ""),
        (b"data: [1, 2]\n\n", "unavailable", ""),
        (b"data: null\n\n", "unavailable", ""),
    ],
)
def test_what_is_no_answer_is_an_error(
    listen, question, model_server, body: bytes, reason: str, heard: str
) -> None:
    error = failure(listen, serve(model_server, body), question)
    assert error.reason == reason
    assert "".join(error.heard) == heard  # type: ignore[attr-defined]
    assert error.__cause__ is None


@pytest.mark.parametrize(
    ("status", "reason"), [(401, "unauthorized"), (429, "rate_limited"), (500, "unavailable")]
)
def test_a_failing_status_is_an_error(
    listen, question, hasty, model_server, status: int, reason: str
) -> None:
    model_server.reply = as_json({"error": {"message": SECRET}}, status)
    assert failure(listen, OpenAIModel("m", base_url=model_server.url), question).reason == reason


class Picky:
    """Refuses requests that hold any of some keys, in the given words; streams otherwise, if it was asked to."""

    def __init__(self, server: ModelServer, refused: dict[str, Any]) -> None:
        self.sent = server.bodies
        self._refused = refused
        self.model = OpenAIModel("m", base_url=server.url)
        server.reply = self._say

    def _say(self, body: dict[str, Any]) -> Said:
        for key, words in self._refused.items():
            if key in body:
                return as_json({"error": words}, 400)
        return "Jaco is fit [1]."


OPTIONS = {"message": "Unknown parameter: 'stream_options'.", "param": "stream_options"}
STREAM = {"message": "Streaming is not supported for this model.", "param": "stream"}


@pytest.mark.parametrize(
    ("refused", "calls"),
    [
        ({"stream_options": OPTIONS}, 2),
        ({"stream_options": {"message": "bad request"}}, 2),
        ({"stream": STREAM}, 3),
        (
            {"stream_options": OPTIONS, "temperature": {"message": "temperature is not supported"}},
            3,
        ),
        ({"temperature": {"message": "temperature is not supported", "param": "temperature"}}, 2),
    ],
)
def test_what_a_provider_refuses_is_left_out_and_remembered(
    listen, question, model_server, refused, calls: int
) -> None:
    picky = Picky(model_server, refused)
    assert listen(picky.model, question)[1].calls == calls
    assert listen(picky.model, question)[1].calls == 1
    assert len(picky.sent) == calls + 1


def test_a_refused_stream_leaves_completions_as_they_are(
    ask, question, model_server: ModelServer
) -> None:
    picky = Picky(model_server, {"stream": STREAM})
    list(picky.model.stream(question, Deadline.after(30)))
    before = len(picky.sent)
    assert ask(picky.model, question).calls == 1
    assert "stream" not in picky.sent[before]


@pytest.mark.parametrize(
    ("piece", "reason"),
    [
        pytest.param(b"x" * (1 << 16), "too_long", id="one line without end"),
        pytest.param(b"data: {}\n" * 1_000, "too_long", id="one event without end"),
        pytest.param(b": wait\n\n" * 1_000, "timeout", id="comments without end"),
        pytest.param(b"x", "timeout", id="one line in tiny pieces"),
    ],
)
def test_a_stream_without_end_ends_with_its_bound_or_the_time(
    listen, question, wire, piece: bytes, reason: str
) -> None:
    def talk(self, connection: socket.socket) -> None:
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        while not self.ended.is_set():
            connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))

    seconds = 0.5 if reason == "timeout" else 30.0
    assert (
        failure(listen, OpenAIModel("m", base_url=wire(talk).url()), question, seconds).reason
        == reason
    )


def test_a_reset_in_the_middle_is_unavailable(listen, question, wire) -> None:
    def talk(self: Any, connection: socket.socket) -> None:
        connection.sendall(HEAD + b"content-length: 5000\r\n\r\n" + sse(chunk("Jaco "), done=False))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    assert (
        failure(listen, OpenAIModel("m", base_url=wire(talk).url()), question).reason
        == "unavailable"
    )


def test_a_body_shorter_than_promised_is_unavailable_after_what_came(
    listen, question, wire
) -> None:
    body = sse(chunk("Jaco "), done=False)
    server = wire(
        lambda self, connection: connection.sendall(HEAD + b"content-length: 5000\r\n\r\n" + body)
    )
    error = failure(listen, OpenAIModel("m", base_url=server.url()), question)
    assert (error.reason, "".join(error.heard)) == ("unavailable", "Jaco ")  # type: ignore[attr-defined]


def test_a_connection_that_breaks_after_the_last_word_harms_nobody(listen, question, wire) -> None:
    body = sse(chunk("Jaco is fit."), chunk(None, finish="stop"), done=False)
    server = wire(
        lambda self, connection: connection.sendall(HEAD + b"content-length: 5000\r\n\r\n" + body)
    )
    assert listen(OpenAIModel("m", base_url=server.url()), question)[1].text == "Jaco is fit."


def test_the_reply_is_there_before_what_it_cost(question, wire) -> None:
    def talk(self: Any, connection: socket.socket) -> None:
        connection.sendall(
            HEAD
            + b"content-length: 5000\r\n\r\n"
            + sse(chunk("Jaco is fit."), chunk(None, finish="length"), done=False)
        )
        self.ended.wait()

    model = OpenAIModel("m", base_url=wire(talk).url())
    stream: Any = model.stream(question, Deadline.after(30))
    reply = Reply("Jaco is fit.", truncated=True, model="gpt-6-luna", id="c")
    assert [next(stream), next(stream)] == ["Jaco is fit.", reply]
    stream.close()

    async def awaited() -> None:
        pieces: Any = model.astream(question, Deadline.after(30))
        assert [await anext(pieces), await anext(pieces)] == ["Jaco is fit.", reply]
        await pieces.aclose()

    asyncio.run(awaited())


def test_a_server_that_stays_after_done_is_not_waited_for(listen, question, wire) -> None:
    def talk(self: Any, connection: socket.socket) -> None:
        connection.sendall(HEAD + b"content-length: 5000\r\n\r\n" + sse(*WHOLE))
        self.ended.wait()

    assert (
        listen(OpenAIModel("m", base_url=wire(talk).url()), question)[1].text == "Jaco is fit [1]."
    )


@pytest.mark.parametrize("first", [b"", sse(chunk("Jaco "), done=False)])
def test_a_server_that_falls_silent_is_given_up_at_the_deadline(
    listen, question, wire, first: bytes
) -> None:
    def talk(self: Any, connection: socket.socket) -> None:
        connection.sendall(HEAD + b"content-length: 5000\r\n\r\n" + first)
        self.ended.wait()

    assert (
        failure(listen, OpenAIModel("m", base_url=wire(talk).url()), question, 0.3).reason
        == "timeout"
    )


@pytest.mark.parametrize("word", [b": keep alive\n\n", sse(chunk("on "), done=False)])
def test_a_server_that_trickles_for_ever_is_given_up_at_the_deadline(
    listen, question, wire, word: bytes
) -> None:
    def talk(self: Any, connection: socket.socket) -> None:
        connection.sendall(HEAD + b"content-length: 500000000\r\n\r\n")
        while not self.ended.wait(0.02):
            connection.sendall(word)

    assert (
        failure(listen, OpenAIModel("m", base_url=wire(talk).url()), question, 0.3).reason
        == "timeout"
    )


def test_a_stream_without_end_is_not_read_to_its_end(listen, question, wire, monkeypatch) -> None:
    monkeypatch.setattr(replies, "MOST_STREAM_BYTES", 1 << 20)

    def talk(self: Any, connection: socket.socket) -> None:
        connection.sendall(HEAD + b"content-length: 500000000\r\n\r\n")
        while not self.ended.is_set():
            connection.sendall(sse(chunk("x" * 10_000), done=False))

    assert (
        failure(listen, OpenAIModel("m", base_url=wire(talk).url()), question).reason == "too_long"
    )


@pytest.mark.parametrize("start", [b'{"choices": [', b"[", b"data: ", b"data: x\n", b": "])
def test_a_body_or_an_event_larger_than_any_piece_of_an_answer_is_not_read_on(
    listen, question, wire, start
) -> None:
    # Of the fourth, each line is short and the event has no end.
    more = (b"data: x\n" if start.endswith(b"\n") else b"[],") * 10_000

    def talk(self: Any, connection: socket.socket) -> None:
        connection.sendall(HEAD + b"content-length: 500000000\r\n\r\n" + start)
        while not self.ended.is_set():
            connection.sendall(more)

    assert (
        failure(listen, OpenAIModel("m", base_url=wire(talk).url()), question).reason == "too_long"
    )


@pytest.mark.parametrize("start", [b'{"choices": [', b"data: "])
def test_a_body_or_a_line_that_trickles_is_given_up_at_the_deadline(
    listen, question, wire, start: bytes
) -> None:
    def talk(self: Any, connection: socket.socket) -> None:
        connection.sendall(HEAD + b"content-length: 500000000\r\n\r\n" + start)
        while not self.ended.wait(0.02):
            connection.sendall(b"[],")

    assert (
        failure(listen, OpenAIModel("m", base_url=wire(talk).url()), question, 0.3).reason
        == "timeout"
    )


@pytest.mark.parametrize(
    "piece",
    [sse(chunk("a"), done=False), b": x\n", b"data: x", b"{", {"choices": []}],
    ids=lambda it: str(it)[:12],
)
def test_the_deadline_is_looked_at_after_every_piece(piece: Any) -> None:
    deadline = Deadline.after(600)
    reader = StreamReader(deadline)
    list(reader.read_chunk(piece))
    deadline.cancel()
    with pytest.raises(ModelError) as caught:
        list(reader.read_chunk(piece))
    assert caught.value.reason == "cancelled"


def test_the_deadline_is_looked_at_between_the_events_of_one_piece() -> None:
    deadline = Deadline.after(600)
    pieces = StreamReader(deadline).read_chunk(sse(chunk("a"), chunk("b"), done=False))
    assert next(pieces) == "a"
    deadline.cancel()
    with pytest.raises(ModelError):
        next(pieces)


def test_an_answer_that_had_ended_at_the_deadline_is_whole(listen, question, wire) -> None:
    def talk(self: Any, connection: socket.socket) -> None:
        ended = sse(chunk("Jaco is fit."), chunk(None, finish="stop"), done=False)
        connection.sendall(HEAD + b"content-length: 500000000\r\n\r\n" + ended)
        while not self.ended.wait(0.02):
            connection.sendall(b": keep alive\n\n")

    assert (
        listen(OpenAIModel("m", base_url=wire(talk).url()), question, 0.5)[1].text == "Jaco is fit."
    )


@pytest.mark.parametrize("start", [b"", b"data: ", b": "])
def test_a_line_in_small_pieces_is_read_to_its_end(start: bytes) -> None:
    # What took the square of its length would not be done before the test is stopped.
    events, length = EventReader(), replies.MOST_BYTES - 8
    assert not [*events.read_events(start)]
    for _ in range(0, length, 4):
        assert not [*events.read_events(b"abcd")]
    assert [len(it) for it in events.read_events(b"\n\n")] == (
        [length] if start == b"data: " else []
    )


def test_what_follows_an_answer_does_not_put_it_together_again() -> None:
    reader = StreamReader()
    for piece in [chunk("a" * 100)] * 10_000 + [chunk(" ")]:
        list(reader.read_chunk(piece))
    assert [type(it) for it in reader.read_chunk(chunk(None, finish="stop"))] == [Reply]
    reader._texts = None  # type: ignore[assignment]
    assert not list(reader.read_chunk({"choices": []}))


def test_whoever_stops_listening_closes_the_connection(question, wire) -> None:
    closed = Event()

    def talk(self: Any, connection: socket.socket) -> None:
        connection.sendall(
            HEAD + b"content-length: 500000000\r\n\r\n" + sse(chunk("Jaco "), done=False)
        )
        try:
            while connection.recv(1):
                pass
        except OSError:
            pass
        closed.set()

    model = OpenAIModel("m", base_url=wire(talk).url())
    stream: Any = model.stream(question, Deadline.after(30))
    assert next(stream) == "Jaco "
    stream.close()
    assert closed.wait(20)
    closed.clear()

    async def awaited() -> None:
        pieces: Any = model.astream(question, Deadline.after(30))
        assert await anext(pieces) == "Jaco "
        await pieces.aclose()
        assert await asyncio.to_thread(closed.wait, 20)

    asyncio.run(awaited())


def test_no_time_left_sends_nothing(listen, question, model_server: ModelServer) -> None:
    assert failure(listen, serve(model_server, sse(*WHOLE)), question, -1.0).reason == "timeout"
    assert model_server.bodies == []


class Traced:
    """A client of the user's own making around a real one, as tracing libraries put it."""

    def __init__(self, given: Any) -> None:
        self.base_url = given.base_url
        self.chat = self
        self.completions = self
        self._given = given

    def create(self, **request: Any) -> Any:
        return self._given.chat.completions.create(**request)


class AsyncTraced(Traced):
    async def create(self, **request: Any) -> Any:
        return await self._given.chat.completions.create(**request)


@pytest.mark.parametrize(
    "body", [sse(*WHOLE), json.dumps(COMPLETION).encode()], ids=["stream", "whole"]
)
def test_a_wrapped_client_is_asked_through_its_wrapper(
    listen, question, model_server: ModelServer, body: bytes
) -> None:
    is_stream = body.startswith(b"data")
    model_server.reply = Response(
        body, content_type="text/event-stream" if is_stream else "application/json"
    )
    options: Any = {
        "api_key": SECRET,
        "base_url": model_server.url,
        "default_headers": {"Connection": "close"},
    }
    clients = openai.OpenAI(**options), openai.AsyncOpenAI(**options)
    model = OpenAIModel("m", client=(Traced(clients[0]), AsyncTraced(clients[1])))
    if is_stream:
        assert listen(model, question)[1].text == "Jaco is fit [1]."
    else:
        # The client's own stream finds no event in it.
        assert failure(listen, model, question).reason == "empty"
    clients[0].close()


class Double:
    """What tests of users pass as a client."""

    def __init__(self, answer: Any) -> None:
        self.chat = self
        self.completions = self
        self.answer = answer

    def create(self, **request: Any) -> Any:
        return self.answer


class AsyncDouble(Double):
    async def create(self, **request: Any) -> Any:
        if isinstance(self.answer, list):
            return self._pieces()
        return self.answer

    async def _pieces(self) -> AsyncIterator[Any]:
        for piece in self.answer:
            yield piece


@pytest.mark.parametrize(
    "answer", [list(WHOLE), COMPLETION, json.dumps(COMPLETION)], ids=["pieces", "whole", "text"]
)
def test_a_double_of_a_client_may_answer_in_any_form(listen, question, answer: Any) -> None:
    model = OpenAIModel("m", client=(Double(answer), AsyncDouble(answer)))
    assert listen(model, question)[1].text == "Jaco is fit [1]."


BODIES = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.sampled_from([sse(it, done=False) for it in (*WHOLE, {}, [], None, {"choices": [{}]}, {"choices": [None]})]
                        + [b"data: [DONE]\n\n", b"\r", b"\n", b"data: ", b": x\n", b"{", b"\xff"]),
        max_size=8,
    ).map(b"".join),
)  # fmt: skip


@given(BODIES, st.lists(st.integers(0, 400), max_size=10))
def test_whatever_comes_is_an_answer_or_a_model_error(body: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    reader, heard = StreamReader(), ""
    try:
        for start, end in pairwise(places):
            heard += "".join(it for it in reader.read_chunk(body[start:end]) if isinstance(it, str))
        *left, reply = reader.yield_rest_and_reply()
    except ModelError:
        return
    assert isinstance(reply, Reply)
    assert heard + "".join(map(str, left)) == reply.text


@given(
    st.lists(
        st.sampled_from([b"data: a", b"data:b", b": c", b"event: d", b"", b"\n", b"\r\n", b"\r"]),
        max_size=20,
    ),
    st.data(),
)
def test_events_are_the_same_however_the_bytes_are_cut(
    parts: list[bytes], data: st.DataObject
) -> None:
    body = b"".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=8).map(sorted))

    def read(places: list[int]) -> list[bytes]:
        events = EventReader()
        found = [it for a, b in pairwise(places) for it in events.read_events(body[a:b])]
        return found + list(events.read_last_event())

    assert read([0, *cuts, len(body)]) == read([0, len(body)])
