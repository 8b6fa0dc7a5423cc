"""``qtm check``: show how qtmiddleware uses a function and changes the function's results."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from qtmiddleware.errors import WrapError
from qtmiddleware.kit.cli.console import AsJson, ConfigFile, Sets, out, write_json
from qtmiddleware.kit.cli.environment import load_config, report_default_files
from qtmiddleware.kit.cli.terminal import FAILED, write_note
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.wrapped import Wrapped

_GENERIC_QUESTION: Final = "What are the most important points?"
TARGET: Final = "MODULE:FUNCTION"

_Target = Annotated[
    str,
    typer.Argument(
        metavar=TARGET,
        help="Your function, such as app:search or app:index.search, in app.py in this folder.",
    ),
]
_Question = Annotated[str | None, typer.Argument(help="A question that your users ask.")]
InPlaceOfIndex = Annotated[
    str | None,
    typer.Option(
        "--function", "-f", metavar=TARGET, help="Search with your function instead of the index."
    ),
]
Arguments = Annotated[
    list[str] | None,
    typer.Option(
        "--arg",
        "-a",
        metavar="NAME=VALUE",
        help="Argument of the function; the value is JSON or text. Repeatable.",
    ),
]


def check_command(
    target: _Target,
    question: _Question = None,
    ask_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of questions, one per line: text, JSON or a query log. 3 to 10 are asked.",
        ),
    ] = None,
    config: ConfigFile = None,
    sets: Sets = None,
    arguments: Arguments = None,
    query_arg: Annotated[
        str | None, typer.Option(help="Parameter that holds the question.")
    ] = None,
    top_k_arg: Annotated[
        str | None, typer.Option(help="Parameter that sets the number of passages.")
    ] = None,
    embed: Annotated[
        str | None,
        typer.Option(
            metavar=TARGET, help="Function that embeds a text, if your function takes a vector."
        ),
    ] = None,
    json_output: AsJson = False,
) -> None:
    """Check how qtmiddleware uses your function.

    The command imports the function, plain or wrapped, from the current folder
    and calls it a few times. If the config uses a model, the model is called once.

    With --ask-file the report says for how many of your questions the rules
    change the order, and shows two examples.

    The exit code is 1 if qtmiddleware has no effect.
    """
    if question is not None and ask_file is not None:
        raise typer.BadParameter("pass a question or --ask-file, not both", param_hint="--ask-file")
    questions: Any = question
    if ask_file is not None:
        # `qtm mcp` imports this module too, and needs no reader of files.
        from qtmiddleware.kit.cli.ask_file import read_question_file

        questions = read_question_file(ask_file)
        questions = questions[0] if len(questions) == 1 else questions
    arguments_by_name = dict(parse_argument(text) for text in arguments or ())
    # What the user's code prints is not part of the report, and would break its JSON.
    with redirect_stdout(sys.stderr):
        options: dict[str, Any] = {"query_arg": query_arg, "top_k_arg": top_k_arg}
        fn = import_function(target)
        if embed is not None:
            options["embed"] = import_function(embed)
        with open_wrapped_function(fn, config, sets, options) as wrapped:
            if questions is None:
                write_note(
                    "No question was given, so a generic one is used. A question of your users"
                    " shows more."
                )
                questions = _GENERIC_QUESTION
            check = (
                asyncio.run(wrapped.acheck(questions, **arguments_by_name))
                if wrapped.is_async
                else wrapped.check(questions, **arguments_by_name)
            )
    if json_output:
        write_json(check.to_dict())
    else:
        out.print(str(check))
    if not check.helps:
        raise typer.Exit(FAILED)


@contextmanager
def open_wrapped_function(
    function: Any,
    config_name: str | None,
    assignments: list[str] | None,
    wrap_options: Mapping[str, Any],
) -> Iterator[Any]:
    """Wrap *function*, and yield the wrapped function.

    If *function* is already wrapped, yields *function* itself.

    Args:
        function: The user's function.
        config_name: The file or preset that ``--config`` names, or ``None``.
        assignments: The values of ``--set``.
        wrap_options: The arguments of `QueryMiddleware.wrap`.

    Raises:
        typer.BadParameter: *function* is already wrapped, but another argument contains a setting.
    """
    if isinstance(function, Wrapped):
        if (
            config_name is not None
            or assignments
            or any(value is not None for value in wrap_options.values())
        ):
            raise typer.BadParameter(
                "the function is already wrapped; set the options where you wrap it",
                param_hint=TARGET,
            )
        yield function
        return
    loaded = load_config(config_name, assignments)
    report_default_files({}, named_config=config_name)
    with QueryMiddleware(loaded) as middleware:
        yield middleware.wrap(function, **wrap_options)


def import_function(target: str) -> Any:
    """Import and return the function that *target* names, such as ``app:search``.

    Python looks for the module in the current folder first.

    Raises:
        typer.BadParameter: *target* does not have the form ``module:name``, or the module or the
            name does not exist.
        WrapError: The module raised an exception during the import.
    """
    module_path, _, path = target.partition(":")
    # Shells complete file names, so `app/search.py:find` is accepted for `app.search:find`.
    module = module_path.removesuffix(".py").replace("/", ".")
    if not (module and path):
        raise typer.BadParameter(
            f"the function must be given as {TARGET}, such as app:search, not {target!r}",
            param_hint=TARGET,
        )
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        value: Any = import_module(module)
    except ModuleNotFoundError as error:
        # If another module is missing, the user's module was found but could not import it.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise WrapError(f"{module} could not be imported: {error}") from error
        raise typer.BadParameter(
            f"the module {error.name!r} was not found in {folder}", param_hint=TARGET
        ) from error
    # A module without a `__main__` guard may run its own command line and exit.
    except (Exception, SystemExit) as error:
        raise WrapError(
            f"{module} could not be imported: {type(error).__name__}: {error}"
        ) from error
    for name in path.split("."):
        if not hasattr(value, name):
            raise typer.BadParameter(
                f"{module} has no {path!r}: {name!r} is missing", param_hint=TARGET
            )
        value = getattr(value, name)
    return value


def parse_argument(name_and_value: str) -> tuple[str, Any]:
    """Return the name and the value of an argument such as ``limit=10``.

    Parses a value that is valid JSON, and returns any other value as text. Raises
    `typer.BadParameter` if *name_and_value* does not have the form ``name=value``.
    """
    name, equals, value = name_and_value.partition("=")
    if not (equals and name.isidentifier()):
        raise typer.BadParameter(
            f"the argument must have the form name=value, not {name_and_value!r}",
            param_hint="--arg",
        )
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value
