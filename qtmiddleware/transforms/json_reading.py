"""Read JSON from a reply, even if the JSON is broken, cut off or surrounded by other text.

A quotation mark ends a string only if a comma, a bracket or another valid character follows.
Therefore quotation marks inside a string need not be escaped. Reading takes linear time, and the
depth of nested objects is limited.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

MAX_DEPTH: Final = 16
"""The maximum depth of nested objects and lists. Deeper values are not read."""

JSON_OPENING: Final = re.compile(
    r"\s*(?:```\w*\s*)?[{\[]\s*(?:[\"'“{\[\]},]|\w+\s*:|-?\d+\s*[,\]]|null|true|false|\Z)"
)
"""A pattern for the start of JSON, even if the JSON is broken."""
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
# The text that may follow the closing quotation mark of a string. It depends on the context: a key,
# a member's value, an item of a list, or a text that is only a string. All quantifiers are
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
    (context, closer): re.compile(rf"\\.|{closer}{after}", re.DOTALL)
    for context, after in _AFTER_STRING.items()
    for closer in _CLOSERS.values()
}
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SHORT_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class Members(list[tuple[str, Any]]):
    """A JSON object as a list of (key, value) pairs. Duplicate keys are kept."""


class Cut(str):
    """A truncated string: the text ends before the closing quotation mark."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JsonValue:
    """A JSON object or list inside a text.

    Attributes:
        value: The value. Objects are `Members`, and truncated strings are `Cut`.
        start: The position of the value's first character in the text.
        end: The position after the value's last character.
        is_cut: Whether the end of the value is missing.
    """

    value: Any
    start: int
    end: int
    is_cut: bool


class _NotJson(Exception):
    """Raised if there is no JSON at the reader's position."""


def find_json(text: str) -> list[JsonValue]:
    """Return the outermost JSON objects and lists in *text*, in the order of their positions."""
    values = []
    position = 0
    while match := _START.search(text, position):
        reader = _Reader(text, match.start())
        try:
            value = reader.read_value("alone", 0)
            values.append(JsonValue(value, match.start(), reader.position, reader.is_cut))
        except _NotJson:
            pass
        # The next search begins after the part that was read, so that reading takes linear time.
        position = max(reader.position, match.start() + 1)
    return values


def read_json_string(text: str) -> str | None:
    """Return the content of *text* if it is a single JSON string, else ``None``."""
    stripped = text.strip()
    if not stripped.startswith('"'):
        return None
    reader = _Reader(stripped, 0)
    value = reader.read_string("alone")
    return None if isinstance(value, Cut) else value


class _Reader:
    """Reads one JSON value from a text.

    Attributes:
        text: The text that contains the value.
        position: The position of the next character to read.
        is_cut: Whether the end of the value is missing. It is set while the value is read.
    """

    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.position = position
        self.is_cut = False

    def read_value(self, context: str, depth: int) -> Any:
        """Read the value at the current position, and return it.

        Args:
            context: ``member`` if the value is in an object, ``item`` if it is in a list, else
                ``alone``. The context decides which characters may follow a string.
            depth: The number of objects and lists around the value.

        Raises:
            _NotJson: There is no value, or *depth* is too high.
        """
        character = self.text[self.position : self.position + 1]
        if depth >= MAX_DEPTH:
            raise _NotJson
        if character == "{":
            return self.read_members(depth)
        if character == "[":
            return self.read_items(depth)
        if character and character in _OPENERS:
            return self.read_string(context)
        return self.read_literal()

    def read_members(self, depth: int) -> Members:
        """Read the object at the current position, and return it.

        If the object is broken, the members before the first error are returned.

        Raises:
            _NotJson: There is an error in the first member.
        """
        members = Members()
        self.position += 1
        while not self.skip_separators_and_check_end("}"):
            try:
                key = self.read_key()
                if self.is_cut:
                    break
                value = self.read_value("member", depth + 1)
            except _NotJson:
                # Members that were complete before the error are kept. A text with an error in its
                # first member is not JSON at all.
                if not members:
                    raise
                self.is_cut = True
                break
            members.append((key, value))
        return members

    def read_items(self, depth: int) -> list[Any]:
        """Read the list at the current position, and return it.

        If the list is broken, the items before the first error are returned.

        Raises:
            _NotJson: There is an error in the first item.
        """
        items: list[Any] = []
        self.position += 1
        while not self.skip_separators_and_check_end("]"):
            try:
                items.append(self.read_value("item", depth + 1))
            except _NotJson:
                if not items:
                    raise
                self.is_cut = True
        return items

    def skip_separators_and_check_end(self, closing_bracket: str) -> bool:
        """Skip spaces and commas, and return whether the current object or list ends here.

        The object or list ends at any closing bracket and at the end of the text. *closing_bracket*
        is skipped too. Another bracket is not skipped, because it belongs to an outer value.
        """
        self.skip_pattern(_SPACE if self.is_cut else _SPACE_OR_COMMAS)
        if self.position >= len(self.text):
            self.is_cut = True
        if self.is_cut:
            return True
        if self.text[self.position] == closing_bracket:
            self.position += 1
            return True
        return self.text[self.position] in "]}"

    def read_key(self) -> str:
        """Read a key and its colon at the current position, and return the key.

        The key's quotation marks may be missing.

        Raises:
            _NotJson: There is no key or no colon.
        """
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
        """Skip the colon after a key, and the spaces around it. Set `is_cut` if the text ends here.

        Raises:
            _NotJson: There is no colon.
        """
        self.skip_pattern(_SPACE)
        if self.text.startswith(":", self.position):
            self.position += 1
            self.skip_pattern(_SPACE)
        elif self.position < len(self.text):
            raise _NotJson
        if self.position >= len(self.text):
            self.is_cut = True

    def read_string(self, context: str) -> str:
        """Read the string at the current position, and return it; as a `Cut` if it is truncated.

        *context* is ``key``, ``member``, ``item`` or ``alone``. It decides which characters may
        follow the closing quotation mark.
        """
        ends = _STRING_ENDS[context, _CLOSERS[self.text[self.position]]]
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
        """Read the number, boolean or null at the current position, and return it.

        A number is returned as a string. Other literals, such as ``NaN``, are returned as ``None``.

        Raises:
            _NotJson: There is no literal.
        """
        match = _LITERAL.match(self.text, self.position)
        if not match:
            raise _NotJson
        self.position = match.end()
        # A literal at the end of the text may be truncated: 12 may be the beginning of 120.
        if self.position >= len(self.text):
            self.is_cut = True
            return None
        word = match.group(1)
        return _LITERALS.get(word, word if word[-1].isdigit() else None)

    def skip_pattern(self, pattern: re.Pattern[str]) -> None:
        """Skip the text that matches *pattern* at the current position, if any."""
        if match := pattern.match(self.text, self.position):
            self.position = match.end()


def _unescape(text: str) -> str:
    """Return *text* with each JSON escape replaced by the character that it encodes."""
    if "\\" not in text:
        return text
    plain = _ESCAPE.sub(_decode_escape, text)
    # Two escapes may be the two halves (surrogates) of one character. A single half is dropped.
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")


def _decode_escape(match: re.Match[str]) -> str:
    """Return the character that a JSON escape encodes. *match* is a match of `_ESCAPE`."""
    code = match.group(1)
    if len(code) == 5:
        return chr(int(code[1:], 16))
    return _SHORT_ESCAPES.get(code, code)
