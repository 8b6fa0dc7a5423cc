"""Read JSON from a reply, whatever text surrounds it, and even if it is broken or cut off.

One reader serves good and bad JSON. It ends a string at the first quote that is followed by a mark
that may come after a string at that place. In well-formed JSON an unescaped quote always ends a
string and is always followed by such a mark, so there the reader agrees with the standard. In
broken JSON the same rule tells a quote that ends a string from one inside it. Reading takes linear
time, and nesting is limited.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

MAX_DEPTH: Final = 16
"""The deepest nesting that is read."""

JSON_OPENING: Final = re.compile(
    r"\s*(?:```\w*\s*)?[{\[]\s*(?:[\"'“{\[\]},]|\w+\s*:|-?\d+\s*[,\]]|null|true|false|\Z)"
)
"""A pattern for the start of a text that is meant as JSON."""
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
# The next string begins on another line: a comma may be missing.
_BELOW: Final = rf"[^\S\n]*+\n\s*+[{_OPENERS}]"
# The text that may follow the quote at the end of a string, by the place of the string: a key, a
# member's value, an item of a list, or a text that is only a string. All quantifiers are
# possessive, so that a long run of white space is read once.
_AFTER_STRING: Final = {
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
_STRING_ENDS: Final = {
    (place, closer): re.compile(rf"\\.|{closer}{after}", re.DOTALL)
    for place, after in _AFTER_STRING.items()
    for closer in _CLOSERS.values()
}
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SHORT_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class Members(list[tuple[str, Any]]):
    """A JSON object as a list of (key, value), in their order and with repeated keys."""


class Cut(str):
    """A string whose end is missing."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A JSON object or list that was found in a text.

    Attributes:
        value: The value; an object is `Members`, an incomplete string is `Cut`.
        start: Where the value begins in the text.
        end: Where it ends.
        is_cut: Whether its end is missing.
    """

    value: Any
    start: int
    end: int
    is_cut: bool


class _NotJson(Exception):
    """The text at this place is not JSON."""


def find_json(text: str) -> list[JsonValue]:
    """Return every outermost JSON object and list in *text*, in their order."""
    values = []
    position = 0
    while match := _START.search(text, position):
        reader = _Reader(text, match.start())
        try:
            value = reader.read_value("alone", 0)
            values.append(JsonValue(value, match.start(), reader.position, reader.is_cut))
        except _NotJson:
            pass
        position = max(reader.position, match.start() + 1)
    return values


def read_json_string(text: str) -> str | None:
    """Return the content of *text* if it is one JSON string and nothing else, else ``None``."""
    stripped = text.strip()
    if not stripped.startswith('"'):
        return None
    reader = _Reader(stripped, 0)
    value = reader.read_string("alone")
    return None if isinstance(value, Cut) else value


class _Reader:
    """Reads one JSON value from a text.

    Attributes:
        text: The text that holds the value.
        position: Where reading goes on.
        is_cut: Whether the end of the value is missing; certain once the value was read.
    """

    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.position = position
        self.is_cut = False

    def read_value(self, place: str, depth: int) -> Any:
        """Return the value that begins here.

        Args:
            place: Where a string would be: ``member``, ``item`` or ``alone``. It decides which
                text may follow.
            depth: How many objects and lists the value is inside of.
        """
        character = self.text[self.position : self.position + 1]
        if depth >= MAX_DEPTH:
            raise _NotJson
        if character == "{":
            return self.read_members(depth)
        if character == "[":
            return self.read_items(depth)
        if character and character in _OPENERS:
            return self.read_string(place)
        return self.read_literal()

    def read_members(self, depth: int) -> Members:
        """Return the object that begins here, with all members that are complete."""
        members = Members()
        self.position += 1
        while not self.reach_end("}"):
            try:
                key = self.read_key()
                if self.is_cut:
                    break
                value = self.read_value("member", depth + 1)
            except _NotJson:
                # Members that were complete before the mistake are kept. A text with a mistake in
                # its first member is not JSON at all.
                if not members:
                    raise
                self.is_cut = True
                break
            members.append((key, value))
        return members

    def read_items(self, depth: int) -> list[Any]:
        """Return the list that begins here, with all items up to the first mistake."""
        items: list[Any] = []
        self.position += 1
        while not self.reach_end("]"):
            try:
                items.append(self.read_value("item", depth + 1))
            except _NotJson:
                if not items:
                    raise
                self.is_cut = True
        return items

    def reach_end(self, bracket: str) -> bool:
        """Return whether the object or list ends here, and step over its *bracket* if it does.

        Spaces and commas before the bracket are skipped.
        """
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
        """Return the key that begins here, in quotes or bare, and step over its colon."""
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
        """Step over the colon behind a key, and the spaces around it."""
        self.skip(_SPACE)
        if self.text.startswith(":", self.position):
            self.position += 1
            self.skip(_SPACE)
        elif self.position < len(self.text):
            raise _NotJson
        if self.position >= len(self.text):
            self.is_cut = True

    def read_string(self, place: str) -> str:
        """Return the string that begins here; *place* says what may follow it."""
        ends = _STRING_ENDS[place, _CLOSERS[self.text[self.position]]]
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
        """Return the literal that begins here: a boolean, a number as text, or ``None``."""
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
        """Step over text that matches *filling*, if there is any."""
        if match := filling.match(self.text, self.position):
            self.position = match.end()


def _unescape(text: str) -> str:
    """Return *text* with its escapes replaced by the characters that they stand for."""
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_decode_escape, text)
    # Two escapes may be the two halves (surrogates) of one character. A single half is dropped.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")


def _decode_escape(match: re.Match[str]) -> str:
    """Return the character that one escape stands for."""
    code = match.group(1)
    if len(code) == 5:
        return chr(int(code[1:], 16))
    return _SHORT_ESCAPES.get(code, code)
