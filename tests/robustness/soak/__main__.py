"""Many questions at once for a long time, with faults.

    python -m tests.robustness.soak [--seconds N] [--seed N]

500 coroutines and 64 threads ask one question after the other in one process; the model is over HTTP
in another, and fails as `service` says. Ends with 1 if a law was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from itertools import count
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any, Final

import openai

import qtmiddleware as qtm
from qtmiddleware.runtime import concurrency as own_threads
from tests.robustness.soak.service import TOKEN, question
from tests.support.waiting import PATIENCE

COROUTINES: Final = 500
THREADS: Final = 64
KINDS: Final = {"combined": 3, "decompose": 3, "multi_query": 4, "all": 2, "rewrite": 8}
"""Each kind of transformation with the limit of calls in flight that it is run under."""
PASSAGES: Final = 6
BOUNDS: Final = {"threads": (0.05, 8), "sockets": (0.05, 30), "memory": (0.03, 8)}
"""By how much, a share and an amount, the last fifth of the samples may lie above the second one."""
SHORTEST: Final = 60.0
"""Of a run of fewer seconds no trend is told: connections are still being made and caches filled."""

asked_by: Final[ContextVar[str]] = ContextVar("asked_by")


class SearchDown(Exception):
    """What the search function raises on its bad days."""


def held() -> dict[str, float]:
    """What this process holds now."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(link.readlink()))
        except OSError:  # closed in the meantime
            continue
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {
        # Not those in which a loop asks for the addresses of hosts: they stay as long as the loop.
        "threads": sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate()),
        "sockets": sum(link.startswith("socket:") for link in links),
        "memory": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
    }


