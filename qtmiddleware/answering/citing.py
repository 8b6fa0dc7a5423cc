"""Find and rewrite the citation marks of an answer, while the answer is still being written.

A citation mark is a citation as models write it: ``[1]``, ``[1, 2]``, ``[1-3]``, ``[passage 2]``,
or ``【1】``. Each mark is rewritten as one ``[n]`` per passage. If a mark cites no existing
passage, the mark and the space before the mark are removed. All other text stays unchanged:

- text in code, between backticks,
- parts of a link or a footnote: ``[1](https://...)``, ``[text][1]``, ``[1]: ...``, ``[^1]``,
- numbers that cannot be passage numbers: years, ``[0, 1]``, ``[3-1]``, ``[1,000]``,
- a bracket that the model copied from a passage together with the words before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MOST_CHARS: Final = 60
"""The maximum length of a citation mark. Text that may become a mark is held back so long."""
# A bracket counts as copied if a passage contains it with so many characters before it.
_COPIED_CHARS: Final = 12

_LABEL: Final = r"(?:(?:passages?|sources?|documents?|docs?|references?|refs?)\.?[ \u00a0]?)?#?"
_NUMBER: Final = r"(?:0|[1-9][0-9]{0,2})"
_ITEM: Final = rf"{_LABEL}{_NUMBER}(?:[ \u00a0]?[-–—][ \u00a0]?{_NUMBER})?"
_COMMA: Final = r"(?:[ \u00a0]?[,;，、&][ \u00a0]?|[ \u00a0]and[ \u00a0])"
_MARK: Final = re.compile(
    rf"[\[【［][ \u00a0]?(?P<items>{_ITEM}(?:{_COMMA}{_ITEM})*)"
    r"(?:†[^\]】］\n]{0,40})?[ \u00a0]?[\]】］]",
    re.IGNORECASE | re.ASCII,
)
_PARTIAL_MARK: Final = re.compile(
    rf"[\[【［][0-9A-Za-z#.,;，、&–—\u00a0 -]{{0,{MOST_CHARS}}}(?:†[^\]】］\n]{{0,40}})?\Z"
)
_RANGE: Final = re.compile(rf"({_NUMBER})(?:[ \u00a0]?[-–—][ \u00a0]?({_NUMBER}))?")
_TOKEN: Final = re.compile(
    rf"(?P<space>\s+)|(?P<ticks>`+)|(?P<mark>(?ai:{_MARK.pattern}))|(?P<bracket>[\[【［])"
    r"|[^\s`\[【［]+"
)


class CitationReader:
    """Rewrites the citations in an answer that arrives in pieces.

    The joined output does not depend on where the answer is cut into pieces.

    Args:
        passage_texts: the texts of the passages that the answer may cite.
        offset: the number to add to each passage number in the output.

    Attributes:
        marks: each citation in the returned text: its passage number, start and end.
        invented_count: the number of citations that were removed because their passages do not
            exist.
    """

    def __init__(self, passage_texts: Sequence[str], offset: int = 0) -> None:
        self.marks: list[tuple[int, int, int]] = []
        self.invented_count = 0
        self._passage_count = len(passage_texts)
        self._offset = offset
        self._copies = {
            text[max(0, mark.start() - _COPIED_CHARS) : mark.end()]
            for text in passage_texts
            for mark in _MARK.finditer(text)
        }
        self._tail = ""  # text that may still become a mark
        self._line = ""  # the text before it on the same line, as the model wrote it
        self._length = 0
        self._space = ""  # white space that is removed if a mark that cites nothing follows
        self._dropped_space = ""  # white space that was removed with such a mark
        self._follows_mark = False
        self._code = 0  # how many backticks end the code; 0 outside code

    def feed(self, piece: str, *, is_last: bool = False) -> str:
        """Read the next *piece* of the answer, and return the text that can be shown now.

        After the last piece, that is all text but trailing white space.
        """
        text, start, shown = self._tail + piece, 0, ""
        while token := _TOKEN.match(text, start):
            end = token.end()
            can_go_on = token["bracket"] and _PARTIAL_MARK.match(text, start)
            if end == len(text):
                can_go_on = can_go_on or token["mark"] or token["ticks"]
            if can_go_on and not is_last:
                break
            numbers = self._read_numbers(token, text[end : end + 1]) if token["mark"] else None
            if token["space"]:
                self._space += token[0]
                # Inline code that is not closed ends with its line.
                if "\n" in token[0] and self._code < 3:
                    self._code = 0
            elif numbers is not None:
                shown += self._rewrite_mark(numbers)
                self._follows_mark = True
            else:
                if token["mark"]:
                    end = start + 1  # Not a citation: the bracket is text, and so is what follows.
                elif token["ticks"]:
                    self._read_backticks(end - start)
                # After a removed citation, a word needs the space before it, punctuation does not.
                shown += self._show(text[start:end], needs_space=text[start].isalnum())
                self._follows_mark = False
            # The checks need only the end of the line, and a line may be very long.
            self._line = (self._line + text[start:end]).rpartition("\n")[2][-200:]
            start = end
        self._tail = text[start:]
        return shown

    def _show(self, text: str, *, needs_space: bool) -> str:
        """Return *text* with the white space before it, which is never at the beginning."""
        space = self._space or (self._dropped_space if needs_space else "")
        shown = (space if self._length else "") + text
        self._space = self._dropped_space = ""
        self._length += len(shown)
        return shown

    def _rewrite_mark(self, numbers: list[int]) -> str:
        cited = dict.fromkeys(number for number in numbers if 1 <= number <= self._passage_count)
        self.invented_count += sum(number not in cited for number in numbers)
        if not cited:
            line_start = self._space.rfind("\n") + 1
            self._dropped_space = self._dropped_space or self._space[line_start:]
            self._space = self._space[:line_start]
            return ""
        shown = self._show("", needs_space=True)
        for number in cited:
            start = self._length
            shown += self._show(f"[{number + self._offset}]", needs_space=False)
            self.marks.append((number, start, self._length))
        return shown

    def _read_backticks(self, count: int) -> None:
        """Begin or end code after *count* backticks in a row. Three or more are a code block."""
        if not self._code:
            self._code = count
        elif count == self._code or count > self._code >= 3:
            self._code = 0

    def _read_numbers(self, mark: re.Match[str], next_char: str) -> list[int] | None:
        """Return the passage numbers in *mark*; ``None`` if it cites no passages."""
        before = self._line
        ranges = _RANGE.findall(mark["items"])
        if (
            # In code, too long, or a link such as [1](https://...).
            self._code
            or len(mark[0]) > MOST_CHARS
            or next_char == "("
            # A link's or a footnote's definition at the start of a line, such as "[1]: https://...".
            or (next_char == ":" and not before.strip())
            # The second part of a link such as [text][1]. After a citation, [2] is another one.
            or (before.endswith("]") and not self._follows_mark)
            or (len(before) >= _COPIED_CHARS and before[-_COPIED_CHARS:] + mark[0] in self._copies)
            # No passages are numbered so: [3-1], [0, 1], [0-2].
            or any(high and int(low) >= int(high) for low, high in ranges)
            or (ranges != [("0", "")] and any(low == "0" for low, _ in ranges))
        ):
            return None
        return [number for low, high in ranges for number in range(int(low), int(high or low) + 1)]
