"""Rows and records: CSV, JSON and Parquet, and the tables of other documents."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, Final

from qtmiddleware.errors import MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents.text import OWN, PLACE_CHARS, Piece, read_text
from qtmiddleware.retrieval.responses import read_id

_MOST_LINE: Final = 1 << 20
_MOST_RECORD: Final = 1 << 26
"""Characters of a line of a table and of a record of JSON, which are held as a whole."""
_NAME_CHARS: Final = 100
_NUMBER: Final = re.compile(r"[-+(]?[^\w\s]{0,3}\d[\d.,:/%)\s-]*")
_SPACE: Final = re.compile(r"[\s,]*")
TEXTS: Final = ("text", "contents", "content", "passage", "body")
"""The fields a record's text may stand in, the first that holds one; the others are metadata."""
_NO_METADATA: Final = OWN | {"id", "_id", "title", "metadata", "record", "record_id", *TEXTS}
_MOST_METADATA: Final = 1 << 14
"""Characters of a record's metadata that are kept: each of its chunks has all of it."""
_ROWS: Final = 256
"""Rows of a Parquet file that are decoded at once."""


class _Number(str):
    """A number as it is written in JSON."""

    __slots__ = ()


def describe_rows(rows: Iterable[tuple[int, Sequence[str]]], **place: str | int) -> Iterator[Piece]:
    """A line for each of *rows*, which have a number and cells: ``Item: Pump | Price: 7``.

    The first row of two cells or more names the columns, unless one of its cells is a number or a
    date. Empty cells and rows are left out.
    """
    names: Sequence[str] | None = None
    for number, cells in rows:
        row = [" ".join(cell.split()) for cell in cells]
        filled = [at for at, cell in enumerate(row) if cell]
        if not filled:
            continue
        parts = [row[at] for at in filled]
        if names is None:
            if len(filled) > 1:
                names = (
                    []
                    if any(map(_NUMBER.fullmatch, parts))
                    else [cell[:_NAME_CHARS] for cell in row]
                )
        else:
            named = (names[at] if at < len(names) else "" for at in filled)
            parts = [
                f"{name}: {part}" if name else part for name, part in zip(named, parts, strict=True)
            ]
        yield Piece(" | ".join(parts) + "\n", {**place, "row": number})


