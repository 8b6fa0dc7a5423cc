"""A language model, the same with a certificate nobody trusts, and an index, in a process of their own.

    python -m tests.robustness.faults.serving CERTIFICATE KEY

It prints its two ports and serves until its standard input ends. Which fault is played is told by
the path: ``/model/FAULT/...`` and ``/index/SEARCH/FORM/BROKEN/...``, BROKEN being the numbers of
the texts that fail.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import sys
from contextlib import suppress
from typing import Any, Final

from tests.robustness.faults.world import REPLIES, SUBS, number_of, rows, seconds
from tests.support import completions

SLOW_SECONDS: Final = 0.4
TRICKLE_SECONDS: Final = 0.02
LONGEST: Final = 0.6
"""Nothing is held open for longer, whatever the other side does: twice the deadline."""

STATUS: Final = {"401": 401, "429": 429, "429-retry-after": 429, "500": 500, "503": 503}
TOO_MUCH: Final = 10 * 1024 * 1024
PIECE: Final = 1 << 16
"""Nobody reads to the end of too much: what was not asked for need not be copied either."""


def completion(
    content: str | None, *, finish: str = "stop", refusal: str | None = None, reasoned: int = 0
) -> bytes:
    usage: dict[str, Any] = {
        "prompt_tokens": 100,
        "completion_tokens": 20 + reasoned,
        "total_tokens": 120 + reasoned,
    }
    usage["completion_tokens_details"] = {"reasoning_tokens": reasoned}
    return json.dumps(
        completions.completion(content, finish=finish, usage=usage, refusal=refusal)
    ).encode()


def reply(request: bytes) -> str:
    """A good reply: whatever fields the request's schema asks for."""
    schema = json.loads(request)["response_format"]["json_schema"]["schema"]
    return json.dumps({name: REPLIES[name] for name in schema["properties"]})


def cut(text: str) -> str:
    """*text* as far as the token limit let it come: into the middle of the second sub-query, or of all."""
    at = text.find(SUBS[1])
    return text[: len(text) * 6 // 10 if at < 0 else at + len(SUBS[1]) // 2]


FIXED: Final = {
    "empty-body": b"",
    "10mb": completion("x" * TOO_MUCH),
    "deep": b"[" * 1_000_000,
    "bad-utf8": completion("~~").replace(b"~~", b"\xff\xfe\xc3("),
    "wrong-schema": completion('{"weather": {"temperature": 21}, "city": "Porto"}'),
    "refusal": completion(None, refusal="I can't help with that."),
    "reasoning": completion("", finish="length", reasoned=780),
}
"""The bodies that do not depend on what was asked."""


def body_of(fault: str, request: bytes) -> bytes:
    if fault in FIXED:
        return FIXED[fault]
    if fault == "length":
        return completion(cut(reply(request)), finish="length")
    return completion(reply(request))


class Connection:
    """One connection of a client, kept alive as long as both sides behave."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.pace = 1

    async def serve(self) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, OSError):
            while await self._exchange():
                pass
        self.writer.close()
        with suppress(Exception):
            await self.writer.wait_closed()

    async def _exchange(self) -> bool:
        head = await self.reader.readuntil(b"\r\n\r\n")
        first, *fields = head.decode("latin-1").split("\r\n")
        lengths = [
            int(field[15:]) for field in fields if field.lower().startswith("content-length:")
        ]
        request = await self.reader.readexactly(lengths[0] if lengths else 0)
        _, pace, what, *path = first.split()[1].split("/")
        self.pace = int(pace)
        if what == "index":
            return await self._search(path, json.loads(request))
        return await self._complete(path[0], request)

    async def _send(self, body: bytes, status: int = 200, *fields: str) -> bool:
        head = (
            f"HTTP/1.1 {status} X",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *fields,
        )
        self.writer.write("\r\n".join((*head, "", "")).encode() + body[:PIECE])
        await self.writer.drain()
        for start in range(PIECE, len(body), PIECE):
            self.writer.write(body[start : start + PIECE])
            await self.writer.drain()
        return True

    async def _complete(self, fault: str, request: bytes) -> bool:
        if fault in STATUS:
            fields = ("retry-after: 20",) if fault == "429-retry-after" else ()
            return await self._send(
                json.dumps(completions.error()).encode(), STATUS[fault], *fields
            )
        if fault == "slow":
            await asyncio.sleep(self.pace * SLOW_SECONDS)
        if fault in ("hang", "trickle", "trickled-500", "reset"):
            return await self._misbehave(fault)
        return await self._send(body_of(fault, request))

    async def _misbehave(self, fault: str) -> bool:
        status = 500 if fault == "trickled-500" else 200
        self.writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: 5000\r\n\r\n"
            % status
        )
        if fault == "hang":
            with suppress(TimeoutError):
                await asyncio.wait_for(self.reader.read(1), self.pace * LONGEST)
        elif fault.startswith("trickle"):
            for _ in range(round(self.pace * LONGEST / TRICKLE_SECONDS)):
                self.writer.write(b" ")
                await self.writer.drain()
                await asyncio.sleep(TRICKLE_SECONDS)
        else:
            self.writer.write(b'{"choices": [')
            await self.writer.drain()
            # What was sent must have been read: a reset throws away what lies in the other side's
            # buffers.
            await asyncio.sleep(0.005)
            self.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            self.writer.transport.abort()
        return False

    async def _search(self, path: list[str], asked: dict[str, Any]) -> bool:
        search, form, broken, *_ = path
        text, top_k = asked["query"]["inputs"]["text"], asked["query"]["top_k"]
        number = number_of(text)
        await asyncio.sleep(self.pace * seconds(search, int(form), number))
        if number < 0 or str(number) in broken.split(","):
            return await self._send(b'{"code": 5, "message": "no luck", "details": []}', 404)
        hits = [
            {"_id": name, "_score": score, "fields": {"text": text}}
            for name, score, text in rows(search, int(form), number, top_k)
        ]
        body = {"result": {"hits": hits}, "usage": {"read_units": 5, "embed_total_tokens": 4}}
        return await self._send(json.dumps(body).encode())


async def serve() -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Connection(reader, writer).serve()

    untrusted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    untrusted.load_cert_chain(*sys.argv[1:])
    plain = await asyncio.start_server(accept, "127.0.0.1", 0)
    encrypted = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=untrusted)
    print(*(server.sockets[0].getsockname()[1] for server in (plain, encrypted)), flush=True)
    # A handshake that the client refuses is what is wanted here.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve())
