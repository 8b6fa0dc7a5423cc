"""A driver in a process of its own: says the number of each batch that is done, until it is ended."""

from __future__ import annotations

from contextlib import closing
from functools import partial

from qtmiddleware.kit.engines.ray import RayEngine
from tests.support.ray_work import batches, build_echo

if __name__ == "__main__":
    with closing(RayEngine(workers=1)) as engine:
        for number, _ in engine.map(partial(build_echo, 0.05), batches(10**6)):
            print(number, flush=True)
