"""Read PDF, HTML and Office files through the usual libraries, one function per format."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, time
from itertools import groupby
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
_LINE_END: Final = re.compile(r"(?<![ \t])[ \t]++(?=\n)")
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
    try:
        reader = pypdf.PdfReader(file)
        # Many files are encrypted only to prevent changes, and open with an empty password.
        if reader.is_encrypted and not reader.decrypt(""):
            raise UnreadableDocument(path, "encrypted")
        pages = list(reader.pages)
    except pypdf.errors.EmptyFileError:
        raise UnreadableDocument(path, "empty") from None
    except pypdf.errors.DependencyError:
        detail = 'with AES; run: pip install "pypdf[crypto]"'
        raise UnreadableDocument(path, "encrypted", detail) from None
    texts: list[str] = []
    for number, page in enumerate(pages, 1):
        try:
            texts.append(_clean_pdf_text(page.extract_text()))
        except MemoryError:
            raise
        # For a damaged page, pypdf may raise any kind of error.
        except Exception as error:
            reason = type(error).__name__
            _log.warning(
                "page %d is damaged and was skipped: %s", number, reason, event="page_left_out"
            )
            continue
        if texts[-1].strip():
            yield Piece(texts[-1], {"page": number})
    if not "".join(texts).strip():
        is_damaged = pages and not texts
        raise UnreadableDocument(path, "damaged" if is_damaged else "no text in it (scanned?)")


def _clean_pdf_text(text: str) -> str:
    # Damaged files may have lone surrogates. Pairs are joined, and lone surrogates are replaced.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    text = _SOFT_HYPHEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _CONTROLS.sub("", _LINE_END.sub("", text.translate(_LIGATURES))).rstrip() + "\n"


_SKIPPED: Final = re.compile(
    "script|style|noscript|template|nav|footer|svg|iframe|button|select|textarea"
)
_HEADING: Final = re.compile("h[1-6]")
_BLOCK: Final = re.compile(
    "h[1-6]|address|article|aside|blockquote|body|br|caption|d[dlt]|details|div|fieldset"
    "|figcaption|figure|form|header|hr|li|main|[ou]l|p|pre|section|summary|table|t(body|foot|head)"
    "|title|tr"
)


class _Page:
    """Collects the paragraphs of a page from lxml's parser, each with the heading above it."""

    def __init__(self) -> None:
        self.title = ""
        self.paragraphs: list[tuple[str, str]] = []
        self._heading = ""
        self._words: list[str] = []
        self._skipped = 0
        self._pre = 0

    def start(self, tag: str, _: object) -> None:
        if _SKIPPED.fullmatch(tag):
            self._skipped += 1
        elif not self._skipped and _BLOCK.fullmatch(tag):
            self._end_paragraph("")
            self._pre += tag == "pre"
        elif tag in ("td", "th") and self._words:
            self._words.append(" | ")

    def end(self, tag: str) -> None:
        if _SKIPPED.fullmatch(tag):
            self._skipped -= 1
        elif not self._skipped and _BLOCK.fullmatch(tag):
            self._end_paragraph(tag)
            self._pre -= tag == "pre"

    def data(self, text: str) -> None:
        if not self._skipped and (self._words or not text.isspace()):
            self._words.append(text)

    def close(self) -> None:
        self._end_paragraph("")

    def _end_paragraph(self, end_tag: str) -> None:
        text = "".join(self._words)
        text = text.strip("\n") if self._pre else " ".join(text.split())
        self._words.clear()
        if end_tag == "title":
            self.title = self.title or text
        elif text.strip():
            self._heading = text if _HEADING.fullmatch(end_tag) else self._heading
            self.paragraphs.append((text, self._heading))


