"""The command line, ``qtm``."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from qtmiddleware.cli.exits import FAILED, INTERRUPTED, USAGE
from qtmiddleware.errors import ConfigError, InvalidQuery, MissingExtra, QtMiddlewareError


def main() -> None:
    """Run ``qtm`` with the arguments of this process and leave with its exit code."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115 - it stays open as the stream it stands for
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        # A terminal that lacks a character shows a replacement, and bytes that are no text are read as one; neither
        # ends the program.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    # One query is a small multiplication: several threads of the linear algebra library only wait for one another, and
    # on a busy machine for long. It reads this when numpy is first imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        _run()
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not try to flush the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        _leave("interrupted", INTERRUPTED)
    except (ConfigError, InvalidQuery) as error:
        _leave(str(error), USAGE)
    except QtMiddlewareError as error:
        _leave(str(error), FAILED)


def _run() -> None:
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        raise MissingExtra(error.name or "typer", "cli") from error
    from qtmiddleware.cli.app import app
    from qtmiddleware.cli.environment import load_dotenv_file

    load_dotenv_file()
    app()


def _leave(message: str, code: int) -> NoReturn:
    print(f"qtm: {message}", file=sys.stderr)
    sys.exit(code)
