"""A model with bad days, and texts that say whose they are: each carries the token of its question.

    python -m tests.robustness.soak.service SEED PACE

Prints its port and serves until its standard input ends. What befalls a call is drawn from the seed,
the question's token, the kind of prompt and the number of the retry, so that it does not depend on
the order in which calls arrive.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from random import Random
from typing import Any, Final

from tests.support.completions import completion

TOKEN: Final = re.compile(r"QX-\d{9}")
SENTENCES: Final = (
    "Which office keeps report {} about the old houses?",
    "Who signed report {} when old houses were repaired?",
    "Where can people read what report {} says on old houses?",
    "When did the town discuss the old houses named in {}?",
    "How many old houses does report {} compare with each other?",
    "Why were old houses left out of report {} by its authors?",
    "What happened to old houses after report {} had been printed?",
    "Whose pictures of old houses near the town are in {}?",
    "Is there a newer edition of report {} with more old houses?",
    "Are the tables of old houses at the end of {} still correct?",
)
# Shares of all calls.
FAULTS: Final[Mapping[str, float]] = {
    "slow": 0.05,
    "429": 0.03,
    "500": 0.02,
    "reset": 0.02,
    "cut": 0.01,
    "hang": 0.005,
    "garbage": 0.03,
}
# So many calls of each thousand, one after the other, are answered with 503: what a circuit breaker
# is there for.
OUTAGE: Final = 40
GARBAGE: Final = ("", "<html>bad gateway</html>", "{", "[]", '{"choices": [{"message": null}]}')


def question(token: str) -> str:
    return f"What does report {token} say about old houses near the town?"


class Service:
    def __init__(self, seed: int, pace: float) -> None:
        self.seed, self.pace, self.calls = seed, pace, 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what comes over one connection."""
        try:
            async for retry, body in _requests(reader):
                if not await self.complete(writer, json.loads(body), retry):
                    return
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def complete(self, writer: Any, asked: Mapping[str, Any], retry: str) -> bool:
        """Answer one call, and return whether the connection is still good."""
        schema = asked["response_format"]["json_schema"]
        (token,) = set(TOKEN.findall(asked["messages"][-1]["content"]))
        chance = Random(f"{self.seed}/{token}/{schema['name']}/{retry}")
        (fault,) = chance.choices([*FAULTS, ""], [*FAULTS.values(), 1 - sum(FAULTS.values())])
        self.calls += 1
        if self.calls % 1_000 >= 1_000 - OUTAGE:
            fault = "503"
        takes = {"hang": 600.0, "slow": 3 * self.pace}
        await asyncio.sleep(takes.get(fault, chance.uniform(0.2, 1.0) * self.pace))
        if fault.isdigit():
            _write(
                writer, int(fault), '{"error": {"message": "not now"}}', **{"retry-after-ms": "20"}
            )
        elif fault == "reset":
            writer.transport.abort()
        else:
            reply = completion(json.dumps(_fields(schema["schema"], token)))
            body = chance.choice(GARBAGE) if fault == "garbage" else json.dumps(reply)
            _write(writer, 200, body, cut=len(body) // 2 if fault == "cut" else None)
        return fault not in ("hang", "reset", "cut")


def _fields(schema: Mapping[str, Any], token: str) -> dict[str, Any]:
    texts = (text.format(token) for text in SENTENCES)
    return {
        name: [next(texts) for _ in range(3)] if field["type"] == "array" else next(texts)
        for name, field in schema["properties"].items()
    }


async def _requests(reader: asyncio.StreamReader) -> AsyncIterator[tuple[str, bytes]]:
    """The number of the retry and the body of each request."""
    while True:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        except asyncio.IncompleteReadError:
            return
        headers = dict(re.findall(r"([\w-]+): *(.*)\r\n", head))
        body = await reader.readexactly(int(headers["content-length"]))
        yield headers.get("x-stainless-retry-count", "0"), body


def _write(writer: Any, status: int, body: str, cut: int | None = None, **more: str) -> None:
    headers = {"content-type": "application/json", "content-length": str(len(body)), **more}
    lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body.encode()[:cut])


async def main() -> None:
    service = Service(int(sys.argv[1]), float(sys.argv[2]))
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    # What hangs shall not keep this process.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
