"""Read PDF files page by page, with pypdf."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from time import thread_time
from typing import Any, BinaryIO, Final

from qtmiddleware.errors import MissingExtra, QtMiddlewareError, UnreadableDocument
from qtmiddleware.kit.documents.bounds import build_timeout_error, compute_time_limit
from qtmiddleware.kit.documents.text import Piece
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Deadline

_log = get_logger("qtmiddleware.documents")

PAGE_SECONDS: Final = 20.0
"""The time limit for reading a page, in seconds.

The slowest ordinary pages, maps and drawings, take a few seconds.
"""
SLOW_PAGES: Final = 3
"""The number of pages over the time limit at which reading the document fails."""

_LIGATURES: Final = {
    0xFB00 + offset: text
    for offset, text in enumerate(("ff", "fi", "fl", "ffi", "ffl", "st", "st"))
}
# A soft hyphen at a line's end joins two halves of a word. Elsewhere it is invisible.
_SOFT_HYPHEN: Final = re.compile(r"\xad(?:[ \t]*\n)?")
_LINE_END: Final = re.compile(r"(?<![ \t])[ \t]++(?=\n)")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_LONE: Final = re.compile(r"[\ud800-\udfff]")


class _TooSlow(Exception):
    """Raised if reading a page takes more than `PAGE_SECONDS`."""


def read_pdf(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the text of each page of the PDF *file*, except for empty pages.

    The location of each text is the page's number, from 1. Line breaks and hyphens at the ends of
    lines are kept. Ligatures become their letters. Soft hyphens and spaces at the ends of lines are
    removed.

    A page that cannot be read is skipped and logged. Raises `UnreadableDocument` if no page can be
    read, if three pages take too long, or if the whole document takes too long.
    """
    allowed_seconds = compute_time_limit(os.fstat(file.fileno()).st_size)
    try:
        reader = _open_pdf_reader(path, file)
        repeated_count = _remove_repeated_pages(reader)
        pages = list(reader.pages)
    except (OSError, QtMiddlewareError):
        raise
    except Exception as error:
        raise _build_document_error(path, error) from error
    slow_count = broken_count = read_count = 0
    used_seconds = 0.0
    for number, page in enumerate(pages, 1):
        text, start = "", thread_time()
        try:
            text = _extract_text(page)
        except OSError:
            raise
        except _TooSlow as error:
            slow_count += 1
            _log.warning(
                "page %d of %s takes too long to read and was skipped",
                number,
                path,
                event="page_left_out",
            )
            if slow_count == SLOW_PAGES:
                raise UnreadableDocument(
                    path, "damaged", f"page {number} takes too long to read"
                ) from error
        # For a damaged file, pypdf may raise any kind of error.
        except Exception as error:
            if _is_aes_missing(error):
                raise _build_document_error(path, error) from error
            broken_count += 1
            attributes: dict[str, Any] = {"event": "page_left_out", "error": type(error).__name__}
            _log.warning(
                "page %d of %s is damaged and was skipped: %s",
                number,
                path,
                type(error).__name__,
                **attributes,
            )
        # Many pages, each just below its limit, would still take hours.
        used_seconds += thread_time() - start
        if used_seconds > allowed_seconds:
            raise build_timeout_error(path, allowed_seconds)
        if text.strip():
            read_count += 1
            yield Piece(text, {"page": number})
    if not read_count:
        raise UnreadableDocument(
            path,
            "damaged"
            if broken_count or slow_count or repeated_count
            else "no text in it (scanned?)",
        )


def _open_pdf_reader(path: Path, file: BinaryIO) -> Any:
    """Open *file* with pypdf, and return pypdf's reader.

    Raises `UnreadableDocument` if *file* needs a password, and `MissingExtra` if pypdf is not
    installed.
    """
    try:
        import pypdf
    except ImportError:
        raise MissingExtra("pypdf", "documents") from None
    logger = logging.getLogger("pypdf")
    if not logger.handlers:
        # If no logger has a handler, Python writes warnings to the terminal.
        logger.addHandler(logging.NullHandler())
    reader = pypdf.PdfReader(file)
    # Many files are encrypted only to prevent changes, and open with an empty password.
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableDocument(path, "encrypted")
    return reader


def _remove_repeated_pages(reader: Any) -> int:
    """Remove repeated pages, and repeated branches of the page tree, from *reader*.

    *reader* is pypdf's reader of a file. Returns how many pages and branches were removed.
    """
    # A file of 1 KB could have a billion pages, if each of nine levels repeats its branch ten
    # times.
    from pypdf.generic import ArrayObject, DictionaryObject, IndirectObject, NameObject

    known_ids: set[tuple[int, int]] = set()
    dropped_count = 0
    branches = [reader.root_object["/Pages"]]
    while branches:
        branch = branches.pop()
        kids = branch.get("/Kids") if isinstance(branch, DictionaryObject) else None
        if not isinstance(kids, ArrayObject):
            continue
        kept_kids = ArrayObject()
        for kid in kids:
            if isinstance(kid, IndirectObject):
                if (kid.idnum, kid.generation) in known_ids:
                    dropped_count += 1
                    continue
                known_ids.add((kid.idnum, kid.generation))
            kept_kids.append(kid)
        branch[NameObject("/Kids")] = kept_kids
        branches += [kid.get_object() for kid in kept_kids]
    return dropped_count


def _build_document_error(path: Path, error: Exception) -> UnreadableDocument:
    """Convert pypdf's *error* for the file at *path* into an `UnreadableDocument`."""
    if _is_aes_missing(error):
        return UnreadableDocument(path, "encrypted", 'with AES; run: pip install "pypdf[crypto]"')
    if type(error).__name__ == "EmptyFileError":
        return UnreadableDocument(path, "empty")
    return UnreadableDocument(path, "damaged", type(error).__name__)


def _is_aes_missing(error: Exception) -> bool:
    """Return whether *error* means that the package for AES decryption is not installed."""
    return type(error).__name__ == "DependencyError"


def _extract_text(page: Any) -> str:
    """Return the text of *page*, without soft hyphens, ligatures and control characters.

    Raises `_TooSlow` if pypdf needs more than `PAGE_SECONDS`.
    """
    deadline = Deadline.after(PAGE_SECONDS)
    is_late = False

    def check_deadline(*_: Any) -> None:
        # pypdf calls this before each drawing operation, also inside of forms. Forms can draw each
        # other many times.
        nonlocal is_late
        if deadline.passed:
            is_late = True
            raise _TooSlow

    text: str = page.extract_text(visitor_operand_before=check_deadline)
    if is_late:  # pypdf catches errors inside a form and goes on with the page.
        raise _TooSlow
    # Damaged files may have lone surrogates, which cannot be encoded. Pairs are joined, and lone
    # surrogates are replaced.
    if _LONE.search(text):
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    text = _SOFT_HYPHEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).translate(
        _LIGATURES
    )
    return _CONTROLS.sub("", _LINE_END.sub("", text)).rstrip() + "\n"
