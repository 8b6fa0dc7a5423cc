"""One time budget for one query, passed down to everything that may take time."""

from __future__ import annotations

from time import monotonic
from typing import Final

NEVER: Final = float("inf")


class Deadline:
    """A moment after which nobody waits any more.

    It can also be cancelled, which makes it pass at once for whoever looks. With *seconds* it draws nearer when it is
    begun: that many seconds are left then. Times are seconds on the monotonic clock.
    """

    __slots__ = ("_at", "_seconds")

    def __init__(self, at: float = NEVER, seconds: float = NEVER) -> None:
        self._at = at
        self._seconds = seconds

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """A deadline *seconds* from now."""
        return cls(monotonic() + seconds)

    @property
    def at(self) -> float:
        """The moment itself, on the monotonic clock."""
        return self._at

    def remaining(self) -> float:
        """The seconds that are left; 0 once it has passed, infinite where there is no deadline."""
        return max(0.0, self._at - monotonic()) if self._at != NEVER else NEVER

    @property
    def passed(self) -> bool:
        """Whether the moment is over or the work was cancelled."""
        return monotonic() >= self._at

    def sooner(self, seconds: float) -> Deadline:
        """The nearer of this deadline and *seconds* from now."""
        return Deadline(min(self._at, monotonic() + seconds))

    def copy(self) -> Deadline:
        """One like this, that is begun and cancelled alone."""
        return Deadline(self._at, self._seconds)

    def begin(self) -> None:
        """Let no more than the *seconds* it was made with be left from now on."""
        if self._seconds != NEVER:
            self._at = min(self._at, monotonic() + self._seconds)

    def cancel(self) -> None:
        """Let the moment be now."""
        self._at = 0.0
