"""The facts about one wrapped function that its earlier calls have shown."""

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
    """The facts about one function that its responses and refusals have shown.

    Attributes:
        gate: The signals of first results, and the threshold for asking the model.
        standings: The signals of first results, for the confidence of later ones.
        is_new: No list of the function was read yet.
        refuses_widening: The function rejected more passages than the caller asks for.
        refuses_field: It rejected the field that holds the texts.
        refuses_words: It rejected a search by words.
        lower_is_better: Lower scores are better.
        passage_chars: About how many characters a passage has; 0 before there were any.
        holds_text: Whether any passage held a text; ``None`` before there were passages.
        page: The argument by which a call asked for a page.
        problem: Why results cannot be improved, and how to fix that; ``""`` if they can.
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
        """Keep *problem*, unless an earlier one is known, which usually caused this one."""
        self.problem = self.problem or problem

    def record_passages(self, items: Sequence[Any]) -> None:
        """Learn how long passages are from the *items* of one list; an empty list shows nothing."""
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
