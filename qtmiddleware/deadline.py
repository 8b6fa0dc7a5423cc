"""One time budget for one query, passed down to everything that may take time."""

from __future__ import annotations

from time import monotonic
from typing import Final

NEVER: Final = float("inf")


class Deadline:
    """A moment after which nobody waits any more.

    It can also be cancelled, which makes it pass at once for whoever looks. Times are seconds on the monotonic clock.
    """

    __slots__ = ("_at",)

    def __init__(self, at: float = NEVER) -> None:
        self._at = at

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

    def cancel(self) -> None:
        """Let the moment be now."""
        self._at = 0.0
