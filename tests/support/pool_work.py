"""Work for several processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

from qtmiddleware.runtime.environment import declare_needed_secrets
from tests.support.ray_work import Batch, find_marked

LONG = 600.0


def build_busy(quick: int) -> Callable[[Batch], int]:
    """Batches below *quick* are done at once; the others take longer than any test."""

    def work(batch: Batch) -> int:
        if batch[0] >= quick:
            time.sleep(LONG)
        return batch[0]

    return work


def build_chatter() -> Callable[[Batch], tuple[int, str, str | None]]:
    """Prints and reads, itself and by a process, as libraries do."""

    def work(batch: Batch) -> tuple[int, str, str | None]:
        print("chatter " * 10_000)
        subprocess.run(
            [sys.executable, "-c", "import sys; print('more', sys.stdin.read())"],
            check=True,
            timeout=200,
        )
        return batch[0], sys.stdin.read(), os.environ.get("OPENBLAS_NUM_THREADS")

    return work


def build_leaving() -> Callable[[Batch], int]:
    def work(batch: Batch) -> int:
        raise SystemExit(3)

    return work


def list_modules() -> Callable[[Batch], list[str]]:
    return lambda _: sorted(sys.modules)


def find_workers(mark: str) -> list[int]:
    return [pid for pid, line in find_marked(mark).items() if "engines.local import serve" in line]


def build_environment() -> Callable[[Batch], dict[str, str]]:
    return lambda _: dict(os.environ)


@declare_needed_secrets("HF_TOKEN")
def build_environment_of_hub(_: object) -> Callable[[Batch], dict[str, str]]:
    return build_environment()
