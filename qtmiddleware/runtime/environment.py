"""Copy the environment for worker processes, without keys that the workers do not need."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final, TypeVar

from qtmiddleware.config.errors import holds_key, is_secret_name

F = TypeVar("F", bound=Callable[..., Any])

_NEEDED_SECRETS: Final = "_qtmiddleware_secrets"
_CREDENTIALS: Final = re.compile(r"//[^/\s]*@")


def copy_environment(needed: Collection[str] = ()) -> dict[str, str]:
    """Return a copy of the environment without secrets, except for the variables in *needed*.

    A variable is a secret if its name says so, or if its value is a key or an address that contains
    a user name or password.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in needed or not _is_secret(name, value)
    }


def needs_secrets(*names: str) -> Callable[[F], F]:
    """Return a decorator that marks a function as needing only the secrets in variables *names*.

    `copy_environment_for` removes all other secrets from the environment of the function's workers.
    """

    def record_needed_secrets(function: F) -> F:
        setattr(function, _NEEDED_SECRETS, names)
        return function

    return record_needed_secrets


def copy_environment_for(build: Callable[..., Any]) -> dict[str, str]:
    """Return the environment for worker processes that call *build*.

    Contains all variables, unless `needs_secrets` marks the function.
    """
    needed = getattr(build.func if isinstance(build, partial) else build, _NEEDED_SECRETS, None)
    return dict(os.environ) if needed is None else copy_environment(needed)


def _is_secret(name: str, value: str) -> bool:
    return is_secret_name(name) or holds_key(value) or _CREDENTIALS.search(value) is not None
