"""Batches of work on a real Ray cluster of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from qtmiddleware.errors import EngineError
from qtmiddleware.runtime.engines.ray import AHEAD, RETRIES, RayEngine
from tests.support import ray_work
from tests.support.ray_work import MARK, batches, find_marked, wait_for

ROOT = Path(__file__).parents[3]
WORKERS = 2
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
]


@pytest.fixture(scope="module")
def mark() -> Iterator[str]:
    mark = uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, mark)
        yield mark


@pytest.fixture(scope="module")
def engine(mark: str) -> Iterator[RayEngine]:
    made = RayEngine(workers=WORKERS)
    yield made
    made.close()
    made.close()
    wait_for(lambda: not find_marked(mark))


def test_every_batch_is_done_once_and_few_are_taken_ahead(engine: RayEngine) -> None:
    taken, done = 0, []

    def take() -> Iterator[ray_work.Batch]:
        nonlocal taken
        for taken, batch in enumerate(batches(60, 200_000), 1):  # noqa: B007
            yield batch

    for number, process in engine.map(partial(ray_work.build_echo, 0.02), take()):
        done.append((number, process))
        assert taken - len(done) < AHEAD * WORKERS
    assert sorted(number for number, _ in done) == list(range(60))
    processes = {process for _, process in done}
    assert len(processes) == WORKERS
    assert os.getpid() not in processes


def test_without_batches_there_is_nothing_to_wait_for(engine: RayEngine) -> None:
    assert list(engine.map(ray_work.build_echo, [])) == []


def test_what_the_work_raises_arrives_as_itself(engine: RayEngine) -> None:
    with pytest.raises(ZeroDivisionError, match="batch 3"):
        list(engine.map(partial(ray_work.build_failing, ZeroDivisionError, 3), batches(10)))
    with pytest.raises(LookupError, match="nothing to work with"):
        list(engine.map(ray_work.build_nothing, batches(10)))


def test_of_an_error_that_cannot_travel_the_name_alone_is_told(engine: RayEngine) -> None:
    with pytest.raises(EngineError) as caught:
        list(engine.map(ray_work.build_untold, batches(2)))
    assert str(caught.value) == "a batch failed by _Untold"


def test_what_the_batches_raise_arrives_too(engine: RayEngine) -> None:
    def take() -> Iterator[ray_work.Batch]:
        yield from batches(5)
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        list(engine.map(ray_work.build_echo, take()))


def test_the_batch_of_a_worker_that_is_killed_is_done_again(engine: RayEngine) -> None:
    done = []
    for number, process in engine.map(partial(ray_work.build_echo, 0.02), batches(40)):
        done.append(number)
        if len(done) == 10:
            os.kill(process, signal.SIGKILL)
    assert sorted(done) == list(range(40))


def test_a_source_that_is_killed_begins_anew_and_nothing_comes_twice(engine: RayEngine, mark: str) -> None:
    done = []
    for number, _ in engine.map(partial(ray_work.build_echo, 0.02), batches(40)):
        done.append(number)
        if len(done) == 10:
            [source] = [pid for pid, name in find_marked(mark).items() if "_Source" in name]
            os.kill(source, signal.SIGKILL)
    assert sorted(done) == list(range(40))


def test_a_batch_that_kills_every_worker_ends_the_run_with_advice(engine: RayEngine) -> None:
    done = []
    with pytest.raises(EngineError, match=f"{RETRIES + 1} workers died over one batch: is there memory enough"):
        done += engine.map(partial(ray_work.build_dying, 5), batches(8))
    assert list(engine.map(partial(ray_work.build_failing, ValueError, -1), batches(3)))


def test_a_run_may_be_left_early_and_the_engine_used_again(engine: RayEngine) -> None:
    results = engine.map(ray_work.build_echo, batches(10**9))
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(list(engine.map(ray_work.build_echo, batches(5)))) == 5


def test_a_cluster_that_is_there_is_used_and_stays(engine: RayEngine) -> None:
    list(engine.map(ray_work.build_echo, batches(1)))
    guest = RayEngine()
    assert len(list(guest.map(ray_work.build_echo, batches(5)))) == 5
    guest.close()
    assert len(list(engine.map(ray_work.build_echo, batches(5)))) == 5


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_of_a_driver_that_is_ended_nothing_is_left(number: signal.Signals) -> None:
    mark = uuid4().hex
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.support.ray_driver"],
        cwd=ROOT,
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline().strip().isdigit()
        # As a terminal does: all of its group hear of Ctrl-C.
        (os.killpg if number == signal.SIGINT else os.kill)(driver.pid, number)
        driver.wait(timeout=200)
        wait_for(lambda: not find_marked(mark))
    finally:
        for pid in find_marked(mark):
            os.kill(pid, signal.SIGKILL)
        driver.stdout.close()
        driver.wait(timeout=200)
