"""Batches of work in real processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from qtmiddleware.errors import EngineError
from qtmiddleware.kit.engines.local import AHEAD, LocalEngine
from tests.support import pool_work, ray_work
from tests.support.pool_work import find_workers
from tests.support.ray_work import MARK, batches, find_marked, wait_for

ROOT = Path(__file__).parents[3]
WORKERS = 2
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

SCRIPT = """
print("started", flush=True)
from functools import partial
from qtmiddleware.kit.engines import LocalEngine
from tests.support.ray_work import batches, build_echo
engine = LocalEngine(workers=2)
print(sorted(number for number, _ in engine.map(partial(build_echo, 0.01), batches(12))), flush=True)
"""


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    mark = uuid4().hex
    monkeypatch.setenv(MARK, mark)
    return mark


@pytest.fixture
def engine(mark: str) -> Iterator[LocalEngine]:
    made = LocalEngine(workers=WORKERS)
    yield made
    made.close()
    made.close()
    assert find_workers(mark) == []


def test_every_batch_is_done_once_and_few_are_taken_ahead(engine: LocalEngine, mark: str) -> None:
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
    assert find_workers(mark) == []


def test_no_more_workers_are_started_than_there_are_batches(engine: LocalEngine, mark: str) -> None:
    assert list(engine.map(ray_work.build_echo, [])) == []
    results = engine.map(ray_work.build_echo, batches(1))
    next(results)
    assert len(find_workers(mark)) == 1
    assert list(results) == []


def test_what_the_work_raises_arrives_as_itself_after_what_was_done(engine: LocalEngine) -> None:
    done = []
    with pytest.raises(ZeroDivisionError, match="batch 9"):
        done += engine.map(partial(ray_work.build_failing, ZeroDivisionError, 9), batches(20))
    for number in engine.map(partial(ray_work.build_failing, ZeroDivisionError, -1), batches(3)):
        done.append(number)
    with pytest.raises(LookupError, match="nothing to work with"):
        list(engine.map(ray_work.build_nothing, batches(10)))


def test_results_that_are_there_come_before_what_the_batches_raise(engine: LocalEngine) -> None:
    def take() -> Iterator[ray_work.Batch]:
        yield from batches(3)
        [pool] = engine._pools
        wait_for(lambda: pool._done.qsize() == 3)
        raise OSError("the source is gone")

    done: list[int] = []
    with pytest.raises(OSError, match="the source is gone"):  # noqa: PT012
        for number, _ in engine.map(ray_work.build_echo, take()):
            done.append(number)
    assert sorted(done) == [0, 1, 2]


def test_of_an_error_that_cannot_travel_the_name_alone_is_told(engine: LocalEngine) -> None:
    with pytest.raises(EngineError) as caught:
        list(engine.map(ray_work.build_untold, batches(2)))
    assert str(caught.value) == "a batch failed with _Untold"


def test_of_a_worker_that_is_killed_is_told_what_to_do(engine: LocalEngine) -> None:
    results = engine.map(partial(ray_work.build_dying, 5), batches(20))
    # The other worker may still be at one of them.
    assert len({next(results) for _ in range(4)} & set(range(5))) == 4
    with pytest.raises(
        EngineError,
        match="of 2 workers was ended by signal 9, which happens if memory runs out: use fewer",
    ):
        list(results)
    with pytest.raises(EngineError, match="ended with code 3"):
        list(engine.map(pool_work.build_leaving, batches(1)))
    assert len(list(engine.map(ray_work.build_echo, batches(5)))) == 5


def test_closing_ends_workers_that_are_busy(engine: LocalEngine, mark: str) -> None:
    results = engine.map(partial(pool_work.build_busy, 2), batches(10))
    assert {next(results), next(results)} == {0, 1}
    assert len(find_workers(mark)) == WORKERS
    engine.close()
    assert find_workers(mark) == []
    with pytest.raises(EngineError, match="the engine was closed"):
        next(results)


def test_who_waits_hears_that_the_engine_is_closed(engine: LocalEngine) -> None:
    results = engine.map(partial(pool_work.build_busy, 1), batches(10))
    assert next(results) == 0
    closing = threading.Timer(0.5, engine.close)
    closing.start()
    with pytest.raises(EngineError, match="the engine was closed"):
        next(results)
    closing.join()


def test_a_run_that_is_left_early_leaves_no_workers(engine: LocalEngine, mark: str) -> None:
    results = engine.map(partial(pool_work.build_busy, 2), batches(10**9))
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert find_workers(mark) == []
    assert len(list(engine.map(ray_work.build_echo, batches(5)))) == 5


def test_what_a_worker_prints_and_reads_is_not_taken_for_results(
    engine: LocalEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    done = list(engine.map(pool_work.build_chatter, batches(4)))
    assert sorted(done) == [(number, "", "1") for number in range(4)]
    said = capfd.readouterr()
    assert said.out == ""
    assert "chatter" in said.err
    assert "more" in said.err


def test_nothing_but_the_work_is_loaded_in_a_worker(engine: LocalEngine) -> None:
    [modules] = engine.map(pool_work.list_modules, batches(1))
    assert not {"numpy", "ray", "pydantic", "openai", "torch"} & set(modules)


@pytest.mark.parametrize("way", ["script", "command", "input", "module"])
def test_a_script_without_a_guard_starts_once(way: str, tmp_path: Path) -> None:
    (tmp_path / "unguarded.py").write_text(SCRIPT, encoding="utf-8")
    arguments = {
        "script": ["unguarded.py"],
        "command": ["-c", SCRIPT],
        "input": ["-"],
        "module": ["-m", "unguarded"],
    }
    ended = subprocess.run(
        [sys.executable, *arguments[way]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=SCRIPT if way == "input" else "",
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (ended.stdout, ended.stderr) == (f"started\n{list(range(12))}\n", "")


def test_what_a_script_defines_itself_is_named(tmp_path: Path) -> None:
    script = (
        SCRIPT + "\ndef embed_all(): return len\nlist(engine.map(partial(embed_all), batches(1)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (
        "EngineError: embed_all cannot be sent to a worker: it is defined in the script or notebook"
        in ended.stderr
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_of_a_driver_that_is_ended_nothing_is_left(number: signal.Signals) -> None:
    mark = uuid4().hex
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.support.pool_driver"],
        cwd=ROOT,
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert driver.stdout is not None
        for _ in range(4):
            assert driver.stdout.readline().strip().isdigit()
        assert len(find_workers(mark)) == WORKERS
        # As a terminal does: all of its group hear of Ctrl-C.
        (os.killpg if number == signal.SIGINT else os.kill)(driver.pid, number)
        _, said = driver.communicate(timeout=200)
        wait_for(lambda: not find_marked(mark))
    finally:
        for pid in find_marked(mark):
            os.kill(pid, signal.SIGKILL)
        driver.wait(timeout=200)
    assert said.count("Traceback") == (number == signal.SIGINT)


def test_workers_are_started_without_the_secrets_that_their_work_does_not_need(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "secret")
    (found,) = engine.map(partial(pool_work.build_environment_of_hub, None), [(0, b"")])
    assert (found.get("OPENAI_API_KEY"), found.get("HF_TOKEN")) == (None, "secret")
    assert found["PATH"] == os.environ["PATH"]
    # Work that says nothing may call a service, as a transformation does.
    (found,) = engine.map(pool_work.build_environment, [(0, b"")])
    assert (found.get("OPENAI_API_KEY"), found.get("HF_TOKEN")) == ("secret", "secret")
