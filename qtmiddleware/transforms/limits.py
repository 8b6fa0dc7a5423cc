"""How much of a reply is read, and how long a text in it may be."""

from __future__ import annotations

from typing import Final

READ_CHARS: Final = 65_536
"""How much of a reply is looked at."""
MAX_CHARS: Final = {"line": 1_000, "list": 1_000, "passage": 4_000}
"""The longest text of each shape."""
MAX_KEYWORD_CHARS: Final = 100
"""The longest key term."""
MOST_TEXTS: Final = 500
"""How many texts of one field are looked at."""
