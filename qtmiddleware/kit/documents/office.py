"""Read Office files: Word, PowerPoint and Excel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime, time
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, Final

from qtmiddleware.errors import MissingExtra
from qtmiddleware.kit.documents.records import format_rows
from qtmiddleware.kit.documents.text import Piece

_DRAWING: Final = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_DRAWN: Final = (f"{_DRAWING}t", f"{_DRAWING}br")
"""The XML elements of the texts and line breaks on a slide."""


def read_docx(_path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the paragraphs and table rows of a Word file.

    The location of a paragraph or row is the heading above it. The location of a row also contains
    the row's number in its table, from 1.
    """
    try:
        import docx
        from docx.oxml.ns import qn
    except ImportError:
        raise MissingExtra("python-docx", "documents") from None
    document = docx.Document(file)
    paragraph, row, cell, text = qn("w:p"), qn("w:tr"), qn("w:tc"), qn("w:t")
    breaks = {qn("w:tab"): " ", qn("w:br"): "\n", qn("w:cr"): "\n", qn("w:noBreakHyphen"): "-"}
    headings = {
        style.style_id
        for style in document.styles
        if style.name and style.name.startswith(("Heading ", "Title"))
    }

    def read_element_text(element: Any) -> str:
        return "".join(
            breaks.get(part.tag) or part.text or "" for part in element.iter(text, *breaks)
        ).strip()

    # The attribute `paragraphs` lacks the text of content controls, insertions and text boxes, so
    # all elements are searched. Paragraphs inside of a table row are read with the row.
    top_elements = (
        element
        for element in document.element.body.iter(paragraph, row)
        if next(element.iterancestors(row), None) is None
    )
    heading: dict[str, str | int] = {}
    for table, elements in groupby(
        top_elements, key=lambda element: element.getparent() if element.tag == row else None
    ):
        if table is not None:
            cells = (
                [
                    " ".join(map(read_element_text, cell_element.iter(paragraph)))
                    for cell_element in table_row.iterchildren(cell)
                ]
                for table_row in elements
            )
            yield from format_rows(enumerate(cells, 1), **heading)
            yield Piece("\n", heading)
            continue
        for element in elements:
            if element_text := read_element_text(element):
                heading = (
                    {"heading": " ".join(element_text.split())}
                    if element.style in headings
                    else heading
                )
                yield Piece(element_text + "\n\n", heading)


def read_pptx(_path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the texts, tables and notes of a PowerPoint file.

    The location of each text is the slide's number, from 1.
    """
    try:
        import pptx
    except ImportError:
        raise MissingExtra("python-pptx", "documents") from None
    known_parts = set()
    for number, slide in enumerate(pptx.Presentation(file).slides, 1):
        # A slide is read once, even if the presentation lists it repeatedly.
        if slide.part.partname in known_parts:
            continue
        known_parts.add(slide.part.partname)
        yield from _read_shapes(slide.shapes, number)
        if (
            slide.has_notes_slide
            and (notes := slide.notes_slide.notes_text_frame) is not None
            and notes.text.strip()
        ):
            yield Piece(f"Notes: {notes.text.strip()}\n\n", {"slide": number})


def _read_shapes(shapes: Iterable[Any], slide_number: int) -> Iterator[Piece]:
    """Yield the texts and tables of a slide's *shapes*, including the shapes in groups."""
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from _read_shapes(shape.shapes, slide_number)
        elif getattr(shape, "has_table", False):
            # Each step through `table.rows` visits all rows again, so the XML elements are used
            # instead.
            rows = shape.element.iter(f"{_DRAWING}tr")
            cells = (
                [_read_slide_cell(cell) for cell in row.iterchildren(f"{_DRAWING}tc")]
                for row in rows
            )
            yield from (
                Piece(row.text, {"slide": slide_number}) for row in format_rows(enumerate(cells, 1))
            )
            yield Piece("\n", {"slide": slide_number})
        elif shape.has_text_frame and (text := shape.text_frame.text.replace("\v", "\n").strip()):
            yield Piece(text + "\n\n", {"slide": slide_number})


def _read_slide_cell(cell: Any) -> str:
    """Return the text of a table cell on a slide, with one line per paragraph."""
    paragraphs = cell.iter(f"{_DRAWING}p")
    return "\n".join(
        "".join(part.text or " " for part in paragraph.iter(*_DRAWN)) for paragraph in paragraphs
    )


def read_xlsx(_path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield one line of text per row of an Excel file, such as ``Item: Pump | Price: 7``.

    The location of each line is the sheet's name and the row's number, from 1. A formula has the
    value that is saved in the file; without a saved value, its cell is empty. Only one row is in
    memory at a time.
    """
    try:
        import openpyxl
    except ImportError:
        raise MissingExtra("openpyxl", "documents") from None
    book = openpyxl.load_workbook(file, read_only=True, data_only=True)
    for sheet in book.worksheets:
        # Some programs write a wrong size, and cells outside of it would be skipped.
        sheet.reset_dimensions()
        rows = ([_format_excel_cell(cell) for cell in row] for row in sheet.iter_rows())
        yield from format_rows(enumerate(rows, 1), sheet=sheet.title)


def _format_excel_cell(cell: Any) -> str:
    """Format the value of an Excel cell as people write it, such as ``12%``."""
    value = cell.value
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        if "%" in cell.number_format:
            return f"{value * 100:.10g}%"
        return str(value) if isinstance(value, int) else f"{value:.15g}"
    if isinstance(value, datetime):
        # Excel stores a date as a time at midnight.
        if value.time() == time.min:
            return value.date().isoformat()
        return value.isoformat(" ", "minutes" if not value.second else "seconds")
    return value.isoformat() if isinstance(value, date | time) else str(value)
