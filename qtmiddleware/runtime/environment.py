"""The environment of the processes that are started here: what they work with, and no key that they do not need."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final, TypeVar

from qtmiddleware.config.errors import holds_key, is_secret_name

F = TypeVar("F", bound=Callable[..., Any])

_MARK: Final = "_qtmiddleware_secrets"
_CREDENTIALS: Final = re.compile(r"//[^/\s]*@")


def copy_environment(needed: Collection[str] = ()) -> dict[str, str]:
    """Return the environment without secrets, apart from the variables that are *needed*.

    A secret is a variable whose name says so, or whose value is a key or an address with a name or
    password in it.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in needed or not _is_secret(name, value)
    }


def needs_secrets(*names: str) -> Callable[[F], F]:
    """Mark a function whose work needs no secrets but the variables *names*, so that workers are started without."""

    def mark(function: F) -> F:
        setattr(function, _MARK, names)
        return function

    return mark


def copy_environment_for(build: Callable[..., Any]) -> dict[str, str]:
    """Return the environment that the work of *build* needs: all of it, unless `needs_secrets` marks the function."""
    needed = getattr(build.func if isinstance(build, partial) else build, _MARK, None)
    return dict(os.environ) if needed is None else copy_environment(needed)


def _is_secret(name: str, value: str) -> bool:
    return is_secret_name(name) or holds_key(value) or _CREDENTIALS.search(value) is not None
