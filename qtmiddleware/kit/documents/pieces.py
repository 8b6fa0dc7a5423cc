"""The pieces of a document's text, their places in it, and the limits of a document's size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from qtmiddleware.catalogue import PLACES
from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.providers import replace_surrogates

Location = Mapping[str, str | int | float]

# The metadata names that ingestion uses itself; a location must not contain them.
OWN: Final = frozenset(("source", "chunk", "start", "end", "text", "context"))
# The maximum length of a text in a location, which each chunk repeats.
PLACE_CHARS: Final = 200
# The maximum size of a document in bytes, of its unpacked parts in bytes, and of its text in
# characters.
MOST_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a document's text, such as a page, a paragraph or a row.

    Attributes:
        text: the words of this piece, as plain text.
        location: where the piece is, such as ``{"page": 3}``; empty for plain text.
        stands_alone: whether the text must not share a chunk with other text.
    """

    text: str = field(repr=False)
    location: Location = field(default_factory=dict)
    stands_alone: bool = field(default=False, repr=False)


def check_size(path: Path, size: int, unit: str = "MB") -> None:
    """Raise `UnreadableDocument` if *size*, in bytes or characters, is above `MOST_BYTES`."""
    if size > MOST_BYTES:
        detail = f"more than {MOST_BYTES >> 20} {unit}; save it in smaller parts"
        raise UnreadableDocument(path, "too large", detail)


def collect_pieces(path: Path, pieces: Iterable[Piece]) -> list[Piece]:
    """Return *pieces* as a list, unless they have too much text or none at all.

    Texts in their locations are cut to `PLACE_CHARS` characters of valid Unicode.
    """
    kept = []
    chars = 0
    for piece in pieces:
        chars += len(piece.text)
        check_size(path, chars, "million characters")
        location = {
            name: replace_surrogates(value[:PLACE_CHARS]) if isinstance(value, str) else value
            for name, value in piece.location.items()
        }
        kept.append(Piece(piece.text, location, piece.stands_alone))
    if not any(piece.text.strip() for piece in kept):
        raise UnreadableDocument(path, "no text in it")
    return kept


def describe_chunk_location(metadata: Mapping[str, Any]) -> str:
    """Return a chunk's location as text, such as ``page 3 to 4``; ``""`` if there is none."""
    places = []
    for name in PLACES:
        first = metadata.get(name)
        if isinstance(first, str | int | float) and first != "":
            last = metadata.get(f"last_{name}", first)
            end = "" if last == first else f" to {_format_value(last)}"
            places.append(f"{name} {_format_value(first)}{end}")
    return ", ".join(places)


def _format_value(value: Any) -> str:
    # Pinecone stores every number as a float.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
