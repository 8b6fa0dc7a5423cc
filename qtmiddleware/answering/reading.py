"""Read an answer while the model writes it: remove reasoning and check the citations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from qtmiddleware.answering.citing import CitationReader
from qtmiddleware.errors import ModelError
from qtmiddleware.types import Citation, Match

MARKER: Final = "NO_ANSWER"
"""The word with which the model begins its reply if the passages do not answer the question."""

_TAGS: Final = ("think", "thinking", "thought", "thoughts", "reasoning", "scratchpad")
_THOUGHTS: Final = (*(f"<{tag}>" for tag in _TAGS), "[think]", "◁think▷")
_THOUGHT_ENDS: Final = re.compile(rf"</(?:{'|'.join(_TAGS)})>|\[/think\]|◁/think▷", re.IGNORECASE)
_ENDING_CHARS: Final = 16
_DECORATION: Final = re.compile(r"[\s*_`\"'>#~(\[“«-]{0,8}")
_CLOSING: Final = r"[*_~`\"'”»\])]{0,16}"
# Other spellings may be words of an answer, so they count only if the sentence ends with them. The
# number of blanks and punctuation marks is limited, so that a model that repeats them endlessly
# does not make the pattern slow.
_MARKER_AT_START: Final = re.compile(
    _DECORATION.pattern + r"(?:NO\\?_ANSWER(?![A-Za-z0-9]|_[A-Za-z0-9])|(?i:NO\\?_ANSWER|(?-i:NO["
    rf" -]ANSWER))(?!{_CLOSING} {{0,64}}[^\W_]))"
    + rf"{_CLOSING}(?:\s?[:.,;!?–—-]{{1,16}}{_CLOSING})?\s{{0,64}}"
)
_MARKER_SPELLINGS: Final = tuple(
    MARKER.replace("_", sign).lower() for sign in ("_", "\\_", " ", "-")
)


class OpeningReader:
    """Removes the model's reasoning and the `MARKER` from the beginning of an answer.

    The model writes the marker if the passages do not answer the question. The answer arrives in
    pieces. The reader holds text back as long as it may become reasoning or the marker.

    Attributes:
        is_answered: whether the passages answer the question; ``False`` after the marker.
    """

    def __init__(self) -> None:
        self.is_answered = True
        self._held: str | None = ""

    def feed(self, piece: str) -> str:
        """Read the next *piece* of the answer, and return the text that can be shown now."""
        if self._held is None:
            return piece
        self._held += piece
        return self._read_held_text(is_last=False)

    def flush_held_text(self) -> str:
        """Return the text that was held back, without unfinished reasoning."""
        return "" if self._held is None else self._read_held_text(is_last=True)

    def _read_held_text(self, *, is_last: bool) -> str:
        text = (self._held or "").lstrip()
        position = 0
        while thought := next(
            (
                opening
                for opening in _THOUGHTS
                if text[position : position + len(opening)].lower() == opening
            ),
            None,
        ):
            end = _THOUGHT_ENDS.search(text, position + len(thought))
            if end is None:
                # The thought goes on. Keep only as much of it as may be the first part of its end
                # tag.
                self._held = (
                    "" if is_last else thought + text[position + len(thought) :][-_ENDING_CHARS:]
                )
                return ""
            position = end.end()
            while text[position : position + 1].isspace():
                position += 1
        self._held = text = text[position:]
        marker = _MARKER_AT_START.match(text)
        if not is_last and self._can_continue_in_next_piece(text, marker):
            return ""
        self._held = None
        if marker is None:
            return text
        self.is_answered = False
        return text[marker.end() :]

    @staticmethod
    def _can_continue_in_next_piece(text: str, marker: re.Match[str] | None) -> bool:
        """Return whether the next piece can complete a reasoning tag or the marker in *text*.

        *marker* is the match of the marker at the start of *text*; ``None`` if there is none.
        """
        # The marker pattern also takes the punctuation and blanks after the word, and more of these
        # may follow.
        if marker is not None:
            return marker.end() == len(text)
        if any(thought.startswith(text.lower()) for thought in _THOUGHTS):
            return True
        adorned = _DECORATION.match(text)
        rest = text[adorned.end() :] if adorned else text
        return any(spelling.startswith(rest.lower()) for spelling in _MARKER_SPELLINGS)


class AnswerReader:
    """Reads one answer piece by piece and returns the text that can be shown.

    The reader removes the model's reasoning, the `MARKER` and citations of passages that do not
    exist. The joined output does not depend on where the answer is cut into pieces.

    Args:
        matches: the passages that the answer may cite.
    """

    def __init__(self, matches: Sequence[Match]) -> None:
        self._matches = matches
        self._opening = OpeningReader()
        self._citing = CitationReader(len(matches), [match.text or "" for match in matches])
        self._shown: list[str] = []

    def feed(self, piece: str) -> str:
        """Read the next *piece* of the answer, and return the text that can be shown now."""
        return self._record_shown_text(self._citing.feed(self._opening.feed(piece)))

    def finish(self) -> str:
        """Return the text that was held back. Call this at the end of the answer."""
        return self._record_shown_text(
            self._citing.feed(self._opening.flush_held_text()) + self._citing.flush_held_text()
        )

    def _record_shown_text(self, text: str) -> str:
        self._shown.append(text)
        return text

    @property
    def text(self) -> str:
        """The text returned so far."""
        return "".join(self._shown)

    @property
    def is_answered(self) -> bool:
        """Whether the passages answer the question. ``False`` if the model wrote the `MARKER`."""
        return self._opening.is_answered

    @property
    def error(self) -> ModelError | None:
        """A `ModelError` if the model wrote nothing that can be shown, else ``None``.

        A reply that consists only of the `MARKER` is not an error.
        """
        return (
            ModelError("empty", "the language model's answer is empty")
            if self.is_answered and not self.text
            else None
        )

    @property
    def invented_count(self) -> int:
        """The number of citations that were removed because their passages do not exist."""
        return self._citing.invented_count

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The citations in *text*, in order."""
        return tuple(
            Citation(number, start, end, self._matches[number - 1])
            for number, start, end in self._citing.marks
        )


def shift_citations(
    answer_text: str,
    citations: Sequence[Citation],
    offset: int,
    matches: Sequence[Match],
) -> tuple[str, tuple[Citation, ...]]:
    """Add *offset* to the number of every citation in *answer_text*.

    Args:
        answer_text: the answer that contains the citations.
        citations: the citations in *answer_text*, in order.
        offset: the amount to add to each number.
        matches: the passages that the new numbers refer to.

    Returns:
        The text with the new numbers, and its citations.
    """
    shifted: list[Citation] = []
    moved = 0
    for citation in citations:
        number = citation.number + offset
        mark = f"[{number}]"
        start, end = citation.start + moved, citation.end + moved
        answer_text = answer_text[:start] + mark + answer_text[end:]
        moved += len(mark) - (end - start)
        shifted.append(Citation(number, start, start + len(mark), matches[number - 1]))
    return answer_text, tuple(shifted)
