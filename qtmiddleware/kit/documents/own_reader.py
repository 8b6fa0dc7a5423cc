"""Call the reader function that the user supplied, and check the text that it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents.text import OWN, Piece

Reader = Callable[[Path], "str | Iterable[str | tuple[str, Mapping[str, str | int]]] | None"]
"""The user's own reader: a function that takes a path and returns the text of the file.

The result is one text, several texts, several (text, location) pairs, or ``None`` for a file that
the built-in readers should read.
"""


class _InvalidResult(TypeError):
    """Raised if the user's reader returned something other than text.

    The message does not quote the returned value, so the message can be shown.
    """


def call_reader(reader: Reader, path: Path) -> Iterator[Piece] | None:
    """Read the file at *path* with the user's *reader*, and return an iterator over the pieces.

    Returns ``None`` if *reader* returns ``None``, which leaves the file to the built-in readers.

    Raises `UnreadableDocument`, at the call or during iteration, if *reader* raises any exception
    or returns something other than text.
    """
    with _convert_reader_errors(path):
        result = reader(path)
        # A coroutine that nobody awaits would issue a warning later.
        if inspect.iscoroutine(result):
            result.close()
            raise _InvalidResult("the reader must be a plain function that returns text, not async")
        if result is not None and (
            isinstance(result, bytes | Mapping) or not isinstance(result, Iterable)
        ):
            raise _InvalidResult(f"the reader must return text, not {type(result).__name__}")
    return None if result is None else _check_pieces(result, path)


def _check_pieces(reader_result: Any, path: Path) -> Iterator[Piece]:
    """Check each item that the user's reader returned, and yield it as a piece.

    *reader_result* is a text, or an iterable of texts and (text, location) pairs.

    Raises `UnreadableDocument` if an item is invalid, or if all texts are blank.
    """
    blank = True
    with _convert_reader_errors(path):
        for item in [reader_result] if isinstance(reader_result, str) else reader_result:
            text, location = item if isinstance(item, tuple) and len(item) == 2 else (item, {})
            if not isinstance(text, str):
                raise _InvalidResult(f"the reader must yield text, not {type(text).__name__}")
            location = {name: value for name, value in dict(location).items() if value is not None}
            for name, value in location.items():
                if (
                    not isinstance(name, str)
                    or name in OWN
                    or not isinstance(value, str | int | float)
                ):
                    raise _InvalidResult(f"{name!r} is no place")
            blank = blank and not text.strip()
            yield Piece(text, location)
    if blank:
        raise UnreadableDocument(path, "empty")


@contextmanager
def _convert_reader_errors(path: Path) -> Iterator[None]:
    """Convert any exception that the user's reader raises for *path* into `UnreadableDocument`."""
    try:
        yield
    except (UnreadableDocument, GeneratorExit):
        raise
    except Exception as error:
        # The message of a foreign error may quote the document's text.
        detail = str(error) if isinstance(error, _InvalidResult) else type(error).__name__
        raise UnreadableDocument(path, "its reader failed", detail) from error
