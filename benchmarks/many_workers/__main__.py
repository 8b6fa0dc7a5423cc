"""The recipe of docs/many-workers.md under load, and on its bad days.

    python -m benchmarks.many_workers [--rounds 3]

Four uvicorn workers and a redis-server (``TEST_REDIS`` or the installed one) of their own, some three minutes. The
result goes to stdout and to ``benchmarks/results/many_workers.md``; the load table also to ``many_workers.json``, out of
which `benchmarks.scale` computes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from time import monotonic

from benchmarks.many_workers.days import (
    CLIENTS,
    DISTINCT,
    Period,
    connected,
    count_calls,
    hang_model,
    kill_redis,
    kill_worker,
    stop_redis,
)
from benchmarks.many_workers.loads import SECONDS, Row, measure_loads
from benchmarks.many_workers.service import (
    BREAKER_SECONDS,
    EXPONENT,
    LLM_TIMEOUT_MS,
    MODEL_SECONDS,
    SEED,
    Questions,
    World,
    running_service,
)
from benchmarks.presets import table
from tests.support.many_workers import WORKERS, read_memory

RESULT = Path(__file__).parents[1] / "results" / "many_workers.md"


def load_table(rows: list[Row]) -> str:
    head = ["", "clients", "questions a second", "p50 ms", "p99 ms", "processor ms a question in the workers"]
    head += ["processors busy", "model calls a question", "answers", "bound by"]
    lines = [
        [it.system, str(it.clients), f"{it.rate:.0f}", f"{it.p50:.0f}", f"{it.p99:.0f}", f"{it.cpu_ms:.1f}"]
        + [f"{it.busy:.1f}", f"{it.calls:.2f}", f"{it.answers:,}", it.bound]
        for it in rows
    ]
    return table(head, lines)


def period_table(periods: list[Period]) -> str:
    head = [
        "",
        "period",
        "seconds",
        "questions a second",
        "p50 ms",
        "p99 ms",
        "longest ms",
        "full",
        "degraded",
        "failed",
    ]
    lines = [
        [it.day, it.what, f"{it.load.seconds:.1f}", f"{it.load.rate:.0f}"]
        + [f"{it.load.percentile(share):.0f}" for share in (0.5, 0.99, 1.0)]
        + [str(it.load.count(status)) for status in ("full", "degraded", "failed")]
        for it in periods
    ]
    return table(head, lines)


def measure_memory(world: World) -> list[str]:
    """RSS and PSS of each worker in MB, the least and the most."""
    with connected(world) as workers:
        sizes = [read_memory(it.pid) for it in workers]
    return [f"{min(it):.0f} to {max(it):.0f}" for it in zip(*sizes, strict=True)]


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="readings of each load, by turns (3)")
    rounds, began = parser.parse_args().rounds, monotonic()
    questions = Questions.load()
    with running_service(shares=True) as world:
        memory = {"after the start": measure_memory(world)}
        rows = measure_loads(world, questions, rounds)
        memory["after the loads"] = measure_memory(world)
        shared = {"Redis": count_calls(world, questions)}
        hanging, calls_while_hanging = hang_model(world, questions)
        redis_days = [*stop_redis(world, questions), *kill_redis(world, questions)]
        shared["Redis that was killed and is back"] = count_calls(world, questions)
        killing, away = kill_worker(world, questions)
        memory["after the bad days (one is new)"] = measure_memory(world)
        complaints = world.service.complaints.count("Traceback")
    with running_service(shares=False) as world:
        shared["each worker its own memory"] = count_calls(world, questions)
    names = ("fastapi", "uvicorn", "redis", "openai")
    versions = ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in names)])
    text = f"""# Many workers

`python -m benchmarks.many_workers` ({versions}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end,
{monotonic() - began:.0f} s)

The recipe of [docs/many-workers.md](../../docs/many-workers.md): {WORKERS} uvicorn workers and a Redis on a socket, a search of
20 ms over 1,938 passages of nq_small, a model of {1e3 * MODEL_SECONDS:.0f} ms over HTTP by the real client. Service, model, Redis and the
clients share the machine. Each client asks its next question when it has its answer, over a connection of its own.
New questions (query_wellformedness, Break and covidqa) come once; repeated ones are drawn from 1,655 of nq_small, weights
1 / rank^{EXPONENT} (seed {SEED}), so that what is asked of the model falls as the run goes on. llmTimeoutMs {LLM_TIMEOUT_MS:,}, breaker.seconds {BREAKER_SECONDS}, the rest as it is by default.

## Load

Readings of {SECONDS:g} s, {rounds} of each by turns: medians, percentiles of all answers together. *Processors busy* counts everything
on the machine; *waiting* is for the search's 20 ms and the model.

{load_table(rows)}

## Memory of a worker

{table(["", "RSS, MB", "PSS, MB"], [[name, *sizes] for name, sizes in memory.items()])}

## What workers share

{DISTINCT} questions, each asked of each of the {WORKERS} workers, never of two at the same moment.

{table(["what they share", "calls of the model"], [[name, str(calls)] for name, calls in shared.items()])}

## Bad days

{CLIENTS} clients and new questions only, so that each needs model and Redis.

{period_table([*hanging, *redis_days, *killing])}

- While it hung the model got {calls_while_hanging} calls: {WORKERS} workers open after 5 failures each, and what was under way by then.
- {away:.1f} s after a worker was killed another one answered in its place.
- Tracebacks in the service's log: {complaints}.
"""
    print(text)
    RESULT.write_text(text, encoding="utf-8")
    kept = {"loads": [asdict(it) for it in rows]}
    RESULT.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
