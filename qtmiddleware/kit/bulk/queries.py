"""Read a file of questions line by line. Error messages give line numbers, but never quote text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from qtmiddleware.errors import InvalidQuery
from qtmiddleware.retrieval.call import validate_query
from qtmiddleware.retrieval.history import History, read_history

MOST_BYTES: Final = 10_000_000
"""The maximum size of a line with a question, in bytes."""
JSON_LINES: Final = frozenset({".jsonl", ".json"})
"""The extensions of files with JSON in each line. In other files, each line is a question."""
_TEXT: Final = ("query", "text", "question")
_ID: Final = ("id", "_id")


@dataclass(frozen=True, slots=True)
class InputQuery:
    """One question from the input file.

    Attributes:
        line: The number of the question's line, from 1.
        text: The text of the question.
        id: The question's id in the input, if it has one.
        history: The earlier messages of the conversation.
    """

    line: int
    text: str = field(repr=False)
    id: str | int | None = None
    history: History = field(default=History(), repr=False)

    def to_record(self) -> dict[str, Any]:
        """Return the fields with which an output record identifies the question."""
        record: dict[str, Any] = (
            {"line": self.line} if self.id is None else {"line": self.line, "id": self.id}
        )
        record["query"] = self.text
        if self.history.messages:
            record["history"] = [
                {"role": message.role, "content": message.content}
                for message in self.history.messages
            ]
        return record


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """An input line without a valid question.

    Attributes:
        line: The number of the line, from 1.
        error: The reason why the line is invalid, without any text from the line.
    """

    line: int
    error: str

    def to_record(self) -> dict[str, Any]:
        """Return the output record for this line, with the line's number and its error."""
        return {"line": self.line, "error": self.error}


def read_queries(file: BinaryIO, *, has_json: bool | None) -> Iterator[InputQuery | BrokenLine]:
    """Yield the question in each line of *file*, or a `BrokenLine` if the line is invalid.

    A JSON line is either the question as a string, or an object with the question as ``query`` (or
    ``text``, as in BEIR), and optionally an ``id`` (or ``_id``) and a ``history``. Blank lines are
    skipped, but count in line numbers. Raises `OSError` if reading fails.

    Args:
        file: The input file, opened for reading bytes.
        has_json: Whether each line is JSON. If false, each line is a question in plain text. If
            ``None``, the first line decides.
    """
    for number, raw in _read_numbered_lines(file):
        if has_json is None:
            has_json = raw is not None and raw.lstrip()[:1] in (b"{", b'"')
        try:
            yield _parse_line(number, raw, has_json=has_json)
        except UnicodeError:
            yield BrokenLine(number, "not UTF-8")
        except ValueError as error:
            yield BrokenLine(number, str(error))


def count_non_blank_lines(path: Path) -> int:
    """Return the number of lines in the file at *path* that are not blank.

    Raises `OSError` if the file cannot be read.
    """
    with path.open("rb") as file:
        return sum(1 for _ in _read_numbered_lines(file))


def _read_numbered_lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yield the line number and the bytes of each line in *file* that is not blank.

    For a line that is too long, yields ``None`` instead of the bytes.
    """
    for number, raw in enumerate(read_lines(file, MOST_BYTES), 1):
        # Some programs write a byte order mark at the beginning of a file.
        line = raw.removeprefix(b"\xef\xbb\xbf") if raw is not None and number == 1 else raw
        if line is None or not line.isspace():
            yield number, line


def read_lines(file: BinaryIO, max_bytes: int) -> Iterator[bytes | None]:
    """Yield each line of *file*, with its line break; ``None`` for a line over *max_bytes*."""
    for raw in iter(partial(file.readline, max_bytes + 1), b""):
        if len(raw) <= max_bytes:
            yield raw
            continue
        # The rest of a line that is too long is skipped, so that the next line is a whole line.
        rest = raw
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(max_bytes)
        yield None


def _parse_line(line_number: int, line: bytes | None, *, has_json: bool) -> InputQuery:
    """Return the question in *line*, which is the input line number *line_number*.

    *line* is ``None`` if the line is too long. Raises `ValueError` if there is no valid question.
    """
    if line is None:
        raise ValueError(f"longer than {MOST_BYTES:,} bytes")
    text = line.decode("utf-8").strip("\r\n")
    if not has_json:
        return InputQuery(line_number, _check_question(text))
    record = _parse_json(text)
    if isinstance(record, str):
        return InputQuery(line_number, _check_question(record))
    if not isinstance(record, dict):
        raise ValueError("neither an object nor text")
    query = next((record[name] for name in _TEXT if record.get(name) is not None), None)
    if query is None:
        raise ValueError("no query")
    id_ = next((record[name] for name in _ID if record.get(name) is not None), None)
    # In Python, a boolean is also an int.
    if id_ is not None and (not isinstance(id_, str | int) or isinstance(id_, bool)):
        raise ValueError("an id that is neither text nor a whole number")
    if isinstance(id_, str):
        _check_characters(id_)
    return InputQuery(line_number, _check_question(query), id_, _read_history(record))


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None


def _check_question(question: Any) -> str:
    try:
        query = validate_query(question, "the query")
    except InvalidQuery as error:
        raise ValueError(str(error)) from None
    return _check_characters(query)


def _check_characters(text: str) -> str:
    if "\0" in text:
        raise ValueError("a NUL character in it")
    # JSON can contain a lone surrogate, which cannot be encoded.
    text.encode()
    return text


def _read_history(record: dict[str, Any]) -> History:
    metadata = record.get("metadata")
    messages = (
        record.get("history")
        or (metadata.get("history") if isinstance(metadata, dict) else None)
        or ()
    )
    history = read_history(messages) if isinstance(messages, list | tuple) else None
    if history is None or history.problem is not None:
        raise ValueError("a history that is not a list of messages with role and content")
    for message in history.messages:
        _check_characters(message.content)
    return history
