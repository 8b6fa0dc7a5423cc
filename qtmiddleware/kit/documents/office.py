"""Office files: Word, PowerPoint and Excel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, Final

from qtmiddleware.errors import MissingExtra
from qtmiddleware.kit.documents.records import describe_rows
from qtmiddleware.kit.documents.text import Piece

_DRAWING: Final = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_DRAWN: Final = (f"{_DRAWING}t", f"{_DRAWING}br")
"""Texts of a slide, and breaks between them."""


def read_docx(_path: Path, file: BinaryIO) -> Iterator[Piece]:
    """The paragraphs and rows of tables, in order, with the heading they stand under."""
    try:
        import docx
        from docx.oxml.ns import qn
    except ImportError:
        raise MissingExtra("python-docx", "documents") from None
    document = docx.Document(file)
    paragraph, row, cell, text = qn("w:p"), qn("w:tr"), qn("w:tc"), qn("w:t")
    breaks = {qn("w:tab"): " ", qn("w:br"): "\n", qn("w:cr"): "\n", qn("w:noBreakHyphen"): "-"}
    headings = {
        it.style_id
        for it in document.styles
        if it.name and it.name.startswith(("Heading ", "Title"))
    }

    def read(element: Any) -> str:
        return "".join(
            breaks.get(it.tag) or it.text or "" for it in element.iter(text, *breaks)
        ).strip()

    # What is inside of content controls, insertions and text boxes counts as well, which
    # `paragraphs` leaves out.
    inner = (
        it
        for it in document.element.body.iter(paragraph, row)
        if next(it.iterancestors(row), None) is None
    )
    heading: dict[str, str | int] = {}
    for table, found in groupby(inner, key=lambda it: it.getparent() if it.tag == row else None):
        if table is not None:
            cells = (
                [" ".join(map(read, it.iter(paragraph))) for it in each.iterchildren(cell)]
                for each in found
            )
            yield from describe_rows(enumerate(cells, 1), **heading)
            yield Piece("\n", heading)
            continue
        for each in found:
            if written := read(each):
                heading = (
                    {"heading": " ".join(written.split())} if each.style in headings else heading
                )
                yield Piece(written + "\n\n", heading)


def read_pptx(_path: Path, file: BinaryIO) -> Iterator[Piece]:
    """The texts, tables and notes of each slide, with its number, from 1."""
    try:
        import pptx
    except ImportError:
        raise MissingExtra("python-pptx", "documents") from None
    known = set()
    for number, slide in enumerate(pptx.Presentation(file).slides, 1):
        # A slide is read once, however often the presentation names it.
        if slide.part.partname in known:
            continue
        known.add(slide.part.partname)
        yield from _read_shapes(slide.shapes, number)
        if (
            slide.has_notes_slide
            and (notes := slide.notes_slide.notes_text_frame) is not None
            and notes.text.strip()
        ):
            yield Piece(f"Notes: {notes.text.strip()}\n\n", {"slide": number})


def _read_shapes(shapes: Iterable[Any], number: int) -> Iterator[Piece]:
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from _read_shapes(shape.shapes, number)
        elif getattr(shape, "has_table", False):
            # Each step through `table.rows` would go through all rows again.
            rows = shape.element.iter(f"{_DRAWING}tr")
            cells = (
                [_read_cell(cell) for cell in row.iterchildren(f"{_DRAWING}tc")] for row in rows
            )
            yield from (
                Piece(it.text, {"slide": number}) for it in describe_rows(enumerate(cells, 1))
            )
            yield Piece("\n", {"slide": number})
        elif shape.has_text_frame and (text := shape.text_frame.text.replace("\v", "\n").strip()):
            yield Piece(text + "\n\n", {"slide": number})


def _read_cell(cell: Any) -> str:
    paragraphs = cell.iter(f"{_DRAWING}p")
    return "\n".join("".join(it.text or " " for it in each.iter(*_DRAWN)) for each in paragraphs)


def read_xlsx(_path: Path, file: BinaryIO) -> Iterator[Piece]:
    """A line for each row, with the names of its columns, its sheet and its number, from 1; one row is held at a time.

    Of a formula the value is read that was there when the file was saved; without one the cell is
    empty.
    """
    try:
        import openpyxl
    except ImportError:
        raise MissingExtra("openpyxl", "documents") from None
    with suppress(ImportError):
        # Where a sheet does not say its size openpyxl reads all of it to find out, a minute for a
        # million rows. Nobody else reads workbooks in this process.
        sheets: Any = import_module("openpyxl.worksheet._read_only")
        sheets.ReadOnlyWorksheet._get_size = lambda _: None
    book = openpyxl.load_workbook(file, read_only=True, data_only=True)
    for sheet in book.worksheets:
        # Some programs write a wrong size, and what lies beyond would be missed.
        sheet.reset_dimensions()
        rows = ([_write(cell) for cell in row] for row in sheet.iter_rows())
        yield from describe_rows(enumerate(rows, 1), sheet=sheet.title)


def _write(cell: Any) -> str:
    """The value of *cell* as people read it."""
    value = cell.value
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int | float):
        percent = "%" in cell.number_format
        return (
            f"{value * 100:.10g}%"
            if percent
            else str(value)
            if isinstance(value, int)
            else f"{value:.15g}"
        )
    if isinstance(value, datetime) and value.time() == time.min:
        return value.date().isoformat()
    if isinstance(value, datetime):
        return value.isoformat(" ", "minutes" if not value.second else "seconds")
    return (
        value.isoformat()
        if isinstance(value, date | time)
        else str(value)
        if isinstance(value, timedelta)
        else ""
    )
