"""JSON out of whatever a model wrote around it, into it, or left off its end.

One reader for good and bad JSON. Every well-formed text is read as the standard says, because in it
an unescaped quote always ends a string and is always followed by one of the marks looked for here;
in a bad text the same rule tells a quote that ends a string from one that stands inside it. Time is
linear in the text, nesting is bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

MAX_DEPTH: Final = 16
"""Deeper nesting is not read."""

JSON_OPENING: Final = re.compile(
    r"\s*(?:```\w*\s*)?[{\[]\s*(?:[\"'“{\[\]},]|\w+\s*:|-?\d+\s*[,\]]|null|true|false|\Z)"
)
"""How a text begins that is meant as JSON."""
_START: Final = re.compile(r"[\[{]")
_SPACE: Final = re.compile(r"(?:\s++|//[^\n]*+)*+")
_SPACE_OR_COMMAS: Final = re.compile(r"(?:[\s,]++|//[^\n]*+)*+")
_CLOSERS: Final = {'"': '"', "'": "'", "“": "”", "”": "”", "‘": "’"}
_OPENERS: Final = "".join(_CLOSERS)
_BARE_KEY: Final = re.compile(r"[^\W\d][\w-]{0,60}(?=\s*:)")
_LITERAL: Final = re.compile(
    r"(-?\d[\d.eE+-]*|null|true|false|None|True|False|undefined|NaN)(?![\w])"
)
_LITERALS: Final = {"true": True, "True": True, "false": False, "False": False}
# A string on another line.
_BELOW: Final = rf"[^\S\n]*+\n\s*+[{_OPENERS}]"
# What may follow the quote that ends a key, a member's value, an item and a text that is nothing
# but a string. Possessive throughout: white space without end is read once.
_AFTER: Final = {
    "key": r"(?=\s*+:)",
    "member": (
        rf"(?=\s*+(?:,\s*+(?:[{_OPENERS}}}\]]|//|[\w-]++\s*+:|\Z)|[}}\]]|//|\Z)|{_BELOW}"
        rf"|\s++[{_OPENERS}]\w++[{_OPENERS}]\s*+:)"
    ),
    "item": (
        rf"(?=\s*+(?:,\s*+(?:[{_OPENERS}\[{{}}\]\d-]|//|null|true|false|None|True|False|\Z)|[}}\]]|//|\Z)"
        rf"|{_BELOW})"
    ),
    "alone": r"(?=\s*+\Z)",
}
_ENDS: Final = {
    (place, closer): re.compile(rf"\\.|{closer}{after}", re.DOTALL)
    for place, after in _AFTER.items()
    for closer in _CLOSERS.values()
}
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SHORT_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class Members(list[tuple[str, Any]]):
    """A JSON object as its members in their order, repeated keys and all."""


class Cut(str):
    """A string whose end is missing."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A JSON *value* that stands in a text from *start* to *end*; *is_cut* says that its end is missing."""

    value: Any
    start: int
    end: int
    is_cut: bool


class _NotJson(Exception):
    """What was taken for JSON is something else."""


def find_json(text: str) -> list[JsonValue]:
    """Returns every JSON object and list in *text*, outermost only, in their order."""
    found = []
    position = 0
    while match := _START.search(text, position):
        reader = _Reader(text, match.start())
        try:
            value = reader.read_value("alone", 0)
            found.append(JsonValue(value, match.start(), reader.position, reader.is_cut))
        except _NotJson:
            pass
        position = max(reader.position, match.start() + 1)
    return found


def read_json_string(text: str) -> str | None:
    """Returns what *text* says if it is one JSON string and nothing else, else ``None``."""
    stripped = text.strip()
    if not stripped.startswith('"'):
        return None
    reader = _Reader(stripped, 0)
    value = reader.read_string("alone")
    return None if isinstance(value, Cut) else value


class _Reader:
    """Reads one value, from *position* on; *is_cut* tells afterwards whether its end was missing."""

    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.position = position
        self.is_cut = False

    def read_value(self, place: str, depth: int) -> Any:
        here = self.text[self.position : self.position + 1]
        if depth >= MAX_DEPTH:
            raise _NotJson
        if here == "{":
            return self.read_members(depth)
        if here == "[":
            return self.read_items(depth)
        if here and here in _OPENERS:
            return self.read_string(place)
        return self.read_literal()

    def read_members(self, depth: int) -> Members:
        pairs = Members()
        self.position += 1
        while not self.reach_end("}"):
            try:
                key = self.read_key()
                if self.is_cut:
                    break
                value = self.read_value("member", depth + 1)
            except _NotJson:
                # What was complete before the mistake is kept; a text that went wrong at once was
                # no JSON.
                if not pairs:
                    raise
                self.is_cut = True
                break
            pairs.append((key, value))
        return pairs

    def read_items(self, depth: int) -> list[Any]:
        found: list[Any] = []
        self.position += 1
        while not self.reach_end("]"):
            try:
                found.append(self.read_value("item", depth + 1))
            except _NotJson:
                if not found:
                    raise
                self.is_cut = True
        return found

    def reach_end(self, bracket: str) -> bool:
        """Step over spaces and commas, and over *bracket* if that is next; say whether the container ends here."""
        self.skip(_SPACE if self.is_cut else _SPACE_OR_COMMAS)
        if self.position >= len(self.text):
            self.is_cut = True
        if self.is_cut:
            return True
        if self.text[self.position] == bracket:
            self.position += 1
            return True
        return self.text[self.position] in "]}"

    def read_key(self) -> str:
        bare = _BARE_KEY.match(self.text, self.position)
        if bare:
            key = bare.group()
            self.position = bare.end()
        elif self.text[self.position] in _OPENERS:
            key = self.read_string("key")
        else:
            raise _NotJson
        if not self.is_cut:
            self.skip_colon()
        return key

    def skip_colon(self) -> None:
        self.skip(_SPACE)
        if self.text.startswith(":", self.position):
            self.position += 1
            self.skip(_SPACE)
        elif self.position < len(self.text):
            raise _NotJson
        if self.position >= len(self.text):
            self.is_cut = True

    def read_string(self, place: str) -> str:
        """Returns the string that begins here; *place* says what may follow it."""
        ends = _ENDS[place, _CLOSERS[self.text[self.position]]]
        begin = position = self.position + 1
        while match := ends.search(self.text, position):
            position = match.end()
            if not match.group().startswith("\\"):
                self.position = position
                return _unescape(self.text[begin : position - 1])
        self.position = len(self.text)
        self.is_cut = True
        return Cut(_unescape(self.text[begin:]))

    def read_literal(self) -> Any:
        match = _LITERAL.match(self.text, self.position)
        if not match:
            raise _NotJson
        self.position = match.end()
        if self.position >= len(self.text):
            self.is_cut = True
            return None
        word = match.group(1)
        return _LITERALS.get(word, word if word[-1].isdigit() else None)

    def skip(self, filling: re.Pattern[str]) -> None:
        """Step over *filling*, of which there may be none."""
        if match := filling.match(self.text, self.position):
            self.position = match.end()


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_unescape_one, text)
    # Two escapes may be the halves of one character; a half on its own is dropped.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")


def _unescape_one(match: re.Match[str]) -> str:
    code = match.group(1)
    if len(code) == 5:
        return chr(int(code[1:], 16))
    return _SHORT_ESCAPES.get(code, code)