def read_csv(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """A line for each row of *file*, with the names of its columns and its number, from 1.

    Cells are parted by what parts the first line into most of ``, ; tab |``. Encodings are those of
    a text.
    """
    lines = _split_lines(path, read_text(path, file))
    first, rows = next(lines), None
    try:
        mark = max(",;\t|", key=lambda it: _count_cells(first, it))
        rows = csv.reader(_chain(first, lines), delimiter=mark)
        yield from describe_rows(enumerate(rows, 1))
    except csv.Error as error:
        line = 1 if rows is None else rows.line_num
        raise UnreadableDocument(
            path, "damaged", f"near line {line}: is a quotation mark missing?"
        ) from error


def _count_cells(line: str, mark: str) -> tuple[bool, int]:
    """Whether nothing but *mark* follows a cell in quotation marks in *line*, and how many cells it would have."""
    count = len(next(csv.reader([line], delimiter=mark), []))
    try:
        next(csv.reader([line], delimiter=mark, strict=True), None)
    except csv.Error as error:
        # A cell may go on in the next line.
        return "end of data" in str(error), count
    return True, count


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _split_lines(path: Path, pieces: Iterable[Piece]) -> Iterator[str]:
    """The lines of *pieces*; at least one."""
    held = ""
    for piece in pieces:
        *lines, held = (held + piece.text).split("\n")
        yield from (line + "\n" for line in lines)
        if len(held) > _MOST_LINE:
            raise UnreadableDocument(
                path, "too large", f"a line of more than {_MOST_LINE:,} characters"
            )
    yield held


def read_json(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """A line for each value in *file* (``address.city: Oslo``), and a blank one behind each record.

    Records are the items of a list, or the values that follow one another, as in JSON lines; they
    are numbered from 1. Numbers stay as they are written. One record is held at a time.
    """
    for number, record in enumerate(_decode_records(path, read_text(path, file)), 1):
        yield from _describe_record(record, number)


def read_json_lines(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """The text of each record in *file* that has one, with its id, title and other values as its place.

    See `_read_record` for what is read of it. Other records are described as `read_json` does.
    """
    for number, record in enumerate(_decode_records(path, read_text(path, file)), 1):
        yield from _read_record(record, number)


def read_parquet(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """As `read_json_lines`, for the rows of *file*, of which a few are held at a time; nested columns are left out.

    Raises `MissingExtra` without pyarrow.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtra("pyarrow", "parquet") from error
    if not file.read(1):
        raise UnreadableDocument(path, "empty")
    parquet = pq.ParquetFile(file, buffer_size=1 << 20)
    columns = [
        it.name
        for it in parquet.schema_arrow
        if it.name == "metadata" or not pa.types.is_nested(it.type)
    ]
    batches = parquet.iter_batches(_ROWS, columns=columns, use_threads=False)
    rows = chain.from_iterable(batch.to_pylist() for batch in batches)
    for number, row in enumerate(rows, 1):
        yield from _read_record(row, number)


def _read_record(record: Any, number: int) -> Iterator[Piece]:
    """The text of *record*, its title and a line break before it, alone in its chunks.

    Its place is its number, its id as ``record_id``, its title, and those of its other values, and
    of an object ``metadata``, that are a text, a number, a date, true or false. One without a text
    is described.
    """
    fields = record if isinstance(record, Mapping) else {}
    text = next((it for it in map(fields.get, TEXTS) if isinstance(it, str) and it.strip()), "")
    if not text:
        yield from _describe_record(record, number)
        return
    inner = fields.get("metadata")
    found = {**(inner if isinstance(inner, Mapping) else {}), **fields}
    title = fields.get("title")
    named = {
        "title": title.strip() if isinstance(title, str) else "",
        "record_id": read_id(fields) or "",
    }
    place = {"record": number, **named, **_read_metadata(found)}
    whole = f"{named['title']}\n{text}" if named["title"] else text
    yield Piece(
        whole,
        {name: value for name, value in place.items() if value not in (None, "")},
        stands_alone=True,
    )


def _read_metadata(found: Mapping[str, Any]) -> dict[str, str | int | float]:
    """The values among *found* that metadata can have, until they are longer than `_MOST_METADATA` together."""
    kept: dict[str, str | int | float] = {}
    left = _MOST_METADATA
    for name, value in found.items():
        short = _to_value(value)
        if name in _NO_METADATA or short in (None, ""):
            continue
        short = short[:PLACE_CHARS] if isinstance(short, str) else short
        left -= len(name[:_NAME_CHARS]) + len(str(short))
        if left < 0:
            break
        kept[name[:_NAME_CHARS]] = short
    return kept


def _to_value(value: Any) -> str | int | float | None:
    """*value* as metadata has it, ``None`` for what it cannot have."""
    if isinstance(value, _Number | Decimal):
        try:
            value = int(value) if str(value).lstrip("-").isdecimal() else float(value)
        except ValueError:
            return None
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and not isfinite(value):
        return None
    return value if isinstance(value, str | int | float) else None


def _describe_record(record: Any, number: int) -> Iterator[Piece]:
    for line in _describe(record):
        yield Piece(line + "\n", {"record": number})
    yield Piece("\n", {"record": number})


def _describe(value: Any, name: str = "") -> Iterator[str]:
    label = f"{name}: " if name else ""
    if isinstance(value, dict):
        for key, inner in value.items():
            # A long name at each of its values would make a large text of a small one.
            yield from _describe(
                inner, f"{name}.{key}"[-_NAME_CHARS:] if name else str(key)[:_NAME_CHARS]
            )
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        for at, inner in enumerate(value, 1):
            yield from _describe(inner, f"{name} {at}".strip())
    elif isinstance(value, list):
        if value:
            yield label + ", ".join("" if it is None else _write(it) for it in value)
    elif value is not None and value != "":
        yield label + _write(value)


def _write(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _decode_records(path: Path, pieces: Iterator[Piece]) -> Iterator[Any]:
    decoder = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_Number)
    held, at, passed, in_list = "", 0, 0, False
    more = True
    while True:
        at = _SPACE.match(held, at).end()  # type: ignore[union-attr]
        if not passed and not at and held[:1] == "[":
            in_list, at = True, 1
            continue
        if in_list and held[at : at + 1] == "]":
            in_list, at = False, at + 1
            continue
        try:
            record, end = decoder.raw_decode(held, at)
        except ValueError as error:
            end, place = -1, passed + getattr(error, "pos", at)
        # A number may go on in the next piece.
        if end >= 0 and (end < len(held) or not more):
            yield record
            at = end
            continue
        if not more:
            if at < len(held) or in_list:
                raise UnreadableDocument(path, "damaged", f"not JSON near character {place}")
            return
        if len(held) - at > _MOST_RECORD:
            raise UnreadableDocument(
                path, "too large", f"a record of more than {_MOST_RECORD:,} characters"
            )
        # Twice as much each time, or a long record would be tried again for every piece of it.
        wanted, parts = max(1, len(held) - at), []
        while wanted > 0 and (piece := next(pieces, None)) is not None:
            parts.append(piece.text)
            wanted -= len(piece.text)
        more = wanted <= 0
        passed += at
        held, at = held[at:] + "".join(parts), 0
