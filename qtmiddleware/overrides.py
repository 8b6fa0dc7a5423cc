"""Settings overridden for a block of code, in this thread or task alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_overrides: ContextVar[Mapping[str, Any] | None] = ContextVar("qtmiddleware_overrides", default=None)


def current_overrides() -> Mapping[str, Any] | None:
    """What is overridden here, or ``None``."""
    return _overrides.get()


@contextmanager
def override(values: Mapping[str, Any]) -> Iterator[None]:
    """Within this block every wrapped function uses *values* over its own settings; inner blocks win.

    The values are checked at the first call, which raises `ConfigError` where they are impossible.
    """
    token = _overrides.set(over(_overrides.get() or {}, values))
    try:
        yield
    finally:
        _overrides.reset(token)


def over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """*above* laid over *below*, group by group."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        # A group is copied in any case, so that what the caller changes in it later has no effect.
        merged[key] = over(under if isinstance(under, Mapping) else {}, value) if isinstance(value, Mapping) else value
    return merged
