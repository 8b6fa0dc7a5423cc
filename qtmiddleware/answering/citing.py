"""Finding the marks of an answer that point to passages, while it is still being written.

A mark is what models write for a source: ``[1]``, ``[1, 2]``, ``[1-3]``, ``[passage 2]``, ``【1】``.
It is given out as one ``[n]`` a passage; one that means no passage there is goes, with the space
before it. Everything else stays as it
is:

- what stands in code, between backticks,
- what belongs to a link, a footnote or an index: ``[1](https://...)``, ``[text][1]``, ``[1]: ...``,
  ``[^1]``, ``a[1]``,
- numbers no list of passages has: years, ``[0, 1]``, ``[3-1]``, ``[1,000]``,
- a bracket that was copied out of a passage together with the words before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MOST_CHARS: Final = 60
"""Longer marks are none; no more of a text than this is ever held back for one."""

COPIED_CHARS: Final = 12
"""How many characters before a bracket must stand before it in a passage too to make it a copy."""

_LABEL: Final = r"(?:(?:passages?|sources?|documents?|docs?|references?|refs?)\.?[ \u00a0]?)?#?"
_NUMBER: Final = r"(?:0|[1-9][0-9]{0,2})"
_ITEM: Final = rf"{_LABEL}{_NUMBER}(?:[ \u00a0]?[-–—][ \u00a0]?{_NUMBER})?"
_MARK: Final = re.compile(
    rf"[\[【［][ \u00a0]?(?P<items>{_ITEM}(?:(?:[ \u00a0]?[,;，、&][ \u00a0]?|[ \u00a0]and["
    rf" \u00a0]){_ITEM})*)"
    r"(?:†[^\]】］\n]{0,40})?[ \u00a0]?[\]】］]",
    re.IGNORECASE | re.ASCII,
)
_BEGUN: Final = re.compile(
    rf"[\[【［][0-9A-Za-z#.,;，、&–—\u00a0 -]{{0,{MOST_CHARS}}}(?:†[^\]】］\n]{{0,40}})?\Z"
)
_RANGE: Final = re.compile(rf"({_NUMBER})(?:[ \u00a0]?[-–—][ \u00a0]?({_NUMBER}))?")
_TOKEN: Final = re.compile(r"(?P<space>\s+)|(?P<ticks>`+)|(?P<bracket>[\[【［])|[^\s`\[【［]+")
# An index: after a one-letter variable or a name with an underscore, as in a[1] and my_list[1].
_INDEXED: Final = re.compile(r"(?:^|[^\w])(?:[a-z]|[^\W_]\w*_\w*[^\W_])\Z")
_LIST_SIGNS: Final = " \t>*-+.0123456789"


def parse_numbers(items: str) -> list[range] | None:
    """The numbers that the inside of a mark names; ``None`` where it can name no passages."""
    ranges = []
    for first, last in _RANGE.findall(items):
        low, high = int(first), int(last or first)
        if (last and low >= high) or (low == 0 and (last or len(_RANGE.findall(items)) > 1)):
            return None
        ranges.append(range(low, high + 1))
    return ranges


class CitationReader:
    """Reads an answer piece by piece and gives it out again with its marks in order.

    *count* is how many passages there are, *texts* are theirs. *marks* collects ``(number, start,
    end)``, places in what was given out, and *invented* counts the numbers that were removed.
    However the text is cut into pieces, what comes out is the same.
    """

    def __init__(self, count: int, texts: Sequence[str] = ()) -> None:
        self.marks: list[tuple[int, int, int]] = []
        self.invented = 0
        self._count = count
        self._copies = {
            text[max(0, mark.start() - COPIED_CHARS) : mark.end()]
            for text in texts
            for mark in _MARK.finditer(text)
        }
        self._tail = ""  # not understood yet
        self._line = ""  # what stands before it on its line, as it came
        self._out: list[str] = []
        self._length = 0
        self._gap = ""  # white space that may yet have to go
        self._dropped = ""  # and such that went with a mark
        self._follows_mark = False
        self._fence = 0
        self._code = 0

    def feed(self, text: str) -> str:
        """What can be given out once *text* has come too."""
        return self._read(text, is_last=False)

    def end(self) -> str:
        """The rest; white space at the end goes."""
        return self._read("", is_last=True)

    def _read(self, text: str, *, is_last: bool) -> str:
        tail = self._tail + text
        place = 0
        while place < len(tail):
            token = _TOKEN.match(tail, place)
            if token is None:  # pragma: no cover
                break
            end = token.end()
            if token["bracket"]:
                mark = _MARK.match(tail, place)
                if not is_last and (mark.end() == len(tail) if mark else _BEGUN.match(tail, place)):
                    break
                end = self._take_bracket(tail, place, mark)
            elif token["space"]:
                self._take_space(token[0])
            elif token["ticks"] and end == len(tail) and not is_last:
                break
            else:
                if token["ticks"]:
                    self._take_ticks(end - place)
                self._take_text(token[0])
            self._line = (self._line + tail[place:end]).rpartition("\n")[2][-200:]
            place = end
        self._tail = tail[place:]
        out, self._out = "".join(self._out), []
        return out

    def _take_space(self, space: str) -> None:
        self._gap += space
        if "\n" in space:
            self._code = 0

    def _take_ticks(self, count: int) -> None:
        if count >= 3 and not self._line.strip(_LIST_SIGNS) and not self._code:
            self._fence = 0 if count >= self._fence > 0 else self._fence or count
        elif not self._fence:
            self._code = 0 if self._code == count else self._code or count

    def _take_text(self, text: str) -> None:
        lead = self._gap or (self._dropped if text[0].isalnum() else "")
        self._follows_mark = False
        self._give(lead, text)

    def _give(self, lead: str, text: str) -> None:
        self._gap = self._dropped = ""
        self._out.append((lead if self._length else "") + text)
        self._length += len(self._out[-1])

    def _take_bracket(self, tail: str, place: int, mark: re.Match[str] | None) -> int:
        """Read what the bracket at *place* opens; returns where it ends."""
        ranges = None
        if mark is not None and self._is_mark(mark, tail[mark.end() : mark.end() + 1]):
            ranges = parse_numbers(mark["items"])
        if mark is None or ranges is None:
            # The bracket alone: what follows it is read as any text is.
            self._take_text(tail[place])
            return place + 1
        named = dict.fromkeys(
            n for it in ranges for n in range(max(it.start, 1), min(it.stop, self._count + 1))
        )
        self.invented += sum(not 1 <= n <= self._count for it in ranges for n in it)
        if named:
            self._cite(list(named))
        else:
            kept = self._gap.rfind("\n") + 1
            self._dropped = self._dropped or self._gap[kept:]
            self._gap = self._gap[:kept]
        self._follows_mark = True
        return mark.end()

    def _is_mark(self, mark: re.Match[str], after: str) -> bool:
        before = self._line
        if self._fence or self._code or len(mark[0]) > MOST_CHARS or after == "(":
            return False
        if after == ":" and not before.strip():
            return False
        if before.endswith("]") and not self._follows_mark:
            return False
        if mark["items"].isdigit() and _INDEXED.search(before):
            return False
        return len(before) < COPIED_CHARS or before[-COPIED_CHARS:] + mark[0] not in self._copies

    def _cite(self, numbers: Sequence[int]) -> None:
        self._give(self._gap or self._dropped, "")
        for number in numbers:
            start = self._length
            self._give("", f"[{number}]")
            self.marks.append((number, start, self._length))
