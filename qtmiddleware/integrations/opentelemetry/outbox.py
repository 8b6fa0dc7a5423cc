"""Queue tasks for a background thread.

In this thread, an exporter may block or raise an exception without affecting the caller.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from qtmiddleware.runtime.forking import register_fork_reset
from qtmiddleware.runtime.threads import Threads

MAX_WAITING: Final = 2048
"""The most queued tasks, as in the SDK's batch processor. Further tasks are dropped."""
_TASKS_PER_START: Final = 64


class Outbox:
    """A queue of tasks that a daemon thread runs one after another.

    *count_dropped* is called for each task that does not fit into the queue. A forked process
    starts with an empty queue.

    No method takes a lock, because a garbage collection may call these methods at any time, even
    while the same thread holds the lock.
    """

    def __init__(self, count_dropped: Callable[[], None]) -> None:
        self._count_dropped = count_dropped
        self._threads = Threads()
        self.reset_state()
        register_fork_reset(self)

    def reset_state(self) -> None:
        """Empty the queue. Forked processes call this."""
        self._waiting: deque[Callable[[], object]] = deque()
        # The thread that takes this token runs the tasks.
        self._turn: deque[None] = deque((None,))

    def put(self, task: Callable[[], object]) -> None:
        """Queue *task*, or drop it if the queue is full.

        Every 64th task starts the background thread. `start_thread` starts it earlier.
        """
        if len(self._waiting) >= MAX_WAITING:
            self._count_dropped()
            return
        self._waiting.append(task)
        if len(self._waiting) % _TASKS_PER_START == 0:
            self.start_thread()

    def start_thread(self) -> bool:
        """Start the background thread that runs the queued tasks.

        Returns ``False`` if no thread can be started.
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
        """Run the queued tasks, then put the token back."""
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
        """Run the queued tasks, and return whether they all finished within *max_seconds*."""
        done = threading.Event()
        self._waiting.append(done.set)
        return self.start_thread() and done.wait(max(0.0, max_seconds))
