"""A process that measures what it is told to, so that each contender runs in an environment of its own.

It reads one JSON object a line, ``{"case": name, "calls": count}``, and answers each with
microseconds a call. Standard library only.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.workload import TURNS

ROOT = Path(__file__).resolve().parents[2]
Case = Callable[[str], Any] | Callable[[str], Coroutine[Any, Any, Any]]
"""Answers one question; a coroutine function where it is asynchronous."""


def _measured(call: Case, calls: int, loop: asyncio.AbstractEventLoop) -> dict[str, float]:
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    if inspect.iscoroutinefunction(call):
        loop.run_until_complete(_awaited(call, calls))
    else:
        for _ in range(calls):
            call(TURNS.next())
    cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
    return {"cpu": cpu / calls / 1e3, "wall": wall / calls / 1e3}


async def _awaited(call: Any, calls: int) -> None:
    for _ in range(calls):
        await call(TURNS.next())


def serve(cases: Mapping[str, Case], version: str) -> None:
    """Say what there is to measure, then measure until the input ends."""
    loop = asyncio.new_event_loop()
    print(json.dumps({"cases": list(cases), "version": version}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(_measured(cases[order["case"]], order["calls"], loop)), flush=True)


class Worker:
    """One such process, seen from the one that asks."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        hello = self._answer()
        self.cases: list[str] = hello["cases"]
        self.version: str = hello["version"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"{' '.join(map(str, self._process.args))} ended; run it alone to see why"
            )  # type: ignore[arg-type]
        return json.loads(line)  # type: ignore[no-any-return]

    def measure(self, case: str, calls: int) -> dict[str, float]:
        """Microseconds a call, of processor (``cpu``) and of time (``wall``)."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"case": case, "calls": calls}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Let the process end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
