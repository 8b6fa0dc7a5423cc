"""The load table: the bare function, the rules and `balanced`, at several numbers of clients."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic

from benchmarks.many_workers.driving import Load
from benchmarks.many_workers.service import Questions, World
from tests.support.many_workers import connected

CLIENTS = (1, 16, 64)
SECONDS = 2.5
SYSTEMS = {
    "bare function": ("/plain", True),
    "rules": ("/rules", True),
    "balanced, new questions": ("/search", True),
    "balanced, repeated questions": ("/search", False),
}
"""The address of each, and whether nobody asked its questions before."""

MOST_A_SECOND = 400
"""More new questions than this are not at hand for a second of one reading."""

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Reading:
    """One system at one number of clients for a while: *worker_seconds* are those of the workers' processors, *busy*
    how many processors of the machine were at work on average, *calls* those of the model."""

    load: Load
    worker_seconds: float
    busy: float
    calls: int


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of several readings; the percentiles are of all their answers together, in ms."""

    system: str
    clients: int
    rate: float
    p50: float
    p99: float
    cpu_ms: float
    busy: float
    calls: float
    answers: int
    degraded: int

    @classmethod
    def of(cls, system: str, clients: int, readings: Sequence[Reading]) -> Row:
        together = Load([it for one in readings for it in one.load.answers], 1.0)
        if together.count("failed"):
            raise SystemExit(
                f"{system}: {together.count('failed')} of {len(together.answers)} questions got no answer"
            )
        return cls(
            system,
            clients,
            median(it.load.rate for it in readings),
            together.percentile(0.5),
            together.percentile(0.99),
            median(1e3 * it.worker_seconds / len(it.load.answers) for it in readings),
            median(it.busy for it in readings),
            sum(it.calls for it in readings) / len(together.answers),
            len(together.answers),
            together.count("degraded"),
        )

    @property
    def bound(self) -> str:
        """What held up a faster answer."""
        return "processors" if self.busy > 0.85 * (os.cpu_count() or 1) else "waiting"


def _processor_seconds(pids: Sequence[int]) -> float:
    fields = [
        Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split() for pid in pids
    ]
    return sum(int(it[11]) + int(it[12]) for it in fields) / _TICKS


def _busy_seconds() -> float:
    """Of all processors of the machine, whoever used them."""
    user, nice, system, _idle, _waiting, *interrupts = (
        Path("/proc/stat").read_text("ascii").split("\n")[0].split()[1:9]
    )
    return sum(map(int, (user, nice, system, *interrupts[:2]))) / _TICKS


def take_reading(
    world: World, questions: Questions, pids: Sequence[int], system: str, clients: int
) -> Reading:
    """Ask one system for `SECONDS`."""
    path, is_new = SYSTEMS[system]
    # Those who wait for the model need few; those who do not are asked the same whether new or not.
    many = int(SECONDS * MOST_A_SECOND)
    if not is_new or path != "/search":
        asked = questions.draw(many)
    else:
        asked = questions.take_new(min(many, int(SECONDS * clients * 4) + clients))
    calls, began = world.calls, monotonic()
    worker_seconds, busy = _processor_seconds(pids), _busy_seconds()
    load = world.driver.run(path, asked, clients, SECONDS)
    seconds = monotonic() - began
    return Reading(
        load,
        _processor_seconds(pids) - worker_seconds,
        (_busy_seconds() - busy) / seconds,
        world.calls - calls,
    )


def measure_loads(world: World, questions: Questions, rounds: int) -> list[Row]:
    """All systems and numbers of clients, by turns, *rounds* times."""
    with connected(world.service) as workers:
        pids = [it.pid for it in workers]
    for path in ("/plain", "/rules", "/search"):
        world.driver.run(path, questions.draw(400), max(CLIENTS), 3.0)
    readings: dict[tuple[str, int], list[Reading]] = {}
    for _ in range(rounds):
        for clients in CLIENTS:
            for system in SYSTEMS:
                reading = take_reading(world, questions, pids, system, clients)
                readings.setdefault((system, clients), []).append(reading)
    return [Row.of(system, clients, found) for (system, clients), found in readings.items()]
