"""How long a call takes, and how many are answered, where the model needs 300 ms and each search 50.

Nothing may wait for what it does not need.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from benchmarks.speed.ours import (
    MULTI_QUERY,
    HangingModel,
    check,
    gathered,
    gathered_threads,
    paraphrasing_model,
    pooled,
    with_options,
    wrapped,
)
from benchmarks.speed.report import Row, at_least, within
from benchmarks.speed.workload import (
    MODEL_SECONDS,
    QUESTIONS,
    SEARCH_SECONDS,
    slow_asearch,
    slow_search,
)
from qtmiddleware.protocols import Prompt
from qtmiddleware.testing import ScriptedModel

Call = Callable[[str], Awaitable[Any]]
GROUP = "Wall time, model 300 ms, searches 50 ms"
IDEAL_MS = (MODEL_SECONDS + SEARCH_SECONDS) * 1e3
APART_MS = 5.0
DEADLINE_MS = 1_000
HANG_SECONDS = 10.0
HANGS = 5  # each leaves a thread asleep behind it, as it would in earnest
_FIELDS: dict[str, Any] = {
    "rewrite": "Limits that the climate treaty of {place} puts on emissions",
    "step_back": "International climate policy",
    "sub_queries": [
        "What is the {place} agreement?",
        "Which sectors emit greenhouse gases?",
        "Who enforces the limits of the {place} treaty?",
        "Since when are there caps on emissions?",
    ],
}


def _reply(prompt: Prompt) -> dict[str, Any]:
    """Whatever fields were asked for, about the place the question names."""
    place = next(word for word in prompt.query.split()[1:] if word.istitle())

    def about(value: Any) -> Any:
        return (
            [about(one) for one in value] if isinstance(value, list) else value.format(place=place)
        )

    return {field.name: about(_FIELDS[field.name]) for field in prompt.fields}


def _rounds_sync(call: Callable[[str], Any], rounds: int) -> float:
    taken = []
    for question in QUESTIONS[: rounds + 1]:
        began = time.perf_counter()
        call(question)
        taken.append((time.perf_counter() - began) * 1e3)
    return median(taken[1:])  # the first call loads modules and word lists


async def _rounds_async(call: Call, rounds: int) -> float:
    taken = []
    for question in QUESTIONS[: rounds + 1]:
        began = time.perf_counter()
        await call(question)
        taken.append((time.perf_counter() - began) * 1e3)
    return median(taken[1:])


def _pair(what: str, config: dict[str, Any], model: Any, ideal: float, rounds: int) -> list[Row]:
    blocking = _rounds_sync(wrapped(slow_search, config, model), rounds)
    awaiting = asyncio.run(_rounds_async(wrapped(slow_asearch, config, model), rounds))
    return [
        within(GROUP, f"{what}, {kind}", ours, ideal, APART_MS, "ms")
        for kind, ours in (("sync", blocking), ("async", awaiting))
    ]


def latency_rows(rounds: int) -> list[Row]:
    """The lines of this group; the floor is the arithmetic, and the hand-written floors are measured against it too."""
    found: list[Row] = []
    for mode, searches in (("rewrite", 2), ("decompose", 5), ("all", 7)):
        model = ScriptedModel(_reply, seconds=MODEL_SECONDS)
        check(wrapped(slow_search, with_options(transformationType=mode), model), searches=searches)
        found += _pair(mode, with_options(transformationType=mode), model, IDEAL_MS, rounds)
    hanging = with_options(limits={"llmTimeoutMs": DEADLINE_MS})
    found += _pair(
        "model hangs, llmTimeoutMs 1000", hanging, HangingModel(HANG_SECONDS), DEADLINE_MS, HANGS
    )
    by_hand = {
        "shared thread pool by hand": _rounds_sync(
            pooled(slow_search, threads=8, seconds=MODEL_SECONDS), rounds
        ),
        "asyncio.gather by hand": asyncio.run(
            _rounds_async(gathered(slow_asearch, seconds=MODEL_SECONDS), rounds)
        ),
    }
    for name, taken in by_hand.items():
        found.append(
            Row(
                GROUP,
                f"(floor) {name}",
                taken,
                IDEAL_MS,
                taken - IDEAL_MS,
                "ms",
                ratio_unit="ms over",
            )
        )
    return found


# Requests a second with many in flight.

LOAD_GROUP = "Under load, model 300 ms, searches 50 ms"
TURNS = 3
POOL_THREADS = 256


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
    return at_least(LOAD_GROUP, what, median(mine), median(theirs), bar, "req/s")


def load_rows(rounds: int) -> list[Row]:
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
