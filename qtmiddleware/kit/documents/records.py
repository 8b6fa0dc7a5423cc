"""Read CSV and JSON files, one row or record after another."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, zip_longest
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, Final

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents.pieces import MOST_BYTES, OWN, Location, Piece, read_text

# The names of fields that may contain a record's text. The first field with a text is used.
TEXTS: Final = ("text", "contents", "content", "passage", "body")

# The maximum length of a name, which repeats for each of its values.
_NAME_CHARS: Final = 100
_NO_METADATA: Final = OWN | {"id", "_id", "title", "metadata", "record", "record_id", *TEXTS}
# The maximum number of metadata fields of a record. Each chunk repeats the metadata.
_MOST_FIELDS: Final = 50


def read_csv(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the rows of a CSV file as `format_rows` does.

    The separator is the comma, semicolon, tab or ``|`` that occurs most often in the first line.
    """
    # Python's own limit is 128 kB, but a cell may hold a whole document.
    csv.field_size_limit(MOST_BYTES)
    text = read_text(path, file).strip("\n")
    separator = max(",;\t|", key=text.partition("\n")[0].count)
    yield from format_rows(csv.reader(io.StringIO(text), delimiter=separator), {})


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
    # NaN and infinity are no JSON, so they stay texts.
    return json.loads(text, parse_float=_parse_float, parse_constant=str)


def _parse_float(digits: str) -> float | str:
    number = float(digits)
    return number if isfinite(number) else digits


def _select_metadata(fields: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Return the texts, numbers and booleans of *fields* and of its ``metadata``, up to a limit."""
    inner = fields.get("metadata")
    values = {**(inner if isinstance(inner, dict) else {}), **fields}
    simple = (
        (name[:_NAME_CHARS], value)
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


# The reader per file extension.
READERS: Final[dict[str, Callable[[Path, BinaryIO], Iterator[Piece]]]] = {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".json": read_json,
    ".jsonl": read_json_lines,
}
