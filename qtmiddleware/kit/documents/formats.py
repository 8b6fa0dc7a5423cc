"""Read the formats of documents, PDF, HTML and Office files through the usual libraries."""

from __future__ import annotations

import codecs
import csv
import io
import json
import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, time
from itertools import islice, zip_longest
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, Final

from qtmiddleware.errors import MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents.pieces import MOST_BYTES, OWN, Location, Piece
from qtmiddleware.kit.files import find_separator
from qtmiddleware.runtime.logs import get_logger

EXTRA: Final = "documents"
# The names of fields that may contain a record's text. The first field with a text is used.
TEXTS: Final = ("text", "contents", "content", "passage", "body")

# All control characters except tab, line ends, form feed, DOS's end of file, and escape (colours).
_CONTROLS: Final = re.compile(r"[\0-\x08\x0e-\x19\x1c-\x1f\x7f]")
# A text file with fewer characters per control character counts as binary.
_CHARS_PER_CONTROL: Final = 100
# The maximum length of a name, which repeats for each of its values.
_NAME_CHARS: Final = 100
_NO_METADATA: Final = {"id", "_id", "title", "metadata", *TEXTS}
_RENAMED: Final = OWN | {"record"}
# The maximum number of metadata fields of a record. Each chunk repeats the metadata.
_MOST_FIELDS: Final = 50
# The maximum number of digits of a whole number, which 64 bits hold. A longer one is a text.
_MOST_DIGITS: Final = 18
_LIGATURE: Final = re.compile("[\ufb00-\ufb06]")
# A soft hyphen at a line's end joins two halves of a word. Elsewhere it is invisible.
_SOFT_HYPHEN: Final = re.compile(r"\xad(?:[ \t]*\n)?")

_log: Final = get_logger("qtmiddleware.documents")


