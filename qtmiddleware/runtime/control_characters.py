"""Characters that a terminal or a reader obeys or does not see, and JSON that shows them."""

from __future__ import annotations

import re
from typing import Final

OBEYED: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
)
"""Control characters of both sets, escape among them, marks that turn the reading direction or end lines, and letters
that nobody sees, as the inside of a pattern's brackets. Line feeds and tabs are not among them."""

# Halves of characters too: no stream can hold them, and JSON has a form for them.
_ESCAPED: Final = re.compile(f"[{OBEYED}\ud800-\udfff]")


def escape_json(written: str) -> str:
    """The JSON *written* with each control character as its escape, so that it says the same."""
    return _ESCAPED.sub(_escape, written)


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
