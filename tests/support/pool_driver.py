"""A driver of two workers in a process of its own: says the number of each batch that is done, then waits for ever."""

from __future__ import annotations

from contextlib import closing
from functools import partial

from qtmiddleware.kit.engines import LocalEngine
from tests.support.pool_work import build_busy
from tests.support.ray_work import batches

if __name__ == "__main__":
    with closing(LocalEngine(workers=2)) as engine:
        for number in engine.map(partial(build_busy, 4), batches(10**6)):
            print(number, flush=True)
