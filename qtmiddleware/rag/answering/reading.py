"""A model's answer, read while it comes."""

from __future__ import annotations

from collections.abc import Sequence

from qtmiddleware.errors import ModelError
from qtmiddleware.rag.answering.citing import Citing
from qtmiddleware.rag.answering.opening import Opening
from qtmiddleware.types import Citation, Match


class Reading:
    """One answer from *matches*, given out piece by piece as it may be shown.

    What was given out, put together, is the answer's *text*, however it was cut: the marker of an unanswered question,
    thoughts and marks of passages that do not exist are never shown.
    """

    def __init__(self, matches: Sequence[Match]) -> None:
        self._matches = matches
        self._opening = Opening()
        self._citing = Citing(len(matches), [match.text or "" for match in matches])
        self._shown: list[str] = []

    def feed(self, piece: str) -> str:
        """What can be shown once *piece* has come too."""
        return self._given(self._citing.feed(self._opening.feed(piece)))

    def end(self) -> str:
        """What is left to show."""
        return self._given(self._citing.feed(self._opening.end()) + self._citing.end())

    def _given(self, text: str) -> str:
        if text:
            self._shown.append(text)
        return text

    @property
    def text(self) -> str:
        """What was given out."""
        return "".join(self._shown)

    @property
    def found(self) -> bool:
        """Whether the model says it has an answer."""
        return self._opening.found

    @property
    def error(self) -> ModelError | None:
        """What is wrong with an answer that says nothing."""
        return ModelError("empty", "the language model answered nothing") if self.found and not self._shown else None

    @property
    def invented(self) -> int:
        """How many citations of passages that do not exist were removed."""
        return self._citing.invented

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The marks in *text*, in their order."""
        return tuple(
            Citation(number, start, end, self._matches[number - 1]) for number, start, end in self._citing.marks
        )


def shifted(
    text: str, citations: Sequence[Citation], by: int, matches: Sequence[Match]
) -> tuple[str, tuple[Citation, ...]]:
    """*text* with every mark's number raised *by* so many, and its citations, which count within *matches* then."""
    parts: list[str] = []
    moved: list[Citation] = []
    read = length = 0
    for it in citations:
        between, mark, number = text[read : it.start], f"[{it.number + by}]", it.number + by
        parts += between, mark
        start = length + len(between)
        length = start + len(mark)
        moved.append(Citation(number, start, length, matches[number - 1]))
        read = it.end
    return "".join((*parts, text[read:])), tuple(moved)
