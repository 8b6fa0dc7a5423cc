"""The other side of the wire: a model with bad days and a search service, in a process of their own.

    python -m tests.robustness.soak.server SEED PACE

Prints its port, serves until its standard input ends. What befalls a call is drawn from the seed,
the question's token, the kind of prompt and the number of the retry, so that it does not depend on
the order in which calls arrive.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from random import Random
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from tests.robustness.soak.texts import is_lucky, passages, sentence, token_in
from tests.support.completions import completion

# Shares of all calls of the model.
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
_GARBAGE: Final = (
    "",
    "<html>bad gateway</html>",
    "{",
    "[]",
    '{"choices": []}',
    '{"choices": [{"message": null}]}',
)


class Service:
    """One service for models and searches."""

    def __init__(self, seed: int, pace: float) -> None:
        self._seed = seed
        self._pace = pace
        self._calls = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what comes over one connection."""
        try:
            async for path, headers, body in _requests(reader):
                if path.startswith("/search"):
                    (query,) = parse_qs(urlsplit(path).query)["q"]
                    await asyncio.sleep(0.01)
                    _write(writer, 200, json.dumps(passages(query)))
                elif not await self._completed(
                    writer, json.loads(body), headers.get("x-stainless-retry-count", "0")
                ):
                    return
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _completed(
        self, writer: asyncio.StreamWriter, asked: Mapping[str, Any], retry: str
    ) -> bool:
        """Answer one call of the model; whether the connection is still good."""
        schema = asked["response_format"]["json_schema"]
        token = token_in(asked["messages"][-1]["content"])
        rng = Random(f"{self._seed}/{token}/{schema['name']}/{retry}")
        fault = next(iter(rng.choices([*FAULTS, ""], [*FAULTS.values(), 1 - sum(FAULTS.values())])))
        if is_lucky(token):
            fault = ""
        self._calls += 1
        if self._calls % 1_000 >= 1_000 - OUTAGE:
            _write(writer, 503, '{"error": {"message": "no service"}}')
            return True
        if fault == "hang":
            await asyncio.sleep(600)
            return False
        await asyncio.sleep(
            self._pace * (rng.uniform(2, 4) if fault == "slow" else rng.uniform(0.2, 1.0))
        )
        if fault in ("429", "500"):
            wait = {"retry-after-ms": "20"} if rng.random() < 0.5 else {}
            _write(writer, int(fault), '{"error": {"message": "not now"}}', wait)
            return True
        if fault == "reset":
            writer.transport.abort()
            return False
        body = rng.choice(_GARBAGE) if fault == "garbage" else _reply(schema["schema"], token)
        if fault == "cut":
            _write(writer, 200, body, cut=len(body) // 2)
            return False
        _write(writer, 200, body)
        return True


def _reply(schema: Mapping[str, Any], token: str) -> str:
    return json.dumps(completion(json.dumps(_fields(schema, token))))


def _fields(schema: Mapping[str, Any], token: str) -> dict[str, Any]:
    said: dict[str, Any] = {}
    number = 0
    for name, field in schema["properties"].items():
        count = 3 if field["type"] == "array" else 1
        texts = [sentence(number + offset, token) for offset in range(count)]
        number += count
        said[name] = texts if field["type"] == "array" else texts[0]
    return said


async def _requests(
    reader: asyncio.StreamReader,
) -> AsyncIterator[tuple[str, dict[str, str], bytes]]:
    while True:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.IncompleteReadError:
            return
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:])
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        yield head[0].split(" ")[1], headers, body


def _write(
    writer: asyncio.StreamWriter,
    status: int,
    body: str,
    more: Mapping[str, str] | None = None,
    cut: int | None = None,
) -> None:
    raw = body.encode()
    headers = {"content-type": "application/json", "content-length": str(len(raw)), **(more or {})}
    lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode() + raw[:cut])


async def main() -> None:
    """Serve until nobody holds the other end of the standard input."""
    service = Service(int(sys.argv[1]), float(sys.argv[2]))
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    # What hangs shall not keep this process.
    server.close()


if __name__ == "__main__":
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    sys.stdout.flush()
    import os

    os._exit(0)
