"""Reading one document, whatever its kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.rag.documents import pdf, text
from qtmiddleware.rag.documents.piece import Piece
from qtmiddleware.runtime.files import open_document


def read_document(path: Path, *, follow_link: bool = True) -> Iterator[Piece]:
    r"""The text of the document at *path*, piece by piece, of which no more is held than one.

    ``.pdf`` is read page by page, with page numbers; everything else as text in UTF-8, or in UTF-16 with a byte order
    mark. Byte order marks are dropped and every kind of line end becomes ``\n``; Markdown stays as it is written, with
    its front matter.

    Raises `UnreadableDocument`, at the first piece or at any later one, and `MissingExtra` for a PDF without pypdf.
    """
    try:
        with open_document(path, follow_link=follow_link) as file:
            read = pdf.read_pdf if path.suffix.casefold() == ".pdf" else text.read_text
            yield from read(path, file)
    except (OSError, ValueError) as error:
        raise UnreadableDocument(path, "cannot be opened", getattr(error, "strerror", None) or "") from error
