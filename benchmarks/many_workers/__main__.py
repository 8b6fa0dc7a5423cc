"""The recipe of docs/many-workers.md under load, and on its bad days.

    python -m benchmarks.many_workers [--rounds 3]

Four uvicorn workers and a redis-server (``TEST_REDIS`` or the installed one) of their own, some
three minutes. The result goes to stdout, to ``benchmarks/results/many_workers.md`` and into the
tables of docs/many-workers.md; the loads also to ``many_workers.json``, which `benchmarks.scale`
reads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from time import monotonic

from benchmarks.blocks import put_blocks
from benchmarks.many_workers.days import (
    CLIENTS,
    DISTINCT,
    Period,
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
from tests.support.deploy_world import ROOT, running
from tests.support.many_workers import WORKERS, Service, Worker, connected, read_memory

RESULT = Path(__file__).parents[1] / "results" / "many_workers.md"
PAGE = ROOT / "docs" / "many-workers.md"


def load_table(rows: list[Row]) -> str:
    head = [
        "",
        "clients",
        "questions a second",
        "p50 ms",
        "p99 ms",
        "worker ms a question",
        "processors busy",
    ]
    head += ["model calls a question", "answers", "degraded", "bound by"]
    lines = []
    for it in rows:
        took = [
            f"{it.rate:.0f}",
            f"{it.p50:.0f}",
            f"{it.p99:.0f}",
            f"{it.cpu_ms:.1f}",
            f"{it.busy:.1f}",
        ]
        lines.append(
            [
                it.system,
                str(it.clients),
                *took,
                f"{it.calls:.2f}",
                f"{it.answers:,}",
                str(it.degraded),
                it.bound,
            ]
        )
    return table(head, lines)


def period_table(periods: list[Period]) -> str:
    states = ["full", "degraded", "failed"]
    head = [
        "",
        "period",
        "seconds",
        "questions a second",
        "p50 ms",
        "p99 ms",
        "longest ms",
        *states,
    ]
    lines = []
    for it in periods:
        took = [f"{it.load.percentile(share):.0f}" for share in (0.5, 0.99, 1.0)]
        counts = [str(it.load.count(status)) for status in states]
        lines.append(
            [it.day, it.what, f"{it.load.seconds:.1f}", f"{it.load.rate:.0f}", *took, *counts]
        )
    return table(head, lines)


def short_load_table(rows: list[Row]) -> str:
    """Return what the page shows of `load_table`: several clients, and fewer columns."""
    head = ["", "clients", "questions per second", "p50 ms", "p99 ms", "model calls per question"]
    return table(
        head,
        [
            [
                row.system,
                str(row.clients),
                f"{row.rate:.0f}",
                f"{row.p50:.0f}",
                f"{row.p99:.0f}",
                f"{row.calls:.2f}",
            ]
            for row in rows
            if row.clients > 1
        ],
    )


def short_period_table(periods: list[Period]) -> str:
    """Return what the page shows of `period_table`: one period before a fault, all later ones, and fewer columns."""
    states = ["full", "degraded", "failed"]
    shown = [period for place, period in enumerate(periods) if not place or period.what != "before"]
    return table(
        ["", "period", "p99 ms", *states],
        [
            [
                period.day,
                period.what,
                f"{period.load.percentile(0.99):.0f}",
                *(str(period.load.count(state)) for state in states),
            ]
            for period in shown
        ],
    )


def measure_memory(workers: Sequence[Worker]) -> list[str]:
    """RSS and PSS of each of *workers* in MB, the least and the most."""
    sizes = [read_memory(it.pid) for it in workers]
    return [f"{min(it):.0f} to {max(it):.0f}" for it in zip(*sizes, strict=True)]


def measure_own_memory(world: World) -> list[str]:
    """The same of the recipe's workers."""
    with connected(world.service) as workers:
        return measure_memory(workers)


