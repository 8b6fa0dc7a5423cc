"""Whether anything that hangs in one middleware reaches the calls of another, and how many threads it holds.

    python -m benchmarks.hanging [--calls 1000] [--only model] > benchmarks/results/hanging.md

A thousand calls of one middleware in which something never returns: the model, the searches of the
variants, the reranker or the function that embeds. Beside them another middleware, of the rules
alone, answers by the same plain function that is timed alone in `asyncio.to_thread`. Before that,
two hours of a model that hangs, at one question a second of a clock that is set ahead, with the
circuit breaker as it is by default: every 30 s it lets one call through.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel

FOREVER = threading.Event()
REPLY = '{"rewrite": "sales of Nike", "paraphrases": ["what Nike earns", "turnover of Nike"]}'
TRIES = 20
PATIENCE = 20.0
HEAD = f"""`python -m benchmarks.hanging` (Python {platform.python_version()}, {os.cpu_count()} processors)

A hundred calls at a time of a middleware in which something never returns (deadlineMs 300, maxThreads 256), around a
search of 5 ms; `cut off` had no answer in {PATIENCE:.0f} s. `plain` is that search in `asyncio.to_thread`, `other` an
`aretrieve` of another middleware, of the rules alone, while all of that hangs. `threads held` counts idle ones too."""


def plain(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    """A search of 5 ms."""
    time.sleep(0.005)
    return [
        {"id": str(n), "score": 1 - n / 10, "metadata": {"text": f"{query} {n}"}}
        for n in range(top_k)
    ]


def hang(*_args: Any, **_kwargs: Any) -> Any:
    """Never return."""
    FOREVER.wait()


def hanging_on_variants(query: str, top_k: int = 4) -> Any:
    """`plain`, which never answers what is no question of ours."""
    return plain(query, top_k) if query.startswith("Question") else hang()


def middleware(config: dict[str, Any], **given: Any) -> qtm.QueryMiddleware:
    """A middleware that gives up soon and remembers nothing."""
    limits = {"deadlineMs": 300, "llmTimeoutMs": 150}
    return qtm.QueryMiddleware({"limits": limits, "cache": {"enabled": False}, **config}, **given)


def cases() -> dict[str, Callable[[], Any]]:
    """A wrapped function in which something hangs, by what it is."""
    rewrite: dict[str, Any] = {"transformationType": "multi_query"}
    model = ScriptedModel(REPLY)
    rerank = {"rerank": {"enabled": True, "timeoutMs": 150}}

    def embed(texts: list[str]) -> Any:
        return [[1.0, 0.0]] if texts[0].startswith("Question") else hang()

    def by_vector(vector: Sequence[float], top_k: int = 4) -> Any:
        return plain(str(vector), top_k)

    return {
        "model, breaker off": lambda: middleware(
            {**rewrite, "breaker": {"enabled": False}}, client=hang
        ).wrap(plain),
        "model, breaker on": lambda: middleware(rewrite, client=hang).wrap(plain),
        "searches of variants": lambda: middleware(rewrite, client=model).wrap(hanging_on_variants),
        "reranker": lambda: middleware(rerank, reranker=hang).wrap(plain),
        "embedding of variants": lambda: middleware(rewrite, client=model).wrap(
            by_vector, embed=embed, query_arg="vector"
        ),
    }


def percentile(seconds: list[float], part: float) -> float:
    """The *part* of *seconds*, in ms."""
    return 1e3 * sorted(seconds)[min(len(seconds) - 1, int(part * len(seconds)))]


async def timed(call: Callable[[], Any], many: int) -> list[float]:
    """The seconds each of *many* calls in a row takes, at most `PATIENCE`."""
    took = []
    for _ in range(many):
        began = time.perf_counter()
        try:
            await asyncio.wait_for(call(), PATIENCE)
        except TimeoutError:
            took.append(float("inf"))
            break
        took.append(time.perf_counter() - began)
    return took


async def one(name: str, wrapped: Any, calls: int) -> str:
    """The row of one case."""
    healthy = qtm.QueryMiddleware().wrap(plain)
    await timed(lambda: healthy.aretrieve("Question of the first call"), 3)
    alone = await timed(lambda: asyncio.to_thread(plain, "Question"), TRIES)
    before, cut, took = threading.active_count(), 0, []

    async def call(number: int) -> None:
        nonlocal cut
        began = time.perf_counter()
        try:
            await asyncio.wait_for(
                wrapped.aretrieve(f"Question {number}: What does Nike sell?"), PATIENCE
            )
        except TimeoutError:
            cut += 1
        took.append(time.perf_counter() - began)

    for start in range(0, calls, 100):
        await asyncio.gather(*(call(number) for number in range(start, min(start + 100, calls))))
        if cut:
            break
    beside = await timed(
        lambda: healthy.aretrieve("Question: What does Nike sell in Europe?"), TRIES
    )
    held = threading.active_count() - before
    unanswered = (
        f"no answer in {PATIENCE:.0f} s"
        if beside[-1] == float("inf")
        else f"{1e3 * median(beside):.1f}"
    )
    worst = "" if beside[-1] == float("inf") else f"{percentile(beside, 1):.1f}"
    return (
        f"| {name} | {len(took)} | {cut} | {percentile(took, 0.5):.0f} | {percentile(took, 1):.0f} | {held} "
        f"| {1e3 * median(alone):.1f} | {unanswered} | {worst} |"
    )


def hours(count: int = 7_200) -> str:
    """The threads a model that hangs for two hours holds, with a breaker whose clock is set ahead by us."""
    from qtmiddleware.runtime import circuit_breaker as breaker

    now = [time.monotonic()]
    kept = breaker.Breaker.__init__.__kwdefaults__
    breaker.Breaker.__init__.__kwdefaults__ = {"clock": lambda: now[0] + time.monotonic()}
    rows = []
    try:
        for most in (256, 16):
            limits = {"deadlineMs": 20, "llmTimeoutMs": 10, "maxThreads": most}
            wrapped = middleware(
                {"transformationType": "rewrite", "limits": limits}, client=hang
            ).wrap(plain)
            before, asked = threading.active_count(), time.perf_counter()
            for second in range(count):
                now[0] += 1
                wrapped(f"Question {second}: What does Nike sell?")
            took = time.perf_counter() - asked
            rows.append(
                f"| {most} | {count:,} | {threading.active_count() - before} | {1e3 * took / count:.1f} |"
            )
    finally:
        breaker.Breaker.__init__.__kwdefaults__ = kept
    return "\n".join(rows)


def main() -> None:
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--calls", type=int, default=1_000)
    options.add_argument("--only", default="")
    given = options.parse_args()
    logging.disable(logging.ERROR)
    print(f"# What hangs in one middleware, and the calls of another\n\n{HEAD}\n")
    if not given.only or given.only == "hours":
        # First, while no thread of another case is idle.
        print(
            "| limits.maxThreads | questions, one a second | threads held | ms each |\n|---:|---:|---:|---:|"
        )
        print(hours() + "\n", flush=True)
    print(
        "| what hangs | calls | cut off | p50 ms | max ms | threads held | plain ms | other p50 ms | other max ms |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, make in cases().items():
        if given.only in name:
            print(asyncio.run(one(name, make(), given.calls)), flush=True)


if __name__ == "__main__":
    main()
