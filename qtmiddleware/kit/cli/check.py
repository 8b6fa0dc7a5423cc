"""``qtm check``: show how qtmiddleware uses a function and changes the function's results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import islice
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
"""The maximum number of questions to read, because a query log may hold millions."""
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
    """Return the questions in the file or folder at *path*, without duplicates."""
    found = list(dict.fromkeys(islice(_read_questions(path), _MOST_READ)))
    # A query log holds only hashes of the questions, if log.texts is none.
    questions = [text for text in found if not text.startswith(_HASH)]
    if not questions:
        problem = "questions, one per line; it holds none"
        if found:
            problem = (
                "questions, not their hashes. Set log.texts to questions and log again, or write"
                " some questions to a text file"
            )
        raise ConfigError(f"{path} must hold {problem}", path="--ask-file")
    if skipped := len(found) - len(questions):
        write_note(f"{skipped:,} questions in the file are hashes and were skipped.")
    return questions[0] if len(questions) == 1 else questions


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
                    is_text = "not_text" not in json.dumps(record.get("degradations"))
                    text = next(iter(record["queries"]), "") if is_text else ""
                else:
                    text = next((record[name] for name in QUESTION_NAMES if name in record), None)
            if not isinstance(text, str):
                raise ValueError(f"must have a question, under one of {', '.join(QUESTION_NAMES)}")
            if text.strip():
                yield text
