"""Find documents, read them, and split them into chunks.

Each chunk records its location in the document, such as the page number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, groupby
from pathlib import Path

from qtmiddleware.config.settings import ChunkBoundary
from qtmiddleware.kit.documents.chunking import Chunk, cut_into_chunks
from qtmiddleware.kit.documents.pieces import Location, Piece
from qtmiddleware.kit.documents.reading import Converter


def cut_document(
    path: Path,
    converter: Converter,
    *,
    size: int,
    overlap: int,
    boundary: ChunkBoundary = "sentence",
) -> Iterator[Chunk]:
    """Yield the chunks of the document at *path*.

    See `cut_into_chunks` for *size*, *overlap* and *boundary*, and `Converter.read` for the errors.
    A chunk of only white space has an empty location. The text of a record (a piece with
    ``stands_alone``) shares no chunk with other texts.
    """
    pieces = converter.read(path)
    begin = 0
    # A record's location contains its number, so two consecutive records are two groups.
    for _, group in groupby(pieces, lambda piece: piece.location if piece.stands_alone else None):
        parts = list(group)
        texts = [piece.text for piece in parts]
        starts = list(accumulate(map(len, texts), initial=0))
        for cut in cut_into_chunks(texts, size=size, overlap=overlap, boundary=boundary):
            yield Chunk(begin + cut.start, cut.text, _find_location(cut, parts, starts))
        begin += starts[-1]


def _find_location(chunk: Chunk, pieces: list[Piece], starts: list[int]) -> Location:
    # The location is that of the words: a page break in the white space around them is ignored.
    if not chunk.text.strip():
        return {}
    first_char = chunk.end - len(chunk.text.lstrip())
    last_char = chunk.start + len(chunk.text.rstrip()) - 1
    first, last = (
        pieces[bisect_right(starts, place, hi=len(pieces)) - 1].location
        for place in (first_char, last_char)
    )
    changed = {f"last_{name}": value for name, value in last.items() if first.get(name) != value}
    return {**first, **changed}
