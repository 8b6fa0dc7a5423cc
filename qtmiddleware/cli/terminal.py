"""What every command gives the terminal: exit codes, and texts without what a terminal would obey.

Needs neither rich nor typer, so that their absence can be told.
"""

from __future__ import annotations

import re
import sys
from typing import Final

FAILED: Final = 1
"""Exit code: what was asked for could not be done."""
USAGE: Final = 2
"""Exit code: the arguments, the config or a question cannot be used as they are."""
INTERRUPTED: Final = 130
"""Exit code: Ctrl-C."""

# Control characters of both sets, escape among them, marks that turn the reading direction or end lines, and letters
# that nobody sees.
_OBEYED: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
)
_BREAKS: Final = "\n\r\t\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_CONTROLS: Final = re.compile(f"[{_OBEYED}]")
# Halves of characters too: no stream can hold them, and JSON has a form for them.
_ESCAPED: Final = re.compile(f"[{_OBEYED}\ud800-\udfff]")


def strip_control_characters(text: str) -> str:
    """*text* without control characters other than line feeds and tabs, and without marks that turn or hide text."""
    return _CONTROLS.sub("", text)


def escape_line(text: str) -> str:
    """*text* on one line: what breaks or moves it is shown as Python writes it, so that no name can forge a line."""
    return strip_control_characters("".join(repr(it)[1:-1] if it in _BREAKS else it for it in text))


def escape_json(written: str) -> str:
    """The JSON *written* with each control character as its escape, so that it says the same."""
    return _ESCAPED.sub(_escape, written)


def say(text: str = "", *, end: str = "\n") -> None:
    """Write *text* to stdout at once, without control characters."""
    print(strip_control_characters(text + end), end="", flush=True)


def note(text: str = "") -> None:
    """Write a line to stderr at once, without control characters."""
    print(strip_control_characters(text + "\n"), end="", file=sys.stderr, flush=True)


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
