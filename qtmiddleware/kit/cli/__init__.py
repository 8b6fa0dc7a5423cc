"""Run the command line ``qtm``, and turn its errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from typing import Final, NoReturn

from qtmiddleware.errors import ConfigError, InvalidQuery, MissingExtra, QtMiddlewareError
from qtmiddleware.preprocessing.hidden_characters import escape_hidden

# Exit codes. USAGE: the arguments, the config or a question are not valid.
FAILED: Final = 1
USAGE: Final = 2
WORSE: Final = 3
INTERRUPTED: Final = 130


def main() -> None:
    """Run ``qtm`` with the arguments of this process, and exit with the command's exit code."""
    _repair_streams()
    # A single query needs only a small matrix multiplication. Several threads of the linear algebra
    # library would wait for each other, especially on a busy machine. The library reads the
    # variable when numpy is first imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        try:
            _run_app()
        finally:
            _restore_stdout()
            # The interpreter would flush at exit, and an error there would end in a traceback.
            sys.stdout.flush()
    except BrokenPipeError as error:
        # The reader closed the pipe, as `head` does. If retrieval got worse, the exit code still
        # says so.
        is_worse = getattr(error.__context__, "code", 0) == WORSE
        _discard_output()
        sys.exit(WORSE if is_worse else 0)
    except KeyboardInterrupt:
        _exit_with_message("interrupted", INTERRUPTED)
    except SystemExit as exit_error:
        # Typer turns a closed pipe and Ctrl-C into an exit of its own: the first with the code of a
        # failure, the second without a message.
        if isinstance(exit_error.__context__, BrokenPipeError):
            _discard_output()
            sys.exit(0)
        if exit_error.code == INTERRUPTED:
            _exit_with_message("interrupted", INTERRUPTED)
        raise
    except (QtMiddlewareError, OSError) as error:
        if isinstance(error, OSError) and not isinstance(error, QtMiddlewareError):
            # The output may be a file on a full disk, and the final flush would fail again.
            _discard_output()
        is_usage = isinstance(error, ConfigError | InvalidQuery)
        _exit_with_message(str(error), USAGE if is_usage else FAILED)


def _repair_streams() -> None:
    """Open missing standard streams, and make all streams replace characters they cannot encode."""
    # The caller may have closed these streams. The replacements stay open until the process ends,
    # as the streams would have.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
        # A terminal that lacks a character shows a replacement, and bytes that are not text are
        # read as a replacement. Neither ends the program.
        if hasattr(stream := getattr(sys, name), "reconfigure"):
            stream.reconfigure(errors="replace")


def _run_app() -> None:
    # The app's own imports would fail with an error that does not name the extra to install.
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        raise MissingExtra(error.name or "typer", "cli") from error
    from qtmiddleware.kit.cli.app import app
    from qtmiddleware.kit.cli.environment import load_dotenv_file

    # Before the app, because its commands read the keys from the environment.
    load_dotenv_file()
    app()


def _restore_stdout() -> None:
    """Undo `output.divert_stdout`, if a command called it."""
    if output := sys.modules.get("qtmiddleware.kit.cli.output"):
        sys.stdout, output.out.file = output.out.file, None


def _discard_output() -> None:
    """Redirect stdout to the null device, so that the flush at the interpreter's exit succeeds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_with_message(message: str, exit_code: int) -> NoReturn:
    print(escape_hidden(f"qtm: {message}"), file=sys.stderr)
    sys.exit(exit_code)
