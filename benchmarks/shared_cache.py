"""What the shared cache costs and what it saves, against a real redis-server.

    python -m benchmarks.shared_cache [--rounds 5000] [--processes 4] [--threads 8] [--questions
    2000]

A redis-server of its own is started on a socket (``TEST_REDIS`` or the installed one). One process
times single calls; then a Redis that does not answer and one that is not there are asked; then
several processes ask a model that takes 100 ms for questions of which some are common and most are
rare (Zipf, exponent 1.2, seed 7). The result goes to stdout and to
``benchmarks/results/shared_cache.md``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import random
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.redis_cache import RedisCache
from qtmiddleware.types import Transformation

RESULT = Path(__file__).resolve().parent / "results" / "shared_cache.md"
MODEL_SECONDS = 0.1
TIMEOUT = 0.05
INTERVAL = 1.0
MADE = Transformation(
    rewrite="What did the company say of its plans for the coming year?",
    step_back="What are the plans of the company?",
    sub_queries=(
        "Which products are planned?",
        "Which markets are planned?",
        "Which costs are planned?",
    ),
)


@contextmanager
def redis_server() -> Iterator[str]:
    """The address of a redis-server that ends with the block."""
    with TemporaryDirectory(prefix="qtm") as folder:
        path = Path(folder) / "redis.sock"
        command = [
            os.environ.get("TEST_REDIS") or "redis-server",
            "--port",
            "0",
            "--unixsocket",
            str(path),
        ]
        server = subprocess.Popen(
            [*command, "--save", "", "--dir", folder], stdout=subprocess.DEVNULL
        )
        try:
            while not path.exists():
                sleep(0.01)
            yield f"unix://{path}"
        finally:
            server.kill()
            server.wait()


def opened(url: str, timeout: float = 5.0) -> RedisCache:
    return RedisCache(url, timeout=timeout, ttl_seconds=600, breaker=Breaker(1, INTERVAL))


def row(name: str, call: Callable[[int], Any], rounds: int) -> str:
    """Microseconds of *call*, which is given the number of the round."""
    taken = []
    for at in range(rounds):
        start = perf_counter()
        call(at)
        taken.append(perf_counter() - start)
    taken.sort()
    return f"| {name} | {taken[rounds // 2] * 1e6:,.0f} | {taken[int(rounds * 0.99)] * 1e6:,.0f} |"


def single_calls(url: str, rounds: int) -> list[str]:
    cache = opened(url)
    cache.put("kept", MADE)
    client = cache._client
    rows = [
        row("PING by the same client, for comparison", lambda _: client.ping(), rounds),
        row("`get` of what is there", lambda _: cache.get("kept", bool), rounds),
        row("`get` of what is not", lambda at: cache.get(f"new {at}", bool), rounds),
        row("`put`", lambda at: cache.put(f"new {at}", MADE), rounds),
    ]
    cache.close()
    return ["| call | median, µs | 99 of 100 within, µs |", "|---|---:|---:|", *rows]


def failing_calls(seconds: float) -> list[str]:
    """Calls in a loop for *seconds*: what the one of each interval costs that tries, and what the others do."""
    rows = [
        "| Redis | calls | of these tried | cost of one that tried, at most, ms | of any other, at most, ms |"
    ]
    rows.append("|---|---:|---:|---:|---:|")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ports = {"accepts and never answers": silent.getsockname()[1], "is not there": 1}
        for name, port in ports.items():
            cache = opened(f"redis://127.0.0.1:{port}", TIMEOUT)
            tried, others, end = [], [], perf_counter() + seconds
            while perf_counter() < end:
                kept = tried if not cache.wait_seconds else others
                start = perf_counter()
                cache.get("key", bool)
                kept.append(1e3 * (perf_counter() - start))
                sleep(1e-4)
            count = len(tried) + len(others)
            rows.append(
                f"| {name} | {count:,} | {len(tried)} | {max(tried):.1f} | {max(others):.2f} |"
            )
            cache.close()
    return rows


def asked(url: str | None, seed: int, threads: int, questions: int) -> tuple[Counter[int], float]:
    """How often one process asked the model for each question, and how many seconds all of it took."""
    drawn = random.Random(seed)
    wanted = [int(drawn.paretovariate(0.2)) % 10_000 for _ in range(questions)]
    shared = opened(url, 20.0) if url else None
    own: dict[int, Transformation] = {}
    calls: Counter[int] = Counter()

    def one(question: int) -> None:
        if question in own:
            return
        found = shared.get(str(question), bool) if shared else None
        if found is None:
            calls[question] += 1
            sleep(MODEL_SECONDS)
            found = MADE
            if shared:
                shared.put(str(question), MADE)
        own[question] = found

    start = perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(one, wanted))
    taken = perf_counter() - start
    if shared:
        shared.close()
    return calls, taken


def crowds(url: str, processes: int, threads: int, questions: int) -> list[str]:
    rows = [
        "| cache | model calls | questions asked more than once | seconds |",
        "|---|---:|---:|---:|",
    ]
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name, address in (("each process its own", None), ("shared in Redis", url)):
            jobs = [
                pool.submit(asked, address, 7 + at, threads, questions) for at in range(processes)
            ]
            done = [job.result() for job in jobs]
            calls = sum((counted for counted, _ in done), Counter[int]())
            often = sum(count > 1 for count in calls.values())
            rows.append(
                f"| {name} | {calls.total():,} | {often:,} | {max(taken for _, taken in done):.1f} |"
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5_000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--questions", type=int, default=2_000)
    given = parser.parse_args()
    with redis_server() as url:
        import redis

        with redis.Redis.from_url(url) as client:
            server = client.info("server")["redis_version"]
        versions = f"Python {platform.python_version()}, redis-py {version('redis')}, Redis {server} on a socket"
        parts = [
            "# The shared cache",
            "",
            f"`python -m benchmarks.shared_cache` ({versions}, {os.cpu_count()} processors)",
            "",
            "## One call",
            "",
            *single_calls(url, given.rounds),
            "",
            f"## A Redis that fails (timeout {TIMEOUT * 1e3:.0f} ms, left alone for {INTERVAL:.0f} s)",
            "",
            *failing_calls(5 * INTERVAL),
            "",
            f"## {given.processes} processes with {given.threads} threads, {given.questions:,} questions each",
            "",
            f"The model takes {MODEL_SECONDS * 1e3:.0f} ms. Threads of one process do not wait for one another here.",
            "",
            *crowds(url, given.processes, given.threads, given.questions),
        ]
    text = "\n".join(parts) + "\n"
    print(text)
    RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
