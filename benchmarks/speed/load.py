"""How many requests a second are answered with many in flight, where the model needs 300 ms and each search 50."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from benchmarks.speed.floors import gathered, gathered_threads
from benchmarks.speed.ours import MULTI_QUERY, paraphrasing_model, wrapped
from benchmarks.speed.report import Row, at_least
from benchmarks.speed.workload import MODEL_SECONDS, QUESTIONS, slow_asearch, slow_search

GROUP = "Under load, model 300 ms, searches 50 ms"
TURNS = 3
POOL_THREADS = 256
Call = Callable[[str], Awaitable[Any]]


async def _rate(call: Call, in_flight: int, turns: int) -> float:
    """Requests a second of *in_flight* clients that each ask *turns* times."""

    async def client(number: int) -> None:
        for turn in range(turns):
            await call(QUESTIONS[(number * turns + turn) % len(QUESTIONS)])

    began = time.perf_counter()
    await asyncio.gather(*map(client, range(in_flight)))
    return in_flight * turns / (time.perf_counter() - began)


def _compared(
    what: str, ours: Call, floor: Call, in_flight: int, bar: float, rounds: int, turns: int = TURNS
) -> Row:
    async def measured() -> tuple[list[float], list[float]]:
        rates: tuple[list[float], list[float]] = ([], [])
        for turn in range(rounds + 1):
            both = list(zip((ours, floor), rates, strict=True))
            for call, kept in both if turn % 2 else reversed(both):
                rate = await _rate(call, in_flight, turns)
                if turn:
                    kept.append(rate)
        return rates

    mine, theirs = asyncio.run(measured())
    return at_least(GROUP, what, median(mine), median(theirs), bar, "req/s")


def rows(rounds: int) -> list[Row]:
    """The lines of this group."""
    floor = gathered(slow_asearch, seconds=MODEL_SECONDS)
    ours = wrapped(slow_asearch, MULTI_QUERY, paraphrasing_model(MODEL_SECONDS))
    own_pool = gathered_threads(slow_search, threads=POOL_THREADS, seconds=MODEL_SECONDS)
    blocking = wrapped(slow_search, MULTI_QUERY, paraphrasing_model(MODEL_SECONDS)).aretrieve
    return [
        _compared("200 in flight, beside asyncio.gather", ours, floor, 200, 0.88, rounds),
        _compared("1,000 in flight, beside asyncio.gather", ours, floor, 1_000, 0.55, rounds),
        _compared(
            f"blocking function, 50 requests at once, beside {POOL_THREADS} threads of one's own",
            blocking, own_pool, 50, 0.9, rounds, turns=1,
        ),
    ]  # fmt: skip
