"""A queue of tasks for a background thread.

An exporter that blocks or raises an exception in this thread does not affect the caller.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from qtmiddleware.runtime.forking import renew_after_fork
from qtmiddleware.runtime.threads import Threads

MAX_WAITING: Final = 2048
"""The maximum number of waiting tasks. Further tasks are dropped.

This is also the queue size of the SDK's batch processor.
"""
_HAND_OVER_EVERY: Final = 64


class Outbox:
    """A queue of tasks that a daemon thread runs one after another.

    *drop* is called once per task that does not fit into the queue. No method takes a lock, because
    an operation may end during a garbage collection, which may run at any time. A forked process
    starts with an empty queue.
    """

    def __init__(self, drop: Callable[[], None]) -> None:
        self._drop = drop
        self._threads = Threads()
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Empty the queue, for example in a forked process."""
        self._waiting: deque[Callable[[], object]] = deque()
        # A token: the thread that takes it performs the tasks.
        self._turn: deque[None] = deque((None,))

    def put(self, task: Callable[[], object]) -> None:
        """Queue *task*, or drop it if `MAX_WAITING` tasks already wait.

        `hand_over` runs the queued tasks. Every 64th task triggers `hand_over`.
        """
        if len(self._waiting) >= MAX_WAITING:
            self._drop()
            return
        self._waiting.append(task)
        if len(self._waiting) % _HAND_OVER_EVERY == 0:
            self.hand_over()

    def hand_over(self) -> bool:
        """Start running the queued tasks in a background thread.

        Returns ``False`` if no thread could be started.
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
        """Run the queued tasks, then let another thread run later tasks."""
        waiting, turn = self._waiting, self._turn
        try:
            while waiting:
                # A user's processor may raise anything.
                with suppress(Exception):
                    waiting.popleft()()
        finally:
            turn.append(None)
        # A task may have come after the last look and before the token was back.
        self.hand_over()

    def flush(self, seconds: float) -> bool:
        """Run the queued tasks, and return whether all of them finished within *seconds*."""
        done = threading.Event()
        self._waiting.append(done.set)
        return self.hand_over() and done.wait(max(0.0, seconds))
