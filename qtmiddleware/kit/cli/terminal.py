"""What every command gives the terminal: exit codes, and texts without what a terminal would obey.

Needs neither rich nor typer, so that their absence can be told.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Final, TextIO
from unicodedata import combining, east_asian_width

from qtmiddleware.runtime.control_characters import OBEYED

FAILED: Final = 1
"""Exit code: what was asked for could not be done."""
USAGE: Final = 2
"""Exit code: the arguments, the config or a question cannot be used as they are."""
WORSE: Final = 3
"""Exit code: retrieval got worse than the baseline."""
INTERRUPTED: Final = 130
"""Exit code: Ctrl-C."""

_BREAKS: Final = "\n\r\t\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_CONTROLS: Final = re.compile(f"[{OBEYED}]")

_PARTS: Final = re.compile(r"\n|[^\S\n]+|\S+")
# What a line of a list begins with: it goes on under the word behind that.
_MARK: Final = re.compile(r"\[\d+\]|[-*•]|\d+\.")
_LONGEST_WORD: Final = 20


def strip_control_characters(text: str) -> str:
    """*text* without control characters other than line feeds and tabs, and without marks that turn or hide text."""
    return _CONTROLS.sub("", text)


def escape_line(text: str) -> str:
    """*text* on one line: what breaks or moves it is shown as Python writes it, so that no name can forge a line."""
    return strip_control_characters("".join(repr(it)[1:-1] if it in _BREAKS else it for it in text))


class LineWrapper:
    """Breaks text between its words where a line of the terminal behind *stream* ends; elsewhere it stays as it is.

    Texts come in pieces, and are written as they come: only near the end of a line a word is held
    back until it is known whether it fits. A line goes on under its own first word, and a word
    longer than a line is left to the terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._width = _find_width(stream)
        self._start_line()

    def _start_line(self) -> None:
        self._column = self._indent = 0
        self._has_begun = self._is_within_word = False
        self._space = self._word = ""

    def feed(self, text: str) -> str:
        """What is to be written now of *text* and what was held back before it."""
        return "".join(map(self._feed, _PARTS.findall(text))) if self._width else text

    def end(self) -> str:
        """What was held back."""
        written = self._write_word()
        self._is_within_word = False
        return written

    def _feed(self, part: str) -> str:
        if part == "\n":
            written = self.end() + part
            self._start_line()
            return written
        if part.isspace():
            written = self.end()
            self._space += part
            return written
        self._word += part
        is_far = self._column + len(self._space) + measure(self._word) < self._width - _LONGEST_WORD
        return self._write_word() if is_far else ""

    def _write_word(self) -> str:
        word, self._word = self._word, ""
        written = self._place(word) if word else ""
        self._is_within_word = self._is_within_word or bool(word)
        return written

    def _place(self, word: str) -> str:
        space, self._space = self._space, ""
        if not self._has_begun:
            self._indent = len(space) + (len(word) + 1 if _MARK.fullmatch(word) else 0)
            self._has_begun = True
        wide = measure(word)
        there = self._column + len(space)
        fits = (
            there + wide <= self._width
            or there <= self._indent
            or self._indent + wide > self._width
        )
        if fits or self._is_within_word:
            self._column = there + wide
            return space + word
        self._column = self._indent + wide
        return "\n" + " " * self._indent + word


def measure(text: str) -> int:
    """How many columns *text* takes."""
    return sum(0 if combining(it) else 2 if east_asian_width(it) in "WF" else 1 for it in text)


def _find_width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        return 0


def _wrap(text: str, stream: TextIO) -> str:
    wrapper = LineWrapper(stream)
    return wrapper.feed(text) + wrapper.end()


def say(text: str = "", *, end: str = "\n", wraps: bool = True) -> None:
    """Write *text* to stdout at once, without control characters; at a terminal its lines break between words."""
    text = strip_control_characters(text + end)
    print(_wrap(text, sys.stdout) if wraps else text, end="", flush=True)


def note(text: str = "") -> None:
    """Write a line to stderr at once, without control characters; at a terminal it breaks between words."""
    print(
        _wrap(strip_control_characters(text + "\n"), sys.stderr),
        end="",
        file=sys.stderr,
        flush=True,
    )
