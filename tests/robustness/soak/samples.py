"""What a process holds, sampled over time, and whether it grows."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Bound:
    """How far the median of the last fifth may lie above that of the second fifth."""

    share: float
    amount: float
    unit: str = ""

    def allows(self, early: float, late: float) -> bool:
        """Whether that is no growth."""
        return late <= early * (1 + self.share) + self.amount


BOUNDS: Final = {
    "threads": Bound(0.05, 8),
    "tasks": Bound(0.05, 50),
    "sockets": Bound(0.05, 30),
    "descriptors": Bound(0.05, 30),
    "memory": Bound(0.03, 8, "MB"),
}
SHORTEST: Final = 60.0
"""Of a run of fewer seconds no trend is told: connections are still being made and caches filled."""


def held(loop: asyncio.AbstractEventLoop | None) -> dict[str, float]:
    """What this process holds now."""
    links = []
    for it in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(it.readlink()))
        except OSError:  # closed in the meantime
            continue
    memory = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE / 2**20
    return {
        "threads": threading.active_count(),
        "tasks": 0 if loop is None else len(asyncio.all_tasks(loop)),
        "sockets": sum(link.startswith("socket:") for link in links),
        "descriptors": len(links),
        "memory": memory,
    }


class Sampler(threading.Thread):
    """Looks every *interval* seconds until it is stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interval: float) -> None:
        super().__init__(daemon=True, name="sampler")
        self.samples: list[dict[str, float]] = []
        self._loop = loop
        self._interval = interval
        self._over = threading.Event()

    def run(self) -> None:
        """Look until stopped."""
        while not self._over.wait(self._interval):
            if self._interval >= 1:
                gc.collect()
            self.samples.append(held(self._loop))

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self.join()

    def trend(self, name: str) -> tuple[float, float]:
        """The medians of the second fifth and of the last."""
        values = [sample[name] for sample in self.samples]
        fifth = max(1, len(values) // 5)
        return median(values[fifth : 2 * fifth] or values), median(values[-fifth:])
