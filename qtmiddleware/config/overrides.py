"""Settings overridden for a block of code, in this thread or task alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from typing import Any

Layers = tuple[Mapping[str, Any], ...]

_layers: ContextVar[Layers] = ContextVar("qtmiddleware_overrides", default=())


def current_overrides() -> Layers:
    """What is overridden here, the outermost block first."""
    return _layers.get()


@contextmanager
def override(values: Mapping[str, Any]) -> Iterator[None]:
    """Within this block every wrapped function uses *values* over its own settings; inner blocks win.

    The values are checked at the first call, which raises `ConfigError` where they are impossible.
    """
    # A copy, so that what the caller changes in it later has no effect.
    token = _layers.set((*_layers.get(), deepcopy(dict(values))))
    try:
        yield
    finally:
        _layers.reset(token)
