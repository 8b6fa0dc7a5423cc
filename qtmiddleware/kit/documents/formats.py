"""Read PDF, HTML and Office files through the usual libraries, one function per format."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, time
from pathlib import Path
from typing import Any, BinaryIO, Final

from qtmiddleware.errors import MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents.pieces import Piece
from qtmiddleware.kit.documents.records import format_rows
from qtmiddleware.runtime.logs import get_logger

EXTRA: Final = "documents"

_LIGATURES: Final = {
    0xFB00 + offset: text
    for offset, text in enumerate(("ff", "fi", "fl", "ffi", "ffl", "st", "st"))
}
# A soft hyphen at a line's end joins two halves of a word. Elsewhere it is invisible.
_SOFT_HYPHEN: Final = re.compile(r"\xad(?:[ \t]*\n)?")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")

_log: Final = get_logger("qtmiddleware.documents")


def read_pdf(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the text of each page, with the page's number, from 1.

    Hyphens at the ends of lines stay. A page that cannot be read is skipped and logged.
    """
    try:
        import pypdf
    except ImportError:
        raise MissingExtra("pypdf", EXTRA) from None
    logging.getLogger("pypdf").addHandler(logging.NullHandler())
    reader = pypdf.PdfReader(file)
    # Many files are encrypted only to prevent changes, and open with an empty password.
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableDocument(path, "encrypted")
    has_text = False
    for number, page in enumerate(reader.pages, 1):
        try:
            text = _clean_pdf_text(page.extract_text())
        except MemoryError:
            raise
        # For a damaged page, pypdf may raise any kind of error.
        except Exception as error:
            reason = type(error).__name__
            _log.warning(
                "page %d is damaged and was skipped: %s", number, reason, event="page_left_out"
            )
            continue
        if text.strip():
            has_text = True
            yield Piece(text, {"page": number})
    if not has_text:
        raise UnreadableDocument(path, "no text in it (scanned?)")


def _clean_pdf_text(text: str) -> str:
    # Damaged files may have lone surrogates. Pairs are joined, and lone surrogates are replaced.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    text = _SOFT_HYPHEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = _CONTROLS.sub("", text.translate(_LIGATURES))
    return "\n".join(line.rstrip(" \t") for line in text.split("\n")).rstrip() + "\n"


_SKIPPED: Final = (
    *("script", "style", "noscript", "template", "nav", "footer", "svg", "iframe", "button"),
    *("select", "textarea"),
)
_BLOCKS: Final = (
    *("h1", "h2", "h3", "h4", "h5", "h6", "address", "article", "aside", "blockquote", "br"),
    *("caption", "dd", "dl", "dt", "details", "div", "fieldset", "figcaption", "figure", "form"),
    *("header", "hr", "li", "main", "ol", "p", "pre", "section", "summary", "table", "tr", "ul"),
)
# In HTML, a line break is a space. These signs stand for what is none until the end.
_PARAGRAPH_END: Final = "\u2029"
_KEPT_SPACES: Final = str.maketrans({" ": "\xa0", "\n": "\u2028"})
_SPACES: Final = re.compile(r"[ \t\r\n\f]+")


