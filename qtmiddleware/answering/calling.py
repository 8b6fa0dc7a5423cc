"""What came of one call of the model that answers."""

from __future__ import annotations

from qtmiddleware.errors import ModelError
from qtmiddleware.steps import Outcome
from qtmiddleware.trace import Trace


def as_model_error(error: BaseException | None) -> ModelError:
    """*error* as what a model may raise; ``None`` is a call that was given up at its deadline."""
    if isinstance(error, ModelError):
        return error
    if error is None:
        return ModelError("timeout", "the language model did not answer in time; raise answer.timeoutMs where needed")
    failed = ModelError("unavailable", f"the language model raised {type(error).__name__}")
    failed.__cause__ = error
    return failed


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
    trace.llm_calls += 1
    trace.stage(stage, outcome.seconds, "failed", error.reason)
    return error
