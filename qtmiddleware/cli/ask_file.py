"""The file of ``--ask-file``: questions as text, as JSON lines or in a query log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from qtmiddleware.cli.terminal import escape_line, note
from qtmiddleware.errors import ConfigError, InvalidQuery
from qtmiddleware.evaluation import Dataset
from qtmiddleware.runtime.files import open_document
from qtmiddleware.wrapping.order_sample import FEWEST_ASKED, MOST_ASKED, read_relevant

MOST_READ: Final = 1_000
"""Different questions of a file that are read; a query log may hold millions."""
MOST_BYTES: Final = 1 << 24
"""Bytes of a line; a longer line is no question."""
_NAMES: Final = ("question", "query", "text")
_HASH: Final = "sha256:"


def read_ask_file(path: Path) -> list[str] | list[dict[str, Any]]:
    """Return the questions of the file at *path*, each once, in the form that `Wrapped.check` takes.

    A line is a question, a JSON object with the question under ``question``, ``query`` or ``text`` and perhaps the ids
    of its ``relevant`` passages, or a record of a query log. A folder is a data set with judgements. Raises
    `ConfigError` if the file cannot be read or holds no question.
    """
    questions: dict[str, list[str]] = {}
    hashed = 0
    for text, relevant in _read_dataset(path) if path.is_dir() else _read_lines(path):
        if text.startswith(_HASH):
            hashed += 1
        elif len(questions) < MOST_READ:
            questions.setdefault(text, relevant)
        else:
            break
    if not questions and hashed:
        raise ConfigError(
            f"{path} must hold questions, not their hashes. Hashes cannot be asked: log with log.queryText true, or"
            " write some questions to a text file",
            path="--ask-file",
        )
    if not questions:
        raise ConfigError(f"{path} must hold questions, one per line; it holds none", path="--ask-file")
    if hashed:
        note(f"{hashed:,} hashed questions of the file cannot be asked.")
    if len(questions) < FEWEST_ASKED:
        count = "1 question" if len(questions) == 1 else f"{len(questions)} questions"
        note(escape_line(f"{path} holds {count}; {FEWEST_ASKED} to {MOST_ASKED} say more."))
    if any(questions.values()):
        return [{"question": text, "relevant": relevant} for text, relevant in questions.items()]
    return list(questions)


def _read_dataset(folder: Path) -> Iterator[tuple[str, list[str]]]:
    data = Dataset.load(folder)
    for question in data.questions:
        yield question.text, [id_ for id_, grade in data.qrels[question.id].items() if grade > 0]


def _read_lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the question of each line that holds one, with the ids of its relevant passages."""
    try:
        with open_document(path, follow_link=True) as file:
            number = 0
            while raw := file.readline(MOST_BYTES + 1):
                number += 1
                try:
                    if len(raw) > MOST_BYTES:
                        raise ValueError(f"is longer than {MOST_BYTES:,} bytes")
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                    if line:
                        yield from _read_line(line)
                except ValueError as error:
                    why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
                    # What is being handled may hold the whole line.
                    raise ConfigError(f"{path} line {number}: {why}", path="--ask-file") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", path="--ask-file") from error


def _read_line(line: str) -> Iterator[tuple[str, list[str]]]:
    if not line.startswith("{"):
        yield line, []
        return
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({getattr(error, 'msg', 'unreadable')})") from None
    text = _find_question(record)
    if text is None:
        raise ValueError(f"has no question; it stands under one of {', '.join(_NAMES)}")
    if text.strip():
        try:
            yield text, sorted(read_relevant(record.get("relevant")))
        except InvalidQuery as error:
            raise ValueError(str(error)) from None


def _find_question(record: Mapping[str, Any]) -> str | None:
    if "query_id" in record and isinstance(record.get("queries"), list):
        first = next(iter(record["queries"]), "")
        # Of a query that is no text the log has only the type.
        is_text = isinstance(first, str) and not any(row[1:2] == ["not_text"] for row in record.get("degradations", ()))
        return first if is_text else ""
    text = next((record[name] for name in _NAMES if name in record), None)
    return text if isinstance(text, str) else None
