"""A model's answer, read while it comes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from qtmiddleware.answering.citing import CitationReader
from qtmiddleware.errors import ModelError
from qtmiddleware.types import Citation, Match

MARKER: Final = "NO_ANSWER"
"""What the model is told to begin with where the passages do not hold the answer."""

_TAGS: Final = ("think", "thinking", "thought", "thoughts", "reasoning", "scratchpad")
_THOUGHTS: Final = (*(f"<{tag}>" for tag in _TAGS), "[think]", "◁think▷")
_THOUGHT_ENDS: Final = re.compile(rf"</(?:{'|'.join(_TAGS)})>|\[/think\]|◁/think▷", re.IGNORECASE)
_ENDING_CHARS: Final = 16
_ADORNED: Final = re.compile(r"[\s*_`\"'>#~(\[“«-]{0,8}")
_CLOSING: Final = r"[*_~`\"'”»\])]{0,16}"
# Other spellings may be words of an answer; they count where the sentence ends with them. Blanks
# and marks are bounded, so that a model that says them without end is not read over and over.
_MARKED: Final = re.compile(
    _ADORNED.pattern + r"(?:NO\\?_ANSWER(?![A-Za-z0-9]|_[A-Za-z0-9])|(?i:NO\\?_ANSWER|(?-i:NO["
    rf" -]ANSWER))(?!{_CLOSING} {{0,64}}[^\W_]))"
    + rf"{_CLOSING}(?:\s?[:.,;!?–—-]{{1,16}}{_CLOSING})?\s{{0,64}}"
)
_SPELLINGS: Final = tuple(MARKER.replace("_", sign).lower() for sign in ("_", "\\_", " ", "-"))


class OpeningReader:
    """Takes thoughts, the marker and white space off the beginning of an answer that comes piece by piece.

    *found* is false as soon as the marker was read. Nothing is given out while it could still
    become one of them.
    """

    def __init__(self) -> None:
        self.found = True
        self._held: str | None = ""

    def feed(self, text: str) -> str:
        """What can be given out once *text* has come too."""
        if self._held is None:
            return text
        self._held += text
        return self._decide(is_last=False)

    def end(self) -> str:
        """The rest; a thought without end is dropped."""
        return "" if self._held is None else self._decide(is_last=True)

    def _decide(self, *, is_last: bool) -> str:
        text = (self._held or "").lstrip()
        place = 0
        while thought := next(
            (it for it in _THOUGHTS if text[place : place + len(it)].lower() == it), None
        ):
            end = _THOUGHT_ENDS.search(text, place + len(thought))
            if end is None:
                # Of what is thought only as much is kept as the end of it may be cut into.
                self._held = (
                    "" if is_last else thought + text[place + len(thought) :][-_ENDING_CHARS:]
                )
                return ""
            place = end.end()
            while text[place : place + 1].isspace():
                place += 1
        self._held = text = text[place:]
        marked = _MARKED.match(text)
        if not is_last and self._may_continue(text, marked):
            return ""
        self._held = None
        if marked is None:
            return text
        self.found = False
        return text[marked.end() :]

    @staticmethod
    def _may_continue(text: str, marked: re.Match[str] | None) -> bool:
        """Whether *text* may become, or is, a thought or the marker, and its end is not known yet."""
        if marked is not None:
            return marked.end() == len(text)
        if any(it.startswith(text.lower()) for it in _THOUGHTS):
            return True
        adorned = _ADORNED.match(text)
        rest = text[adorned.end() :] if adorned else text
        return any(it.startswith(rest.lower()) for it in _SPELLINGS)


class AnswerReader:
    """One answer from *matches*, given out piece by piece as it may be shown.

    What was given out, put together, is the answer's *text*, however it was cut: the marker of an
    unanswered question, thoughts and marks of passages that do not exist are never shown.
    """

    def __init__(self, matches: Sequence[Match]) -> None:
        self._matches = matches
        self._opening = OpeningReader()
        self._citing = CitationReader(len(matches), [match.text or "" for match in matches])
        self._shown: list[str] = []

    def feed(self, piece: str) -> str:
        """What can be shown once *piece* has come too."""
        return self._keep(self._citing.feed(self._opening.feed(piece)))

    def end(self) -> str:
        """What is left to show."""
        return self._keep(self._citing.feed(self._opening.end()) + self._citing.end())

    def read(self, text: str) -> None:
        """Read a whole answer at once."""
        self.feed(text)
        self.end()

    def _keep(self, text: str) -> str:
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
        return (
            ModelError("empty", "the language model's answer is empty")
            if self.found and not self._shown
            else None
        )

    @property
    def invented(self) -> int:
        """How many citations of passages that do not exist were removed."""
        return self._citing.invented

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The marks in *text*, in their order."""
        return tuple(
            Citation(number, start, end, self._matches[number - 1])
            for number, start, end in self._citing.marks
        )


def shift_citations(
    text: str, citations: Sequence[Citation], by: int, matches: Sequence[Match]
) -> tuple[str, tuple[Citation, ...]]:
    """*text* with every mark's number raised *by* so many, and its citations, which count within *matches* then."""
    parts: list[str] = []
    shifted: list[Citation] = []
    read = length = 0
    for it in citations:
        between, mark, number = text[read : it.start], f"[{it.number + by}]", it.number + by
        parts += between, mark
        start = length + len(between)
        length = start + len(mark)
        shifted.append(Citation(number, start, length, matches[number - 1]))
        read = it.end
    return "".join((*parts, text[read:])), tuple(shifted)
