"""Read an answer while the model writes it: remove reasoning and check the citations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import StringIO
from typing import Final

from qtmiddleware.types import Citation, Match

MARKER: Final = "NO_ANSWER"
"""The word with which the model begins its reply if the passages do not answer the question."""

_THOUGHT_TAGS: Final = ("<think>", "<thinking>", "<reasoning>")
_THOUGHT: Final = re.compile(rf"\s{{0,20}}(?:{'|'.join(_THOUGHT_TAGS)})", re.IGNORECASE)
_THOUGHT_END: Final = re.compile(r"</(?:think|thinking|reasoning)>", re.IGNORECASE)
_THOUGHT_END_CHARS: Final = len("</reasoning>")
# White space, Markdown and quotation marks that a model may write before the marker.
_DECORATION: Final = r"[\s*_`\"'>#\[(]"
_MARKER_AT_START: Final = re.compile(
    rf"{_DECORATION}{{0,20}}NO(?:_|\\_| )ANSWER(?!\w)"
    r"[^\w\s]{0,16}[\s.:,;–—-]{0,16}"
)

_NUMBER: Final = r"[1-9][0-9]{0,2}"
_RANGE: Final = re.compile(rf"({_NUMBER})(?:[ ]?[-–—][ ]?({_NUMBER}))?")
_LABEL: Final = r"(?:(?:passages?|sources?|documents?|docs?)[ ]?|#)?"
_ITEM: Final = rf"{_LABEL}{_RANGE.pattern}"
_ITEMS: Final = re.compile(rf"{_ITEM}(?:[ ]?(?:[,;，、&]|and)[ ]?{_ITEM})*", re.IGNORECASE)
_IN_BRACKETS: Final = r"[\[【［][^\[\]【】［］`\n]{0,60}"
_TOKEN: Final = re.compile(
    rf"(?P<space>\s*)(?P<content>`+|{_IN_BRACKETS}[\]】］]|[^\s`\[【［]+|\S)"
)
# Text at the end that the next piece may turn into another token.
_UNFINISHED: Final = re.compile(rf"(?:(?<!`)`+|{_IN_BRACKETS})\Z")


class AnswerReader:
    """Reads one answer piece by piece and returns the text that can be shown.

    The reader removes the model's reasoning and the `MARKER`. Each citation, such as ``[1, 2]``,
    ``[1-3]``, ``[passage 2]`` or ``【1】``, is rewritten as one ``[n]`` per passage, and removed if
    no such passage exists. Code between backticks stays unchanged. The joined output does not
    depend on where the answer is cut into pieces.

    Args:
        matches: the passages that the answer may cite.

    Attributes:
        citations: the citations in `text`, in order.
        invented_count: the number of citations that were removed.
        is_answered: whether the passages answer the question; ``False`` after the `MARKER`.
    """

    def __init__(self, matches: Sequence[Match]) -> None:
        self.citations: list[Citation] = []
        self.invented_count = 0
        self.is_answered = True
        self._matches = matches
        self._is_opening = True  # the text so far may still become reasoning or the marker
        self._held = ""  # the text that has not been read yet
        self._shown = StringIO()
        self._space = ""  # line breaks before a removed citation
        self._code = ""  # the backticks that end the code; "" outside code

    @property
    def text(self) -> str:
        """The text returned so far."""
        return self._shown.getvalue()

    def feed(self, piece: str, *, is_last: bool = False) -> str:
        """Read the next *piece* of the answer, and return the text that can be shown now.

        After the last piece, that is all text but trailing white space.
        """
        text = self._held + piece
        if not (self._is_opening or is_last or piece.strip()):
            # A model may write white space for a long time. It is shown before the next word.
            self._held = text
            return ""
        if self._is_opening:
            text = _remove_thoughts(text)
            if not is_last and _can_become_opening(text):
                self._held = text
                return ""
            text = self._read_opening(text)
        unfinished = None if is_last else _UNFINISHED.search(text)
        finished = text[: unfinished.start()] if unfinished else text
        finished = finished.rstrip()
        self._held = text[len(finished) :]
        length = self._shown.tell()
        for token in _TOKEN.finditer(finished):
            self._read_token(token)
        self._shown.seek(length)
        return self._shown.read()

    def renumber(self, offset: int) -> str:
        """Return the text so far with *offset* added to the number of each citation."""
        shown, text, end = self.text, "", 0
        for citation in self.citations:
            text += f"{shown[end : citation.start]}[{citation.number + offset}]"
            end = citation.end
        return text + shown[end:]

    def _read_opening(self, text: str) -> str:
        """Return *text* without an unfinished thought or the `MARKER` at its beginning."""
        self._is_opening = False
        if _THOUGHT.match(text):
            return ""
        if marker := _MARKER_AT_START.match(text):
            self.is_answered = False
            return text[marker.end() :]
        return text

    def _read_token(self, token: re.Match[str]) -> None:
        """Show *token*: white space, then a citation or any other text."""
        space, content = token["space"], token["content"]
        # Inline code that is not closed ends with its line.
        if "\n" in space and len(self._code) < 3:
            self._code = ""
        # Code ends with as many backticks as it began with.
        if content[0] == "`" and self._code in ("", content):
            self._code = "" if self._code else content
        numbers = [] if self._code else _read_numbers(content)
        cited = [number for number in numbers if number <= len(self._matches)]
        self.invented_count += len(numbers) - len(cited)
        if not numbers:
            self._show(space + content)
        elif not cited:
            self._space += space[: space.rfind("\n") + 1]
        else:
            self._show(space)
        for number in cited:
            start = self._shown.tell()
            self._show(f"[{number}]")
            match = self._matches[number - 1]
            self.citations.append(Citation(number, start, self._shown.tell(), match))

    def _show(self, text: str) -> None:
        """Add *text* after the line breaks that were held; an answer begins with neither."""
        text = self._space + text
        self._space = ""
        self._shown.write(text if self._shown.tell() else text.lstrip())


def _remove_thoughts(text: str) -> str:
    """Return *text* without the reasoning at its beginning.

    Of reasoning that goes on, only its tag stays, and what may be the first part of its end tag.
    """
    position = 0
    while thought := _THOUGHT.match(text, position):
        end = _THOUGHT_END.search(text, thought.end())
        if end is None:
            return thought[0] + text[thought.end() :][-_THOUGHT_END_CHARS:]
        position = end.end()
    return text[position:]


def _can_become_opening(text: str) -> bool:
    """Return whether more text can complete or continue reasoning or the `MARKER` in *text*."""
    if _THOUGHT.match(text):
        return True
    if marker := _MARKER_AT_START.match(text):
        # More punctuation may follow.
        return marker.end() == len(text)
    start = re.sub(rf"\A{_DECORATION}+", "", text)
    spelled = start.replace("\\", "").replace(" ", "_")
    return len(text) - len(start) <= 20 and (
        MARKER.startswith(spelled) or any(tag.startswith(start.lower()) for tag in _THOUGHT_TAGS)
    )


def _read_numbers(content: str) -> list[int]:
    """Return the passage numbers in the citation *content*; none if it is no citation."""
    items = content[1:-1].partition("†")[0].strip()
    if content[0] not in "[【［" or not _ITEMS.fullmatch(items):
        return []
    numbers: dict[int, None] = {}
    for low, high in _RANGE.findall(items):
        numbers |= dict.fromkeys(range(int(low), int(high or low) + 1))
    return list(numbers)
