"""Copy the environment variables for worker processes, without secrets that they do not need."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final, TypeVar

from qtmiddleware.config.errors import contains_api_key, is_secret_name

F = TypeVar("F", bound=Callable[..., Any])

_NEEDED_SECRETS: Final = "_qtmiddleware_secrets"
_CREDENTIALS: Final = re.compile(r"//[^/\s]*@")


def copy_environment(needed_variables: Collection[str] = ()) -> dict[str, str]:
    """Return a copy of the environment without secrets, except for *needed_variables*.

    A variable is a secret if its name says so, such as ``MY_API_KEY``, or if its value is a key or
    an address with a user name or password.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in needed_variables or not _is_secret_variable(name, value)
    }


def declare_needed_secrets(*variable_names: str) -> Callable[[F], F]:
    """Return a decorator that declares which secrets a function's worker processes need.

    `copy_worker_environment` removes all other secrets from the workers' environment.

    Args:
        *variable_names: The environment variables that hold the needed secrets.
    """

    def record_needed_secrets(function: F) -> F:
        setattr(function, _NEEDED_SECRETS, variable_names)
        return function

    return record_needed_secrets


def copy_worker_environment(build_function: Callable[..., Any]) -> dict[str, str]:
    """Return the environment variables for worker processes that call *build_function*.

    Secrets are removed only if *build_function* is marked with `declare_needed_secrets`.
    """
    needed = getattr(
        build_function.func if isinstance(build_function, partial) else build_function,
        _NEEDED_SECRETS,
        None,
    )
    return dict(os.environ) if needed is None else copy_environment(needed)


def _is_secret_variable(name: str, value: str) -> bool:
    return is_secret_name(name) or contains_api_key(value) or _CREDENTIALS.search(value) is not None
