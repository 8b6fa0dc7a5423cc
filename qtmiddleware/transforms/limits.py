"""How much of a reply is read, and what a transformation that comes of replies may hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.protocols import ReplyField
from qtmiddleware.types import Transformation

READ_CHARS: Final = 65_536
"""How much of a reply is looked at."""
MAX_CHARS: Final = {"line": 1_000, "list": 1_000, "passage": 4_000}
"""The longest text of each shape."""
MAX_KEYWORD_CHARS: Final = 100
"""The longest key term."""
MOST_TEXTS: Final = 500
"""How many texts of one field are looked at."""
MOST_NOTES: Final = 100
MAX_NOTE_CHARS: Final = 200


def is_within_limits(made: Transformation, fields: Iterable[ReplyField]) -> bool:
    """Whether replies with these *fields* could give *made*: no other fields, no more or longer texts, none blank.

    What others remember for us is held against this: a reply is bounded while it is read.
    """
    asked = {field.name: field for field in fields}
    held = {name: texts for name in TEXT_FIELDS if (texts := made.texts(name))}
    return (
        held.keys() <= asked.keys()
        and all(_are_within(asked[name], texts) for name, texts in held.items())
        and len(made.notes) <= MOST_NOTES
        and all(len(text) <= MAX_NOTE_CHARS for note in made.notes for text in note)
    )


def _are_within(field: ReplyField, texts: tuple[str, ...]) -> bool:
    longest = MAX_KEYWORD_CHARS if TEXT_FIELDS[field.name].guard == "terms" else MAX_CHARS[field.shape]
    most = field.max_items if field.shape == "list" else 1
    return len(texts) <= most and all(text.strip() and len(text) <= longest for text in texts)
