"""Read CSV and JSON files, and format the tables of all documents as text."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, Final

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents.pieces import OWN, PLACE_CHARS, Location, Piece, read_text

# The names of fields that may contain a record's text. The first field with a text is used.
TEXTS: Final = ("text", "contents", "content", "passage", "body")

# The maximum length of a name, which repeats for each of its values.
_NAME_CHARS: Final = 100
_NUMBER: Final = re.compile(r"[-+(]?[^\w\s]{0,3}\d[\d.,:/%)\s-]*")
_NO_METADATA: Final = OWN | {"id", "_id", "title", "metadata", "record", "record_id", *TEXTS}
# The maximum size of a record's metadata, in characters. Each chunk repeats the metadata.
_MOST_METADATA: Final = 1 << 14


class _Number(str):
    """A number from a JSON file, with the digits exactly as in the file."""

    __slots__ = ()


def format_rows(rows: Iterable[Sequence[str]], location: Location | None = None) -> Iterator[Piece]:
    """Yield one line per row, such as ``Item: Pump | Price: 7``, without empty cells and rows.

    The first row with two or more filled cells contains the column names, unless one of its cells
    is a number or a date. Each line has the row's number, from 1, beside *location*.
    """
    # ``None`` until the first row with two filled cells; then empty if that row has no names.
    names: list[str] | None = None
    for number, cells in enumerate(rows, 1):
        row = [" ".join(cell.split()) for cell in cells]
        row_names = (names or [])[: len(row)]
        named_cells = zip_longest(row_names, row, fillvalue="")
        line = [f"{name}: {cell}" if name else cell for name, cell in named_cells if cell]
        if names is None and len(line) > 1:
            has_names = not any(map(_NUMBER.fullmatch, line))
            names = [cell[:_NAME_CHARS] for cell in row] if has_names else []
        if line:
            yield Piece(" | ".join(line) + "\n", {**(location or {}), "row": number})


def read_csv(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield one line of text per row of a CSV file, with the row's number.

    The separator is the comma, semicolon, tab or ``|`` that splits the first row into most cells.
    """
    text = read_text(path, file)
    separator = max(",;\t|", key=lambda mark: _count_cells(text[:100_000], mark))
    rows = csv.reader(io.StringIO(text), delimiter=separator)
    try:
        yield from format_rows(rows)
    except csv.Error as error:
        detail = f"near line {rows.line_num}: is a quotation mark missing?"
        raise UnreadableDocument(path, "damaged", detail) from error


def _count_cells(beginning: str, separator: str) -> int:
    rows = csv.reader(io.StringIO(beginning), delimiter=separator, strict=True)
    # If the separator is another one, a quotation mark may be in the middle of a cell.
    with suppress(csv.Error):
        return len(next(rows, []))
    return 0


def read_json(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield one line of text per value, such as ``address.city: Oslo``, with the record's number.

    Each item of a list is a record. Otherwise the file is one record, or has one in each line.
    """
    text = read_text(path, file)
    try:
        value = _parse_json(text)
    except ValueError:
        records = _parse_lines(path, text)
    else:
        records = iter(value if isinstance(value, list) else [value])
    for number, record in enumerate(records, 1):
        yield from _format_record(record, number)


def read_json_lines(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the title and text of each record, with its id and other fields as metadata.

    A record without text yields one line per value, as in `read_json`.
    """
    for number, record in enumerate(_parse_lines(path, read_text(path, file)), 1):
        fields = record if isinstance(record, dict) else {}
        texts = (fields[name] for name in TEXTS if isinstance(fields.get(name), str))
        text = next(filter(str.strip, texts), None)
        if text is None:
            yield from _format_record(record, number)
            continue
        title = fields["title"].strip() if isinstance(fields.get("title"), str) else ""
        location = {
            "record": number,
            "title": title,
            "record_id": str(fields.get("id", fields.get("_id", ""))),
            **_select_metadata(fields),
        }
        location = {name: value for name, value in location.items() if value != ""}
        yield Piece(f"{title}\n{text}" if title else text, location, stands_alone=True)


def _parse_lines(path: Path, text: str) -> Iterator[Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if line and not line.isspace():
            try:
                yield _parse_json(line)
            except ValueError:
                raise UnreadableDocument(path, "damaged", f"not JSON in line {number}") from None


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _select_metadata(fields: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Return the texts, numbers and booleans of *fields* and of its ``metadata``, up to a limit."""
    inner = fields.get("metadata")
    metadata: dict[str, str | int | float] = {}
    chars_left = _MOST_METADATA
    for name, value in {**(inner if isinstance(inner, dict) else {}), **fields}.items():
        if name in _NO_METADATA or not isinstance(value, str | bool):
            continue
        kept = _read_number(value) if isinstance(value, _Number) else value
        kept = kept[:PLACE_CHARS] if isinstance(kept, str) else kept
        chars_left -= len(name[:_NAME_CHARS]) + len(str(kept))
        if chars_left < 0:
            break
        metadata[name[:_NAME_CHARS]] = kept
    return metadata


def _read_number(number: str) -> int | float | str:
    with suppress(ValueError):
        return int(number)
    return float(number) if isfinite(float(number)) else ""


def _format_record(record: Any, number: int) -> Iterator[Piece]:
    for line in _format_value(record, ""):
        yield Piece(line + "\n", {"record": number})
    yield Piece("\n", {"record": number})


def _format_value(value: Any, name: str) -> Iterator[str]:
    """Yield one line of text per value inside *value*, which has this *name*."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _format_value(inner, f"{name}.{key}".lstrip(".")[-_NAME_CHARS:])
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for number, inner in enumerate(value, 1):
            yield from _format_value(inner, f"{name} {number}".strip())
    elif value not in (None, "", []):
        items = value if isinstance(value, list) else [value]
        text = ", ".join(_format_scalar(item) for item in items)
        yield f"{name}: {text}" if name else text


def _format_scalar(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


# The reader per file extension.
READERS: Final[dict[str, Callable[[Path, BinaryIO], Iterator[Piece]]]] = {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".json": read_json,
    ".jsonl": read_json_lines,
}
