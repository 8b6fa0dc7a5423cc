"""Read PDF files page by page, with pypdf."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from qtmiddleware.errors import MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents.text import Piece
from qtmiddleware.runtime.logs import get_logger

_log = get_logger("qtmiddleware.documents")

_LIGATURES: Final = {
    0xFB00 + offset: text
    for offset, text in enumerate(("ff", "fi", "fl", "ffi", "ffl", "st", "st"))
}
# A soft hyphen at a line's end joins two halves of a word. Elsewhere it is invisible.
_SOFT_HYPHEN: Final = re.compile(r"\xad(?:[ \t]*\n)?")
_LINE_END: Final = re.compile(r"(?<![ \t])[ \t]++(?=\n)")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")


def read_pdf(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the text of each page of the PDF *file*, except for empty pages.

    The location of each text is the page's number, from 1. Line breaks and hyphens at the ends of
    lines are kept. Ligatures become their letters. Soft hyphens and spaces at the ends of lines are
    removed. A page that cannot be read is skipped and logged. Raises `UnreadableDocument` if no
    page can be read.
    """
    try:
        import pypdf
    except ImportError:
        raise MissingExtra("pypdf", "documents") from None
    logging.getLogger("pypdf").addHandler(logging.NullHandler())
    try:
        reader = pypdf.PdfReader(file)
        # Many files are encrypted only to prevent changes, and open with an empty password.
        is_open = not reader.is_encrypted or reader.decrypt("")
        pages = list(reader.pages) if is_open else []
    except MemoryError:
        raise
    # For a damaged file, pypdf may raise any kind of error.
    except Exception as error:
        raise _explain_error(path, error) from error
    if not is_open:
        raise UnreadableDocument(path, "encrypted")
    is_damaged = is_blank = True
    for number, page in enumerate(pages, 1):
        try:
            text = _clean_text(page.extract_text())
        except MemoryError:
            raise
        except Exception as error:
            if type(error).__name__ == "DependencyError":
                raise _explain_error(path, error) from error
            _log.warning(
                "page %d is damaged and was skipped: %s",
                number,
                type(error).__name__,
                event="page_left_out",
            )
            continue
        is_damaged = False
        if text.strip():
            is_blank = False
            yield Piece(text, {"page": number})
    if is_blank:
        has_damage = is_damaged and pages
        raise UnreadableDocument(path, "damaged" if has_damage else "no text in it (scanned?)")


def _explain_error(path: Path, error: Exception) -> UnreadableDocument:
    kind = type(error).__name__
    if kind == "DependencyError":
        return UnreadableDocument(path, "encrypted", 'with AES; run: pip install "pypdf[crypto]"')
    if kind == "EmptyFileError":
        return UnreadableDocument(path, "empty")
    return UnreadableDocument(path, "damaged", kind)


def _clean_text(text: str) -> str:
    # Damaged files may have lone surrogates. Pairs are joined, and lone surrogates are replaced.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    text = _SOFT_HYPHEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _CONTROLS.sub("", _LINE_END.sub("", text.translate(_LIGATURES))).rstrip() + "\n"
