"""Files of many questions, the ``qtm transform --file`` that transforms them, and a service that rewrites them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Final

from pytest_httpserver import HTTPServer

from tests.support.model_server import ModelServer, Said, failure

SEED: Final = 7
MAIN: Final = "from qtmiddleware.kit.cli import main; main()"
# Nobody is late because a machine is busy.
SLOW_MACHINE: Final = ("--set", "limits.llmTimeoutMs=120000", "--set", "limits.deadlineMs=120000")


class RewritingService(ModelServer):
    """Rewrites every question, after *seconds*; those in *refused* are withheld by its content filter.

    A share of the calls, *failing*, is answered by a 500, whichever question they ask.
    *limit* calls are allowed within each *window* of seconds; others are told when the next one
    begins. *windows* holds how many calls came within each, refused ones too.
    """

    def __init__(self, server: HTTPServer) -> None:
        super().__init__(server, self._say)
        self.seconds = 0.0
        self.refused: set[str] = set()
        self.failing = 0.0
        self._chance = random.Random(SEED)
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
            if self.windows[number] > self.limit:
                # Rounded up: nobody is told to come back too soon.
                wait = int(1e3 * ((number + 1) * self.window - since)) + 2
                return failure(429, headers={"retry-after-ms": str(wait)})
            if self._chance.random() < self.failing:
                return failure(500)
        question = asked_of(body)
        return (
            failure(400, code="content_filter")
            if question in self.refused
            else {"rewrite": rewrite(question)}
        )


def asked_of(body: Mapping[str, Any]) -> str:
    """The question that a request asks."""
    said: str = json.loads(body["messages"][-1]["content"])["query"]
    return said


def rewrite(question: str) -> str:
    """What the service makes of *question*."""
    return f"Please say: {question}"


def make_questions(count: int) -> list[str]:
    """*count* questions, no two alike."""
    return [f"What does company {number} sell in Europe?" for number in range(1, count + 1)]


def write_questions(path: Path, questions: Iterable[str]) -> Path:
    """A file of *questions*, each with an id."""
    lines = [
        json.dumps({"id": f"q{number}", "query": it}) for number, it in enumerate(questions, 1)
    ]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def read_records(path: Path) -> list[dict[str, Any]]:
    """What the output holds; every line of it has to be whole."""
    data = path.read_bytes()
    assert data.endswith(b"\n") or not data
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


def build_command(*options: str) -> list[str]:
    """The command that rewrites the questions of ``queries.jsonl`` into ``out.jsonl``."""
    files = ("--file", "queries.jsonl", "--out", "out.jsonl")
    return [
        sys.executable,
        "-c",
        MAIN,
        "transform",
        "-t",
        "rewrite",
        *files,
        *SLOW_MACHINE,
        *options,
    ]


def build_environment(url: str) -> dict[str, str]:
    """An environment in which the service at *url* is asked, and nothing is set of this machine's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "QTM_"))
    }
    return {**kept, "QTM_LLM_BASE_URL": url, "PYTHONIOENCODING": "utf-8"}


def start(folder: Path, url: str, *options: str) -> subprocess.Popen[bytes]:
    """The command under way in *folder*."""
    return subprocess.Popen(
        build_command(*options),
        cwd=folder,
        env=build_environment(url),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for_requests(
    service: RewritingService, count: int, running: subprocess.Popen[bytes]
) -> bool:
    """Wait until the service was asked *count* times; false where the command ended before."""
    give_up = time.monotonic() + 150
    while len(service.bodies) < count:
        if running.poll() is not None:
            return False
        assert time.monotonic() < give_up, f"{len(service.bodies)} of {count} requests"
        time.sleep(0.002)
    return True
