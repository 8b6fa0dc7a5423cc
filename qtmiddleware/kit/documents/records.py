"""Read CSV and JSON files, and format the tables of all documents as text."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents.text import OWN, PLACE_CHARS, Piece
from qtmiddleware.retrieval.responses import read_passage

_NAME_CHARS: Final = 100
_NUMBER: Final = re.compile(r"[-+(]?[^\w\s]{0,3}\d[\d.,:/%)\s-]*")
TEXTS: Final = ("text", "contents", "content", "passage", "body")
"""The names of fields that may contain a record's text. The first field with a text is used."""
_NO_METADATA: Final = OWN | {"id", "_id", "title", "metadata", "record", "record_id", *TEXTS}
_MOST_METADATA: Final = 1 << 14
"""The maximum size of a record's metadata, in characters. Each chunk repeats the metadata."""


class _Number(str):
    """A number from a JSON file, with the digits exactly as in the file."""

    __slots__ = ()


def format_rows(
    rows: Iterable[tuple[int, Sequence[str]]], **location: str | int
) -> Iterator[Piece]:
    """Yield one line of text per row, such as ``Item: Pump | Price: 7``.

    The first row with two or more filled cells contains the column names, unless one of its cells
    is a number or a date. Empty cells and empty rows are skipped.

    Args:
        rows: the rows as (row number, cells) pairs.
        location: more values for each line's location, such as ``sheet="Costs"``.
    """
    names: Sequence[str] | None = None
    for number, cells in rows:
        row = [" ".join(cell.split()) for cell in cells]
        filled_columns = [column for column, cell in enumerate(row) if cell]
        if not filled_columns:
            continue
        texts = [row[column] for column in filled_columns]
        if names is None:
            if len(filled_columns) > 1:
                names = (
                    []
                    if any(map(_NUMBER.fullmatch, texts))
                    else [cell[:_NAME_CHARS] for cell in row]
                )
        else:
            column_names = (
                names[column] if column < len(names) else "" for column in filled_columns
            )
            texts = [
                f"{name}: {text}" if name else text
                for name, text in zip(column_names, texts, strict=True)
            ]
        yield Piece(" | ".join(texts) + "\n", {**location, "row": number})


def read_csv(path: Path, text: str) -> Iterator[Piece]:
    """Yield one line of text per row of a CSV file, such as ``Item: Pump | Price: 7``.

    Each line's location is the row's number, from 1. The separator is the comma, semicolon, tab or
    ``|`` that splits the first line into the most cells.
    """
    first_line = text.partition("\n")[0]
    rows = None
    try:
        separator = max(",;\t|", key=lambda mark: _rate_separator(first_line, mark))
        rows = csv.reader(io.StringIO(text), delimiter=separator)
        yield from format_rows(enumerate(rows, 1))
    except csv.Error as error:
        line = 1 if rows is None else rows.line_num
        raise UnreadableDocument(
            path, "damaged", f"near line {line}: is a quotation mark missing?"
        ) from error


def _rate_separator(line: str, mark: str) -> tuple[bool, int]:
    """Return whether the quotation marks in *line* fit to the separator, and the count of cells."""
    cell_count = len(next(csv.reader([line], delimiter=mark), []))
    try:
        next(csv.reader([line], delimiter=mark, strict=True), None)
    except csv.Error as error:
        # A quoted cell may continue on the next line.
        return "end of data" in str(error), cell_count
    return True, cell_count


def read_json(path: Path, text: str) -> Iterator[Piece]:
    """Yield one line of text per value in a JSON file, such as ``address.city: Oslo``.

    If the file contains a list, each item of the list is a record. Otherwise the file is one
    record, or has a record in each line. Records are numbered from 1, and a blank line follows each
    record. Numbers have the digits of the file.
    """
    try:
        value = _parse_json(text)
    except ValueError:
        records = _parse_lines(path, text)
    else:
        records = iter(value if isinstance(value, list) else [value])
    for number, record in enumerate(records, 1):
        yield from _format_record(record, number)


