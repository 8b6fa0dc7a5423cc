"""What a whole call costs where searches and the model take no time: processor time, beside floors and peers."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.speed.own_worker import SETUPS
from benchmarks.speed.report import Row, below_peer
from benchmarks.speed.worker import ROOT, Worker
from benchmarks.speed.workload import SEED

GROUP = "Overhead of a whole call"
CALLS = 100
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


def _workers(*, peers: bool) -> dict[str, Worker]:
    workers = {"": Worker([sys.executable, "-m", "benchmarks.speed.own_worker"])}
    for name, (home, module) in PEERS.items() if peers else ():
        if interpreter_of(home).exists():
            workers[name] = Worker([str(interpreter_of(home)), "-m", f"benchmarks.speed.peers.{module}"])
        else:
            print(f"{name} is not measured: run benchmarks/speed/setup-peers first", file=sys.stderr)
    return workers


def timed(rounds: int, *, peers: bool) -> Timings:
    """Every contender in each round, in another order each time."""
    workers = _workers(peers=peers)
    timings = Timings(versions={name: worker.version for name, worker in workers.items() if name})
    turns = [(f"{name} {case}".strip(), worker, case) for name, worker in workers.items() for case in worker.cases]
    chance = random.Random(SEED)
    try:
        for _, worker, case in turns:
            worker.measure(case, WARM_UP_CALLS)
        for _ in range(rounds):
            chance.shuffle(turns)
            for name, worker, case in turns:
                timings.rounds.setdefault(name, []).append(worker.measure(case, CALLS)["cpu"])
    finally:
        for worker in workers.values():
            worker.close()
    return timings


def rows(rounds: int, *, peers: bool) -> tuple[list[Row], Mapping[str, str]]:
    """The lines of this group and the versions of the peers."""
    timings = timed(rounds, peers=peers)
    found: list[Row] = []
    for kind, label in (("sync", "shared thread pool"), ("async", "asyncio.gather")):
        floor = timings.of(f"floor {kind}")
        for extra in SETUPS:
            ours = timings.of(f"ours {kind}{extra}")
            found.append(Row(GROUP, f"{kind}{extra or f', beside a bare {label}'}", ours, floor, ours / floor, "us"))
    for name in sorted(name for name in timings.rounds if name.partition(" ")[0] in PEERS):
        kind = "async" if " async" in name else "sync"
        ours, peer, what = timings.of(f"ours {kind}"), timings.of(name), f"{kind}, beside {name}"
        is_bare = name.startswith(BARE)
        found.append(
            Row(GROUP, what, ours, peer, peer / ours, "us") if is_bare else below_peer(GROUP, what, ours, peer, 1.5)
        )
    return found, timings.versions
