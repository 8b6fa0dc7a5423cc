"""How fast documents of each format are read, and in how much memory.

    python -m benchmarks.documents [--rows N] [--hard] [--keep]

A document of *rows* rows or paragraphs is made of each format by the library people make it with,
and cut into chunks in a process of its own. Seconds are those of all of it, the start of the
process that reads (about half a second) included; memory is the peak of the process that ingests
and of the one that reads. ``--keep`` writes results/documents.md. Pages of a PDF are not here: they
are read by pypdf in the process itself.

``--hard`` adds a spreadsheet of a million rows, and a folder with a zip bomb, a document whose
reader dies and one whose reader hangs, among others that are ingested. Ingests that are killed:
`python -m benchmarks.ingest --kills 50`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile

RESULT = Path(__file__).parent / "results" / "documents.md"
ENDINGS = (".txt", ".csv", ".jsonl", ".html", ".epub", ".docx", ".pptx", ".xlsx")
MEASURE = """
import resource, sys, time
from pathlib import Path
from qtmiddleware.kit.documents import cut_document
began, chars = time.perf_counter(), 0
for one in cut_document(Path(sys.argv[1]), size=800, overlap=0):
    chars += len(one.chunk.text)
place = ", ".join(f"{name} {value}" for name, value in one.location.items())
seconds = time.perf_counter() - began
unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
peaks = [resource.getrusage(who).ru_maxrss / unit for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(chars, seconds, *peaks, place)
"""
LONG = 1_000_000
FAKE = """
import os, time
def load_workbook(file, **_):
    if b"hanging" in file.read():
        time.sleep(3600)
    os._exit(3)
"""
INGEST = """
import json, sys, time
from pathlib import Path
from qtmiddleware.providers.embedders import CallableEmbedder
from qtmiddleware.kit.index.ingestion import ingest
sys.path.insert(0, sys.argv[2])
began = time.perf_counter()
embedder = CallableEmbedder(lambda texts: [[1.0, 0.0] for _ in texts], name="none", dimension=2)
report = ingest(sys.argv[1], config={"indexPath": sys.argv[1] + ".sqlite"}, embedder=embedder)
skipped = {Path(it.path).name: it.reason for it in report.skipped}
print(json.dumps([report.documents, skipped, time.perf_counter() - began]))
"""


def make(path: Path, rows: int) -> None:  # noqa: C901 - a branch a format
    """Write a document of *rows* rows or paragraphs."""
    import docx
    import openpyxl
    import pptx

    names = ["Item", "Region", "Amount", "Remark"]
    table = [
        [f"Item {at}", "North", at * 1.5, f"Remark {at} on what it costs in a year."]
        for at in range(rows)
    ]
    texts = [
        f"Item {at} of the North costs {at * 1.5}, with a remark on what it costs in a year."
        for at in range(rows)
    ]
    body = "".join(
        f"<h2>Section {at}</h2>" * (at % 50 == 0) + f"<p>{text}</p>\n"
        for at, text in enumerate(texts)
    )
    match path.suffix:
        case ".txt":
            path.write_text("\n\n".join(texts), encoding="utf-8")
        case ".csv":
            with path.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([names, *table])
        case ".jsonl":
            path.write_text(
                "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in table),
                encoding="utf-8",
            )
        case ".html":
            path.write_text(f"<html><body>{body}</body></html>", encoding="utf-8")
        case ".epub":
            from tests.support.office_files import make_epub

            path.write_bytes(make_epub("A book", {"a.xhtml": body}))
        case ".docx":
            document = docx.Document()
            for at, text in enumerate(texts):
                if at % 50 == 0:
                    document.add_heading(f"Section {at}", 2)
                document.add_paragraph(text)
            document.save(str(path))
        case ".pptx":
            deck = pptx.Presentation()
            for at in range(0, rows, 20):
                slide = deck.slides.add_slide(deck.slide_layouts[1])
                slide.placeholders[1].text_frame.text = "\n".join(texts[at : at + 20])
            deck.save(str(path))
        case ".xlsx":
            book = openpyxl.Workbook(write_only=True)
            sheet = book.create_sheet("Costs")
            for row in [names, *table]:
                sheet.append(row)
            book.save(path)


def make_long_sheet(path: Path, rows: int) -> None:
    """Write a spreadsheet of *rows* rows as programs stream it: texts within their cells, and no word of its size."""
    import openpyxl

    book = openpyxl.Workbook()
    book.active.title = "Costs"
    book.save(path.with_suffix(".empty"))
    with ZipFile(path.with_suffix(".empty")) as empty, ZipFile(path, "w", ZIP_DEFLATED) as packed:
        for part in empty.namelist():
            if part != "xl/worksheets/sheet1.xml":
                packed.writestr(part, empty.read(part))
        with packed.open("xl/worksheets/sheet1.xml", "w") as sheet:
            sheet.write(
                b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
            )
            for at in range(rows + 1):
                texts = (
                    ("Item", "Region", "Remark")
                    if not at
                    else (f"Item {at}", "North", f"Remark {at} on its costs.")
                )
                cells = "".join(f'<c t="inlineStr"><is><t>{text}</t></is></c>' for text in texts)
                sheet.write(f"<row>{cells}<c><v>{at * 1.5}</v></c></row>".encode())
            sheet.write(b"</sheetData></worksheet>")


def measure(path: Path) -> tuple[str, str]:
    """A row of the table for the document at *path*, and the place of its last chunk."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True
    )
    chars, seconds, own, child, *place = done.stdout.split(maxsplit=4)
    sizes = f"{path.stat().st_size / 1e6:.1f} | {int(chars) / 1e6:.1f} | {float(seconds):.1f}"
    speed = f"{int(chars) / 1e6 / float(seconds):.1f} | {float(own):.0f} | {float(child) or 0:.0f}"
    return f"{sizes} | {speed} |", "".join(place).strip()


