"""The pool of daemon threads."""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from qtmiddleware.errors import ModelError
from qtmiddleware.runtime import threads
from qtmiddleware.runtime.threads import Bulkhead
from tests.support import concurrency_world
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


def test_a_thousand_tasks_grow_to_few_threads() -> None:
    pool = Bulkhead(sys.maxsize)
    used = {done_in(pool) for _ in range(1_000)}
    assert len(used) < 40
    assert all(it.daemon and it.name == "qtmiddleware" for it in used)


def test_tasks_that_wait_for_each_other_run_at_the_same_time() -> None:
    pool, together, done = Bulkhead(sys.maxsize), threading.Barrier(32), threading.Semaphore(0)

    def task() -> None:
        together.wait(PATIENCE)
        done.release()

    for _ in range(2):
        for _ in range(32):
            pool.start(task)
        assert all(done.acquire(timeout=PATIENCE) for _ in range(32))


def test_idle_threads_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.01)
    pool = Bulkhead(sys.maxsize)
    thread = done_in(pool)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert done_in(pool) is not thread


def test_a_task_never_waits_for_those_that_hang() -> None:
    pool, release = Bulkhead(sys.maxsize), threading.Event()
    for _ in range(300):
        pool.start(lambda: release.wait(PATIENCE * 4) and None)
    done_in(pool)
    assert not release.is_set()
    release.set()


def test_a_task_that_ends_badly_costs_the_pool_nothing(complaints: list[Any]) -> None:
    pool, bulkhead = Bulkhead(sys.maxsize), Bulkhead(1)

    def exits() -> None:
        raise SystemExit

    for _ in range(5):
        pool.start(exits)
        done_in(pool)
        bulkhead.start(exits)
        wait_until_free(bulkhead)
    assert (complaints, bulkhead.refused) == ([], 0)


def test_many_callers_lose_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.0005)
    pool, done = Bulkhead(sys.maxsize), threading.Semaphore(0)

    def caller() -> None:
        for _ in range(200):
            pool.start(done.release)

    callers = [threading.Thread(target=caller) for _ in range(8)]
    for it in callers:
        it.start()
    for it in callers:
        it.join()
    assert all(done.acquire(timeout=PATIENCE) for _ in range(1_600))


def wait_until_free(bulkhead: Bulkhead, in_use: int = 0) -> None:
    wait_until(lambda: bulkhead.in_use == in_use)


def test_a_full_bulkhead_refuses_at_once_and_tells_of_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bulkhead, release = Bulkhead(4), threading.Event()
    for turn in (1, 2):
        for _ in range(4):
            bulkhead.start(lambda: release.wait(PATIENCE) and None)
        for _ in range(100):
            with pytest.raises(
                ModelError, match="all 4 threads of the middleware are busy"
            ) as refused:
                bulkhead.start(lambda: None)
            assert (refused.value.reason, refused.value.was_asked) == ("overloaded", False)
        assert (bulkhead.in_use, bulkhead.refused) == (4, 100 * turn)
        release.set()
        wait_until_free(bulkhead)
        release.clear()
    told = [it.getMessage() for it in caplog.records]
    assert ["are busy" in it for it in told] == [True, False, True, False]
    assert "100 calls have been skipped so far" in told[1]


def test_many_callers_never_hold_more_threads_than_a_bulkhead_has() -> None:
    bulkhead, refused, ran, lock = Bulkhead(4), [], [], threading.Lock()
    most = [0]

    def task() -> None:
        with lock:
            most[0] = max(most[0], bulkhead.in_use)
            ran.append(True)

    def caller() -> None:
        for _ in range(300):
            try:
                bulkhead.start(task)
            except ModelError:
                refused.append(True)

    callers = [threading.Thread(target=caller) for _ in range(8)]
    for it in callers:
        it.start()
    for it in callers:
        it.join()
    wait_until_free(bulkhead)
    assert most[0] <= 4
    assert (len(ran) + len(refused), len(refused)) == (2_400, bulkhead.refused)


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


def test_where_no_thread_can_be_had_the_task_is_performed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = Bulkhead(sys.maxsize)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert done_in(pool) is threading.current_thread()
    assert done_in(pool) is not threading.current_thread()


# --- what only a process of its own can show ------------------------------------------------------

PROLOGUE = """
from functools import partial
from qtmiddleware.types import Deadline
from qtmiddleware.runtime.io import Tasks, Threads, drive
from qtmiddleware.runtime.threads import Bulkhead

bulkhead = Bulkhead()

def search(text):
    if text == "hang":
        time.sleep(600)
    return text.upper()

async def together(io, *texts, deadline=None):
    works = [partial(io.blocking, partial(search, text)) for text in texts]
    outcomes = await io.gather(works, deadline or Deadline(), 8)
    return [outcome.value for outcome in outcomes]

async def retrieve(make_io, first, *texts):
    io = make_io(bulkhead)
    beside = io.start(partial(together, io, *texts))
    own = await io.blocking(partial(search, first))
    return [own, *await beside.get()]

def block(*texts):
    return drive(retrieve(Threads, *texts))

def await_all(*texts):
    return asyncio.run(retrieve(Tasks, *texts))
"""


def python(body: str) -> str:
    """What a process prints that runs *body*; fails where it fails, warns or takes too long."""
    return concurrency_world.python(PROLOGUE + textwrap.dedent(body))


def test_a_forked_child_has_threads_of_its_own() -> None:
    printed = python(
        """
        warnings.simplefilter("ignore", DeprecationWarning)
        assert block("a", "b", "c") == ["A", "B", "C"]
        bulkhead.in_use = bulkhead.limit
        child = os.fork()
        if child == 0:
            ok = bulkhead.in_use == 0
            ok = ok and block("d", "e", "f") == ["D", "E", "F"]
            ok = ok and await_all("g", "h") == ["G", "H"]
            os._exit(0 if ok else 1)
        assert os.waitpid(child, 0)[1] == 0
        bulkhead.in_use = 0
        assert block("i", "j") == ["I", "J"]
        print("fine")
        """
    )
    assert printed == "fine\n"


@pytest.mark.parametrize("warm", [True, False], ids=["threads_alive", "no_thread_yet"])
def test_a_retrieval_while_the_interpreter_ends_works(warm: bool) -> None:
    printed = python(
        f"""
        if {warm}:
            block("x", "y", "z")

        @atexit.register
        def last():
            print(block("a", "b", "c"))
            print(await_all("d", "e"))
        """
    )
    assert printed == "['A', 'B', 'C']\n['D', 'E']\n"


@pytest.mark.parametrize("way", ["Threads", "Tasks"])
def test_work_that_hangs_does_not_keep_the_process_from_ending(way: str) -> None:
    printed = python(
        f"""
        async def hanging(seconds):
            return await together(
                {way}(bulkhead), "hang", "ok", deadline=Deadline.after(seconds)
            )

        for seconds in (0.2, 2, 20):
            found = drive(hanging(seconds)) if {way} is Threads else asyncio.run(hanging(seconds))
            if found[1]:
                break
        print(found)
        """
    )
    assert printed == "[None, 'OK']\n"


def test_hundreds_of_retrievals_leave_few_threads() -> None:
    printed = python(
        """
        for _ in range(300):
            block("a", "b", "c")
        await_all("a", "b")
        print(threading.active_count())
        """
    )
    # A thread that was not idle yet when the next retrieval began is one more; without reuse there
    # were hundreds.
    assert int(printed) < 100
