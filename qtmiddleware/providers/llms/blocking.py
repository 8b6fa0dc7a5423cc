"""Blocking calls of models that can only be awaited."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers.llms.time_left import time_left
from qtmiddleware.runtime.background_loop import run_in_background_loop
from qtmiddleware.types import Deadline

# So much later than the deadline, in seconds, a loop that is held up is given up; otherwise the coroutine ends itself.
_GRACE: Final = 0.25


def completed_in_background(
    acomplete: Callable[[Prompt, Deadline], Coroutine[Any, Any, Reply]], prompt: Prompt, deadline: Deadline
) -> Reply:
    """What *acomplete* answers in the private event loop; raises `ModelError`."""
    left = time_left(deadline)
    try:
        return run_in_background_loop(partial(acomplete, prompt, deadline), left + _GRACE)
    except TimeoutError:
        raise ModelError("timeout", "the language model did not answer in time") from None
    except CancelledError:
        raise ModelError("cancelled", "the call of the language model was cancelled") from None