def measure_bad_folder(folder: Path) -> str:
    """Ingest a folder in which three files are bad, and tell what came of it."""
    docs, modules = folder / "bad", folder / "modules"
    docs.mkdir()
    modules.mkdir()
    (modules / "openpyxl.py").write_text(FAKE)
    for at in range(20):
        make(docs / f"{at}.html", 50)
    with (
        ZipFile(docs / "bomb.docx", "w", ZIP_DEFLATED) as packed,
        packed.open("word/document.xml", "w") as part,
    ):
        for _ in range(900):
            part.write(b" " * (1 << 20))
    for name in ("deadly", "hanging"):
        with ZipFile(docs / f"{name}.xlsx", "w") as packed:
            packed.writestr("xl/workbook.xml", name)
    size = (docs / "bomb.docx").stat().st_size / 1e6
    done = subprocess.run(
        [sys.executable, "-c", INGEST, str(docs), str(modules)],
        capture_output=True,
        text=True,
        check=True,
    )
    documents, skipped, seconds = json.loads(done.stdout)
    lines = [
        f"A folder of 20 documents, a Word file of {size:.1f} MB that unpacks to 944, and two whose readers die and",
        f"hang: {documents} were ingested in {seconds:.0f} s, a minute of it for the one that hangs, and skipped were",
        "",
        *(f"- `{name}`: {reason}" for name, reason in skipped.items()),
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure each format and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.documents", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rows", type=int, default=20_000, help="rows or paragraphs of a document")
    parser.add_argument(
        "--hard", action="store_true", help="a million rows, and files that are bad, too"
    )
    parser.add_argument("--keep", action="store_true", help="write results/documents.md")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    lines = [
        "| format | file, MB | text, MB | seconds | text, MB/s | ingest, MB | reader, MB |",
        "|---|" + "---:|" * 6,
    ]
    with TemporaryDirectory() as folder:
        for ending in ENDINGS:
            path = Path(folder, f"a{ending}")
            make(path, given.rows)
            row, _ = measure(path)
            lines.append(f"| {ending} | {row}")
            print(lines[-1], flush=True)
        if given.hard:
            path = Path(folder, "long.xlsx")
            make_long_sheet(path, LONG)
            row, place = measure(path)
            lines += [
                f"| .xlsx, {LONG:,} rows | {row}",
                "",
                f"The last chunk of these stands at: {place}.",
            ]
            lines += ["", measure_bad_folder(Path(folder))]
            print("\n".join(lines[len(ENDINGS) + 2 :]), flush=True)
    if given.keep:
        command = (
            f"python -m benchmarks.documents --rows {given.rows}{' --hard' * given.hard} --keep"
        )
        machine = f"Python {platform.python_version()}; {given.rows:,} rows or paragraphs a document; load {load:.1f}"
        title = f"# Documents\n\n`{command}` ({machine})\n\n"
        RESULT.write_text(title + "\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
