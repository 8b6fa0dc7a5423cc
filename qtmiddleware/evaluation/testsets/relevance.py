"""Which passages answer a question that was made of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qtmiddleware.evaluation.testsets.filtering import parts_of
from qtmiddleware.evaluation.testsets.sampling import can_be_judged
from qtmiddleware.evaluation.testsets.wording import plain
from qtmiddleware.protocols import Passage

LEAST_WORDS: Final = 8
"""A quote of fewer words may stand in a passage that is about something else."""


class Relevance:
    """The passages that say the same, as chunks that overlap do, and the PDF and the text of one document."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._words = {passage.id: plain(passage.text) for passage in passages if can_be_judged(passage.id)}

    def of(self, passage: Passage, quote: str) -> list[str]:
        """The ids of *passage*, of those with the same words and of those in which all of *quote* stands."""
        parts = parts_of(quote)
        is_telling = sum(len(part.split()) for part in parts) >= LEAST_WORDS
        own = self._words[passage.id]
        return [
            id_
            for id_, words in self._words.items()
            if words == own or (is_telling and all(part in words for part in parts))
        ]
