"""What is asked of this machine's processes is checked before any is started."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from qtmiddleware.errors import ConfigError, EngineError
from qtmiddleware.kit.engines.local import LocalEngine, count_processors
from tests.support.ray_work import build_echo


def test_one_worker_is_this_process() -> None:
    held = threading.Lock()
    assert list(LocalEngine().map(lambda: lambda batch: (batch, held), [1, 2])) == [
        (1, held),
        (2, held),
    ]


def test_zero_is_a_worker_for_each_processor() -> None:
    assert LocalEngine(workers=0).workers == count_processors()


@pytest.mark.skipif(
    sys.platform != "linux", reason="only there a process can be held to a processor"
)
def test_processors_that_this_process_may_not_use_are_not_counted() -> None:
    script = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "from qtmiddleware.kit.engines.local import count_processors; print(count_processors())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200
    )
    assert done.stdout.strip() == "1"


def test_less_than_no_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match="workers must be a whole number"):
        LocalEngine(workers=-1)


def test_what_cannot_be_pickled_is_named() -> None:
    engine = LocalEngine(workers=2)
    with pytest.raises(
        EngineError, match=r"<lambda> cannot be sent to a worker .*; use one worker"
    ):
        engine.map(lambda: len, [[1]])
    with pytest.raises(
        EngineError,
        match=r"lock cannot be sent to a worker \(cannot pickle '_thread.lock' object\)",
    ):
        list(engine.map(build_echo, [threading.Lock()]))  # type: ignore[arg-type]
