"""Work for a Ray cluster, and what tells the processes of one cluster from all others."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

MARK = "QTMIDDLEWARE_TEST_MARK"
SECONDS = 120
WORKERS = 2
Batch = tuple[int, bytes]


def build_echo(seconds: float = 0.0) -> Callable[[Batch], tuple[int, int]]:
    """The number of a batch and the process it was in."""

    def work(batch: Batch) -> tuple[int, int]:
        time.sleep(seconds)
        return batch[0], os.getpid()

    return work


class _Untold(Exception):
    """Cannot be pickled."""

    def __reduce__(self) -> str:
        raise TypeError("not me")


def build_failing(error: type[Exception], at: int) -> Callable[[Batch], int]:
    def work(batch: Batch) -> int:
        if batch[0] == at:
            raise error(f"batch {at}")
        return batch[0]

    return work


def build_untold() -> Callable[[Batch], int]:
    def work(batch: Batch) -> int:
        raise _Untold("Does Jaco have any health concerns?")

    return work


def build_nothing() -> Callable[[Batch], int]:
    raise LookupError("there is nothing to work with")


def build_dying(at: int) -> Callable[[Batch], int]:
    """The process of batch *at* ends as one does that the system takes for want of memory."""

    def work(batch: Batch) -> int:
        if batch[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return batch[0]

    return work


def batches(count: int, size: int = 1_000) -> Iterator[Batch]:
    return ((number, bytes(size)) for number in range(count))


def find_marked(mark: str) -> dict[int, str]:
    """The processes that were started with *mark* in their environment, and their names."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        # Those of others, and those that end in the meantime.
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                )
    return found


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.1)
