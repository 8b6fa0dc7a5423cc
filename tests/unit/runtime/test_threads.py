"""The pool of daemon threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from qtmiddleware.errors import ModelError
from qtmiddleware.runtime import concurrency as threads
from qtmiddleware.runtime.concurrency import Bulkhead
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture
def complaints() -> Iterator[list[Any]]:
    seen: list[Any] = []
    before, threading.excepthook = threading.excepthook, seen.append
    yield seen
    threading.excepthook = before


def done_in(pool: Bulkhead) -> threading.Thread:
    """The thread in which the pool performs a task; fails where it performs none."""
    ran: list[threading.Thread] = []
    done = threading.Event()

    def task() -> None:
        ran.append(threading.current_thread())
        done.set()

    pool.start(task)
    assert done.wait(PATIENCE), "the task was never performed"
    return ran[0]


def test_idle_threads_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.01)
    pool = Bulkhead(sys.maxsize)
    thread = done_in(pool)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert done_in(pool) is not thread


def test_a_task_that_ends_badly_costs_the_pool_nothing(complaints: list[Any]) -> None:
    pool = Bulkhead(1)

    def exits() -> None:
        raise SystemExit

    for task in [exits] * 5:
        pool.start(task)
        wait_until(lambda: pool.in_use == 0)
    assert complaints == []


def test_a_full_bulkhead_refuses_at_once() -> None:
    bulkhead, release = Bulkhead(4), threading.Event()
    for _ in range(4):
        bulkhead.start(lambda: release.wait(PATIENCE) and None)
    with pytest.raises(ModelError, match=r"all 4 threads .* are busy") as refused:
        bulkhead.start(lambda: None)
    assert (refused.value.reason, refused.value.was_asked) == ("overloaded", False)
    assert (bulkhead.in_use, bulkhead.refused) == (4, 1)
    release.set()
    wait_until(lambda: bulkhead.in_use == 0)


def test_where_the_system_gives_no_thread_a_bulkhead_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    performed: list[bool] = []
    bulkhead = Bulkhead(4)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ModelError) as refused:
        bulkhead.start(lambda: performed.append(True))
    assert (refused.value.reason, performed, bulkhead.in_use) == ("overloaded", [], 0)
