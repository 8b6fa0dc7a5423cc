"""Read tables of questions: CSV files from spreadsheets and databases."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.files import open_regular_file

TABLES: Final = (".csv", ".tsv")
"""The file name extensions of tables."""
MOST_TABLE_BYTES: Final = 1 << 28
"""The largest table, in bytes. A larger file cannot be a table of questions."""
QUESTION_NAMES: Final = ("question", "query", "text")
"""The names of a key or column that can contain the question."""
_SEPARATORS: Final = {",": "a comma", ";": "a semicolon", "\t": "a tab"}


def read_table(
    file: Path, needed_columns: Collection[str] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the location and the cells of each row in the table *file*.

    The location is text for messages, such as ``questions.csv line 3``. The cells are a dict with
    the lower-cased column names as keys. The table's first line contains the column names. The
    separator is a comma, semicolon or tab. The encoding is UTF-8 or UTF-16.

    Args:
        file: The table.
        needed_columns: Names of columns. The table must have at least one of them.

    Raises:
        ConfigError: The table cannot be read. The error names the line.
    """
    text = _read_table_text(file)
    names, separator = _read_header(file, text, needed_columns)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    is_header = True
    while True:
        # A row may span several lines; the first one names it.
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
        # The header is the first line that is not blank.
        if not any(cell.strip() for cell in cells):
            continue
        if is_header:
            is_header = False
            continue
        yield place, _map_cells_to_columns(place, file, cells, names, separator)


def _map_cells_to_columns(
    location: str, file: Path, cells: list[str], column_names: list[str], separator: str
) -> dict[str, str]:
    """Return the *cells* of a row as a dict, with *column_names* as keys.

    Raises `ConfigError` if there are more cells than columns.
    """
    # Spreadsheet programs may write empty cells after the last column.
    if len(cells) > len(column_names) and any(cell.strip() for cell in cells[len(column_names) :]):
        raise ConfigError(
            f"{location}: has {len(cells)} cells, but the first line names"
            f" {len(column_names)} columns. Put a cell that holds {_SEPARATORS[separator]} in"
            " quotes",
            path=str(file),
        )
    by_column = dict(zip(column_names, cells, strict=False))
    # A column without a name is not used.
    by_column.pop("", None)
    return by_column


def _read_header(file: Path, text: str, needed_columns: Collection[str]) -> tuple[list[str], str]:
    """Return the column names and the separator of the table in *text*.

    Raises `ConfigError` if no column contains questions, or if the table has none of
    *needed_columns*. If *needed_columns* is empty, the second condition does not apply.
    """
    # With the right separator, the first line has the expected column names.
    headers: dict[str, list[str]] = {}
    for separator in _SEPARATORS:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        try:
            header = next((row for row in rows if any(map(str.strip, row))), [])
        except csv.Error:
            continue
        names = [_normalize_column_name(cell) for cell in header]
        if not set(names).isdisjoint(QUESTION_NAMES) and (
            not needed_columns or not set(names).isdisjoint(needed_columns)
        ):
            return names, separator
        headers[separator] = [cell.strip() for cell in header]
    if not text.strip():
        raise ConfigError(f"{file} must hold questions, one per row; it is empty", path=str(file))
    longest_header = max(headers.values(), key=len, default=[])
    shown = ", ".join(repr(name[:40]) for name in longest_header[:6])
    expected = "the columns question and id (or ids)" if needed_columns else "a column question"
    raise ConfigError(f"{file} must name {expected} in its first line, not {shown}", path=str(file))


def _normalize_column_name(column_name: str) -> str:
    return column_name.strip().casefold()


def _read_table_text(file: Path) -> str:
    """Return the text of the table *file*.

    Raises `ConfigError` if *file* cannot be read, is too large, or is neither UTF-8 nor UTF-16.
    """
    try:
        with open_regular_file(file, follow_link=True) as stream:
            content = stream.read(MOST_TABLE_BYTES + 1)
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
