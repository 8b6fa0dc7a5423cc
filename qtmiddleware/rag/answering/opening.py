"""The beginning of a model's answer: what it thinks to itself, and the marker that says the passages do not hold it."""

from __future__ import annotations

import re
from typing import Final

MARKER: Final = "NO_ANSWER"
"""What the model is told to begin with where the passages do not hold the answer."""

_TAGS: Final = ("think", "thinking", "thought", "thoughts", "reasoning", "scratchpad")
_THOUGHTS: Final = (*(f"<{tag}>" for tag in _TAGS), "[think]", "◁think▷")
_THOUGHT_ENDS: Final = re.compile(rf"</(?:{'|'.join(_TAGS)})>|\[/think\]|◁/think▷", re.IGNORECASE)
_ENDING_CHARS: Final = 16
_ADORNED: Final = re.compile(r"[\s*_`\"'>#~(\[“«-]{0,8}")
_CLOSING: Final = r"[*_~`\"'”»\])]{0,16}"
# Other spellings may be words of an answer; they count where the sentence ends with them. Blanks and marks are bounded,
# so that a model that says them without end is not read over and over.
_MARKED: Final = re.compile(
    _ADORNED.pattern
    + rf"(?:NO\\?_ANSWER(?![A-Za-z0-9]|_[A-Za-z0-9])|(?i:NO\\?_ANSWER|(?-i:NO[ -]ANSWER))(?!{_CLOSING} {{0,64}}[^\W_]))"
    + rf"{_CLOSING}(?:\s?[:.,;!?–—-]{{1,16}}{_CLOSING})?\s{{0,64}}"
)
_SPELLINGS: Final = tuple(MARKER.replace("_", sign).lower() for sign in ("_", "\\_", " ", "-"))


class Opening:
    """Takes thoughts, the marker and white space off the beginning of an answer that comes piece by piece.

    *found* is false as soon as the marker was read. Nothing is given out while it could still become one of them.
    """

    def __init__(self) -> None:
        self.found = True
        self._held: str | None = ""

    def feed(self, text: str) -> str:
        """What can be given out once *text* has come too."""
        if self._held is None:
            return text
        self._held += text
        return self._decided(is_last=False)

    def end(self) -> str:
        """The rest; a thought without end is dropped."""
        return "" if self._held is None else self._decided(is_last=True)

    def _decided(self, *, is_last: bool) -> str:
        text = (self._held or "").lstrip()
        place = 0
        while thought := next((it for it in _THOUGHTS if text[place : place + len(it)].lower() == it), None):
            end = _THOUGHT_ENDS.search(text, place + len(thought))
            if end is None:
                # Of what is thought only as much is kept as the end of it may be cut into.
                self._held = "" if is_last else thought + text[place + len(thought) :][-_ENDING_CHARS:]
                return ""
            place = end.end()
            while text[place : place + 1].isspace():
                place += 1
        self._held = text = text[place:]
        marked = _MARKED.match(text)
        if not is_last and self._may_go_on(text, marked):
            return ""
        self._held = None
        if marked is None:
            return text
        self.found = False
        return text[marked.end() :]

    @staticmethod
    def _may_go_on(text: str, marked: re.Match[str] | None) -> bool:
        """Whether *text* may become, or is, a thought or the marker, and its end is not known yet."""
        if marked is not None:
            return marked.end() == len(text)
        if any(it.startswith(text.lower()) for it in _THOUGHTS):
            return True
        adorned = _ADORNED.match(text)
        rest = text[adorned.end() :] if adorned else text
        return any(it.startswith(rest.lower()) for it in _SPELLINGS)
