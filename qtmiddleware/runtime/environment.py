"""Copy the environment variables for other processes, without secrets."""

from __future__ import annotations

import os
import re
from typing import Final

from qtmiddleware.config.errors import contains_api_key, is_secret_name

_CREDENTIALS: Final = re.compile(r"//[^/\s]*@")


def copy_environment() -> dict[str, str]:
    """Return a copy of the environment without secrets.

    A variable is a secret if its name says so, such as ``MY_API_KEY``, or if its value is a key or
    an address with a user name or password.
    """
    return {
        name: value for name, value in os.environ.items() if not _is_secret_variable(name, value)
    }


def _is_secret_variable(name: str, value: str) -> bool:
    return is_secret_name(name) or contains_api_key(value) or _CREDENTIALS.search(value) is not None
