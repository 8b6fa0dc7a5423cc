"""``qtm check``: show how qtmiddleware uses a function and changes the function's results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer import Argument, Option

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli import FAILED
from qtmiddleware.kit.cli.options import Arguments, AsJson, ConfigFile, Embed, Sets, Target
from qtmiddleware.kit.cli.output import out, write_json, write_note

_GENERIC_QUESTION: Final = "What are the most important points?"
_MOST_READ: Final = 1_000
"""The maximum number of different questions to read, because a query log may hold millions."""
_HASH: Final = "sha256:"


def command(
    target: Target,
    question: Annotated[str | None, Argument(help="A question that your users ask.")] = None,
    ask_file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="File of questions, one per line: text, JSON or a query log. 3 to 10 are asked.",
        ),
    ] = None,
    config: ConfigFile = None,
    sets: Sets = None,
    arguments: Arguments = None,
    embed: Embed = None,
    json_output: AsJson = False,
) -> None:
    """Check how qtmiddleware uses your function.

    The command imports the function, plain or wrapped, from the current folder
    and calls it a few times. If the config uses a model, the model is called once.

    With --ask-file the report says for how many of your questions the rules
    change the order, and shows two examples.

    The exit code is 1 if qtmiddleware has no effect.
    """
    from qtmiddleware.kit.cli.searching import open_search, parse_arguments

    if question is not None and ask_file is not None:
        raise ConfigError("pass a question or --ask-file, not both", path="--ask-file")
    questions: Any = question if ask_file is None else _read_question_file(ask_file)
    with open_search(target, config, sets, embed=embed) as search:
        if questions is None:
            write_note(
                "No question was given, so a generic one is used. A question of your users"
                " shows more."
            )
            questions = _GENERIC_QUESTION
        keywords = parse_arguments(arguments)
        if search.wrapped.is_async:
            check = asyncio.run(search.wrapped.acheck(questions, **keywords))
        else:
            check = search.wrapped.check(questions, **keywords)
    if json_output:
        write_json(check.to_dict())
    else:
        out.write(str(check))
    if not check.helps:
        raise typer.Exit(FAILED)


def _read_question_file(path: Path) -> str | list[str]:
    """Return the questions in the file or folder at *path*, without duplicates.

    Raises `ConfigError` if the file cannot be read, or contains no question.
    """
    from qtmiddleware.kit.check import FEWEST_ASKED, MOST_ASKED

    questions: dict[str, None] = {}
    hashed = 0
    for text in _read_questions(path):
        # A query log holds only hashes of the questions, if log.texts is none.
        if text.startswith(_HASH):
            hashed += 1
            continue
        questions[text] = None
        if len(questions) == _MOST_READ:
            break
    if not questions:
        problem = (
            "questions, not their hashes. Set log.texts to questions and log again, or write some"
            " questions to a text file"
        )
        problem = problem if hashed else "questions, one per line; it holds none"
        raise ConfigError(f"{path} must hold {problem}", path="--ask-file")
    if hashed:
        write_note(f"{hashed:,} questions in the file are hashes and were skipped.")
    if len(questions) < FEWEST_ASKED:
        count = "1 question" if len(questions) == 1 else f"{len(questions)} questions"
        write_note(f"{path} holds {count}; {FEWEST_ASKED} to {MOST_ASKED} give a better answer.")
    return next(iter(questions)) if len(questions) == 1 else list(questions)


def _read_questions(path: Path) -> Iterator[str]:
    """Yield each question in the file or folder at *path*, except blank ones."""
    from qtmiddleware.kit.evaluation.dataset import (
        QUESTION_NAMES,
        TABLES,
        load_questions,
        name_line_in_errors,
        parse_json_object,
        read_lines,
    )

    if path.is_dir() or path.suffix.lower() in TABLES:
        yield from (question.text for question in load_questions(path).questions)
        return
    for number, line in read_lines(path):
        with name_line_in_errors(path, number):
            text: Any = line.strip()
            if text.startswith("{"):
                record = parse_json_object(text)
                if "query_id" in record and isinstance(record.get("queries"), list):
                    # A record of a query log. Of a query that is not text, it has only the type.
                    reasons = [row[1] for row in record.get("degradations", ())]
                    text = next(iter(record["queries"]), "") if "not_text" not in reasons else ""
                else:
                    text = next((record[name] for name in QUESTION_NAMES if name in record), None)
            if not isinstance(text, str):
                raise ValueError(f"must have a question, under one of {', '.join(QUESTION_NAMES)}")
            if text.strip():
                yield text
