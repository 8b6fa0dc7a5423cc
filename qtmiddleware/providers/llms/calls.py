"""Limit how long model calls may take, and call async models from synchronous code."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.runtime.background_loop import run_in_background_loop
from qtmiddleware.types import Deadline


def require_seconds_left(deadline: Deadline) -> float:
    """Return the seconds left until *deadline*; raise `ModelError` if none are left.

    The result is infinite if there is no deadline. The error's reason is ``cancelled`` if the
    deadline was cancelled, else ``timeout``.
    """
    seconds = deadline.remaining()
    if seconds <= 0:
        # A cancelled deadline has the time 0.
        reason = "timeout" if deadline.at > 0 else "cancelled"
        raise ModelError(reason, "no time was left to call the language model")
    return seconds


# The coroutine ends itself at the deadline, unless something blocks its loop. So the caller waits
# this many seconds longer before it gives up.
_GRACE: Final = 0.25


def complete_in_background(
    acomplete: Callable[[Prompt, Deadline], Coroutine[Any, Any, Reply]],
    prompt: Prompt,
    deadline: Deadline,
) -> Reply:
    """Run *acomplete* in the background loop, and wait for its reply.

    Raises `ModelError` if the deadline passes (``timeout``) or the call is cancelled
    (``cancelled``). Errors of *acomplete* pass through unchanged.
    """
    seconds = require_seconds_left(deadline)
    try:
        return run_in_background_loop(partial(acomplete, prompt, deadline), seconds + _GRACE)
    except TimeoutError:
        raise ModelError("timeout", "the language model did not answer in time") from None
    except CancelledError:
        raise ModelError("cancelled", "the language model call was cancelled") from None
