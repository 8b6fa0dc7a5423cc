"""One small file of each kind, made by the libraries people make them with."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import docx
import openpyxl
import pptx


def make_epub(title: str, chapters: Mapping[str, str]) -> bytes:
    """A book of *chapters*, a body of XHTML by the name of its file."""
    items = "".join(
        f'<item id="c{at}" href="{name.replace(" ", "%20")}" media-type="application/xhtml+xml"/>'
        for at, name in enumerate(chapters)
    )
    spine = "".join(f'<itemref idref="c{at}"/>' for at in range(len(chapters)))
    parts = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": '<?xml version="1.0"?>'
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container">'
        '<rootfiles><rootfile full-path="OEBPS/content.opf"/></rootfiles></container>',
        "OEBPS/content.opf": '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf">'
        f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></metadata>'
        f"<manifest>{items}</manifest><spine>{spine}</spine></package>",
        **{
            f"OEBPS/{name}": f'<?xml version="1.0"?><html><head><title/></head><body>{body}</body></html>'
            for name, body in chapters.items()
        },
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in parts.items():
            packed.writestr(name, content)
    return file.getvalue()


def make_office_files(folder: Path) -> dict[str, Path]:
    """A report about pumps in each zipped format, by its ending."""
    paths = {ending: folder / f"report{ending}" for ending in (".docx", ".pptx", ".xlsx", ".epub")}
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
    paths[".epub"].write_bytes(
        make_epub("The lighthouse", {"one.xhtml": "<h1>Storm</h1><p>The keeper lit the lamp.</p>"})
    )
    return paths
