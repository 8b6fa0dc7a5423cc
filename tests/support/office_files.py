"""Small Office files, and one whose text never ends."""

from __future__ import annotations

import zipfile
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
    """A spreadsheet of one text of 30,000 characters in 3,000 cells, as Excel keeps it: once."""
    text = ("All work and no play makes Jack a dull boy. " * 700)[:30_000]
    types, relation = (
        "application/vnd.openxmlformats-officedocument.spreadsheetml",
        "officeDocument/2006/relationships",
    )
    names = {"worksheet": "worksheets/sheet1.xml", "sharedStrings": "sharedStrings.xml"}
    kinds = {"/xl/workbook.xml": "sheet.main", "/xl/worksheets/sheet1.xml": "worksheet"}
    kinds["/xl/sharedStrings.xml"] = "sharedStrings"
    main = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    linked = "".join(
        f'<Relationship Id="r{at}" Type="http://schemas.openxmlformats.org/{relation}/{kind}" Target="{target}"/>'
        for at, (kind, target) in enumerate(names.items())
    )
    overrides = "".join(
        f'<Override PartName="{name}" ContentType="{types}.{kind}+xml"/>'
        for name, kind in kinds.items()
    )
    package = "http://schemas.openxmlformats.org/package/2006"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types">{overrides}</Types>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r" Type="http://schemas.'
        f'openxmlformats.org/{relation}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships">{linked}</Relationships>',
        "xl/workbook.xml": f'<workbook {main} xmlns:r="http://schemas.openxmlformats.org/{relation}"><sheets>'
        '<sheet name="Plays" sheetId="1" r:id="r0"/></sheets></workbook>',
        "xl/worksheets/sheet1.xml": f"<worksheet {main}><sheetData>"
        + '<row><c t="s"><v>0</v></c></row>' * 3_000
        + "</sheetData></worksheet>",
        "xl/sharedStrings.xml": f"<sst {main}><si><t>{text}</t></si></sst>",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, written in parts.items():
            packed.writestr(name, written)
