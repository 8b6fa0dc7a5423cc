"""Read the question file that ``--ask-file`` names: text, JSON lines, a query log or a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.check import FEWEST_ASKED, MOST_ASKED
from qtmiddleware.kit.cli.terminal import escape_line, write_note
from qtmiddleware.kit.evaluation import load_questions
from qtmiddleware.kit.evaluation.dataset import (
    QUESTION_NAMES,
    TABLES,
    name_line_in_errors,
    parse_json_object,
    read_lines,
)

MOST_READ: Final = 1_000
"""The maximum number of different questions to read, because a query log may hold millions."""
_HASH: Final = "sha256:"


def read_question_file(path: Path) -> list[str]:
    """Return the questions in the file at *path*, without duplicates.

    Each line is one of these:

    - a question
    - a JSON object with the question under ``question``, ``query`` or ``text``
    - a record of a query log

    If *path* is a table or the folder of a data set, `load_judged` reads it.

    Raises:
        ConfigError: The file cannot be read, or it contains no question.
    """
    questions: dict[str, None] = {}
    hashed = 0
    for text in _read_questions(path):
        # A query log holds only hashes of the questions, if log.texts is none.
        if text.startswith(_HASH):
            hashed += 1
        elif len(questions) < MOST_READ:
            questions[text] = None
        else:
            break
    if not questions and hashed:
        raise ConfigError(
            f"{path} must hold questions, not their hashes. Set log.texts to questions and log"
            " again, or write some questions to a text file",
            path="--ask-file",
        )
    if not questions:
        raise ConfigError(
            f"{path} must hold questions, one per line; it holds none", path="--ask-file"
        )
    if hashed:
        write_note(f"{hashed:,} questions in the file are hashes and were skipped.")
    if len(questions) < FEWEST_ASKED:
        count = "1 question" if len(questions) == 1 else f"{len(questions)} questions"
        write_note(
            escape_line(
                f"{path} holds {count}; {FEWEST_ASKED} to {MOST_ASKED} give a better answer."
            )
        )
    return list(questions)


def _read_questions(path: Path) -> Iterator[str]:
    """Yield each question in the file or folder at *path*, except blank ones.

    Errors in a line contain its number.
    """
    if path.is_dir() or path.suffix.lower() in TABLES:
        yield from (question.text for question in load_questions(path).questions)
        return
    for number, line in read_lines(path):
        with name_line_in_errors(path, number):
            text: str | None = line.strip()
            if line.lstrip().startswith("{"):
                text = _get_question_text(parse_json_object(line.strip()))
            if text is None:
                raise ValueError(f"must have a question, under one of {', '.join(QUESTION_NAMES)}")
            if text.strip():
                yield text


def _get_question_text(record: Mapping[str, Any]) -> str | None:
    """Return the question in *record*, or ``None`` if *record* has no question.

    Returns an empty string for a query-log record of a query that was not text.
    """
    if "query_id" in record and isinstance(record.get("queries"), list):
        query = next(iter(record["queries"]), "")
        # For a query that is not text, the log holds only the type's name.
        is_text = isinstance(query, str) and not any(
            row[1:2] == ["not_text"] for row in record.get("degradations", ())
        )
        return query if is_text else ""
    text = next((record[name] for name in QUESTION_NAMES if name in record), None)
    return text if isinstance(text, str) else None
