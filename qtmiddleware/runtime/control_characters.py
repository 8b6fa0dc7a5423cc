"""Escape characters that control a terminal or are invisible."""

from __future__ import annotations

import re
from typing import Final

CONTROL_CHARACTERS: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
)
"""The characters to escape, written for use inside the brackets of a regular expression.

They are control characters, characters that change the reading direction or end a line, and
invisible characters. Line feeds and tabs are not included.
"""

# Half surrogate pairs too: no stream can encode them, and JSON has an escape for them.
_ESCAPED: Final = re.compile(f"[{CONTROL_CHARACTERS}\ud800-\udfff]")


def escape_json(document: str) -> str:
    """Return the JSON text *document* with control characters escaped. The data stays the same."""
    return _ESCAPED.sub(_escape_character, document)


def _escape_character(match: re.Match[str]) -> str:
    # JSON escapes characters beyond U+FFFF as two UTF-16 units.
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[start : start + 2].hex()}" for start in range(0, len(units), 2))
