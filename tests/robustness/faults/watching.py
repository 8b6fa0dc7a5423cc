"""What is left behind: warnings, errors nobody took, tasks, threads and open files."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
import warnings
from concurrent.futures import thread as executor
from pathlib import Path
from time import perf_counter, sleep
from types import FrameType
from typing import Any, Final

from qtmiddleware.runtime.concurrency import IDLE_SECONDS, Bulkhead, run_in_background_loop
from tests.support.living import tasks_left

DRAIN_SECONDS: Final = 0.8 * IDLE_SECONDS
"""How long threads may go on: a variant's search or a read that nobody waits for any more ends by itself.

Less than an idle thread of the pool lives, so a thread that is wrongly taken for a busy one is a complaint.
"""
TASK_SECONDS: Final = 5.0
"""How long tasks may, and open files may stay, on a busy machine."""
_FILES: Final = Path("/proc/self/fd")
_STEP: Final = 0.002


class Watch(logging.Handler):
    """Collects, while it is entered, every complaint there is a way to hear of, and what still runs at the end."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.complaints: list[str] = []
        self._warned = warnings.catch_warnings()
        self._hooks: tuple[Any, Any] = (None, None)
        self._threads: set[threading.Thread] = set()
        self._foreign: set[threading.Thread] = set()
        self._files = 0
        self._resolves = False

    def emit(self, record: logging.LogRecord) -> None:
        self.complaints.append(f"asyncio logged: {record.getMessage()}")

    def __enter__(self) -> Watch:
        # The background loop begins with the first call that needs it, and stays.
        run_in_background_loop(asyncio.sleep(0))
        gc.collect()
        self._threads, self._files = set(threading.enumerate()), open_files()
        # What was asked before and nobody waits for any more is no business of this case.
        frames = sys._current_frames()
        self._threads -= {
            it for it in self._threads if it.name == "qtmiddleware" and not _is_idle(it, frames)
        }
        self._foreign = {it for it in threading.enumerate() if it not in self._threads}
        self._hooks = sys.unraisablehook, threading.excepthook
        sys.unraisablehook = lambda it: self.complaints.append(
            f"unraisable: {it.exc_value!r} in {it.object!r}"
        )
        threading.excepthook = lambda it: self.complaints.append(f"a thread died: {it.exc_value!r}")
        self._warned.__enter__()
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: self.complaints.append(
            f"warning: {message!r}"
        )
        logging.getLogger("asyncio").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        gc.collect()
        self._warned.__exit__(None, None, None)
        sys.unraisablehook, threading.excepthook = self._hooks
        logging.getLogger("asyncio").removeHandler(self)

    def listens_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hear what *loop* would only log."""
        loop.set_exception_handler(
            lambda _, it: self.complaints.append(f"loop: {it['message']} {it.get('exception')!r}")
        )

    async def tasks_left(self) -> None:
        """Complain of tasks that outlive the call."""
        left = tasks_left()
        if left:
            _, left = await asyncio.wait(left, timeout=TASK_SECONDS)
        self.complaints.extend(f"a task is left: {task.get_coro()!r}" for task in left)

    def drain(self) -> None:
        """Wait for the threads that nobody waits for any more, and complain of those that do not end."""
        began = perf_counter()
        while (busy := self._busy()) and perf_counter() - began < DRAIN_SECONDS:
            sleep(_STEP)
        frames = sys._current_frames()
        stopped = [it for it in busy if not _is_looking_up(frames.get(it.ident or 0))]
        self._resolves = len(stopped) < len(busy)
        self.complaints.extend(f"thread {thread.name} is at work" for thread in stopped)

    def _busy(self) -> list[threading.Thread]:
        frames = sys._current_frames()
        ours = [it for it in self._threads if it.name == "qtmiddleware" and it.is_alive()]
        new = [it for it in threading.enumerate() if it not in self._threads | self._foreign]
        return [it for it in (*new, *ours) if not _is_idle(it, frames)]

    def files_left(self) -> None:
        """Complain of open files that were not open when this was entered; all clients must be closed by now."""
        began = perf_counter()
        gc.collect()
        if self._resolves:
            # The system's own socket, as long as it looks.
            return
        while (more := open_files() - self._files) > 0 and perf_counter() - began < TASK_SECONDS:
            sleep(_STEP)
        if more > 0:
            self.complaints.append(f"{more} more open files: {_new_files()}")


def _is_idle(thread: threading.Thread, frames: dict[int, Any]) -> bool:
    """Whether *thread* waits for its next task: one of the pool's, or of the background loop's that looks up names."""
    frame = frames.get(thread.ident or 0)
    waits = Bulkhead._wait_for_task.__code__, executor._worker.__code__
    return frame is not None and frame.f_code in waits


def _is_looking_up(frame: FrameType | None) -> bool:
    """Whether a thread asks the system for the address of a name, which nothing can stop."""
    while frame is not None and frame.f_code.co_name != "getaddrinfo":
        frame = frame.f_back
    return frame is not None


def open_files() -> int:
    """How many files and sockets this process has open; 0 where the system does not say."""
    return len(os.listdir(_FILES)) if _FILES.exists() else 0  # noqa: PTH208


def _new_files() -> str:
    found = []
    for one in _FILES.iterdir():
        try:
            found.append(os.readlink(one).partition(":")[0])  # noqa: PTH115
        except OSError:
            continue
    return ", ".join(
        f"{found.count(kind)} {kind}" for kind in sorted(set(found)) if not kind.startswith("/")
    )
