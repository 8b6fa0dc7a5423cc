"""Report the health and readiness of a middleware to operators and probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from qtmiddleware.runtime.circuit_breaker import BreakerState
from qtmiddleware.wrapping.engine import Engine


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """The health of a language model and its circuit breaker.

    Attributes:
        name: the model's name.
        is_configured: whether there is a client, a key or an address, though it may be down.
        breaker: whether the circuit breaker lets calls through.
        failures, allowed_failures: the last calls in a row that failed or were late, and how many
            open the breaker; 0 if it never opens.
        retry_in: seconds until the model may be called again; 0 if it may be called now.
        kept: the mean fraction of their questions' words that the latest replies keep; ``None``
            before 20 replies. Below 0.5, the replies are not used.
    """

    name: str
    is_configured: bool
    breaker: BreakerState
    failures: int
    allowed_failures: int
    retry_in: float
    kept: float | None


@dataclass(frozen=True, slots=True)
class ThreadsHealth:
    """The thread pool for all work except the searches for the original queries.

    Attributes:
        in_use, limit: the threads that are busy now, and the most there may be.
        refused: the calls that found no free thread.
    """

    in_use: int
    limit: int
    refused: int


@dataclass(frozen=True, slots=True)
class ShadowHealth:
    """How many shadow retrievals run, finished, failed, or were dropped for want of room."""

    running: int
    finished: int
    failed: int
    dropped: int


@dataclass(frozen=True, slots=True)
class CacheHealth:
    """The cache of transformations in this process.

    Attributes:
        is_enabled: whether the cache is on.
        entries, limit: the transformations in the cache, and the most there may be.
        hits, misses: the questions whose transformation was in the cache, and the others.
    """

    is_enabled: bool
    entries: int
    limit: int
    hits: int
    misses: int


@dataclass(frozen=True, slots=True)
class Spending:
    """What was spent (with what calls under way may spend), and the limit."""

    spent: float
    limit: float | None


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a middleware at one moment, as known from past calls. Print it to read it.

    *budget* is what all middlewares of this process spent: model ``calls`` in the last minute,
    ``tokens`` and ``usd`` in the last 24 hours.
    """

    model: ModelHealth
    chat_model: ModelHealth
    threads: ThreadsHealth
    shadow: ShadowHealth
    cache: CacheHealth
    budget: Mapping[str, Spending]

    def to_dict(self) -> dict[str, Any]:
        """Return the health as nested dicts, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        parts = self.to_dict().items()
        return "\n".join(f"{name:<11} {_format_values(values)}" for name, values in parts)


def read_health(engine: Engine) -> Health:
    """Return the health of a middleware without contacting any service."""
    settings = engine.settings
    bulkhead = engine.bulkhead
    runs = engine.shadow_runs
    cache = engine.cache
    limits = settings.budget
    calls, tokens, usd = engine.model.meter.spent()
    model, chat_model = (
        ModelHealth(model.name, engine.has_model, *model.breaker.report(), model.relevance.mean)
        for model in (engine.model, engine.chat_model)
    )
    return Health(
        model=model,
        chat_model=chat_model,
        threads=ThreadsHealth(bulkhead.in_use, bulkhead.limit, bulkhead.refused),
        shadow=ShadowHealth(runs.running, runs.finished, runs.failed, runs.dropped),
        cache=CacheHealth(
            settings.cache.enabled, len(cache), cache.options.max_entries, cache.hits, cache.misses
        ),
        budget={
            "calls": Spending(calls, limits.max_llm_calls_per_minute),
            "tokens": Spending(tokens, limits.max_tokens),
            # Sums of floating-point amounts end in noise such as 0.30000000000000004.
            "usd": Spending(round(usd, 9), limits.max_usd),
        },
    )


def _format_values(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {_format_values(value) if isinstance(value, Mapping) else value}"
        for name, value in values.items()
    )
