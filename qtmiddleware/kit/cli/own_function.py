"""Load the function that ``--function`` names, and ask the user to confirm many searches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Annotated, Any, Final

import typer

from qtmiddleware.errors import ConfigError, QtMiddlewareError, WrapError
from qtmiddleware.kit.cli.check import TARGET, import_function, parse_argument
from qtmiddleware.kit.cli.console import ShowProgress, open_progress_bar, show_warnings
from qtmiddleware.kit.cli.terminal import write_note
from qtmiddleware.kit.evaluation.bench import FunctionSource
from qtmiddleware.kit.evaluation.compare import describe_error
from qtmiddleware.wrapping.query_middleware import WrapOptions

COUNTED: Final = ("retrieval_degraded",)
"""The degradations that a result table counts. The command shows no warnings about them."""
MOST_UNASKED: Final = 1_000
"""The maximum number of searches by the user's function without confirmation."""
_PRICE: Final = "To see the cost, set store.readPrice to the US dollars per million reads"

Measured = Annotated[
    str | None,
    typer.Option(
        "--function", "-f", metavar=TARGET, help="Measure your function on its own index."
    ),
]
Embed = Annotated[
    str | None,
    typer.Option(
        metavar=TARGET, help="Function that embeds a text, if your function takes a vector."
    ),
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", help=f"Make more than {MOST_UNASKED:,} searches without asking first."
    ),
]


def load_function_source(
    function: str | None, arguments: list[str] | None, embed: str | None
) -> FunctionSource | None:
    """Import and return the function that *function* names; ``None`` if *function* is ``None``.

    Raises:
        ConfigError: An option that needs ``--function`` is set without ``--function``, or
            ``--embed`` is set for a function that is already wrapped.
        typer.BadParameter: The function does not exist.
        WrapError: The function's module raised an exception during the import.
    """
    if function is None:
        needless = [option for option, value in (("--arg", arguments), ("--embed", embed)) if value]
        if needless:
            raise ConfigError(f"{needless[0]} needs --function", path=needless[0])
        return None
    fn = _load_function(function)
    if not callable(fn):
        raise typer.BadParameter(
            f"{function} must be a function, not {type(fn).__name__}", param_hint="--function"
        )
    options: WrapOptions = {} if embed is None else {"embed": _load_function(embed)}
    source = FunctionSource(fn, function, dict(map(parse_argument, arguments or ())), options)
    if options and source.is_wrapped:
        raise ConfigError(
            "the function is already wrapped; pass embed= where you wrap it", path="--embed"
        )
    return source


def _load_function(target: str) -> Any:
    """Import and return the function that *target* names. Output of the import goes to stderr."""
    with redirect_stdout(sys.stderr):
        return import_function(target)


def confirm_searches(
    count: int, read_price: float | None, function_name: str, *, is_confirmed: bool
) -> None:
    """Write a note on the largest number of searches, and ask the user to confirm many searches.

    *read_price* is the price of a million reads, if it is known. Raises `typer.Exit` if the user
    says no, and `ConfigError` if the user cannot be asked.
    """
    cost = "" if read_price is None else f" The cost is at most ${count * read_price / 1e6:,.2f}."
    write_note(f"{function_name} is called at most {count:,} times.{cost}")
    if is_confirmed or count <= MOST_UNASKED:
        return
    if not sys.stdin.isatty():
        priced = "" if read_price is not None else f". {_PRICE}"
        raise ConfigError(
            f"more than {MOST_UNASKED:,} searches must be confirmed; this measurement makes up to"
            f" {count:,}. Add --yes, or reduce the number with --questions or --systems{priced}",
            path="--yes",
        )
    if read_price is None:
        write_note(f"{_PRICE}.")
    if not typer.confirm("Go on?", err=True):
        write_note("Nothing was searched.")
        raise typer.Exit


@contextmanager
def open_measurement_progress(source: FunctionSource | None) -> Iterator[ShowProgress]:
    """Yield a function that shows the progress of a measurement.

    During the ``with`` block, other output to stdout goes to stderr. If the user's function raises
    an exception, a `WrapError` names the function.
    """
    with (
        redirect_stdout(sys.stderr),
        show_warnings(hidden_events=COUNTED),
        _name_function_in_errors(source),
        open_progress_bar() as update,
    ):
        yield update


@contextmanager
def _name_function_in_errors(source: FunctionSource | None) -> Iterator[None]:
    """Turn an exception of the user's function into a `WrapError` that names the function.

    If a `WrapError` advises ``embed=``, adds advice for the command line to the error. All other
    exceptions pass through.
    """
    try:
        yield
    except WrapError as error:
        # The advice in such an error is Python code; on the command line, an option replaces it.
        if source is None or "embed=" not in str(error):
            raise
        raise WrapError(
            f"{error}. On the command line: --embed {source.name.partition(':')[0]}:embed"
        ) from error
    except (QtMiddlewareError, typer.Exit, typer.Abort):
        raise
    except Exception as error:
        # The benchmark adds this note to an exception that occurs while a system answers.
        systems = [
            note for note in getattr(error, "__notes__", ()) if note.startswith("The system")
        ]
        if source is None or not systems:
            raise
        raise WrapError(f"{source.name} raised {describe_error(error)}. {systems[-1]}") from error