def read_html(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the paragraphs of a page, without navigation, scripts and styles.

    The location is the page's title and the last heading. A page that is not UTF-8 has the encoding
    that it declares, or else Windows-1252.
    """
    try:
        from lxml import etree
    except ImportError:
        raise MissingExtra("lxml", EXTRA) from None
    content = file.read()
    if not content.strip():
        raise UnreadableDocument(path, "empty")
    encoding: str | None = "utf-8"
    try:
        content.decode()
    except UnicodeDecodeError:
        declares = content.startswith((b"\xff\xfe", b"\xfe\xff")) or re.search(
            rb"charset", content[:2048], re.IGNORECASE
        )
        encoding = None if declares else "windows-1252"
    page = _Page()
    # The page's events are enough: a tree of deeply nested elements would take much memory.
    # huge_tree allows long texts and attributes, such as embedded images.
    parser = etree.HTMLParser(target=page, encoding=encoding, huge_tree=True)
    parser.feed(content)
    parser.close()
    for paragraph, heading in page.paragraphs:
        location = {"title": page.title, "heading": heading}
        yield Piece(paragraph + "\n\n", {name: value for name, value in location.items() if value})


def read_docx(_path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the paragraphs and table rows of a Word file, with the heading above them."""
    try:
        import docx
        from docx.oxml.ns import qn
    except ImportError:
        raise MissingExtra("python-docx", EXTRA) from None
    document = docx.Document(file)
    paragraph, row, cell, text = qn("w:p"), qn("w:tr"), qn("w:tc"), qn("w:t")
    breaks = {qn("w:tab"): " ", qn("w:br"): "\n", qn("w:cr"): "\n", qn("w:noBreakHyphen"): "-"}
    headings = {
        style.style_id
        for style in document.styles
        if (style.name or "").startswith(("Heading ", "Title"))
    }

    def read_element(element: Any) -> str:
        parts = element.iter(text, *breaks)
        return "".join(breaks.get(part.tag) or part.text or "" for part in parts).strip()

    # python-docx's own lists lack the text of content controls, insertions and text boxes, so all
    # elements are searched. Paragraphs inside of a table row are read with the row.
    elements = (
        element
        for element in document.element.body.iter(paragraph, row)
        if next(element.iterancestors(row), None) is None
    )
    location: dict[str, str] = {}
    for table, group in groupby(elements, lambda it: it.getparent() if it.tag == row else None):
        if table is not None:
            rows = (
                [
                    " ".join(map(read_element, cells.iter(paragraph)))
                    for cells in it.iterchildren(cell)
                ]
                for it in group
            )
            yield from format_rows(rows, location)
            yield Piece("\n", location)
            continue
        for element in group:
            if element_text := read_element(element):
                if element.style in headings:
                    location = {"heading": " ".join(element_text.split())}
                yield Piece(element_text + "\n\n", location)


def read_pptx(_path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the texts, tables and notes of a PowerPoint file, with the slide's number, from 1."""
    try:
        import pptx
    except ImportError:
        raise MissingExtra("python-pptx", EXTRA) from None
    for number, slide in enumerate(pptx.Presentation(file).slides, 1):
        for piece in _read_shapes(slide.shapes):
            yield Piece(piece.text, {"slide": number})
        notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
        if notes is not None and notes.text.strip():
            yield Piece(f"Notes: {notes.text.strip()}\n\n", {"slide": number})


def _read_shapes(shapes: Iterable[Any]) -> Iterator[Piece]:
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from _read_shapes(shape.shapes)
        elif getattr(shape, "has_table", False):
            yield from format_rows([cell.text for cell in row.cells] for row in shape.table.rows)
            yield Piece("\n")
        elif shape.has_text_frame and (text := shape.text_frame.text.replace("\v", "\n").strip()):
            yield Piece(text + "\n\n")


def read_xlsx(_path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield one line of text per row of an Excel file, with the sheet's name and row number.

    A formula has the value that is saved in the file. Only one row is in memory at a time.
    """
    try:
        import openpyxl
    except ImportError:
        raise MissingExtra("openpyxl", EXTRA) from None
    for sheet in openpyxl.load_workbook(file, read_only=True, data_only=True).worksheets:
        # Some programs write a wrong size, and cells outside of it would be skipped.
        sheet.reset_dimensions()
        rows = ([_format_excel_cell(cell) for cell in row] for row in sheet.iter_rows())
        yield from format_rows(rows, {"sheet": sheet.title})


def _format_excel_cell(cell: Any) -> str:
    match cell.value:
        case None:
            return ""
        case bool(value):
            return str(value).upper()
        case int(value) | float(value) if "%" in cell.number_format:
            return f"{value * 100:.10g}%"
        case float(value):
            return f"{value:.15g}"
        # Excel stores a date as a time at midnight.
        case datetime() as value if value.time() == time.min:
            return value.date().isoformat()
        case datetime() as value:
            return value.isoformat(" ", "seconds" if value.second else "minutes")
        case date() | time() as value:
            return value.isoformat()
        case value:
            return str(value)


# The reader per file extension.
READERS: Final[dict[str, Callable[[Path, BinaryIO], Iterator[Piece]]]] = {
    ".pdf": read_pdf,
    ".html": read_html,
    ".htm": read_html,
    ".docx": read_docx,
    ".pptx": read_pptx,
    ".xlsx": read_xlsx,
}
