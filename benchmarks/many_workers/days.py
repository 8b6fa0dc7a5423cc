"""What is shared between workers, and the bad days: a model that hangs, a Redis that dies, a worker that is killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep

from benchmarks.many_workers.driving import Load
from benchmarks.many_workers.service import BREAKER_SECONDS, LLM_TIMEOUT_MS, Questions, World
from tests.support.many_workers import WORKERS, Worker, connected

CLIENTS = 16
DISTINCT = 40
"""How many questions are asked of each worker."""

Event = tuple[float, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Period:
    """What the clients saw of a bad *day* while things were as *what* says."""

    day: str
    what: str
    load: Load


def count_calls(world: World, questions: Questions) -> int:
    """What `DISTINCT` new questions cost in calls of the model, each asked of each worker, by all side by side.

    No two workers ask the same at the same moment, as single flight is each process's own. A worker
    that heard Redis too late under the load before leaves it alone for a while; nothing is asked
    until that is over.
    """
    sleep(BREAKER_SECONDS)
    asked, before = questions.take_new(DISTINCT), world.calls

    def ask_from(start: int, worker: Worker) -> None:
        for step in range(DISTINCT):
            worker.search(asked[(start * DISTINCT // WORKERS + step) % DISTINCT])

    with connected(world.service) as workers, ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(ask_from, range(WORKERS), workers))
    return world.calls - before


def _drive_through(
    world: World, questions: Questions, seconds: float, *events: Event, most: int = 700
) -> Load:
    """Ask new questions all the while, *most* of them, and let the *events* happen at their seconds."""
    waiting = world.driver.start("/search", questions.take_new(most), CLIENTS, seconds)
    began = monotonic()
    for at, happen in events:
        sleep(max(0.0, began + at - monotonic()))
        happen()
    return waiting.result()


def _split(day: str, load: Load, *periods: tuple[float, str], end: float) -> list[Period]:
    """*load* by what was the case from so many seconds on."""
    stops = [*(start for start, _ in periods[1:]), end]
    return [
        Period(day, what, load.between(start, stop))
        for (start, what), stop in zip(periods, stops, strict=True)
    ]


def hang_model(world: World, questions: Questions) -> tuple[list[Period], int]:
    """A model that hangs for longer than a breaker stays open, and is back; and how many calls all that got."""
    hangs = 3.0
    is_open = hangs + 2.5 * LLM_TIMEOUT_MS / 1e3
    heals = is_open + BREAKER_SECONDS + 0.5
    closed = heals + BREAKER_SECONDS + 1.0
    calls: list[int] = []

    def hang() -> None:
        calls.append(world.calls)
        world.model.released.clear()
        world.model.reply = world.model.hang

    def heal() -> None:
        calls.append(world.calls)
        world.heal()

    load = _drive_through(world, questions, closed + 3.0, (hangs, hang), (heals, heal), most=6_000)
    periods = _split(
        "the model hangs",
        load,
        (0.5, "before"),
        (hangs, f"first {is_open - hangs:g} s"),
        (is_open, "breakers open, one try each"),
        (heals, "it answers again, breakers close"),
        (closed, "after that"),
        end=closed + 3.0,
    )
    return periods, calls[1] - calls[0]


def stop_redis(world: World, questions: Questions) -> list[Period]:
    """A Redis that accepts and never answers, as one that is stopped does."""
    stop, go_on = (
        partial(world.redis.signal, signal.SIGSTOP),
        partial(world.redis.signal, signal.SIGCONT),
    )
    load = _drive_through(world, questions, 10.0, (3.0, stop), (6.0, go_on))
    return _split(
        "Redis hangs",
        load,
        (0.5, "before"),
        (3.0, "first second"),
        (4.0, "hanging"),
        (6.0, "it answers again"),
        end=10.0,
    )


def kill_redis(world: World, questions: Questions) -> list[Period]:
    """A Redis that is killed, and started anew."""
    load = _drive_through(world, questions, 10.0, (3.0, world.redis.kill), (6.0, world.redis.start))
    return _split(
        "Redis is killed",
        load,
        (0.5, "before"),
        (3.0, "first second"),
        (4.0, "dead"),
        (6.0, "back, empty"),
        end=10.0,
    )


def kill_worker(world: World, questions: Questions) -> tuple[list[Period], float]:
    """The busiest worker is killed; and after how many seconds another one answers in its place."""
    shares = Counter(it.worker for it in _drive_through(world, questions, 3.0, most=300).answers)
    ((victim, _),) = shares.most_common(1)
    killed, end = 3.0, 16.0
    load = _drive_through(
        world, questions, end, (killed, partial(os.kill, victim, signal.SIGKILL)), most=1_000
    )
    fresh = [it.at + it.seconds for it in load.answers if it.worker and it.worker not in shares]
    if not fresh:
        raise SystemExit(
            f"{end - killed:.0f} s after a worker was killed no other one had answered in its place"
        )
    back = min(fresh)
    return _split(
        "a worker is killed",
        load,
        (0.5, "before"),
        (killed, "three workers"),
        (back, "four again"),
        end=end,
    ), back - killed
