"""What the environment brings: the variables of a ``.env`` file, and whether a language model can be reached."""

from __future__ import annotations

import os
import sys
from typing import Final

from qtmiddleware.errors import MissingExtra
from qtmiddleware.settings import Settings

NO_MODEL: Final = (
    "No language model is configured: set OPENAI_API_KEY (a .env file will do), or QTM_LLM_BASE_URL for a service of "
    "your own."
)

_VARIABLES: Final = ("OPENAI_API_KEY", "QTM_LLM_BASE_URL", "OPENAI_BASE_URL")


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
    print(f"qtm: note: {path} was not read: {why}", file=sys.stderr)


def has_language_model(settings: Settings) -> bool:
    """Whether there is a key, or the address of a service that may need none."""
    return bool(settings.llm.base_url) or any(os.environ.get(name, "").strip() for name in _VARIABLES)
