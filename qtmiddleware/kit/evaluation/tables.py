"""Tables of questions: CSV as spreadsheets and databases write it, with a line of column names."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.runtime.files import open_document

TABLES: Final = (".csv", ".tsv")
"""How the names of tables end."""
MOST_TABLE_BYTES: Final = 1 << 28
"""A larger file is no table of questions."""
QUESTION_NAMES: Final = ("question", "query", "text")
"""The names under which a record or a column holds a question."""
_SEPARATORS: Final = {",": "a comma", ";": "a semicolon", "\t": "a tab"}


def read_table(file: Path, needs: Collection[str] = ()) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row of the table *file* as its cells by column, with its place in words.

    Names of columns are folded to lower case. Commas, semicolons or tabs separate the cells,
    whichever make the first line name a question. The text is UTF-8, or the UTF-16 that
    spreadsheets write. *needs* are names of columns of which one must be there. Raises
    `ConfigError` that names the line.
    """
    text = _decode(file)
    names, separator = _read_header(file, text, needs)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    is_header = True
    while True:
        # A row may span lines; it is called by the first of them.
        place = f"{file} line {rows.line_num + 1}"
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise ConfigError(
                f"{place}: cannot be read as CSV ({error}). Put a cell that begins with a quote"
                " into quotes, and double the quotes in it",
                path=str(file),
            ) from None
        if not any(cell.strip() for cell in cells):
            continue
        if is_header:
            is_header = False
            continue
        yield place, _name_cells(place, file, cells, names, separator)


def _name_cells(
    place: str, file: Path, cells: list[str], names: list[str], separator: str
) -> dict[str, str]:
    """Return the *cells* by column; a row that is too long or too short is refused, as its cells may be shifted."""
    if len(cells) > len(names) and any(cell.strip() for cell in cells[len(names) :]):
        raise ConfigError(
            f"{place}: has {len(cells)} cells, but the first line names {len(names)} columns. Put a"
            f" cell that holds {_SEPARATORS[separator]} in quotes",
            path=str(file),
        )
    named = dict(zip(names, cells, strict=False))
    named.pop("", None)
    return named


def _read_header(file: Path, text: str, needs: Collection[str]) -> tuple[list[str], str]:
    """Return the names of the columns and what separates them; raises `ConfigError` if a column is missing."""
    headers: dict[str, list[str]] = {}
    for separator in _SEPARATORS:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        try:
            first = next((row for row in rows if any(map(str.strip, row))), [])
        except csv.Error:
            continue
        names = [_fold(cell) for cell in first]
        if not set(names).isdisjoint(QUESTION_NAMES) and (
            not needs or not set(names).isdisjoint(needs)
        ):
            return names, separator
        headers[separator] = [cell.strip() for cell in first]
    if not text.strip():
        raise ConfigError(f"{file} must hold questions, one per row; it is empty", path=str(file))
    named = max(headers.values(), key=len, default=[])
    shown = ", ".join(repr(name[:40]) for name in named[:6])
    wanted = "the columns question and id (or ids)" if needs else "a column question"
    raise ConfigError(f"{file} must name {wanted} in its first line, not {shown}", path=str(file))


def _fold(name: str) -> str:
    return name.strip().casefold()


def _decode(file: Path) -> str:
    """Return the text of the table, UTF-8 or the UTF-16 that spreadsheets write; raises `ConfigError`."""
    try:
        with open_document(file, follow_link=True) as opened:
            content = opened.read(MOST_TABLE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", path=str(file)) from error
    if len(content) > MOST_TABLE_BYTES:
        raise ConfigError(f"{file} is larger than {MOST_TABLE_BYTES:,} bytes", path=str(file))
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        number = content[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{file}, line {number}: not valid UTF-8. Save the table as UTF-8 (in Excel, choose"
            ' "CSV UTF-8")',
            path=str(file),
        ) from None
