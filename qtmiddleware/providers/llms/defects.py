"""Defects of a user's own function or model, told from what befalls its service."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from traceback import FrameSummary, StackSummary, extract_tb
from types import TracebackType
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.fields import read_parameters
from qtmiddleware.runtime.logs import format_error, get_logger

_DEFECTS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
# Bytes that are no text, and header values that are no ASCII, come from outside.
_OUTSIDE: Final = (UnicodeError, OSError)

_TRANSPORT: Final = frozenset(
    {
        "aiohttp",
        "anyio",
        "asyncio",
        "grpc",
        "h11",
        "h2",
        "http",
        "httpcore",
        "httpcore2",
        "httpx",
        "httpx2",
    }
    | {"requests", "socket", "ssl", "urllib", "urllib3"}
)
"""Libraries of connections."""
# What such a library raises where the other side, or another loop, took something away from it.
_TAKEN_AWAY: Final = (AttributeError, AssertionError, LookupError)

_MOST_FRAMES: Final = 100
_OURS: Final = str(Path(__file__).parents[2])

_log = get_logger("qtmiddleware")
_reported: dict[tuple[object, str], object] = {}


def find_defect(error: BaseException, label: str, fn: Any) -> ModelError | None:
    """The `ModelError` ("failed") for *error* of *fn*, which goes by *label*, where it is a defect in its code.

    It is one where Python itself raised it (`TypeError`, `KeyError`, ...) and not for a connection.
    The first of each type of each function is logged at ERROR with its stack, without local
    variables and without its message, which may quote the question. Every error, a defect or not,
    is logged at DEBUG with its message.
    """
    kind, this_call = type(error).__name__, object()
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug(
            "%s failed\n%s",
            label,
            format_error(error),
            event="model_failed",
            model=label,
            error=kind,
        )
    if not _is_defect(error):
        return None
    frames = [
        it
        for it in extract_tb(error.__traceback__, limit=_MOST_FRAMES)
        if not it.filename.startswith(_OURS)
    ]
    what = "a bug in the function"
    if not frames and isinstance(error, TypeError):
        taken = "one argument, the messages" if callable(fn) else "a prompt and a deadline"
        what = f"the function cannot be called with {taken}{_list_parameters(fn)}"
    # Atomic: one question may fail in several threads at once.
    if _reported.setdefault((getattr(fn, "__code__", label), kind), this_call) is this_call:
        stack = _format_stack(frames, kind, fn)
        _log.error(
            "%s raised %s: %s (logged once)\n%s",
            label,
            kind,
            what,
            stack,
            event="model_bug",
            model=label,
            error=kind,
        )
    return ModelError("failed", f"{label} raised {kind}: {what}; the traceback is in the log")


def _is_defect(error: BaseException) -> bool:
    # Subclasses of others (a client's own errors, a JSON decoder's) say that something came back,
    # and what.
    if (
        type(error).__module__ != "builtins"
        or isinstance(error, _OUTSIDE)
        or not isinstance(error, _DEFECTS)
    ):
        return False
    return not (isinstance(error, _TAKEN_AWAY) and _find_library(error.__traceback__) in _TRANSPORT)


def _find_library(traceback: TracebackType | None) -> str:
    """The package of the code that raised."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    name = "" if traceback is None else traceback.tb_frame.f_globals.get("__name__")
    return str(name or "").partition(".")[0]


def _list_parameters(fn: Any) -> str:
    """The names of what *fn* takes, where it says so; not their defaults, which may hold a key."""
    try:
        names = read_parameters(fn)
    except (ValueError, TypeError):
        return ""
    return f" (it takes: {', '.join(names)})" if names else " (it takes nothing)"


def _format_stack(frames: Sequence[FrameSummary], kind: str, fn: Any) -> str:
    shown = StackSummary.from_list(frames).format()
    code = getattr(fn, "__code__", None)
    if not shown and code is not None:
        # It could not be called with what it is given.
        place = f'File "{code.co_filename}", line {code.co_firstlineno}'
        shown = [f"  {place}, called with one argument, the messages\n"]
    return (
        f"Traceback (most recent call last):\n{''.join(shown)}{kind} (its message is logged at"
        " DEBUG)"
    )
