"""``qtm check``: show how qtmiddleware uses a function and changes the function's results."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer import Argument, Option

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli import FAILED
from qtmiddleware.kit.cli.options import Arguments, AsJson, ConfigFile, Embed, Sets, Target
from qtmiddleware.kit.cli.output import out, write_json, write_note

_GENERIC_QUESTION: Final = "What are the most important points?"
_HASH: Final = "sha256:"


def command(
    target: Target,
    question: Annotated[str | None, Argument(help="A question that your users ask.")] = None,
    ask_file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Text file (.txt) with a question per line, CSV or JSON file, or query log.",
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
    from qtmiddleware.kit.evaluation.dataset import load_questions, read_lines

    if path.suffix.lower() == ".txt":
        texts = [line.strip() for _, line in read_lines(path)]
    else:
        texts = [question.text for question in load_questions(path).questions]
    # A query log holds only hashes of the questions, if log.texts is none.
    questions = [text for text in dict.fromkeys(texts) if not text.startswith(_HASH)]
    if not questions:
        raise ConfigError(
            f"{path} must hold questions, not their hashes or nothing. To get them from a query"
            " log, set log.texts to questions",
            path="--ask-file",
        )
    return questions[0] if len(questions) == 1 else questions
