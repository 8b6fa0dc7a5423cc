"""Exit codes, and output without control characters.

This module does not import rich or typer, so ``qtm`` can report that they are missing.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Final, TextIO
from unicodedata import combining, east_asian_width

from qtmiddleware.runtime.control_characters import CONTROL_CHARACTERS

FAILED: Final = 1
"""Exit code: the command could not do its work."""
USAGE: Final = 2
"""Exit code: the arguments, the config or a question are not valid."""
WORSE: Final = 3
"""Exit code: retrieval got worse than the baseline."""
INTERRUPTED: Final = 130
"""Exit code: Ctrl-C."""

_LINE_BREAKS: Final = "\n\r\t\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_CONTROLS: Final = re.compile(f"[{CONTROL_CHARACTERS}]")

_TOKENS: Final = re.compile(r"\n|[^\S\n]+|\S+")
# A list item begins with such a marker. Its next lines are indented to the word after the marker.
_LIST_MARKER: Final = re.compile(r"\[\d+\]|[-*•]|\d+\.")
_MAX_WORD_COLUMNS: Final = 20


def strip_control_characters(text: str) -> str:
    """Return *text* without control characters, except line feeds and tabs.

    Characters that hide text or change its direction are removed too.
    """
    return _CONTROLS.sub("", text)


def escape_line(text: str) -> str:
    """Return *text* as one line, with line breaks written as Python escapes.

    Control characters are removed. A file name with a line break could otherwise forge a line of
    output.
    """
    return strip_control_characters(
        "".join(repr(letter)[1:-1] if letter in _LINE_BREAKS else letter for letter in text)
    )


class LineWrapper:
    """Wraps text between words to the width of the terminal behind *stream*.

    If *stream* is not a terminal, the text is not changed. Text may come in pieces. A piece is
    returned immediately, but near the end of a line a word is held back until it is complete. A
    continued line is indented like the first word of its paragraph, or like the word after a list
    marker. A word longer than a line is left for the terminal to break.
    """

    def __init__(self, stream: TextIO) -> None:
        self._width = _find_width(stream)
        self._start_line()

    def _start_line(self) -> None:
        self._column = self._indent = 0
        self._has_begun = self._is_within_word = False
        self._space = self._word = ""

    def feed(self, text: str) -> str:
        """Add *text*, and return the wrapped text that can be written now."""
        return "".join(map(self._feed_token, _TOKENS.findall(text))) if self._width else text

    def end(self) -> str:
        """Return the text that was held back, because no more text follows."""
        output = self._write_word()
        self._is_within_word = False
        return output

    def _feed_token(self, token: str) -> str:
        """Add *token* (a line feed, spaces or letters), and return the text to write now."""
        if token == "\n":
            output = self.end() + token
            self._start_line()
            return output
        if token.isspace():
            output = self.end()
            self._space += token
            return output
        self._word += token
        is_far = (
            self._column + len(self._space) + measure(self._word) < self._width - _MAX_WORD_COLUMNS
        )
        return self._write_word() if is_far else ""

    def _write_word(self) -> str:
        """Return the held-back word, on a new line if it does not fit on the current line."""
        word, self._word = self._word, ""
        output = self._place_word(word) if word else ""
        self._is_within_word = self._is_within_word or bool(word)
        return output

    def _place_word(self, word: str) -> str:
        """Return *word* after a space or a line break, and update the current column."""
        space, self._space = self._space, ""
        if not self._has_begun:
            self._indent = len(space) + (len(word) + 1 if _LIST_MARKER.fullmatch(word) else 0)
            self._has_begun = True
        width = measure(word)
        column = self._column + len(space)
        # A word stays on this line if it fits, if it begins the line, or if no line can hold it.
        fits = (
            column + width <= self._width
            or column <= self._indent
            or self._indent + width > self._width
        )
        # A piece of a word that is half written stays beside its first piece.
        if fits or self._is_within_word:
            self._column = column + width
            return space + word
        self._column = self._indent + width
        return "\n" + " " * self._indent + word


def measure(text: str) -> int:
    """Return the width of *text* in terminal columns."""
    return sum(
        0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text
    )


def _find_width(stream: TextIO) -> int:
    """Return the width of the terminal behind *stream* in columns; 0 if there is no terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        return 0


def _wrap_lines(text: str, stream: TextIO) -> str:
    wrapper = LineWrapper(stream)
    return wrapper.feed(text) + wrapper.end()


def say(text: str = "", *, end: str = "\n", wraps: bool = True) -> None:
    """Write *text* to stdout without control characters, and flush stdout.

    If *wraps* is true and stdout is a terminal, lines break between words.
    """
    text = strip_control_characters(text + end)
    print(_wrap_lines(text, sys.stdout) if wraps else text, end="", flush=True)


def note(text: str = "") -> None:
    """Write *text* and a line feed to stderr, without control characters.

    On a terminal, lines break between words.
    """
    print(
        _wrap_lines(strip_control_characters(text + "\n"), sys.stderr),
        end="",
        file=sys.stderr,
        flush=True,
    )
