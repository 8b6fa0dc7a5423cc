"""Remember how much of their questions the latest replies of a model keep."""

from __future__ import annotations

from collections import deque
from typing import Final

LEAST_REPLIES: Final = 20
"""How many replies are needed to judge a model."""
MOST_REPLIES: Final = 50
"""How many of the latest replies count."""
LEAST_KEPT: Final = 0.5
"""A model is off topic if its replies keep a smaller mean fraction of their questions' words.

In the recordings of seven large and six small sets, any 20 replies of one set keep at least 0.70.
Replies to other questions of the same set keep at most 0.44, and usually 0.1.
"""


class ReplyRelevance:
    """The fractions of their questions' words that the latest replies of one model keep.

    A fluent text on another topic passes every check of a single reply, because a good text may use
    other words than its question. Many replies tell the two apart. Thread-safe.
    """

    def __init__(self) -> None:
        self._kept = deque[float](maxlen=MOST_REPLIES)

    def record(self, kept: float) -> None:
        """Remember the fraction *kept* of one reply."""
        self._kept.append(kept)

    @property
    def mean(self) -> float | None:
        """The mean fraction; ``None`` before `LEAST_REPLIES` replies."""
        kept = tuple(self._kept)
        return sum(kept) / len(kept) if len(kept) >= LEAST_REPLIES else None

    @property
    def is_low(self) -> bool:
        """Whether the model is off topic, so that its texts should not be used."""
        mean = self.mean
        return mean is not None and mean < LEAST_KEPT