def read_json_lines(path: Path, text: str) -> Iterator[Piece]:
    """Yield the text of each record in a JSON Lines file, with the other fields as metadata.

    See `_convert_record_to_pieces` for the fields. If a record has no text, yields one line per
    value, like `read_json`.
    """
    for number, record in enumerate(_parse_lines(path, text), 1):
        yield from _convert_record_to_pieces(record, number)


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


RECORD_READERS: Final[dict[str, Callable[[Path, str], Iterator[Piece]]]] = {
    **dict.fromkeys((".csv", ".tsv"), read_csv),
    ".json": read_json,
    ".jsonl": read_json_lines,
}
"""The reader per file extension of tables and JSON."""


def _convert_record_to_pieces(record: Any, record_number: int) -> Iterator[Piece]:
    """Yield the title and text of *record* as one piece, to be put into chunks of its own.

    The piece's location contains the record's number (``record``), id (``record_id``), title and
    other fields, and the fields of its object ``metadata``. Lists, objects and nulls are skipped.
    If *record* has no text, yields one piece per value instead.
    """
    fields = record if isinstance(record, Mapping) else {}
    text = next(
        (value for value in map(fields.get, TEXTS) if isinstance(value, str) and value.strip()), ""
    )
    if not text:
        yield from _format_record(record, record_number)
        return
    metadata = fields.get("metadata")
    # A field of the record itself overrides a field of the same name in its metadata.
    values = {**(metadata if isinstance(metadata, Mapping) else {}), **fields}
    title = fields.get("title")
    title_and_id = {
        "title": title.strip() if isinstance(title, str) else "",
        "record_id": read_passage(fields).id or "",
    }
    location = {"record": record_number, **title_and_id, **_select_metadata(values)}
    titled_text = f"{title_and_id['title']}\n{text}" if title_and_id["title"] else text
    yield Piece(
        titled_text,
        {name: value for name, value in location.items() if value not in (None, "")},
        stands_alone=True,
    )


def _select_metadata(fields: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Return those *fields* of a record that can be stored as metadata.

    The result has at most `_MOST_METADATA` characters. From the first field that does not fit, all
    fields are dropped.
    """
    metadata: dict[str, str | int | float] = {}
    chars_left = _MOST_METADATA
    for name, value in fields.items():
        converted = _convert_metadata_value(value)
        if name in _NO_METADATA or converted in (None, ""):
            continue
        converted = converted[:PLACE_CHARS] if isinstance(converted, str) else converted
        chars_left -= len(name[:_NAME_CHARS]) + len(str(converted))
        if chars_left < 0:
            break
        metadata[name[:_NAME_CHARS]] = converted
    return metadata


def _convert_metadata_value(value: Any) -> str | int | float | None:
    """Return *value* as a text, a number or a boolean; ``None`` if it cannot be converted."""
    # JSON numbers are kept as text.
    if isinstance(value, _Number):
        try:
            value = int(value) if str(value).lstrip("-").isdecimal() else float(value)
        except ValueError:
            return None
    if isinstance(value, float) and not isfinite(value):
        return None
    return value if isinstance(value, str | int | float) else None


def _format_record(record: Any, record_number: int) -> Iterator[Piece]:
    """Yield one line of text per value of *record*, then a blank line.

    The location of each line contains *record_number*, under the name ``record``.
    """
    for line in _format_nested_value(record):
        yield Piece(line + "\n", {"record": record_number})
    yield Piece("\n", {"record": record_number})


def _format_nested_value(value: Any, value_name: str = "") -> Iterator[str]:
    """Yield one line of text per value inside *value*, such as ``address.city: Oslo``.

    *value_name* is the name of *value*, such as ``address``.
    """
    label = f"{value_name}: " if value_name else ""
    if isinstance(value, dict):
        for key, inner in value.items():
            # A long name repeats for each of its values, so a small file could become a large text.
            yield from _format_nested_value(
                inner,
                f"{value_name}.{key}"[-_NAME_CHARS:] if value_name else str(key)[:_NAME_CHARS],
            )
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for number, inner in enumerate(value, 1):
            yield from _format_nested_value(inner, f"{value_name} {number}".strip())
    elif isinstance(value, list):
        if value:
            yield label + ", ".join("" if item is None else _format_value(item) for item in value)
    elif value is not None and value != "":
        yield label + _format_value(value)


def _format_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
