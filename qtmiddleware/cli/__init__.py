"""The command line, ``qtm``."""

from __future__ import annotations

import os
import sys

from qtmiddleware.errors import ConfigError, InvalidQuery, MissingExtra, QtMiddlewareError

FAILED = 1
USAGE = 2
INTERRUPTED = 130


def main() -> None:
    """Run ``qtm`` with the arguments of this process and leave with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character shows a replacement; it never ends the program.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    sys.exit(_run())


def _run() -> int:
    try:
        import click
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError:
        return _told(str(MissingExtra("the command line's typer and rich", "cli")), FAILED)
    from qtmiddleware.cli.app import app

    try:
        code = app(standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return USAGE
    except click.ClickException as error:
        error.show()
        return FAILED
    except (KeyboardInterrupt, click.Abort):
        return _told("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not try to flush the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ConfigError, InvalidQuery) as error:
        return _told(str(error), USAGE)
    except QtMiddlewareError as error:
        return _told(str(error), FAILED)
    return code if isinstance(code, int) else 0


def _told(message: str, code: int) -> int:
    print(f"qtm: {message}", file=sys.stderr)
    return code