def measure_bare_memory(folder: Path) -> list[str]:
    """The same of workers that serve the bare function and nothing else."""
    service = Service(folder, dict(os.environ), "bare:app")
    with running(service), connected(service) as workers:
        return measure_memory(workers)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="readings of each load, by turns (3)")
    rounds, began = parser.parse_args().rounds, monotonic()
    questions = Questions.load()
    with running_service(shares=True) as world:
        memory = {
            "the bare function alone, after the start": measure_bare_memory(world.service.folder)
        }
        memory["after the start"] = measure_own_memory(world)
        rows = measure_loads(world, questions, rounds)
        memory["after the loads"] = measure_own_memory(world)
        shared = {"Redis": count_calls(world, questions)}
        hanging, calls_while_hanging = hang_model(world, questions)
        redis_days = [*stop_redis(world, questions), *kill_redis(world, questions)]
        shared["Redis that was killed and is back"] = count_calls(world, questions)
        killing, away = kill_worker(world, questions)
        memory["after the bad days (one is new)"] = measure_own_memory(world)
        complaints = world.service.complaints.count("Traceback")
    with running_service(shares=False) as world:
        shared["each worker its own memory"] = count_calls(world, questions)
    names = ("fastapi", "uvicorn", "redis", "openai")
    versions = ", ".join(
        [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in names)]
    )
    blocks = {
        "load": load_table(rows),
        "memory": table(
            ["", "RSS, MB", "PSS, MB"], [[name, *sizes] for name, sizes in memory.items()]
        ),
        "shared": table(
            ["what they share", "model calls"], [[name, str(it)] for name, it in shared.items()]
        ),
        "days": period_table([*hanging, *redis_days, *killing]),
    }
    text = f"""# Many workers

`python -m benchmarks.many_workers` ({versions}, {os.cpu_count()} processors, load
{os.getloadavg()[0]:.1f} at the end, {monotonic() - began:.0f} s)

The recipe of [docs/many-workers.md](../../docs/many-workers.md): {WORKERS} uvicorn workers and a Redis on a socket, a
search of 20 ms over the passages of nq_small, a model of {1e3 * MODEL_SECONDS:.0f} ms over HTTP by the real client.
Service, model, Redis and the clients share the machine. Each client asks its next question when it has its answer, over
a connection of its own. New questions (query_wellformedness, Break and covidqa) come once; repeated ones are drawn from
1,655 of nq_small, weights 1 / rank^{EXPONENT} (seed {SEED}), so that what is asked of the model falls as the run goes
on. llmTimeoutMs {LLM_TIMEOUT_MS:,}, breaker.seconds {BREAKER_SECONDS}, the rest as it is by default.

## Load

Readings of {SECONDS:g} s, {rounds} of each by turns: medians; percentiles of all answers together. *Worker ms a
question* is processor time of the workers, *processors busy* counts everything on the machine; *waiting* is for the
search's 20 ms and the model.

{blocks["load"]}

## Memory of a worker

{blocks["memory"]}

## What workers share

{DISTINCT} questions, each asked of each of the {WORKERS} workers, never of two at the same moment. They are asked
{BREAKER_SECONDS} s after anything else: under load a worker may hear Redis too late, and leaves it alone for as long.

{blocks["shared"]}

## Bad days

{CLIENTS} clients and new questions only, so that each needs model and Redis.

{blocks["days"]}

- While it hung the model got {calls_while_hanging} calls: 5 failures open the breaker of each worker, more were under
  way by then, and one tries when it has been open for {BREAKER_SECONDS} s.
- {away:.1f} s after a worker was killed another one answered in its place.
- Tracebacks in the service's log: {complaints}.
"""
    print(text)
    RESULT.write_text(text, encoding="utf-8")
    shortened = {
        "load": short_load_table(rows),
        "days": short_period_table([*hanging, *redis_days, *killing]),
    }
    put_blocks(PAGE, blocks | shortened)
    kept = {
        "worker_mb": float(memory["after the loads"][0].split()[-1]),
        "loads": [asdict(it) for it in rows],
    }
    RESULT.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
