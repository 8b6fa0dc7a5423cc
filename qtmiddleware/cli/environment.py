"""The variables of a ``.env`` file, and what to say where they name no language model."""

from __future__ import annotations

import sys
from typing import Final

from qtmiddleware.cli.harmless import harmless
from qtmiddleware.errors import MissingExtra

NO_MODEL: Final = (
    "No language model is configured: set OPENAI_API_KEY (a .env file will do), or QTM_LLM_BASE_URL for a service of "
    "your own."
)


def load_dotenv_file() -> None:
    """Set the variables of the nearest ``.env`` file, in the current folder or above it.

    What is set already stays as it is. A file that cannot be read is noted on stderr and no error; no value is shown.
    """
    try:
        import dotenv
    except ImportError as error:
        raise MissingExtra("python-dotenv", "cli") from error
    path = ".env"
    try:
        path = dotenv.find_dotenv(usecwd=True)
        if path:
            # With or without the mark that some editors put before the first letter.
            dotenv.load_dotenv(path, override=False, encoding="utf-8-sig")
    except UnicodeDecodeError:
        _note(path, "it is not UTF-8")
    except OSError as error:
        _note(path, error.strerror or type(error).__name__)
    except ValueError:
        _note(path, "it holds what no variable can hold")


def _note(path: str, why: str) -> None:
    print(harmless(f"qtm: note: {path} was not read: {why}"), file=sys.stderr)
