"""Files of many questions, the ``qtm transform --file`` that transforms them, and a service that rewrites them."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import Any, Final

from pytest_httpserver import HTTPServer

from tests.support.model_server import ModelServer, Said, failure

# Nobody is late because a machine is busy.
LIMITS: Final = ("--set", "limits.llmTimeoutMs=120000", "--set", "limits.deadlineMs=120000")
TRANSFORM: Final = ("transform", "-t", "rewrite", "--file", "queries.jsonl", "--out", "out.jsonl")
PROGRAM: Final = (sys.executable, "-c", "from qtmiddleware.kit.cli import main; main()")


class RewritingService(ModelServer):
    """Rewrites every question, after *seconds*.

    *limit* calls are allowed within each *window* of seconds; others are told when the next one
    begins. *windows* holds how many calls came within each, refused ones too.
    """

    def __init__(self, server: HTTPServer) -> None:
        super().__init__(server, self._say)
        self.seconds = 0.0
        self.limit = 10**9
        self.window = 1.0
        self.windows: Counter[int] = Counter()
        self._began = time.monotonic()
        self._counting = Lock()

    @property
    def questions(self) -> list[str]:
        """What it was asked, in that order."""
        return [asked_of(body) for body in self.bodies]

    def _say(self, body: dict[str, Any]) -> Said:
        time.sleep(self.seconds)
        since = time.monotonic() - self._began
        with self._counting:
            number = int(since / self.window)
            self.windows[number] += 1
            is_refused = self.windows[number] > self.limit
        if is_refused:
            # Rounded up: nobody is told to come back too soon.
            wait = int(1e3 * ((number + 1) * self.window - since)) + 2
            return failure(429, headers={"retry-after-ms": str(wait)})
        return {"rewrite": rewrite(asked_of(body))}


def asked_of(body: dict[str, Any]) -> str:
    """The question that a request asks."""
    return str(json.loads(body["messages"][-1]["content"])["query"])


def rewrite(question: str) -> str:
    """What the service makes of *question*."""
    return f"Please say: {question}"


def make_questions(count: int) -> list[str]:
    """*count* questions, no two alike."""
    return [f"What does company {number} sell in Europe?" for number in range(1, count + 1)]


def write_questions(path: Path, questions: Iterable[str]) -> Path:
    """A file of *questions*, each with an id."""
    rows = [{"id": f"q{number}", "query": it} for number, it in enumerate(questions, 1)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def read_records(path: Path) -> list[dict[str, Any]]:
    """What the output holds; every line of it has to be whole."""
    *lines, last = path.read_bytes().split(b"\n")
    assert last == b""
    return [json.loads(line) for line in lines]
