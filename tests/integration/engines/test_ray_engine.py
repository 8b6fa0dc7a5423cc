"""Batches of work on a real Ray cluster of this machine."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from qtmiddleware.errors import EngineError
from qtmiddleware.kit.engines.ray import AHEAD, RETRIES, RayEngine, _create_private_token
from tests.support import ray_work
from tests.support.ray_work import MARK, WORKERS, batches, find_marked, wait_for

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
]


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


def test_nobody_else_gets_into_the_files_and_sockets_of_a_cluster_that_was_started_here(
    engine: RayEngine,
) -> None:
    import ray

    [session] = {Path(it["ObjectStoreSocketName"]).parents[1] for it in ray.nodes()}
    assert (session / "sockets").is_dir()
    assert "/tmp/ray" not in map(str, session.parents)
    assert [
        stat.S_IMODE(above.stat().st_mode) & 0o077
        for above in session.parents
        if above.name.startswith("qtm-")
    ] == [0]


def test_the_files_of_a_cluster_that_was_started_here_go_with_it() -> None:
    script = """
import ray
from pathlib import Path
from qtmiddleware.kit.engines.ray import RayEngine
from tests.support.ray_work import build_echo
engine = RayEngine(workers=1)
list(engine.map(build_echo, [(0, b"")]))
folder = Path(ray.nodes()[0]["ObjectStoreSocketName"]).parents[3]
assert folder.name.startswith("qtm-"), folder
engine.close()
print(folder.exists())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.stdout.strip() == "False", done.stderr


def test_a_cluster_that_asks_for_no_token_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(EngineError, match="RAY_AUTH_MODE must be token, not disabled"):
        next(RayEngine(workers=1).map(ray_work.build_echo, [(0, b"")]))


def test_the_token_of_the_clusters_of_an_account_is_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    token = tmp_path / ".ray" / "auth_token"
    _create_private_token()
    written = token.read_text()
    assert (len(written), stat.S_IMODE(token.stat().st_mode)) == (64, 0o600)
    # One that Ray wrote stays, and is nobody else's any more.
    token.chmod(0o644)
    _create_private_token()
    assert (token.read_text(), stat.S_IMODE(token.stat().st_mode)) == (written, 0o600)


def test_what_the_work_raises_arrives_as_itself_or_by_its_name_alone(engine: RayEngine) -> None:
    with pytest.raises(ZeroDivisionError, match="batch 3"):
        list(engine.map(partial(ray_work.build_failing, ZeroDivisionError, 3), batches(10)))
    with pytest.raises(LookupError, match="nothing to work with"):
        list(engine.map(ray_work.build_nothing, batches(10)))
    with pytest.raises(EngineError) as caught:
        list(engine.map(ray_work.build_untold, batches(2)))
    assert str(caught.value) == "a batch failed with _Untold"


def test_what_the_batches_raise_arrives_too(engine: RayEngine) -> None:
    def take() -> Iterator[ray_work.Batch]:
        yield from batches(5)
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        list(engine.map(ray_work.build_echo, take()))


def test_where_a_worker_and_the_source_are_killed_nothing_is_lost_or_comes_twice(
    engine: RayEngine, mark: str
) -> None:
    done = []
    for number, process in engine.map(partial(ray_work.build_echo, 0.02), batches(60)):
        done.append(number)
        if len(done) == 10:
            os.kill(process, signal.SIGKILL)
        if len(done) == 30:
            [source] = [pid for pid, name in find_marked(mark).items() if "_Source" in name]
            os.kill(source, signal.SIGKILL)
    assert sorted(done) == list(range(60))


def test_a_batch_that_kills_every_worker_ends_the_run_with_advice(engine: RayEngine) -> None:
    with pytest.raises(
        EngineError, match=f"{RETRIES + 1} workers crashed on the same batch: check the memory"
    ):
        list(engine.map(partial(ray_work.build_dying, 1), batches(3)))


def test_a_run_may_be_left_early_and_a_guest_leaves_the_cluster_as_it_is(engine: RayEngine) -> None:
    results = engine.map(ray_work.build_echo, batches(10**9))
    next(results)
    results.close()  # type: ignore[attr-defined]
    guest = RayEngine()
    assert len(list(guest.map(ray_work.build_echo, batches(5)))) == 5
    guest.close()
    assert list(engine.map(ray_work.build_echo, [])) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_of_a_driver_that_is_ended_no_work_is_left(number: signal.Signals) -> None:
    mark = uuid4().hex
    driver = start_driver(mark)
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline().strip().isdigit()
        # As a terminal does: all of its group hear of Ctrl-C.
        (os.killpg if number == signal.SIGINT else os.kill)(driver.pid, number)
        driver.wait(timeout=200)
        # Two agents of Ray's look for a killed cluster for a minute more.
        spared = "Agent" if number == signal.SIGKILL else "none"
        wait_for(lambda: all(spared in name for name in find_marked(mark).values()))
    finally:
        for pid in find_marked(mark):
            os.kill(pid, signal.SIGKILL)
        driver.communicate(timeout=200)


def start_driver(mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.ray_driver"],
        cwd=ROOT,
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
