"""What happened to one query: stages with their times, model calls and money, and the gate's decision."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter, time
from typing import Any


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the flow: when it began and how long it took, in milliseconds, and how it ended.

    *status* is ``ok``, ``skipped``, ``degraded`` or ``failed``; *detail* says why, in words without any query text.
    """

    name: str
    started_ms: float
    ms: float
    status: str = "ok"
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether the model was asked, the one-word *reason*, and the numbers it was decided on."""

    call: bool
    reason: str
    signals: Mapping[str, float] = field(default_factory=dict)


class Trace:
    """The account of one retrieval, written while it runs. It holds no query or passage text.

    *added_ms* is the time beyond the original's own search; *replayed_ms* what model replies that were replayed took
    when they were first had. *cost_usd* is ``None`` where a price is not known.
    """

    __slots__ = (
        "_began",
        "_query_id",
        "_stages",
        "cache_hits",
        "cost_usd",
        "decision",
        "input_tokens",
        "llm_calls",
        "notes",
        "original_ms",
        "output_tokens",
        "replayed_ms",
        "searches",
        "total_ms",
    )

    def __init__(self) -> None:
        self._began = perf_counter()
        self._query_id = ""
        self._stages: list[tuple[str, float, float, str, str]] = []
        self.llm_calls = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost_usd: float | None = 0.0
        self.cache_hits = 0
        self.searches = 0
        self.replayed_ms = 0.0
        self.original_ms = 0.0
        self.total_ms = 0.0
        self.decision: Decision | None = None
        self.notes: list[tuple[str, str]] = []

    @property
    def query_id(self) -> str:
        """A random name for this query, made when first asked for."""
        if not self._query_id:
            self._query_id = os.urandom(8).hex()
        return self._query_id

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages in the order they ended."""
        return tuple(Stage(*row) for row in self._stages)

    @property
    def added_ms(self) -> float:
        """Milliseconds this retrieval took beyond the original's own search."""
        return max(0.0, self.total_ms - self.original_ms)

    @property
    def started_at(self) -> float:
        """When the retrieval began, in seconds since the epoch."""
        return time() - (perf_counter() - self._began)

    def clock(self) -> float:
        """Seconds since the retrieval began."""
        return perf_counter() - self._began

    def stage(
        self, name: str, seconds: float, status: str = "ok", detail: str = "", *, began: float | None = None
    ) -> None:
        """Write down that stage *name* took *seconds*; it ended just now, unless *began* (on the clock) is given."""
        started = self.clock() - seconds if began is None else began
        self._stages.append((name, max(0.0, started) * 1e3, seconds * 1e3, status, detail))

    def note(self, subject: str, what: str) -> None:
        """Write down something worth knowing that is no failure."""
        self.notes.append((subject, what))

    def spent(self, *, calls: int, input_tokens: int, output_tokens: int, cost_usd: float | None) -> None:
        """Add what one model reply cost."""
        self.llm_calls += calls
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.cost_usd = None if cost_usd is None or self.cost_usd is None else self.cost_usd + cost_usd

    def finish(self) -> None:
        """Write down the whole time."""
        self.total_ms = self.clock() * 1e3

    def to_dict(self) -> dict[str, Any]:
        """The account as plain JSON-ready values."""
        return {
            "query_id": self.query_id,
            "total_ms": round(self.total_ms, 3),
            "original_ms": round(self.original_ms, 3),
            "added_ms": round(self.added_ms, 3),
            "replayed_ms": round(self.replayed_ms, 3),
            "searches": self.searches,
            "llm_calls": self.llm_calls,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost_usd": self.cost_usd,
            "cache_hits": self.cache_hits,
            "decision": None
            if self.decision is None
            else {
                "call": self.decision.call,
                "reason": self.decision.reason,
                "signals": dict(self.decision.signals),
            },
            "stages": [
                {
                    "name": stage.name,
                    "started_ms": round(stage.started_ms, 3),
                    "ms": round(stage.ms, 3),
                    "status": stage.status,
                    "detail": stage.detail,
                }
                for stage in self.stages
            ],
            "notes": [list(note) for note in self.notes],
        }

    def __repr__(self) -> str:
        return f"Trace(total_ms={self.total_ms:.1f}, searches={self.searches}, llm_calls={self.llm_calls})"
