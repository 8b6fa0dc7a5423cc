"""A queue of tasks for a thread beside the caller.

An exporter that blocks or raises there slows down nobody.
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
"""How many tasks may wait behind a task that blocks; more are dropped.

The SDK's batch processor lets as many spans wait.
"""
_HAND_OVER_EVERY: Final = 64


class Outbox:
    """A queue of tasks that a daemon thread performs one after the other.

    *drop* is called per task that does not fit. Nothing here takes a lock, because an operation may
    end during a garbage collection, at any point of the program. A forked process starts with an
    empty queue.
    """

    def __init__(self, drop: Callable[[], None]) -> None:
        self._drop = drop
        self._threads = Threads()
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the tasks of the parent process."""
        self._waiting: deque[Callable[[], object]] = deque()
        # A token: the thread that takes it performs the tasks.
        self._turn: deque[None] = deque((None,))

    def put(self, task: Callable[[], object]) -> None:
        """Queue *task* until `hand_over`, or drop it if too many tasks wait."""
        if len(self._waiting) >= MAX_WAITING:
            self._drop()
            return
        self._waiting.append(task)
        if len(self._waiting) % _HAND_OVER_EVERY == 0:
            self.hand_over()

    def hand_over(self) -> bool:
        """Let a thread perform the waiting tasks; returns whether a thread does."""
        if not self._waiting:
            return True
        try:
            self._turn.pop()
        except IndexError:
            return True
        is_begun = self._threads.take(self._perform_tasks)
        if not is_begun:
            self._turn.append(None)
        return is_begun

    def _perform_tasks(self) -> None:
        """Perform the waiting tasks, then give the token back."""
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
        """Hand over the waiting tasks; returns whether all were performed within *seconds*."""
        done = threading.Event()
        self._waiting.append(done.set)
        return self.hand_over() and done.wait(max(0.0, seconds))
