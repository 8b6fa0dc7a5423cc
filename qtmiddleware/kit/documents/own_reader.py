"""What a reader of the user's own gives for a document, checked piece by piece."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents.text import OWN, Piece

Reader = Callable[[Path], "str | Iterable[str | tuple[str, Mapping[str, str | int]]] | None"]
"""A function of a path: its text, its texts one by one, or such with their places. ``None``: not mine."""


class _NoText(TypeError):
    """A user's reader gave something else; the words are ours, and hold nothing of it."""


def ask_reader(reader: Reader, path: Path) -> Iterator[Piece] | None:
    """The pieces *reader* makes of the file at *path*; ``None`` where it makes none of it.

    Raises `UnreadableDocument` at once or later for whatever it raises, and for what are no texts.
    """
    with _blame_reader(path):
        found = reader(path)
        if inspect.iscoroutine(found):
            found.close()
            raise _NoText("the reader must be a plain function that returns text, not async")
        if found is not None and (
            isinstance(found, bytes | Mapping) or not isinstance(found, Iterable)
        ):
            raise _NoText(f"the reader must return text, not {type(found).__name__}")
    return None if found is None else _take_pieces(found, path)


def _take_pieces(found: Any, path: Path) -> Iterator[Piece]:
    blank = True
    with _blame_reader(path):
        for one in [found] if isinstance(found, str) else found:
            text, place = one if isinstance(one, tuple) and len(one) == 2 else (one, {})
            if not isinstance(text, str):
                raise _NoText(f"the reader must yield text, not {type(text).__name__}")
            place = {name: value for name, value in dict(place).items() if value is not None}
            for name, value in place.items():
                if (
                    not isinstance(name, str)
                    or name in OWN
                    or not isinstance(value, str | int | float)
                ):
                    raise _NoText(f"{name!r} is no place")
            blank = blank and not text.strip()
            yield Piece(text, place)
    if blank:
        raise UnreadableDocument(path, "empty")


@contextmanager
def _blame_reader(path: Path) -> Iterator[None]:
    try:
        yield
    except (UnreadableDocument, GeneratorExit):
        raise
    except Exception as error:
        # What an error of somebody else's says may hold the text.
        detail = str(error) if isinstance(error, _NoText) else type(error).__name__
        raise UnreadableDocument(path, "its reader failed", detail) from error
