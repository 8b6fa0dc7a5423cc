"""How long one request may take."""

from __future__ import annotations

from typing import Any, Final

from qtmiddleware.providers.llms.time_left import time_left
from qtmiddleware.types import Deadline

LONGEST_WAIT: Final = 600.0
"""The timeout in seconds of a request without a deadline: none is ever sent without one."""

LONGEST_CONNECT: Final = 5.0
"""The longest wait in seconds for a connection: a model may think for long, a host that is there answers soon."""


def timeout(left: float) -> Any:
    """The timeouts of a request that may take *left* seconds."""
    import openai

    # Connecting ends a little sooner: a TLS handshake that times out is cleaned up after, one that is cancelled is not.
    return openai.Timeout(left, connect=min(0.9 * left, LONGEST_CONNECT))


def wait_for(deadline: Deadline) -> float:
    """The longest a request may take, in seconds; raises `ModelError` where no time is left."""
    return min(time_left(deadline), LONGEST_WAIT)
