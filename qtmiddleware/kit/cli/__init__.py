"""The command line, ``qtm``."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from qtmiddleware.errors import ConfigError, InvalidQuery, MissingExtra, QtMiddlewareError
from qtmiddleware.kit.cli.terminal import (
    FAILED,
    INTERRUPTED,
    USAGE,
    WORSE,
    strip_control_characters,
)


def main() -> None:
    """Run ``qtm`` with the arguments of this process and leave with its exit code."""
    _repair_streams()
    # One query is a small multiplication: several threads of the linear algebra library only wait
    # for one another, and on a busy machine for long. It reads this when numpy is first imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        try:
            _run()
        finally:
            # Left to the interpreter, what goes wrong here would end in a traceback.
            sys.stdout.flush()
    except BrokenPipeError as error:
        # That nobody reads the output any more does not make retrieval better.
        left = error.__context__
        is_worse = isinstance(left, SystemExit) and left.code == WORSE
        _leave_quietly(WORSE if is_worse else 0)
    except KeyboardInterrupt:
        _leave("interrupted", INTERRUPTED)
    except SystemExit as left:
        # Typer has met these two before us: it calls the one a failure and says nothing about the
        # other.
        if isinstance(left.__context__, BrokenPipeError):
            _leave_quietly()
        elif left.code == INTERRUPTED:
            _leave("interrupted", INTERRUPTED)
        else:
            raise
    except (ConfigError, InvalidQuery) as error:
        _leave(str(error), USAGE)
    except QtMiddlewareError as error:
        _leave(str(error), FAILED)
    except OSError as error:
        _drop_output()
        _leave(str(error), FAILED)


def _repair_streams() -> None:
    """Let no stream be missing, and none fail at a character."""
    # Whoever starts us may have closed them. What is opened here stays open, as the stream it
    # stands for.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        # A terminal that lacks a character shows a replacement, and bytes that are no text are read
        # as one; neither ends the program.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _run() -> None:
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        raise MissingExtra(error.name or "typer", "cli") from error
    from qtmiddleware.kit.cli.app import app
    from qtmiddleware.kit.cli.environment import load_dotenv_file

    load_dotenv_file()
    app()


def _leave_quietly(code: int = 0) -> NoReturn:
    """Leave in peace: whoever read our output has seen enough."""
    _drop_output()
    sys.exit(code)


def _drop_output() -> None:
    """Keep the interpreter from writing the rest of what nobody can take."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave(message: str, code: int) -> NoReturn:
    print(strip_control_characters(f"qtm: {message}"), file=sys.stderr)
    sys.exit(code)