def read_html(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the text of a page with its title, without navigation, scripts and styles.

    A page that is not UTF-8 has the encoding that it declares.
    """
    try:
        from lxml import etree, html
    except ImportError:
        raise MissingExtra("lxml", EXTRA) from None
    content = file.read()
    encoding = None if _declares_encoding(content) else "utf-8"
    # huge_tree allows long texts and attributes, such as embedded images.
    parser = html.HTMLParser(encoding=encoding, huge_tree=True, remove_comments=True)
    page = html.document_fromstring(content, parser)
    if parser.error_log.filter_from_fatals():
        raise UnreadableDocument(path, "damaged", "its elements are nested too deeply")
    title = " ".join((page.findtext(".//title") or "").split())
    body = page.find("body")
    if body is None:
        return
    etree.strip_elements(body, *_SKIPPED, with_tail=False)
    for block in body.iter("pre"):
        for element in block.iter():
            element.text = (element.text or "").translate(_KEPT_SPACES)
            if element is not block:
                element.tail = (element.tail or "").translate(_KEPT_SPACES)
    for cell in body.iter("td", "th"):
        if cell.getprevious() is not None:
            cell.text = f" | {cell.text or ''}"
    for block in body.iter(*_BLOCKS):
        block.text = f"{_PARAGRAPH_END}{block.text or ''}"
        block.tail = f"{_PARAGRAPH_END}{block.tail or ''}"
    for paragraph in body.text_content().split(_PARAGRAPH_END):
        text = _SPACES.sub(" ", paragraph).strip().replace("\u2028", "\n").replace("\xa0", " ")
        if text.strip():
            yield Piece(text.strip("\n") + "\n\n", {"title": title} if title else {})


def _declares_encoding(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return True
    return False


def read_docx(_path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the paragraphs of a Word file, and a line such as ``Pump | 7`` per row of a table."""
    try:
        import docx
        from docx.oxml.ns import qn
    except ImportError:
        raise MissingExtra("python-docx", EXTRA) from None
    paragraph, row, cell, text = qn("w:p"), qn("w:tr"), qn("w:tc"), qn("w:t")
    marks = {qn("w:tab"): " ", qn("w:br"): "\n", qn("w:cr"): "\n", qn("w:noBreakHyphen"): "-"}

    def read_text(element: Any) -> str:
        parts = element.iter(text, *marks)
        return "".join(marks.get(part.tag) or part.text or "" for part in parts).strip()

    # python-docx's own lists lack the text of content controls, insertions and text boxes.
    for element in docx.Document(file).element.body.iter(paragraph, row):
        if next(element.iterancestors(paragraph, row), None) is not None:
            continue
        if element.tag == row:
            cells = [
                " ".join(filter(None, map(read_text, column.iter(paragraph))))
                for column in element.iterchildren(cell)
            ]
            yield Piece(" | ".join(filter(None, cells)) + "\n")
        elif content := read_text(element):
            yield Piece(content + "\n\n")


def read_pptx(_path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the texts, tables and notes of a PowerPoint file, with the slide's number, from 1."""
    try:
        import pptx
    except ImportError:
        raise MissingExtra("python-pptx", EXTRA) from None
    for number, slide in enumerate(pptx.Presentation(file).slides, 1):
        for text in _read_shapes(slide.shapes):
            yield Piece(f"{text.strip()}\n\n", {"slide": number})
        notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
        if notes is not None and notes.text.strip():
            yield Piece(f"Notes: {notes.text.strip()}\n\n", {"slide": number})


def _read_shapes(shapes: Iterable[Any]) -> Iterator[str]:
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from _read_shapes(shape.shapes)
        elif getattr(shape, "has_table", False):
            for row in shape.table.rows:
                yield " | ".join(cell.text for cell in row.cells)
        elif shape.has_text_frame and shape.text_frame.text.strip():
            yield shape.text_frame.text.replace("\v", "\n")


def read_xlsx(_path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the rows of each sheet of an Excel file as `format_rows` does, with the sheet's name.

    A formula has the value that is saved in the file.
    """
    try:
        import openpyxl
    except ImportError:
        raise MissingExtra("openpyxl", EXTRA) from None
    for sheet in openpyxl.load_workbook(file, read_only=True, data_only=True).worksheets:
        # Some programs write a wrong size, and cells outside of it would be skipped.
        sheet.reset_dimensions()
        rows = (map(_format_cell, row) for row in sheet.iter_rows(values_only=True))
        yield from format_rows(rows, {"sheet": sheet.title})


def _format_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.15g}"
    # Excel stores a date as a time at midnight.
    is_date = isinstance(value, datetime) and value.time() == time.min
    return str(value.date() if is_date else value)


# The reader per file extension.
READERS: Final[dict[str, Callable[[Path, BinaryIO], Iterator[Piece]]]] = {
    ".pdf": read_pdf,
    ".html": read_html,
    ".htm": read_html,
    ".docx": read_docx,
    ".pptx": read_pptx,
    ".xlsx": read_xlsx,
}