class Soak(logging.Handler):
    """Everything that asks, what it asks, and the laws that were broken; an error that is logged breaks one."""

    def __init__(self, seconds: float, seed: int, port: int) -> None:
        super().__init__(logging.ERROR)
        self.seconds, self.seed = seconds, seed
        self.breaches: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.took: list[float] = []
        self.asked = self.searches = 0
        self.samples: list[dict[str, float]] = []
        self.in_flight: Counter[str] = Counter()
        self.numbers = count()
        self.until = float("inf")
        account: dict[str, Any] = {"api_key": "sk-soak", "base_url": f"http://127.0.0.1:{port}/v1"}
        self.clients = openai.AsyncOpenAI(**account), openai.OpenAI(**account)
        self.cases = []
        for kind, cap in KINDS.items():
            config = {
                "transformationType": kind,
                "limits": {"llmTimeoutMs": 12_000, "deadlineMs": 20_000, "maxConcurrency": cap},
                "breaker": {"seconds": 1.0},
            }
            on_loop, in_threads = (qtm.QueryMiddleware(config, client=it) for it in self.clients)
            self.cases.append((on_loop.wrap(self.asearch), in_threads.wrap(self.search)))

    def breach(self, what: str) -> None:
        self.breaches.append(what)

    def emit(self, record: logging.LogRecord) -> None:
        self.breach(f"logged by {record.name}: {record.getMessage()}")

    # --- the functions that are wrapped ---

    def befall(self, text: str) -> tuple[float, bool]:
        """How long the search for *text* takes, and whether it fails."""
        self.searches += 1
        token = asked_by.get("nobody")
        if set(TOKEN.findall(text)) != {token}:
            self.breach(f"a search of {token} was for {text}")
        chance = Random(f"{self.seed}/{text}").random()
        is_original = text.startswith("What does report")
        if chance < (0.005 if is_original else 0.03):
            return 0.005, True
        return (3.0 if chance < 0.032 else 0.3 if chance < 0.05 else 0.01), False

    def find(self, query: str, top_k: int) -> list[dict[str, Any]]:
        """Two passages that all texts of a token share, and others of its own."""
        token = TOKEN.findall(query)[0]
        names = ["shared-0", "shared-1", *(f"{query}-{number}" for number in range(PASSAGES - 2))]
        return [
            {"id": f"{token}/{name}", "score": 1.0 - place / 10, "text": f"{name} of {token}"}
            for place, name in enumerate(names)
        ][:top_k]

    def search(self, query: str, top_k: int = 4) -> list[dict[str, Any]]:
        seconds, fails = self.befall(query)
        time.sleep(seconds)
        if fails:
            raise SearchDown(query)
        return self.find(query, top_k)

    async def asearch(self, query: str, top_k: int = 4) -> list[dict[str, Any]]:
        seconds, fails = self.befall(query)
        token = asked_by.get()
        self.in_flight[token] += 1
        if self.in_flight[token] > max(KINDS.values()):
            self.breach(f"{token} had {self.in_flight[token]} searches in flight")
        try:
            await asyncio.sleep(seconds)
        finally:
            self.in_flight[token] -= 1
        if fails:
            raise SearchDown(query)
        return self.find(query, top_k)

    # --- those who ask ---

    def questions(self, name: str) -> Iterator[tuple[Any, Any, str, float]]:
        """A case, a token and a number by chance, until the time is over; some questions come again."""
        chance, token = Random(f"{self.seed}/{name}"), ""
        while time.monotonic() < self.until:
            if not token or chance.random() > 0.05:
                token = f"QX-{next(self.numbers):09d}"
            asked_by.set(token)
            self.asked += 1
            yield *chance.choice(self.cases), token, chance.random()

    def judge(self, token: str, began: float, found: Any) -> None:
        """Check what came of a question: the response, its account, or an error."""
        outcome = "plain call"
        if isinstance(found, Exception):
            outcome = "raised: the search's own error"
            if type(found) is not SearchDown or set(TOKEN.findall(str(found))) != {token}:
                self.breach(f"{token} raised {found!r}")
            rows: Any = []
        elif isinstance(found, qtm.Retrieval):
            rows = found.response
            trouble = [f"{it.stage.split('.')[0]} {it.reason}" for it in found.degradations]
            outcome = f"degraded: {trouble[0]}" if trouble else "full"
            texts = [found.original_query, *(it.text for it in found.variants)]
            texts += [str(found.transformation), *(str(match.id) for match in found.matches)]
            if {it for text in texts for it in TOKEN.findall(text)} != {token}:
                self.breach(f"{token} was given texts of another question")
            if any(it.startswith("middleware") for it in trouble):
                self.breach(f"the middleware failed: {found.degradations}")
        else:
            rows = found
        if any(not row["id"].startswith(f"{token}/") for row in rows):
            self.breach(f"{token} found {rows}")
        if asked_by.get() != token:
            self.breach(f"{token} came back in the context of {asked_by.get()}")
        self.outcomes[outcome] += 1
        self.took.append(time.perf_counter() - began)

    async def ask_on_the_loop(self, number: int) -> None:
        for awaited, plain, token, chance in self.questions(f"coroutine {number}"):
            # A function that blocks runs in threads of the middleware.
            call = (
                plain.aretrieve if chance < 0.1 else awaited if chance > 0.8 else awaited.aretrieve
            )
            began = time.perf_counter()
            try:
                self.judge(token, began, await call(question(token)))
            except Exception as error:
                self.judge(token, began, error)
            if self.in_flight.pop(token, 0):
                self.breach(f"{token} was over before its searches were")

    def ask_in_a_thread(self, number: int) -> None:
        for _, plain, token, chance in self.questions(f"thread {number}"):
            began = time.perf_counter()
            try:
                self.judge(
                    token, began, (plain if chance > 0.8 else plain.retrieve)(question(token))
                )
            except Exception as error:
                self.judge(token, began, error)

    async def sample(self) -> None:
        while time.monotonic() < self.until:
            self.samples.append(held())
            await asyncio.sleep(self.seconds / 100)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, it: self.breach(f"the loop complains: {it}"))
        # Once before, so that nothing is imported while time is measured.
        for number, (awaited, plain) in enumerate(self.cases):
            for call in (awaited, plain.aretrieve):
                asked_by.set(f"QX-{900_000_000 + number}")
                with suppress(SearchDown):
                    await call(question(asked_by.get()))
        asking = [threading.Thread(target=self.ask_in_a_thread, args=(n,)) for n in range(THREADS)]
        for thread in asking:
            thread.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.sample())
            for number in range(COROUTINES):
                group.create_task(self.ask_on_the_loop(number))
            # The time begins when all have begun, however long that takes.
            await asyncio.sleep(0)
            self.until = time.monotonic() + self.seconds
        while any(thread.is_alive() for thread in asking):
            await asyncio.sleep(0.01)
        # What was given up ends now or has ended; then nothing of it is left.
        await asyncio.sleep(0.1)
        for on_loop, in_threads in self.cases:
            on_loop.middleware.close()
            in_threads.middleware.close()
        await self.clients[0].close()
        self.clients[1].close()
        if len(asyncio.all_tasks()) > 1:
            self.breach(f"{len(asyncio.all_tasks()) - 1} tasks were left")
        if len(self.took) != self.asked:
            self.breach(f"{self.asked - len(self.took)} of {self.asked} questions never came back")

    def trend(self, name: str) -> tuple[float, float]:
        """The medians of the second fifth of the samples and of the last one."""
        values = [sample[name] for sample in self.samples]
        fifth = max(1, len(values) // 5)
        return median(values[fifth : 2 * fifth] or values), median(values[-fifth:])

    def report(self) -> str:
        cuts = quantiles(self.took, n=100)
        facts = {
            "seed": self.seed,
            "seconds": self.seconds,
            "asked, all of which came back": self.asked,
            "searches": self.searches,
            "time to the result": ", ".join(f"p{at} {cuts[at - 1]:.2f} s" for at in (50, 95, 99)),
            "laws broken": len(self.breaches),
            **{f"outcome: {name}": number for name, number in self.outcomes.most_common()},
            **{f"{name}, second and last fifth": self.trend(name) for name in BOUNDS},
        }
        return "".join(f"{name}: {figure}\n" for name, figure in facts.items())


def soak(seconds: float, seed: int) -> Soak:
    """Ask for so many *seconds*."""
    # Idle threads go sooner, so that a brief run need not wait for them.
    own_threads.IDLE_SECONDS = min(own_threads.IDLE_SECONDS, max(0.5, seconds / 10))  # type: ignore[misc]
    # The loop of the clients stays until the process ends.
    own_threads.run_in_background_loop(asyncio.sleep(0))
    before = held()
    # A brief run has a quicker model, so that as many questions come back as show something.
    pace = 2.0 if seconds >= SHORTEST else 0.3
    command = [sys.executable, "-m", "tests.robustness.soak.service", str(seed), str(pace)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as service:
        assert service.stdin
        assert service.stdout
        load = Soak(seconds, seed, int(service.stdout.readline()))
        for name in ("qtmiddleware", "asyncio"):
            logging.getLogger(name).addHandler(load)
            logging.getLogger(name).propagate = False
        sys.unraisablehook = lambda it: load.breach(f"unraisable: {it.exc_value!r}")
        threading.excepthook = lambda it: load.breach(f"in {it.thread}: {it.exc_value!r}")
        asyncio.run(load.run())
        service.stdin.close()
    gc.collect()
    # A call that was given up ends with its last retry, and then its thread.
    patience = time.monotonic() + PATIENCE
    while held()["threads"] > before["threads"] and time.monotonic() < patience:
        time.sleep(0.05)
    left = {name: held()[name] - before[name] for name in ("threads", "sockets")}
    if any(left.values()):
        load.breach(f"something stayed when all was over: {left}, {threading.enumerate()[:5]}")
    for name, (share, amount) in BOUNDS.items():
        early, late = load.trend(name)
        if seconds >= SHORTEST and late > early * (1 + share) + amount:
            load.breach(f"{name} grew from {early:.0f} to {late:.0f}")
    return load


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.soak")
    parser.add_argument("--seconds", type=float, default=600, help="for how long (default 600)")
    parser.add_argument("--seed", type=int, default=7, help="what chance begins with (default 7)")
    options = parser.parse_args()
    load = soak(options.seconds, options.seed)
    print(load.report(), *load.breaches[:20], sep="\n")
    return int(bool(load.breaches))


if __name__ == "__main__":
    sys.exit(main())
