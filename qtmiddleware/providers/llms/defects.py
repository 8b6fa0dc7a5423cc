"""Distinguish bugs in a user's function from failures of the service that it calls."""

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

_BUG_ERRORS: Final = (
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
# These subclasses are caused by data from outside, such as bytes that are not UTF-8.
_EXTERNAL_ERRORS: Final = (UnicodeError, OSError)

_NETWORK_LIBRARIES: Final = frozenset(
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
"""Libraries that handle connections."""
# Such a library raises these errors if the server or another event loop closed its connection.
_CONNECTION_ERRORS: Final = (AttributeError, AssertionError, LookupError)

_MOST_FRAMES: Final = 100
_PACKAGE_FOLDER: Final = str(Path(__file__).parents[2])

_log = get_logger("qtmiddleware")
_reported: dict[tuple[object, str], object] = {}


def convert_defect(error: BaseException, fn_name: str, fn: Any) -> ModelError | None:
    """Return a `ModelError` with the reason ``failed`` if *error* shows a bug in *fn*.

    Returns ``None`` if *error* is not a bug.

    Python's own errors, such as `TypeError` and `KeyError`, are bugs, unless a network library
    raised them. The first bug per function and error type is logged at ERROR with its stack. This
    log record contains no local variables and no error message, because the message may quote the
    question. Every error is also logged at DEBUG with its message.

    Args:
        error: The exception that *fn* raised.
        fn_name: The name to use for *fn* in messages.
        fn: The user's function or model.
    """
    kind, this_call = type(error).__name__, object()
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug(
            "%s failed\n%s",
            fn_name,
            format_error(error),
            event="model_failed",
            model=fn_name,
            error=kind,
        )
    if not _is_defect(error):
        return None
    frames = [
        frame
        for frame in extract_tb(error.__traceback__, limit=_MOST_FRAMES)
        if not frame.filename.startswith(_PACKAGE_FOLDER)
    ]
    problem = "a bug in the function"
    if not frames and isinstance(error, TypeError):
        arguments = "one argument, the messages" if callable(fn) else "a prompt and a deadline"
        problem = f"the function cannot be called with {arguments}{_format_parameters(fn)}"
    # `setdefault` is atomic: one question may fail in several threads at the same time.
    if _reported.setdefault((getattr(fn, "__code__", fn_name), kind), this_call) is this_call:
        stack = _format_stack(frames, kind, fn)
        _log.error(
            "%s raised %s: %s (logged once)\n%s",
            fn_name,
            kind,
            problem,
            stack,
            event="model_bug",
            model=fn_name,
            error=kind,
        )
    return ModelError("failed", f"{fn_name} raised {kind}: {problem}; the traceback is in the log")


def _is_defect(error: BaseException) -> bool:
    # A library's subclass, such as the JSON decoder's error, means that the service answered
    # something unexpected. The function is not at fault.
    if (
        type(error).__module__ != "builtins"
        or isinstance(error, _EXTERNAL_ERRORS)
        or not isinstance(error, _BUG_ERRORS)
    ):
        return False
    return not (
        isinstance(error, _CONNECTION_ERRORS)
        and _find_raising_package(error.__traceback__) in _NETWORK_LIBRARIES
    )


def _find_raising_package(traceback: TracebackType | None) -> str:
    """Return the top-level package that raised the exception; ``""`` if it is unknown."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    name = "" if traceback is None else traceback.tb_frame.f_globals.get("__name__")
    return str(name or "").partition(".")[0]


def _format_parameters(fn: Any) -> str:
    """Return a note in parentheses on the parameters of *fn*, for an error message.

    Returns ``""`` if the parameters are unknown. Default values are omitted, because a default may
    be an API key.
    """
    try:
        names = read_parameters(fn)
    except (ValueError, TypeError):
        return ""
    return f" (it takes: {', '.join(names)})" if names else " (it takes nothing)"


def _format_stack(frames: Sequence[FrameSummary], error_type: str, fn: Any) -> str:
    lines = StackSummary.from_list(frames).format()
    code = getattr(fn, "__code__", None)
    if not lines and code is not None:
        # The call itself failed, so the stack has no frame of the function.
        place = f'File "{code.co_filename}", line {code.co_firstlineno}'
        lines = [f"  {place}, called with one argument, the messages\n"]
    return (
        f"Traceback (most recent call last):\n{''.join(lines)}{error_type} (its message is logged"
        " at DEBUG)"
    )
