"""Show characters that a reader cannot see, or that control a terminal, as escapes."""

from __future__ import annotations

import re
from typing import Final

_HIDDEN: Final = (
    # Control characters, but for tabs and line feeds, and the other ends of a line.
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029"
    # Marks that change the reading direction.
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
    # Letters of no width, fillers, variation selectors and tags. Any text can be hidden in these.
    "\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
    # Half surrogate pairs: no stream can encode them.
    "\ud800-\udfff"
)
# One joiner or emoji style after another script's character or a symbol is a part of it, and so is
# a soft hyphen within a word.
_NEEDED: Final = (
    rf"(?:\A|(?<=[^\x00-\xa8{_HIDDEN}]))(?:\ufe0f?\u200d|[\ufe0e\ufe0f\u200c])(?![{_HIDDEN}])"
    r"|(?<=[^\W\d_])\xad(?=[^\W\d_])"
)
_PATTERN: Final = re.compile(rf"({_NEEDED})|[{_HIDDEN}]")


def escape_json(document: str) -> str:
    """Return the JSON text *document* with hidden characters escaped. The data stays the same."""
    return _PATTERN.sub(_escape, document)


def escape_hidden(text: str) -> str:
    r"""Return *text* with an escape such as ``\u202e`` in place of each hidden character."""
    return _PATTERN.sub(_escape, text.replace("\r\n", "\n"))


def _escape(match: re.Match[str]) -> str:
    if match[1]:
        return match[0]
    # JSON escapes characters beyond U+FFFF as two UTF-16 units.
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[start : start + 2].hex()}" for start in range(0, len(units), 2))
