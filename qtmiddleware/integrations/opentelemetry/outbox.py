"""Queue tasks for a background thread.

In the background thread, an exporter may block or raise an exception without affecting the caller.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from qtmiddleware.runtime.forking import register_fork_reset
from qtmiddleware.runtime.threads import ThreadPool

MAX_WAITING: Final = 2048
"""The maximum number of queued tasks. The SDK's batch processor has the same limit."""
_TASKS_PER_START: Final = 64


class Outbox:
    """A queue of tasks that a daemon thread runs one after another.

    If the queue is full, a new task is dropped, and *count_dropped_task* is called. A forked
    process starts with an empty queue.

    No method takes a lock, because a garbage collection may call a method at any time, even while
    the interrupted thread holds the lock.
    """

    def __init__(self, count_dropped_task: Callable[[], None]) -> None:
        self._count_dropped_task = count_dropped_task
        self._threads = ThreadPool()
        self.reset_state()
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Replace the queue by an empty queue. Each forked process calls this method."""
        self._waiting: deque[Callable[[], object]] = deque()
        # The thread that takes this token runs the tasks.
        self._turn: deque[None] = deque((None,))

    def put_task(self, task: Callable[[], object]) -> None:
        """Queue *task*, or drop *task* if the queue is full.

        When 64 tasks are waiting, the background thread starts. `start_thread` starts it earlier.
        """
        if len(self._waiting) >= MAX_WAITING:
            self._count_dropped_task()
            return
        self._waiting.append(task)
        if len(self._waiting) % _TASKS_PER_START == 0:
            self.start_thread()

    def start_thread(self) -> bool:
        """Start the background thread that runs the queued tasks.

        Returns ``True`` if a thread runs or is not needed, ``False`` if no thread can be started.
        """
        if not self._waiting:
            return True
        try:
            self._turn.pop()
        except IndexError:
            return True
        is_begun = self._threads.try_start(self._perform_tasks)
        if not is_begun:
            self._turn.append(None)
        return is_begun

    def _perform_tasks(self) -> None:
        """Run the queued tasks until the queue is empty, and let another thread run later tasks."""
        waiting, turn = self._waiting, self._turn
        try:
            while waiting:
                # A user's processor may raise anything.
                with suppress(Exception):
                    waiting.popleft()()
        finally:
            turn.append(None)
        # A task may have been queued after the loop and before the token was put back.
        self.start_thread()

    def flush(self, max_seconds: float) -> bool:
        """Wait until the queued tasks have run, but at most *max_seconds*.

        Returns whether all tasks have finished.
        """
        done = threading.Event()
        self._waiting.append(done.set)
        return self.start_thread() and done.wait(max(0.0, max_seconds))
