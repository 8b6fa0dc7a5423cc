"""What is done beside the caller: a thread of its own, so that an exporter that blocks or raises slows nobody."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from qtmiddleware.runtime.forking import renew_after_fork
from qtmiddleware.runtime.threads import Threads

MAX_WAITING: Final = 2048
"""How many tasks wait for one that blocks, as many as spans in the SDK's batch processor; more are dropped."""
_HANDED_OVER_AT: Final = 64


class Outbox:
    """Tasks that a daemon thread performs one after the other; *drop* is called for each that is one too many.

    Nothing here locks: an operation may end in a collection of garbage, anywhere. A forked process
    begins anew.
    """

    def __init__(self, drop: Callable[[], None]) -> None:
        self._drop = drop
        self._threads = Threads()
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget what is the parent's to do."""
        self._waiting: deque[Callable[[], object]] = deque()
        # Whoever takes this out performs them.
        self._turn: deque[None] = deque((None,))

    def put(self, task: Callable[[], object]) -> None:
        """Let *task* wait for `hand_over`; where too many wait already it is dropped."""
        if len(self._waiting) >= MAX_WAITING:
            self._drop()
            return
        self._waiting.append(task)
        if len(self._waiting) % _HANDED_OVER_AT == 0:
            self.hand_over()

    def hand_over(self) -> bool:
        """Have all that wait performed by a thread; returns whether one does."""
        if not self._waiting:
            return True
        try:
            self._turn.pop()
        except IndexError:
            return True
        is_begun = self._threads.take(self._perform)
        if not is_begun:
            self._turn.append(None)
        return is_begun

    def _perform(self) -> None:
        waiting, turn = self._waiting, self._turn
        try:
            while waiting:
                # A processor of the user's may raise anything.
                with suppress(Exception):
                    waiting.popleft()()
        finally:
            turn.append(None)
        # What came after the last look, and before the turn was given back.
        self.hand_over()

    def flush(self, seconds: float) -> bool:
        """Hand over what waits; returns whether all of it was performed within *seconds*."""
        done = threading.Event()
        self._waiting.append(done.set)
        return self.hand_over() and done.wait(max(0.0, seconds))
