"""Read an answer while the model writes it: remove reasoning and check the citations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from qtmiddleware.answering.citing import CitationReader
from qtmiddleware.types import Citation, Match

MARKER: Final = "NO_ANSWER"
"""The word with which the model begins its reply if the passages do not answer the question."""

_TAGS: Final = (
    "think",
    "thinking",
    "thought",
    "thoughts",
    "reasoning",
    "scratchpad",
)
_THOUGHTS: Final = (*(f"<{tag}>" for tag in _TAGS), "[think]", "◁think▷")
_THOUGHT: Final = re.compile("|".join(map(re.escape, _THOUGHTS)), re.IGNORECASE)
_THOUGHT_END: Final = re.compile(rf"</(?:{'|'.join(_TAGS)})>|\[/think\]|◁/think▷", re.IGNORECASE)
_THOUGHT_END_CHARS: Final = 16
_DECORATION: Final = re.compile(r"[\s*_`\"'>#~(\[“«-]{0,8}")
_CLOSING: Final = r"[*_~`\"'”»\])]{0,16}"
# The number of blanks and punctuation marks is limited, so that a model that repeats them endlessly
# does not make the pattern slow.
_MARKER_AT_START: Final = re.compile(
    rf"{_DECORATION.pattern}NO\\?[_ -]ANSWER(?!_?[A-Za-z0-9]){_CLOSING}"
    rf"(?:\s?[:.,;!?–—-]{{1,16}}{_CLOSING})?\s{{0,64}}"
)
_MARKER_SPELLINGS: Final = tuple(MARKER.replace("_", sign) for sign in ("_", "\\_", " ", "-"))


class AnswerReader:
    """Reads one answer piece by piece and returns the text that can be shown.

    The reader removes the model's reasoning, the `MARKER` and citations of passages that do not
    exist. The joined output does not depend on where the answer is cut into pieces.

    Args:
        matches: the passages that the answer may cite.
        offset: the number to add to each passage number.

    Attributes:
        is_answered: whether the passages answer the question; ``False`` after the `MARKER`.
    """

    def __init__(self, matches: Sequence[Match], offset: int = 0) -> None:
        self.is_answered = True
        self._matches = matches
        self._offset = offset
        self._citing = CitationReader([match.text or "" for match in matches], offset)
        # The beginning, as long as it may become reasoning or the marker; ``None`` after that.
        self._held: str | None = ""
        self._shown: list[str] = []

    def feed(self, piece: str, *, is_last: bool = False) -> str:
        """Read the next *piece* of the answer, and return the text that can be shown now."""
        piece = self._read_opening(piece, is_last=is_last)
        shown = self._citing.feed(piece, is_last=is_last)
        self._shown.append(shown)
        return shown

    def finish(self) -> str:
        """Return the text that was held back. Call this at the end of the answer."""
        return self.feed("", is_last=True)

    def _read_opening(self, piece: str, *, is_last: bool) -> str:
        """Return what can be shown of *piece* and of the text held before it.

        A reply may begin with thoughts, and then with the `MARKER`. Both are removed. As long as
        more text can decide what the opening is, it is held and ``""`` is returned. After that,
        each piece is returned as it is.
        """
        if self._held is None:
            return piece
        text, position = (self._held + piece).lstrip(), 0
        while thought := _THOUGHT.match(text, position):
            end = _THOUGHT_END.search(text, thought.end())
            if end is None:
                # Keep as much of the thought as may be the first part of its end tag.
                self._held = thought[0] + text[thought.end() :][-_THOUGHT_END_CHARS:]
                return ""
            position = end.end()
            while text[position : position + 1].isspace():
                position += 1
        self._held = text = text[position:]
        # More punctuation and blanks may follow the marker.
        marker = _MARKER_AT_START.match(text)
        can_go_on = marker.end() == len(text) if marker else _can_become_opening(text)
        if can_go_on and not is_last:
            return ""
        self._held = None
        self.is_answered = marker is None
        return text[marker.end() :] if marker else text

    @property
    def text(self) -> str:
        """The text returned so far."""
        return "".join(self._shown)

    @property
    def invented_count(self) -> int:
        """The number of citations that were removed because their passages do not exist."""
        return self._citing.invented_count

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The citations in *text*, in order."""
        return tuple(
            Citation(number + self._offset, start, end, self._matches[number - 1])
            for number, start, end in self._citing.marks
        )


def _can_become_opening(text: str) -> bool:
    """Return whether more text can complete a tag of reasoning or the marker in *text*."""
    rest = _DECORATION.sub("", text, count=1)
    return any(tag.startswith(text.lower()) for tag in _THOUGHTS) or any(
        spelling.startswith(rest) for spelling in _MARKER_SPELLINGS
    )
