"""What a whole call costs where searches and the model take no time: processor time, beside floors and peers."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.speed.own_worker import CALIBRATION, SETUPS
from benchmarks.speed.report import Row, at_most, below_peer
from benchmarks.speed.worker import ROOT, Worker
from benchmarks.speed.workload import LONG, SEED

GROUP = "Overhead of a whole call"
CALIBRATED = "In units of a calibration"
BESIDE = "Beside the commit"
KEPT = ROOT / ".tmp" / "beside"
LIMITS = Path(__file__).with_name("limits.json")
MOST_TIMES = 1.25
CALLS = 100
SLOWER = 5
"""How many times fewer calls are made of those that take long."""
SYSTEMS = ("rules", "combined", "balanced")
WARM_UP_CALLS = 600  # more than there are questions, so that the remembering ones remember them all
PEERS = {
    "LangChain": ("langchain", "langchain_worker"),
    "LlamaIndex": ("llamaindex", "llamaindex_worker"),
    "Haystack": ("haystack", "haystack_worker"),
}
BARE = "Haystack components"
"""A peer that does nothing but the floor's work: a figure beside the others, without a bar."""


@dataclass
class Timings:
    """Microseconds of processor time a call, a reading a round, by the contender's name."""

    rounds: dict[str, list[float]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def of(self, name: str) -> float:
        """The median."""
        return median(self.rounds[name])


def interpreter_of(peer: str) -> Path:
    """The interpreter of a peer's environment, as `setup-peers` makes it."""
    return ROOT / ".tmp" / "peers" / peer / "bin" / "python"


def open_own_worker(checkout: Path | None = None) -> Worker:
    """A process that measures this library or, by the same program, that of another *checkout*."""
    if checkout is None:
        return Worker([sys.executable, "-m", "benchmarks.speed.own_worker"])
    # The package of the other checkout alone: its own benchmarks may measure something else.
    folder = KEPT / checkout.resolve().name
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "qtmiddleware"
    link.unlink(missing_ok=True)
    link.symlink_to(checkout.resolve() / "qtmiddleware")
    environ = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    return Worker([sys.executable, "-P", "-m", "benchmarks.speed.own_worker"], environ)


def _open_workers(*, peers: bool, beside: Sequence[Path]) -> dict[str, Worker]:
    workers = {"": open_own_worker()}
    for checkout in beside:
        workers[checkout.resolve().name] = open_own_worker(checkout)
    for name, (home, module) in PEERS.items() if peers else ():
        if interpreter_of(home).exists():
            workers[name] = Worker(
                [str(interpreter_of(home)), "-m", f"benchmarks.speed.peers.{module}"]
            )
        else:
            print(
                f"{name} is not measured: run benchmarks/speed/setup-peers first", file=sys.stderr
            )
    return workers


def timed(rounds: int, *, peers: bool, beside: Sequence[Path] = ()) -> Timings:
    """Every contender in each round, in another order each time."""
    workers = _open_workers(peers=peers, beside=beside)
    timings = Timings(
        versions={name: worker.version for name, worker in workers.items() if name in PEERS}
    )
    turns = [
        (f"{name} {case}".strip(), worker, case)
        for name, worker in workers.items()
        for case in worker.cases
    ]
    chance = random.Random(SEED)
    try:
        for _, worker, case in turns:
            worker.measure(case, WARM_UP_CALLS // SLOWER if LONG in case else WARM_UP_CALLS)
        for _ in range(rounds):
            chance.shuffle(turns)
            for name, worker, case in turns:
                calls = CALLS // SLOWER if LONG in case or case == CALIBRATION else CALLS
                timings.rounds.setdefault(name, []).append(worker.measure(case, calls)["cpu"])
    finally:
        for worker in workers.values():
            worker.close()
    return timings


def rows(
    rounds: int, *, peers: bool, beside: Sequence[Path] = ()
) -> tuple[list[Row], Mapping[str, str]]:
    """The lines of this group and the versions of the peers."""
    timings = timed(rounds, peers=peers, beside=beside)
    found: list[Row] = []
    for kind, label in (("sync", "shared thread pool"), ("async", "asyncio.gather")):
        floor = timings.of(f"floor {kind}")
        for extra in SETUPS:
            ours = timings.of(f"ours {kind}{extra}")
            found.append(
                Row(
                    GROUP,
                    f"{kind}{extra or f', beside a bare {label}'}",
                    ours,
                    floor,
                    ours / floor,
                    "us",
                )
            )
    for name in sorted(name for name in timings.rounds if name.partition(" ")[0] in PEERS):
        kind = "async" if " async" in name else "sync"
        size = LONG if name.endswith(LONG) else ""
        ours, peer = timings.of(f"ours {kind}{size}"), timings.of(name)
        what = f"{kind}, beside {name}"
        is_bare = name.startswith(BARE)
        found.append(
            Row(GROUP, what, ours, peer, peer / ours, "us")
            if is_bare
            else below_peer(GROUP, what, ours, peer, 1.0)
        )
    unit, limits = timings.of(CALIBRATION), read_limits()
    for name in (
        name for name in timings.rounds if name.endswith(LONG) and name.partition(" ")[0] in SYSTEMS
    ):
        row = Row(CALIBRATED, name, timings.of(name), unit, timings.of(name) / unit, "us")
        limit = limits.get(name.removesuffix(LONG))
        found.append(
            row if limit is None else at_most(CALIBRATED, name, row.ours, unit, limit, "us")
        )
    for place, checkout in enumerate(beside):
        other = checkout.resolve().name
        for name in [
            name
            for name in timings.rounds
            if f"{other} {name}" in timings.rounds and "floor" not in name
        ]:
            ours, theirs = timings.of(name), timings.of(f"{other} {name}")
            what, group = name.removeprefix("ours "), f"{BESIDE} {other}"
            # A bar is set by the first of them.
            has_bar = not place and name != CALIBRATION
            row = at_most(group, what, ours, theirs, MOST_TIMES, "us")
            found.append(row if has_bar else Row(group, what, ours, theirs, row.ratio, "us"))
    return found, timings.versions


def read_limits() -> dict[str, float]:
    """What a call may cost in units of the calibration."""
    return {
        name: float(limit) for name, limit in json.loads(LIMITS.read_text(encoding="utf-8")).items()
    }
