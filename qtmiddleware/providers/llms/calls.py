"""The time a call of a model may take, and blocking calls of models that can only be awaited."""

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
    deadline: Deadline, otherwise: str = "no time was left to call the language model"
) -> float:
    """The seconds until *deadline*, infinite where there is none.

    Raises `ModelError` with the message *otherwise* where none are left: ``cancelled`` where nobody
    waits any more, else ``timeout``.
    """
    left = deadline.remaining()
    if left <= 0:
        # A deadline that was cancelled lies at the beginning of time.
        raise ModelError("timeout" if deadline.at > 0 else "cancelled", otherwise)
    return left


LONGEST_WAIT: Final = 600.0
"""The timeout in seconds of a request without a deadline: none is ever sent without one."""

LONGEST_CONNECT: Final = 5.0
"""The longest wait in seconds for a connection: a model may think for long, a host that is there answers soon."""


def make_timeout(left: float) -> Any:
    """The timeouts of a request that may take *left* seconds."""
    import openai

    # Connecting ends a little sooner: a TLS handshake that times out is cleaned up after, one that
    # is cancelled is not.
    return openai.Timeout(left, connect=min(0.9 * left, LONGEST_CONNECT))


def find_request_timeout(deadline: Deadline) -> float:
    """The longest a request may take, in seconds; raises `ModelError` where no time is left."""
    return min(check_time_left(deadline), LONGEST_WAIT)


# So much later than the deadline, in seconds, a loop that is held up is given up; otherwise the
# coroutine ends itself.
_GRACE: Final = 0.25


def complete_in_background(
    acomplete: Callable[[Prompt, Deadline], Coroutine[Any, Any, Reply]],
    prompt: Prompt,
    deadline: Deadline,
) -> Reply:
    """What *acomplete* answers in the private event loop; raises `ModelError`."""
    left = check_time_left(deadline)
    try:
        return run_in_background_loop(partial(acomplete, prompt, deadline), left + _GRACE)
    except TimeoutError:
        raise ModelError("timeout", "the language model did not answer in time") from None
    except CancelledError:
        raise ModelError("cancelled", "the language model call was cancelled") from None
