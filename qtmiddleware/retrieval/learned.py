"""What the calls of one wrapped function have shown about it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from qtmiddleware.retrieval.confidence import Standings
from qtmiddleware.retrieval.gate import Gate
from qtmiddleware.retrieval.responses import estimate_chars

MOST_MEASURED: Final = 10
"""Of how many passages of a list the length is taken, about."""
NEWEST: Final = 0.1
"""What the latest list weighs in what is learnt of all: one of odd passages does not narrow the next search much."""


@dataclass(eq=False, repr=False, slots=True)
class Learned:
    """What earlier responses and refusals of a function tell the next call.

    - *gate*: how sure the first results were, and the threshold for asking the model.
    - *standings*: how sure the first results looked, for the confidence of later ones.
    - *is_new*: no list of the function was read yet.
    - *refuses_widening*, *refuses_field*, *refuses_words*: the function refused more passages than
      the caller asks for,
      the field that holds the texts, a search by words.
    - *lower_is_better*: lower scores are better.
    - *passage_chars*: about how many characters a passage has; 0 before there were any.
    - *holds_text*: whether a passage was ever seen to hold a text; ``None`` before there were any.
    - *page*: the argument by which a call asked for a page.
    - *problem*: why results cannot be improved, and how to fix that; ``""`` if they can.
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
        """Keep *problem*, unless an earlier one is known: that one usually caused it."""
        self.problem = self.problem or problem

    def record_passages(self, items: Sequence[Any]) -> None:
        """Learn from the *items* of one list how long passages are; nothing from an empty one."""
        self.is_new = False
        if not items:
            return
        some = items[:: max(1, len(items) // MOST_MEASURED)]
        with suppress(
            Exception
        ):  # an item may raise at whatever is read of it, and nothing here is worth that
            mean = sum(map(estimate_chars, some)) / len(some)
            # Read once: several calls learn at the same time, and the mean of two readings may lie
            # below 0.
            known = self.passage_chars
            self.passage_chars = known + (mean - known) * NEWEST if known else mean
