"""Limit the time of model calls, and call async models from blocking code."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.runtime.background_loop import run_in_background_loop
from qtmiddleware.types import Deadline


def check_time_left(
    deadline: Deadline, message: str = "no time was left to call the language model"
) -> float:
    """Return the seconds until *deadline*; infinite if there is no deadline.

    If no time is left, raises `ModelError` with *message*. The reason is ``cancelled`` if the
    deadline was cancelled, else ``timeout``.
    """
    seconds = deadline.remaining()
    if seconds <= 0:
        # A cancelled deadline has the time 0.
        raise ModelError("timeout" if deadline.at > 0 else "cancelled", message)
    return seconds


LONGEST_WAIT: Final = 600.0
"""The timeout in seconds of a request without a deadline, so that every request has a timeout."""

LONGEST_CONNECT: Final = 5.0
"""The most seconds to wait for a connection: a model may think long, but its host answers soon."""


def make_timeout(seconds: float) -> Any:
    """Return the timeouts of a request that may take *seconds*, as an `openai.Timeout`."""
    import openai

    # Connecting times out a little sooner than the request, because a TLS handshake is cleaned up
    # after a timeout, but not if it is cancelled.
    return openai.Timeout(seconds, connect=min(0.9 * seconds, LONGEST_CONNECT))


def find_request_timeout(deadline: Deadline) -> float:
    """Return how many seconds a request may take; raise `ModelError` if no time is left."""
    return min(check_time_left(deadline), LONGEST_WAIT)


# How many seconds after the deadline to give up. The coroutine ends itself at the deadline, unless
# something blocks its loop.
_GRACE: Final = 0.25


def complete_in_background(
    acomplete: Callable[[Prompt, Deadline], Coroutine[Any, Any, Reply]],
    prompt: Prompt,
    deadline: Deadline,
) -> Reply:
    """Run *acomplete* in the background loop, wait, and return its reply.

    Raises `ModelError` ``timeout`` or ``cancelled``, or the error of *acomplete*.
    """
    seconds = check_time_left(deadline)
    try:
        return run_in_background_loop(partial(acomplete, prompt, deadline), seconds + _GRACE)
    except TimeoutError:
        raise ModelError("timeout", "the language model did not answer in time") from None
    except CancelledError:
        raise ModelError("cancelled", "the language model call was cancelled") from None
