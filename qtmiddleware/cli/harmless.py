"""Texts of others as a terminal may be given them: without what it would obey, and what turns or hides the rest."""

from __future__ import annotations

import re
from typing import Final

# Control characters of both sets, escape among them, marks that turn the reading direction or end lines, and letters
# that nobody sees.
_OBEYED: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
)
_BREAKS: Final = "\n\r\t\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_ACTS: Final = re.compile(f"[{_OBEYED}]")
# Halves of characters too: no stream can hold them, and JSON has a form for them.
_ESCAPED: Final = re.compile(f"[{_OBEYED}\ud800-\udfff]")


def harmless(text: str) -> str:
    """*text* without control characters other than line feeds and tabs, and without marks that turn or hide text."""
    return _ACTS.sub("", text)


def harmless_line(text: str) -> str:
    """*text* on one line: what breaks or moves it is shown as Python writes it, so that no name can forge a line."""
    return harmless("".join(repr(it)[1:-1] if it in _BREAKS else it for it in text))


def harmless_json(written: str) -> str:
    """The JSON *written* with each such character as its escape, so that it says the same."""
    return _ESCAPED.sub(_escape, written)


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
