"""Find and rewrite the citation marks of an answer, while the answer is still being written.

A citation mark is a citation as models write it: ``[1]``, ``[1, 2]``, ``[1-3]``, ``[passage 2]``,
or ``【1】``. Each mark is rewritten as one ``[n]`` per passage. If a mark cites no existing
passage, the mark and the space before the mark are removed. All other text stays unchanged:

- text in code, between backticks,
- parts of a link, a footnote or an index: ``[1](https://...)``, ``[text][1]``, ``[1]: ...``,
  ``[^1]``, ``a[1]``,
- numbers that cannot be passage numbers: years, ``[0, 1]``, ``[3-1]``, ``[1,000]``,
- a bracket that the model copied from a passage together with the words before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MOST_CHARS: Final = 60
"""The maximum length of a citation mark, in characters.

Text that may become a mark is held back up to this length.
"""

COPIED_CHARS: Final = 12
"""A bracket counts as copied if a passage contains it with this many characters before it."""

_LABEL: Final = r"(?:(?:passages?|sources?|documents?|docs?|references?|refs?)\.?[ \u00a0]?)?#?"
_NUMBER: Final = r"(?:0|[1-9][0-9]{0,2})"
_ITEM: Final = rf"{_LABEL}{_NUMBER}(?:[ \u00a0]?[-–—][ \u00a0]?{_NUMBER})?"
_MARK: Final = re.compile(
    rf"[\[【［][ \u00a0]?(?P<items>{_ITEM}(?:(?:[ \u00a0]?[,;，、&][ \u00a0]?|[ \u00a0]and["
    rf" \u00a0]){_ITEM})*)"
    r"(?:†[^\]】］\n]{0,40})?[ \u00a0]?[\]】］]",
    re.IGNORECASE | re.ASCII,
)
_PARTIAL_MARK: Final = re.compile(
    rf"[\[【［][0-9A-Za-z#.,;，、&–—\u00a0 -]{{0,{MOST_CHARS}}}(?:†[^\]】］\n]{{0,40}})?\Z"
)
_RANGE: Final = re.compile(rf"({_NUMBER})(?:[ \u00a0]?[-–—][ \u00a0]?({_NUMBER}))?")
_TOKEN: Final = re.compile(r"(?P<space>\s+)|(?P<ticks>`+)|(?P<bracket>[\[【［])|[^\s`\[【［]+")
# A bracket is an index after a one-letter variable or a name with an underscore, as in a[1] and
# my_list[1].
_INDEX_BEFORE: Final = re.compile(r"(?:^|[^\w])(?:[a-z]|[^\W_]\w*_\w*[^\W_])\Z")
_LINE_PREFIX_CHARS: Final = " \t>*-+.0123456789"


class CitationReader:
    """Rewrites the citations in an answer that arrives in pieces.

    The joined output does not depend on where the answer is cut into pieces.

    Args:
        passage_count: the number of passages that the answer may cite.
        passage_texts: the texts of these passages, to recognize brackets copied from them.

    Attributes:
        marks: each citation in the returned text: its passage number, start and end.
        invented_count: the number of citations that were removed because their passages do not
            exist.
    """

    def __init__(self, passage_count: int, passage_texts: Sequence[str] = ()) -> None:
        self.marks: list[tuple[int, int, int]] = []
        self.invented_count = 0
        self._passage_count = passage_count
        self._copies = {
            text[max(0, mark.start() - COPIED_CHARS) : mark.end()]
            for text in passage_texts
            for mark in _MARK.finditer(text)
        }
        self._tail = ""  # text that may still become a mark
        self._line = ""  # the text before it on the same line, as the model wrote it
        self._out: list[str] = []
        self._length = 0
        self._pending_space = ""  # white space that is removed if a mark that cites nothing follows
        self._dropped_space = ""  # white space that was removed with such a mark
        self._follows_mark = False
        self._fence = 0
        self._code = 0

    def feed(self, piece: str) -> str:
        """Read the next *piece* of the answer, and return the text that can be shown now."""
        return self._rewrite_citations(piece, is_last=False)

    def flush_held_text(self) -> str:
        """Return the text that was held back, without trailing white space."""
        return self._rewrite_citations("", is_last=True)

    def _rewrite_citations(self, text: str, *, is_last: bool) -> str:
        tail = self._tail + text
        start = 0
        while start < len(tail):
            token = _TOKEN.match(tail, start)
            if token is None:  # pragma: no cover
                break
            end = token.end()
            if token["bracket"]:
                mark = _MARK.match(tail, start)
                if not is_last and (
                    mark.end() == len(tail) if mark else _PARTIAL_MARK.match(tail, start)
                ):
                    break
                end = self._read_bracket(tail, start, mark)
            elif token["space"]:
                self._read_space(token[0])
            elif token["ticks"] and end == len(tail) and not is_last:
                break
            else:
                if token["ticks"]:
                    self._read_backticks(end - start)
                self._read_text(token[0])
            # The checks need only the end of the line, and a line may be very long.
            self._line = (self._line + tail[start:end]).rpartition("\n")[2][-200:]
            start = end
        self._tail = tail[start:]
        out, self._out = "".join(self._out), []
        return out

    def _read_space(self, space: str) -> None:
        self._pending_space += space
        # Inline code that is not closed ends with its line.
        if "\n" in space:
            self._code = 0

    def _read_backticks(self, backtick_count: int) -> None:
        """Begin or end a code block or inline code after *backtick_count* backticks in a row."""
        # Three or more backticks at the start of a line, also in a list or a quote, are a fence.
        if backtick_count >= 3 and not self._line.strip(_LINE_PREFIX_CHARS) and not self._code:
            self._fence = 0 if backtick_count >= self._fence > 0 else self._fence or backtick_count
        elif not self._fence:
            self._code = 0 if self._code == backtick_count else self._code or backtick_count

    def _read_text(self, text: str) -> None:
        # After a removed citation, a word needs the space before it, but punctuation does not.
        space = self._pending_space or (self._dropped_space if text[0].isalnum() else "")
        self._follows_mark = False
        self._append_output(space, text)

    def _append_output(self, space: str, text: str) -> None:
        self._pending_space = self._dropped_space = ""
        self._out.append((space if self._length else "") + text)
        self._length += len(self._out[-1])

    def _read_bracket(self, text: str, start: int, mark: re.Match[str] | None) -> int:
        """Read the bracket at *start* of *text*, and return the index of the next token.

        *mark* is the citation mark that begins with this bracket; ``None`` if there is none.
        """
        numbers = (
            None if mark is None else self._read_numbers(mark, text[mark.end() : mark.end() + 1])
        )
        if mark is None or numbers is None:
            # Not a citation: the bracket is text, and so is what follows.
            self._read_text(text[start])
            return start + 1
        cited = dict.fromkeys(number for number in numbers if 1 <= number <= self._passage_count)
        self.invented_count += sum(number not in cited for number in numbers)
        if cited:
            self._append_output(self._pending_space or self._dropped_space, "")
            for number in cited:
                self.marks.append((number, self._length, self._length + len(f"[{number}]")))
                self._append_output("", f"[{number}]")
        else:
            line_start = self._pending_space.rfind("\n") + 1
            self._dropped_space = self._dropped_space or self._pending_space[line_start:]
            self._pending_space = self._pending_space[:line_start]
        self._follows_mark = True
        return mark.end()

    def _read_numbers(self, mark: re.Match[str], next_char: str) -> list[int] | None:
        """Return the passage numbers in *mark*; ``None`` if it cites no passages.

        *next_char* is the character after the mark, or ``""`` at the end of the text.
        """
        before, ranges = self._line, _RANGE.findall(mark["items"])
        if (
            # In code, too long, or a link such as [1](https://...).
            self._fence
            or self._code
            or len(mark[0]) > MOST_CHARS
            or next_char == "("
            # A link's or a footnote's definition at the start of a line, such as "[1]: https://...".
            or (next_char == ":" and not before.strip())
            # The second part of a link such as [text][1]. After a citation, [2] is another one.
            or (before.endswith("]") and not self._follows_mark)
            or (mark["items"].isdigit() and _INDEX_BEFORE.search(before))
            or (len(before) >= COPIED_CHARS and before[-COPIED_CHARS:] + mark[0] in self._copies)
            # No passages are numbered so: [3-1], [0, 1], [0-2].
            or any(high and int(low) >= int(high) for low, high in ranges)
            or (ranges != [("0", "")] and any(low == "0" for low, _ in ranges))
        ):
            return None
        return [number for low, high in ranges for number in range(int(low), int(high or low) + 1)]
