"""Small Office files, and one whose text never ends."""

from __future__ import annotations

from pathlib import Path

import docx
import openpyxl
import pptx


def make_office_files(folder: Path) -> dict[str, Path]:
    """A report about pumps in each zipped format, by its ending."""
    paths = {ending: folder / f"report{ending}" for ending in (".docx", ".pptx", ".xlsx")}
    document = docx.Document()
    document.add_heading("Maintenance", 1)
    document.add_paragraph("The pump in hall seven is oiled each Monday.")
    document.save(str(paths[".docx"]))
    deck = pptx.Presentation()
    for text in ("Welcome", "Agenda", "The turbine runs at 3000 revolutions"):
        deck.slides.add_slide(deck.slide_layouts[5]).shapes.title.text = text
    deck.save(str(paths[".pptx"]))
    book = openpyxl.Workbook()
    book.active.title = "Costs"
    for row in [["Item", "Price"], *([f"Valve {number}", number * 10] for number in range(1, 31))]:
        book.active.append(row)
    book.save(paths[".xlsx"])
    return paths


def write_endless_sheet(path: Path) -> None:
    """A spreadsheet of one text of 30,000 characters in 3,000 cells, which is kept once."""
    book = openpyxl.Workbook()
    for _ in range(3_000):
        book.active.append([("All work and no play makes Jack a dull boy. " * 700)[:30_000]])
    book.save(path)
