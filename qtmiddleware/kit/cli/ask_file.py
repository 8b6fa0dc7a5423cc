"""Read the question file that ``--ask-file`` names: text, JSON lines, a query log or a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import ConfigError, InvalidQuery
from qtmiddleware.kit.cli.terminal import escape_line, write_note
from qtmiddleware.kit.evaluation import load_judged
from qtmiddleware.kit.evaluation.lines import name_line_in_errors, parse_json_object, read_lines
from qtmiddleware.kit.evaluation.tables import QUESTION_NAMES, TABLES
from qtmiddleware.wrapping.order_sample import FEWEST_ASKED, MOST_ASKED, read_relevant_ids

MOST_READ: Final = 1_000
"""The maximum number of different questions to read, because a query log may hold millions."""
_HASH: Final = "sha256:"


def read_question_file(path: Path) -> list[str] | list[dict[str, Any]]:
    """Return the questions in the file at *path*, without duplicates.

    Each line is one of these:

    - a question
    - a JSON object with the question under ``question``, ``query`` or ``text``, and optionally the
      ids of its ``relevant`` passages
    - a record of a query log

    If *path* is a table or the folder of a data set, `load_judged` reads it.

    Returns:
        The texts of the questions. If any question has relevant passages, returns one dict per
        question instead, with the keys ``question`` and ``relevant``.

    Raises:
        ConfigError: The file cannot be read, or it contains no question.
    """
    questions: dict[str, list[str]] = {}
    hashed = 0
    is_judged = path.is_dir() or path.suffix.lower() in TABLES
    for text, relevant in _read_judged_questions(path) if is_judged else _read_question_lines(path):
        # A query log holds only hashes of the questions, if log.texts is none.
        if text.startswith(_HASH):
            hashed += 1
        elif len(questions) < MOST_READ:
            questions.setdefault(text, relevant)
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
    if any(questions.values()):
        return [{"question": text, "relevant": relevant} for text, relevant in questions.items()]
    return list(questions)


def _read_judged_questions(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each question of a table or data set, with the ids of its relevant passages."""
    dataset = load_judged(path)
    for question in dataset.questions:
        yield question.text, [id_ for id_, grade in dataset.qrels[question.id].items() if grade > 0]


def _read_question_lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each question in the file at *path*, with the ids of the relevant passages.

    Skips blank lines, and query-log records of queries that were not text. Errors contain the
    line number.
    """
    for number, line in read_lines(path):
        with name_line_in_errors(path, number):
            yield from _read_question_line(line.strip())


def _read_question_line(line: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the question in *line*, with the ids of the relevant passages.

    *line* is a question or a JSON object that contains a question. Yields nothing if the question
    in the object is blank. Raises `ValueError` if the object has no question or if the ids are not
    valid.
    """
    if not line.startswith("{"):
        yield line, []
        return
    record = parse_json_object(line)
    text = _get_question_text(record)
    if text is None:
        raise ValueError(f"must have a question, under one of {', '.join(QUESTION_NAMES)}")
    if text.strip():
        try:
            yield text, sorted(read_relevant_ids(record.get("relevant")))
        except InvalidQuery as error:
            raise ValueError(str(error)) from None


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
