"""Facts about one wrapped function, learned from its earlier calls."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from qtmiddleware.retrieval.confidence import Standings
from qtmiddleware.retrieval.gate import Gate
from qtmiddleware.retrieval.responses import estimate_chars

MOST_MEASURED: Final = 10
"""About how many passages of a list are measured for their length."""
NEWEST: Final = 0.1
"""The weight of the latest list in the mean of all, small so that one odd list changes little."""


@dataclass(eq=False, repr=False, slots=True)
class Learned:
    """Facts about one function, learned from its responses and refusals.

    Attributes:
        gate: Remembers the signals of first results, and decides whether to ask the model.
        standings: Remembers the signals of first results, and measures the confidence in later
            ones.
        is_new: Whether no list of the function was read yet.
        refuses_widening: Whether the function rejected a call for more passages than the caller
            wants.
        refuses_field: Whether the function rejected a call for the field that holds the texts.
        refuses_words: Whether the function rejected a search by words.
        lower_is_better: Whether lower scores are better.
        passage_chars: The usual number of characters of a passage; 0 before there were any
            passages.
        holds_text: Whether any passage held a text; ``None`` before there were any passages.
        page: The argument with which a call asked for a page, ``""`` if no call did.
        problem: Why results cannot be improved and how to fix that; ``""`` if they can be improved.
    """

    gate: Gate = field(default_factory=Gate)
    standings: Standings = field(default_factory=Standings)
    is_new: bool = True
    refuses_widening: bool = False
    refuses_field: bool = False
    refuses_words: bool = False
    lower_is_better: bool = False
    passage_chars: float = 0.0
    holds_text: bool | None = None
    page: str = ""
    problem: str = ""

    def record_problem(self, problem: str) -> None:
        """Remember *problem*, unless an earlier problem is known.

        The earlier problem is usually the cause of the later one.
        """
        self.problem = self.problem or problem

    def record_passages(self, items: Sequence[Any]) -> None:
        """Update the usual length of passages from *items*, the passages of one list.

        An empty list does not change the length.
        """
        self.is_new = False
        if not items:
            return
        sample = items[:: max(1, len(items) // MOST_MEASURED)]
        # Reading an item may raise anything, and the length is not worth a failed call.
        with suppress(Exception):
            mean = sum(map(estimate_chars, sample)) / len(sample)
            # Read once: other calls learn at the same time, and two different readings in the
            # formula could give a mean below 0.
            known_mean = self.passage_chars
            self.passage_chars = known_mean + (mean - known_mean) * NEWEST if known_mean else mean
