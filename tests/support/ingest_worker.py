"""One ingest in a process of its own, which kills itself at a place it is told."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from tests.support.ingest_world import World, hashed


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, place: str) -> None:
    """*place* is ``embed:N`` (the N-th call), ``STAGE:N`` (the N-th note of progress) or ``time:SECONDS``."""
    world = World(Path(folder))
    kind, _, number = place.partition(":")
    seen = 0

    def embed(texts: list[str]) -> list[list[float]]:
        nonlocal seen
        if kind == "embed":
            seen += 1
            if seen == int(number):
                die()
        return hashed(texts)

    def listen(step: Any) -> None:
        nonlocal seen
        if step.stage == kind:
            seen += 1
            if seen == int(number):
                die()

    if kind == "time":
        threading.Timer(float(number), die).start()
    world.ingest(embed=embed, progress=listen)
    # A timer that has not fired yet is too late.
    os._exit(0)
