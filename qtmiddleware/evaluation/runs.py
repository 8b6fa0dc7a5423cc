"""What a system found for one question and what that took."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.evaluation.dataset import Question
from qtmiddleware.types import Retrieval, Variant

REPLAYED: Final = "model, replayed"


@dataclass(frozen=True, slots=True)
class Run:
    """What a system found for one question: *ids*, best first, and what that took.

    *seconds_added* is the time beyond that of a plain search, where the system knows it; the time of model replies that
    were replayed is part of it as far as it is known. *cost_usd* is ``None`` where a price is not known. *stages* holds
    milliseconds by the name of a stage; ``model, replayed`` is what replayed replies took when they were first had.
    *variants* is what was searched.
    """

    ids: tuple[str, ...]
    seconds_added: float | None = None
    llm_calls: int = 0
    degraded: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)
    variants: tuple[Variant, ...] = field(default=(), repr=False)


System = Callable[[Question], Run | Sequence[tuple[str, float]]]
"""Something that searches: answers a `Run`, or pairs of id and score, best first."""


def run_of(found: Retrieval) -> Run:
    """*found* as a run; raises `ConfigError` for results that cannot be read, or have no ids that could be judged."""
    if unread := next((it for it in found.degradations if (it.stage, it.reason) == ("response", "unreadable")), None):
        raise ConfigError(
            f"the function's results cannot be read as passages ({unread.detail}); let it return a list of passages, "
            'each with an "id" that the judgements use',
            path="fn",
        )
    ids = tuple(match.id for match in found.matches if match.id)
    if len(ids) < len(found.matches):
        raise ConfigError(
            "the function's results have no ids, so they cannot be held against the judgements; let it return "
            'passages with an "id" that the judgements use',
            path="fn",
        )
    trace = found.trace
    stages: dict[str, float] = {}
    for stage in trace.stages:
        stages[stage.name] = stages.get(stage.name, 0.0) + stage.ms
    if trace.replayed_ms:
        stages[REPLAYED] = trace.replayed_ms
    return Run(
        ids=ids,
        seconds_added=(trace.added_ms + trace.replayed_ms) / 1e3,
        llm_calls=trace.llm_calls,
        degraded=found.status == "degraded",
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        cost_usd=trace.cost_usd,
        stages=stages,
        variants=found.variants,
    )
