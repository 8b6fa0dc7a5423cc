"""Clients that ask one question after the other, in a process of their own, and what they got."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import ceil
from multiprocessing import get_context
from time import monotonic
from urllib.parse import quote

from tests.support.many_workers import WORKER_HEADER

PATIENCE = 60.0
"""Seconds after which a client gives up."""


@dataclass(frozen=True, slots=True)
class Answer:
    """When a question was asked (seconds of the run), how long it took, its status (``failed`` without one) and who."""

    at: float
    seconds: float
    status: str
    worker: int


@dataclass(frozen=True, slots=True)
class Load:
    """What is seen in *answers* that came within *seconds*."""

    answers: Sequence[Answer]
    seconds: float

    @property
    def rate(self) -> float:
        """Answers a second."""
        return sum(it.status != "failed" for it in self.answers) / self.seconds

    def percentile(self, share: float) -> float:
        """Milliseconds that *share* of the answers took at most (nearest rank); 0 without any."""
        took = sorted(it.seconds for it in self.answers if it.status != "failed")
        return 1e3 * took[ceil(share * len(took)) - 1] if took else 0.0

    def count(self, status: str) -> int:
        """How many had that *status*."""
        return sum(it.status == status for it in self.answers)

    def between(self, start: float, stop: float) -> Load:
        """What came from *start* to *stop*, seconds of the run."""
        return Load([it for it in self.answers if start <= it.at + it.seconds < stop], stop - start)


async def _ask(port: int, path: str, question: str) -> tuple[str, int]:
    # A connection a question, as proxies make them: whichever worker is free takes it.
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        target = f"{path}?q={quote(question)}"
        writer.write(
            f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        first, *lines = head.decode("ascii").split("\r\n")
        if first.split(" ")[1] != "200":
            return "failed", 0
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines)
        }
        return json.loads(body)["status"], int(headers[WORKER_HEADER])
    finally:
        writer.close()


async def _drive(
    port: int, path: str, questions: Sequence[str], clients: int, seconds: float
) -> list[Answer]:
    began, waiting, answers = monotonic(), iter(questions), list[Answer]()

    async def ask_on() -> None:
        while monotonic() - began < seconds and (question := next(waiting, None)) is not None:
            asked = monotonic()
            try:
                status, worker = await asyncio.wait_for(_ask(port, path, question), PATIENCE)
            except (OSError, ValueError, IndexError, TimeoutError):
                status, worker = "failed", 0
            answers.append(Answer(asked - began, monotonic() - asked, status, worker))

    await asyncio.gather(*(ask_on() for _ in range(clients)))
    return answers


def drive(port: int, path: str, questions: Sequence[str], clients: int, seconds: float) -> Load:
    """Let so many *clients* ask the *questions*, each once, for *seconds*."""
    answers = asyncio.run(_drive(port, path, questions, clients, seconds))
    return Load(answers, max(it.at + it.seconds for it in answers))


class Driver:
    """Asks the server at *port* from another process, so that the clients take no time from the model's server."""

    def __init__(self, pool: ProcessPoolExecutor, port: int) -> None:
        self._submit = partial(pool.submit, drive, port)

    def start(
        self, path: str, questions: Sequence[str], clients: int, seconds: float
    ) -> Future[Load]:
        """Begin; the load is there some *seconds* later."""
        return self._submit(path, list(questions), clients, seconds)

    def run(self, path: str, questions: Sequence[str], clients: int, seconds: float) -> Load:
        """The same, and wait for it."""
        return self.start(path, questions, clients, seconds).result()


@contextmanager
def driving(port: int) -> Iterator[Driver]:
    """A driver whose process ends with the block."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield Driver(pool, port)
