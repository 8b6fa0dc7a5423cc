"""Remember facts about one wrapped function, learned from its earlier calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from qtmiddleware.retrieval.confidence import Standings
from qtmiddleware.retrieval.gate import Gate
from qtmiddleware.retrieval.responses import estimate_chars
from qtmiddleware.types import Passage

MOST_MEASURED: Final = 10
"""About how many passages of a list are measured to estimate the average length."""
NEWEST: Final = 0.1
"""The weight of the latest list in the moving average of passage lengths."""


@dataclass(eq=False, repr=False, slots=True)
class Learned:
    """Facts about one function, learned from its responses and errors.

    Attributes:
        gate: Decides whether to ask the model, by comparison with earlier questions.
        standings: Computes the confidence in a result, by comparison with earlier questions.
        is_unreadable: Whether the last response could not be read.
        is_new: Whether no response of the function has been read yet.
        refuses_widening: Whether the function rejected a call for more passages than the caller
            asked for.
        refuses_field: Whether the function rejected a call that requested the text field.
        refuses_words: Whether the function rejected a keyword search.
        lower_is_better: Whether lower scores are better.
        passage_chars: The average number of characters per passage; 0 if unknown.
        holds_text: Whether the passages contain texts; ``None`` if unknown.
        page: The name of the argument with which a call asked for a page of results; ``""`` if no
            call asked for a page.
        problem: Why results cannot be improved, and how to fix it; ``""`` if there is no problem.
    """

    gate: Gate = field(default_factory=Gate)
    standings: Standings = field(default_factory=Standings)
    is_unreadable: bool = False
    is_new: bool = True
    refuses_widening: bool = False
    refuses_field: bool = False
    refuses_words: bool = False
    lower_is_better: bool = False
    passage_chars: float = 0.0
    holds_text: bool | None = None
    page: str = ""
    problem: str = ""

    def copy(self) -> Learned:
        """Return the same facts, to which later calls of the function add nothing."""
        return replace(self, gate=self.gate.copy(), standings=self.standings.copy())

    def record_problem(self, problem: str) -> None:
        """Remember *problem*, unless a problem is already known.

        The problem that was found first is the likely cause of later ones.
        """
        self.problem = self.problem or problem

    def update_average_length(self, passages: Sequence[Passage]) -> None:
        """Update the average length of the function's *passages* with those of one response.

        An empty response does not change the average.
        """
        self.is_new = False
        if not passages:
            return
        sample = passages[:: max(1, len(passages) // MOST_MEASURED)]
        mean = sum(map(estimate_chars, sample)) / len(sample)
        # Read once, because other threads may update it. With two different values, the formula
        # could give a negative mean.
        known_mean = self.passage_chars
        self.passage_chars = known_mean + (mean - known_mean) * NEWEST if known_mean else mean
