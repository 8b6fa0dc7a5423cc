"""Read the numbered lines of a text file, and name the line in errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.files import open_regular_file

MOST_BYTES: Final = 1 << 24
"""The longest line, in bytes. A longer line cannot be a passage or a question."""


def read_lines(path: Path, advice: str = "") -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line in the file at *path*, except blank lines.

    Line numbers start at 1.

    Args:
        path: The file.
        advice: Text to add to the error message if the file cannot be read.

    Raises:
        ConfigError: The file cannot be read, or a line is too long or is not UTF-8.
    """
    try:
        with open_regular_file(path, follow_link=True) as file:
            # Reading one byte more than allowed shows that a line is too long.
            for number, raw in enumerate(iter(partial(file.readline, MOST_BYTES + 1), b""), 1):
                with name_line_in_errors(path, number):
                    if len(raw) > MOST_BYTES:
                        raise ValueError(f"is longer than {MOST_BYTES:,} bytes")
                    # Windows programs may begin a file with a byte order mark.
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n")
                if text.strip():
                    yield number, text
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}{advice}", path=str(path)
        ) from error


@contextmanager
def name_line_in_errors(path: Path, number: int) -> Iterator[None]:
    """Convert a `ValueError` in the ``with`` block to a `ConfigError` that names the file and line.

    The message begins with *path* and the line *number*.
    """
    try:
        yield
    except ValueError as error:
        why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        # "from None", because the handled error may hold the whole line.
        raise ConfigError(f"{path} line {number}: {why}", path=f"{path}:{number}") from None


def parse_json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in *text*.

    Raises `ValueError` if *text* is not a JSON object. The error does not quote the text.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({getattr(error, 'msg', 'unreadable')})") from None
    if not isinstance(record, dict):
        raise ValueError("must be a JSON object")
    return record
