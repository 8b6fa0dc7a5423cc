"""What is sent for a list of texts: which of them together, and how much of each.

The service takes at most 2,048 texts and 300,000 tokens a request and 8,191 tokens a text. Tokens are not counted here,
for that takes a table of the vendor's that is fetched from the net. A token is at least one byte of UTF-8, so a request
of 300,000 bytes is never too large; and it is three bytes or more in the languages of Europe, so a text of 24,573 bytes
nearly always fits. Where the service still says that something is too long, the request is halved, in the end the text
itself: what is kept of a text depends on that text alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from qtmiddleware.providers.embedders.vectors import readable

MOST_TEXTS: Final = 2_048
MOST_BYTES: Final = 300_000
LONGEST: Final = 3 * 8_191
"""Bytes that are sent of a text at first."""
SHORTEST: Final = 256
"""A text of so few bytes is not shortened any further: something else must be wrong."""


class Batches:
    """The texts in batches, taken one after the other; a batch can be given back in halves."""

    def __init__(self, texts: Sequence[str], most_texts: int) -> None:
        self._texts = [as_sent(text) for text in texts]
        self._waiting = deque(_grouped(self._texts, min(most_texts, MOST_TEXTS)))

    def take(self) -> list[int]:
        """The positions of the next texts; empty when all are done."""
        return self._waiting.popleft() if self._waiting else []

    def texts(self, batch: Sequence[int]) -> list[str]:
        """What is sent for the texts of *batch*."""
        return [self._texts[at] for at in batch]

    def halve(self, batch: list[int]) -> bool:
        """Put *batch* back in two halves, or its only text in half its length; false where that is short already."""
        if len(batch) > 1:
            middle = len(batch) // 2
            self._waiting.extendleft((batch[middle:], batch[:middle]))
            return True
        size = len(self._texts[batch[0]].encode())
        if size <= SHORTEST:
            return False
        self._texts[batch[0]] = shortened(self._texts[batch[0]], size // 2)
        self._waiting.appendleft(batch)
        return True


def as_sent(text: str) -> str:
    """*text* as the service takes it: a space for an empty one, which it refuses, and the beginning of a long one."""
    return shortened(readable(text[:LONGEST]), LONGEST) or " "


def shortened(text: str, most: int) -> str:
    """As much of the beginning of *text* as fits in *most* bytes of UTF-8."""
    data = text.encode()
    return text if len(data) <= most else data[:most].decode(errors="ignore")


def _grouped(texts: Sequence[str], most_texts: int) -> list[list[int]]:
    """Positions in order, in groups within both limits."""
    groups: list[list[int]] = []
    size = 0
    for at, text in enumerate(texts):
        length = len(text.encode())
        if not groups or len(groups[-1]) >= most_texts or size + length > MOST_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(at)
        size += length
    return groups
