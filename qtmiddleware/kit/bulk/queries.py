"""A file of questions, read line by line; what cannot be read is told by the number of its line, never by its text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import InvalidQuery
from qtmiddleware.retrieval.history import History, read_history
from qtmiddleware.retrieval.request import validate_query

MOST_BYTES: Final = 10_000_000
"""A line that is longer is no question."""
JSON_LINES: Final = frozenset({".jsonl", ".ndjson", ".json"})
"""How the names of files end that hold JSON in every line; in others every line is a question."""
_TEXT: Final = ("query", "text", "question")
_ID: Final = ("id", "_id")


@dataclass(frozen=True, slots=True)
class InputQuery:
    """One question: the number of its *line*, its *text*, its own *id* if it has one, and what was said before it."""

    line: int
    text: str = field(repr=False)
    id: str | int | None = None
    history: History = field(default=History(), repr=False)

    def to_record(self) -> dict[str, Any]:
        """What a line of the output says of the question."""
        record: dict[str, Any] = (
            {"line": self.line} if self.id is None else {"line": self.line, "id": self.id}
        )
        record["query"] = self.text
        if self.history.messages:
            record["history"] = [
                {"role": it.role, "content": it.content} for it in self.history.messages
            ]
        return record


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A line that holds no question, and why, without any text of it."""

    line: int
    error: str

    def to_record(self) -> dict[str, Any]:
        """What a line of the output says of it."""
        return {"line": self.line, "error": self.error}


def read_queries(
    file: BinaryIO, settings: Settings, *, has_json: bool | None
) -> Iterator[InputQuery | BrokenLine]:
    """The questions of *file*, one at a time; blank lines are passed over, and counted.

    A line is a question or, where it *has_json*, an object with a ``query`` (or, as BEIR has it,
    ``text``), an ``id`` (``_id``) and a ``history``, the latter two if it likes, or the question as
    a JSON string. With ``None`` the first line says which. Raises `OSError`.
    """
    for number, raw in _read_lines(file):
        if has_json is None:
            has_json = raw is not None and raw.lstrip()[:1] in (b"{", b'"')
        try:
            yield _read_line(number, raw, settings, has_json=has_json)
        except UnicodeError:
            yield BrokenLine(number, "not UTF-8")
        except ValueError as error:
            yield BrokenLine(number, str(error))


def count_queries(path: Path) -> int:
    """How many lines `read_queries` finds at *path*; raises `OSError`."""
    with path.open("rb") as file:
        return sum(1 for _ in _read_lines(file))


def _read_lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """The lines that hold something, numbered from 1; ``None`` for one that is too long."""
    for number, raw in enumerate(read_lines(file, MOST_BYTES), 1):
        line = raw.removeprefix(b"\xef\xbb\xbf") if raw is not None and number == 1 else raw
        if line is None or not line.isspace():
            yield number, line


def read_lines(file: BinaryIO, most: int) -> Iterator[bytes | None]:
    """Yield each line of *file* with its line break; of one longer than *most* bytes nothing is kept but ``None``."""
    for raw in iter(partial(file.readline, most + 1), b""):
        if len(raw) <= most:
            yield raw
            continue
        rest = raw
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(most)
        yield None


def _read_line(number: int, raw: bytes | None, settings: Settings, *, has_json: bool) -> InputQuery:
    """The question of one line; raises `ValueError` that says why there is none."""
    if raw is None:
        raise ValueError(f"longer than {MOST_BYTES:,} bytes")
    text = raw.decode("utf-8").strip("\r\n")
    if not has_json:
        return InputQuery(number, _check_text(text, settings))
    record = _parse(text)
    if isinstance(record, str):
        return InputQuery(number, _check_text(record, settings))
    if not isinstance(record, dict):
        raise ValueError("neither an object nor text")
    query = next((record[name] for name in _TEXT if record.get(name) is not None), None)
    if query is None:
        raise ValueError("no query")
    given = next((record[name] for name in _ID if record.get(name) is not None), None)
    if given is not None and (not isinstance(given, str | int) or isinstance(given, bool)):
        raise ValueError("an id that is neither text nor a whole number")
    if isinstance(given, str):
        _check_characters(given)
    return InputQuery(number, _check_text(query, settings), given, _read_history(record))


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None


def _check_text(text: Any, settings: Settings) -> str:
    try:
        query = validate_query(text, "the query", settings)
    except InvalidQuery as error:
        raise ValueError(str(error)) from None
    return _check_characters(query)


def _check_characters(text: str) -> str:
    if "\0" in text:
        raise ValueError("a NUL character in it")
    # JSON can write half of a character, which nothing else can.
    text.encode()
    return text


def _read_history(record: dict[str, Any]) -> History:
    metadata = record.get("metadata")
    given = (
        record.get("history")
        or (metadata.get("history") if isinstance(metadata, dict) else None)
        or ()
    )
    history = read_history(given) if isinstance(given, list | tuple) else None
    if history is None or history.problem is not None:
        raise ValueError("a history that is not a list of messages with role and content")
    for message in history.messages:
        _check_characters(message.content)
    return history