def read_text(path: Path, file: BinaryIO) -> str:
    r"""Return the text of an open file, in UTF-8 or marked UTF-16, with ``\n`` as line break."""
    content = file.read()
    encoding = "utf-8-sig"
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif b"\0" in content:
        raise UnreadableDocument(path, "binary")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        # The error is not chained, because it contains the bytes themselves.
        hint = f"near byte {error.start}; convert it, for example: iconv -f LATIN1 -t UTF-8"
        raise UnreadableDocument(path, "not text in UTF-8", hint) from None
    if len(_CONTROLS.findall(text)) * _CHARS_PER_CONTROL > len(text):
        raise UnreadableDocument(path, "binary")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_plain_text(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the whole text of an open file."""
    yield Piece(read_text(path, file))


def read_csv(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the rows of a CSV file as `format_rows` does."""
    # Python's own limit is 128 kB, but a cell may hold a whole document.
    csv.field_size_limit(MOST_BYTES)
    text = read_text(path, file).strip("\n")
    rows = csv.reader(io.StringIO(text), delimiter=find_separator(text))
    yield from format_rows(rows, {})


def format_rows(rows: Iterable[Iterable[str]], location: Location) -> Iterator[Piece]:
    """Yield one line per row, such as ``Item: Pump | Price: 7``, with its number and *location*.

    The first row that is not empty has the columns' names.
    """
    names: list[str] = []
    for number, cells in enumerate(rows, 1):
        row = [" ".join(cell.split()) for cell in cells]
        named_cells = zip_longest(names[: len(row)], row, fillvalue="")
        line = [f"{name}: {cell}" if name else cell for name, cell in named_cells if cell]
        if line:
            names = names or [cell[:_NAME_CHARS] for cell in row]
            yield Piece(" | ".join(line) + "\n", {**location, "row": number})


def read_json(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield one line of text per value, such as ``address.city: Oslo``, with the record's number.

    Each item of a list is a record. Otherwise the file is one record, or has one in each line.
    """
    text = read_text(path, file)
    try:
        value = _parse_json(text)
        records = iter(value if isinstance(value, list) else [value])
    except ValueError:
        records = _parse_lines(path, text)
    for number, record in enumerate(records, 1):
        yield _format_record(record, number)


def read_json_lines(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the title and text of each record, with its id and other fields as metadata.

    A record without text yields one line per value, as in `read_json`.
    """
    for number, record in enumerate(_parse_lines(path, read_text(path, file)), 1):
        fields = record if isinstance(record, dict) else {}
        texts = (fields[name] for name in TEXTS if isinstance(fields.get(name), str))
        text = next(filter(str.strip, texts), None)
        if text is None:
            yield _format_record(record, number)
            continue
        location = {"record": number, **_select_metadata(fields)}
        title = fields.get("title")
        if isinstance(title, str) and title.strip():
            location["title"] = title.strip()
            text = f"{title.strip()}\n{text}"
        if id_ := str(fields.get("id", fields.get("_id", ""))):
            location["record_id"] = id_
        yield Piece(text, location, stands_alone=True)


def _parse_lines(path: Path, text: str) -> Iterator[Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if line and not line.isspace():
            try:
                yield _parse_json(line)
            except ValueError:
                raise UnreadableDocument(path, "damaged", f"not JSON in line {number}") from None


def _parse_json(text: str) -> Any:
    # Numbers that are no JSON (NaN) or too large for other programs stay texts.
    return json.loads(text, parse_int=_parse_int, parse_float=_parse_float, parse_constant=str)


def _parse_int(digits: str) -> int | str:
    return int(digits) if len(digits) <= _MOST_DIGITS else digits


def _parse_float(digits: str) -> float | str:
    number = float(digits)
    return number if isfinite(number) else digits


def _select_metadata(fields: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Return the texts, numbers and booleans of *fields* and of its ``metadata``, up to a limit."""
    inner = fields.get("metadata")
    values = {**(inner if isinstance(inner, dict) else {}), **fields}
    simple = (
        (f"record_{name}" if name in _RENAMED else name[:_NAME_CHARS], value)
        for name, value in values.items()
        if name not in _NO_METADATA and isinstance(value, str | int | float)
    )
    return dict(islice(simple, _MOST_FIELDS))


def _format_record(record: Any, number: int) -> Piece:
    lines = "".join(f"{line}\n" for line in _format_value(record, ""))
    return Piece(f"{lines}\n", {"record": number})


def _format_value(value: Any, name: str) -> Iterator[str]:
    """Yield one line of text per value inside *value*, which has this *name*."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _format_value(inner, f"{name}.{key}".lstrip(".")[-_NAME_CHARS:])
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for number, inner in enumerate(value, 1):
            yield from _format_value(inner, f"{name} {number}".strip())
    elif value not in (None, "", []):
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield f"{name}: {text}" if name else text


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
    text = _SOFT_HYPHEN.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = _LIGATURE.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
    text = _CONTROLS.sub("", text)
    return "\n".join(line.rstrip(" \t") for line in text.split("\n")).rstrip() + "\n"


_SKIPPED: Final = (
    *("script", "style", "noscript", "template", "nav", "footer", "svg", "iframe", "button"),
    *("select", "textarea"),
)
_BLOCKS: Final = (
    *("h1", "h2", "h3", "h4", "h5", "h6"),
    *("address", "article", "aside", "blockquote", "br", "caption", "dd", "details", "div", "dl"),
    *("dt", "fieldset", "figcaption", "figure", "form", "header", "hr", "li", "main", "ol", "p"),
    *("pre", "section", "summary", "table", "tr", "ul"),
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
    is_utf8 = content.decode(errors="ignore").encode() == content
    # huge_tree allows long texts and attributes, such as embedded images.
    parser = html.HTMLParser(
        encoding="utf-8" if is_utf8 else None, huge_tree=True, remove_comments=True
    )
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
        text = _SPACES.sub(" ", paragraph).strip()
        text = text.replace("\u2028", "\n").replace("\xa0", " ")
        if text.strip():
            yield Piece(text.strip("\n") + "\n\n", {"title": title} if title else {})


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


# The reader per file extension. Other files are plain text.
READERS: Final[dict[str, Callable[[Path, BinaryIO], Iterator[Piece]]]] = {
    ".pdf": read_pdf,
    ".html": read_html,
    ".htm": read_html,
    ".docx": read_docx,
    ".pptx": read_pptx,
    ".xlsx": read_xlsx,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".json": read_json,
    ".jsonl": read_json_lines,
}
