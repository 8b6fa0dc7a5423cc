"""One Ray cluster of this machine for all tests of this folder that a process runs."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from qtmiddleware.kit.engines.ray import RayEngine
from tests.support.ray_work import MARK, WORKERS, build_echo, find_marked, wait_for


@pytest.fixture(scope="package")
def mark() -> Iterator[str]:
    """What the processes of the cluster have in their environment."""
    mark = uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        yield mark


@pytest.fixture(scope="package")
def engine(mark: str) -> Iterator[RayEngine]:
    """An engine with a cluster of its own."""
    made = RayEngine(workers=WORKERS)
    list(made.map(build_echo, [(0, b"")]))
    yield made
    made.close()
    made.close()
    wait_for(lambda: not find_marked(mark))


@pytest.fixture(scope="package")
def address(engine: RayEngine) -> str:
    """Where another process finds the cluster."""
    import ray

    found: str = ray.get_runtime_context().gcs_address
    return found
