"""What came of one call of the model that answers."""

from __future__ import annotations

from qtmiddleware.errors import ModelError, as_model_error
from qtmiddleware.runtime.steps import Outcome
from qtmiddleware.types import Trace


def accounted(stage: str, outcome: Outcome, trace: Trace) -> ModelError | None:
    """Write down in *trace* what the call cost and how it ended; the error it ended with."""
    if outcome.ok:
        reply = outcome.value
        trace.spent(
            calls=reply.calls,
            input_tokens=reply.input_tokens,
            output_tokens=reply.output_tokens,
            cost_usd=reply.cost_usd,
        )
        status = ("degraded", "truncated") if reply.truncated else ("ok", "")
        trace.stage(stage, outcome.seconds, *status)
        return None
    error = as_model_error(outcome.error)
    # A model that was at work has cost something, and nobody says how much.
    cost = 0.0 if error.is_free else None
    trace.spent(calls=int(error.was_asked), input_tokens=0, output_tokens=0, cost_usd=cost)
    trace.stage(stage, outcome.seconds, "failed", error.reason)
    return error
