"""PDF files, page by page, by pypdf."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from time import thread_time
from typing import Any, BinaryIO, Final

from qtmiddleware.errors import MissingExtra, QtMiddlewareError, UnreadableDocument
from qtmiddleware.kit.documents.bounds import build_late_error, find_seconds
from qtmiddleware.kit.documents.text import Piece
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Deadline

_log = get_logger("qtmiddleware.documents")

PAGE_SECONDS: Final = 20.0
"""How long one page may take. The slowest honest ones, maps and drawings, take a few seconds."""
SLOW_PAGES: Final = 3
"""After so many pages that took longer the document is given up."""

_LIGATURES: Final = {
    0xFB00 + at: text for at, text in enumerate(("ff", "fi", "fl", "ffi", "ffl", "st", "st"))
}
# A soft hyphen is no letter: at a line's end it joins two halves of a word, elsewhere it is not
# seen.
_SOFT_HYPHEN: Final = re.compile(r"\xad(?:[ \t]*\n)?")
_LINE_END: Final = re.compile(r"(?<![ \t])[ \t]++(?=\n)")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_LONE: Final = re.compile(r"[\ud800-\udfff]")


class _TooSlow(Exception):
    """A page takes longer than any honest one."""


def read_pdf(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """The text of each page of *file*, which is the one at *path*; every page ends its line, empty ones are left out.

    Lines stay as they are on the page, and so do hyphens at their end, most of which belong to the
    word. Ligatures are spelled out; soft hyphens and spaces at line ends are dropped. A page that
    cannot be read is left out and logged; the document counts as damaged when no page could be
    read, or after three that took too long.
    """
    most = find_seconds(os.fstat(file.fileno()).st_size)
    try:
        reader = _open_reader(path, file)
        repeated = _drop_repeated_pages(reader)
        pages = list(reader.pages)
    except (OSError, QtMiddlewareError):
        raise
    except Exception as error:
        raise _build_error(path, error) from error
    slow = broken = found = 0
    used = 0.0
    for number, page in enumerate(pages, 1):
        text, began = "", thread_time()
        try:
            text = _extract_text(page)
        except OSError:
            raise
        except _TooSlow as error:
            slow += 1
            _log.warning(
                "page %d of %s takes too long to read and was skipped",
                number,
                path,
                event="page_left_out",
            )
            if slow == SLOW_PAGES:
                raise UnreadableDocument(
                    path, "damaged", f"page {number} takes too long to read"
                ) from error
        # What a broken file makes pypdf stumble over is an error of any kind.
        except Exception as error:
            if _lacks_aes(error):
                raise _build_error(path, error) from error
            broken += 1
            about: dict[str, Any] = {"event": "page_left_out", "error": type(error).__name__}
            _log.warning(
                "page %d of %s is damaged and was skipped: %s",
                number,
                path,
                type(error).__name__,
                **about,
            )
        used += thread_time() - began
        if used > most:
            raise build_late_error(path, most)
        if text.strip():
            found += 1
            yield Piece(text, {"page": number})
    if not found:
        raise UnreadableDocument(
            path, "damaged" if broken or slow or repeated else "no text in it (scanned?)"
        )


def _open_reader(path: Path, file: BinaryIO) -> Any:
    try:
        import pypdf
    except ImportError:
        raise MissingExtra("pypdf", "pdf") from None
    logger = logging.getLogger("pypdf")
    if not logger.handlers:
        # Without a handler anywhere, Python itself writes warnings to the terminal.
        logger.addHandler(logging.NullHandler())
    reader = pypdf.PdfReader(file)
    # Many files are encrypted against changes alone; those open with an empty password.
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableDocument(path, "encrypted")
    return reader


def _drop_repeated_pages(reader: Any) -> int:
    """Leave each page, and each branch of the tree of pages, of *reader* where it stands first. Returns what went.

    A tree whose branches are named ten times each has a billion pages after nine steps, in a file
    of 1 KB.
    """
    from pypdf.generic import ArrayObject, DictionaryObject, IndirectObject, NameObject

    known: set[tuple[int, int]] = set()
    dropped = 0
    branches = [reader.root_object["/Pages"]]
    while branches:
        branch = branches.pop()
        kids = branch.get("/Kids") if isinstance(branch, DictionaryObject) else None
        if not isinstance(kids, ArrayObject):
            continue
        kept = ArrayObject()
        for kid in kids:
            if isinstance(kid, IndirectObject):
                if (kid.idnum, kid.generation) in known:
                    dropped += 1
                    continue
                known.add((kid.idnum, kid.generation))
            kept.append(kid)
        branch[NameObject("/Kids")] = kept
        branches += [kid.get_object() for kid in kept]
    return dropped


def _build_error(path: Path, error: Exception) -> UnreadableDocument:
    """Returns what names the file for an *error* of any kind, as which a broken one shows."""
    if _lacks_aes(error):
        return UnreadableDocument(path, "encrypted", 'with AES; run: pip install "pypdf[crypto]"')
    if type(error).__name__ == "EmptyFileError":
        return UnreadableDocument(path, "empty")
    return UnreadableDocument(path, "damaged", type(error).__name__)


def _lacks_aes(error: Exception) -> bool:
    return type(error).__name__ == "DependencyError"


def _extract_text(page: Any) -> str:
    """The text of *page*, cleaned of what is layout alone."""
    deadline = Deadline.after(PAGE_SECONDS)
    late = False

    def watch(*_: Any) -> None:
        # Called before each operation of the page, also of the forms it draws, which may draw each
        # other many times.
        nonlocal late
        if deadline.passed:
            late = True
            raise _TooSlow

    text: str = page.extract_text(visitor_operand_before=watch)
    if late:  # An error inside a form ends that form alone.
        raise _TooSlow
    if _LONE.search(text):
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    text = _SOFT_HYPHEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).translate(
        _LIGATURES
    )
    return _CONTROLS.sub("", _LINE_END.sub("", text)).rstrip() + "\n"
