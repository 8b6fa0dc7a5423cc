"""Define the exit codes, and write output with hidden characters shown as escapes.

This module does not import rich or typer, so ``qtm`` can report that they are missing.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Final, TextIO
from unicodedata import combining, east_asian_width

from qtmiddleware.runtime.control_characters import escape_hidden

FAILED: Final = 1
"""Exit code: the command failed."""
USAGE: Final = 2
"""Exit code: the arguments, the config or a question are not valid."""
WORSE: Final = 3
"""Exit code: retrieval got worse than the baseline."""
INTERRUPTED: Final = 130
"""Exit code: the user pressed Ctrl-C."""

_TOKENS: Final = re.compile(r"\n|[^\S\n]+|\S+")
# A list item begins with such a marker. Its next lines are indented to the word after the marker.
_LIST_MARKER: Final = re.compile(r"\[\d+\]|[-*•]|\d+\.")
_MAX_WORD_COLUMNS: Final = 20


def escape_line(text: str) -> str:
    r"""Return *text* in one line, with escapes such as ``\n`` for its line ends and tabs."""
    # A file name with a line break could otherwise forge a line of output.
    return escape_hidden(text.replace("\r", "\\r")).replace("\n", "\\n").replace("\t", "\\t")


class LineWrapper:
    """Wraps text at spaces to the width of a terminal. The text may arrive in pieces.

    - Near the end of a line, the wrapper holds back an incomplete word until the word is complete.
    - A continued line has the indentation of its paragraph or list item.
    - The wrapper never breaks a word.

    Args:
        stream: The output. If the stream is not a terminal, the text is not wrapped.
    """

    def __init__(self, stream: TextIO) -> None:
        self._width = _find_terminal_width(stream)
        self._start_line()

    def _start_line(self) -> None:
        self._column = self._indent = 0
        self._has_begun = self._is_within_word = False
        self._space = self._word = ""

    def add_piece(self, piece: str) -> str:
        """Add a *piece* of text, and return the wrapped text that is ready for output."""
        return "".join(map(self._wrap_token, _TOKENS.findall(piece))) if self._width else piece

    def flush(self) -> str:
        """Return the text that was held back, for use at the end of the whole text."""
        output = self._release_word()
        self._is_within_word = False
        return output

    def _wrap_token(self, token: str) -> str:
        """Add *token* (a line feed, spaces or a word), and return the text ready for output."""
        if token == "\n":
            output = self.flush() + token
            self._start_line()
            return output
        if token.isspace():
            output = self.flush()
            self._space += token
            return output
        self._word += token
        # Far from the end of the line, a word fits even if later pieces make it longer.
        is_far = (
            self._column + len(self._space) + measure_width(self._word)
            < self._width - _MAX_WORD_COLUMNS
        )
        return self._release_word() if is_far else ""

    def _release_word(self) -> str:
        """Return the held-back word, after a line break if the current line has no room."""
        word, self._word = self._word, ""
        output = self._place_word(word) if word else ""
        self._is_within_word = self._is_within_word or bool(word)
        return output

    def _place_word(self, word: str) -> str:
        """Return *word* after the needed spaces or line break, and update the current column."""
        space, self._space = self._space, ""
        if not self._has_begun:
            self._indent = len(space) + (len(word) + 1 if _LIST_MARKER.fullmatch(word) else 0)
            self._has_begun = True
        width = measure_width(word)
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


def measure_width(text: str) -> int:
    """Return the width of *text* in terminal columns."""
    # Chinese, Japanese and Korean characters take two columns, and combining accents none.
    return sum(
        0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text
    )


def _find_terminal_width(stream: TextIO) -> int:
    """Return the width of *stream* in columns; 0 if *stream* is not a terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        return 0


def _wrap_lines(text: str, stream: TextIO) -> str:
    wrapper = LineWrapper(stream)
    return wrapper.add_piece(text) + wrapper.flush()


def write_output(text: str = "", *, end: str = "\n", should_wrap: bool = True) -> None:
    """Write *text* to stdout, with hidden characters shown as escapes, and flush stdout.

    If *should_wrap* is true and stdout is a terminal, lines break between words.
    """
    # Flushed, so that a program that reads a pipe gets each answer as soon as it is written.
    text = escape_hidden(text + end)
    print(_wrap_lines(text, sys.stdout) if should_wrap else text, end="", flush=True)


def write_note(text: str = "") -> None:
    """Write *text* and a line feed to stderr, with hidden characters shown as escapes.

    On a terminal, lines break between words.
    """
    print(
        _wrap_lines(escape_hidden(text + "\n"), sys.stderr),
        end="",
        file=sys.stderr,
        flush=True,
    )
