"""Report the health and readiness of a middleware to operators and probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

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
        given_up: the calls that were abandoned because they were late.
    """

    in_use: int
    limit: int
    refused: int
    given_up: int


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
        hit_rate: the fraction of hits, from 0 to 1; ``None`` before the first question.
    """

    is_enabled: bool
    entries: int
    limit: int
    hits: int
    misses: int
    hit_rate: float | None


@dataclass(frozen=True, slots=True)
class Spending:
    """What was spent (with what calls under way may spend), the limit, and what is left of it."""

    spent: float
    limit: float | None
    left: float | None


@dataclass(frozen=True, slots=True)
class BudgetHealth:
    """What all middlewares of this process spent.

    *calls* of models are those of the last minute, *tokens* and *usd* those of the last 24 hours.
    """

    calls: Spending
    tokens: Spending
    usd: Spending


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a middleware at one moment, as known from past calls. Print it to read it."""

    model: ModelHealth
    chat_model: ModelHealth
    threads: ThreadsHealth
    shadow: ShadowHealth
    cache: CacheHealth
    budget: BudgetHealth

    def to_dict(self) -> dict[str, Any]:
        """Return the health as nested dicts, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        parts = self.to_dict().items()
        return "\n".join(f"{name:<11} {_format_values(values)}" for name, values in parts)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a middleware is ready for questions; else *reasons* says why not."""

    reasons: tuple[Literal["closed", "loading"], ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"ready": ..., "reasons": [...]}``, ready for JSON."""
        return {"ready": bool(self), "reasons": list(self.reasons)}


def read_health(engine: Engine) -> Health:
    """Return the health of a middleware without contacting any service."""
    settings = engine.settings
    bulkhead = engine.bulkhead
    runs = engine.shadow_runs
    cache = engine.cache.local
    limits = settings.budget
    # Read once, so that the rate fits the counts while other threads go on counting.
    hits, misses = cache.hits, cache.misses
    rate = hits / (hits + misses) if hits + misses else None
    calls, tokens, usd = engine.model.meter.spent()
    model, chat_model = (
        ModelHealth(model.name, engine.has_model, *model.breaker.report(), model.relevance.mean)
        for model in (engine.model, engine.chat_model)
    )
    return Health(
        model=model,
        chat_model=chat_model,
        threads=ThreadsHealth(bulkhead.in_use, bulkhead.limit, bulkhead.refused, bulkhead.given_up),
        shadow=ShadowHealth(runs.running, runs.finished, runs.failed, runs.dropped),
        cache=CacheHealth(
            settings.cache.enabled, len(cache), cache.max_entries, hits, misses, rate
        ),
        budget=BudgetHealth(
            _build_spending(calls, limits.max_llm_calls_per_minute),
            _build_spending(tokens, limits.max_tokens),
            _build_spending(usd, limits.max_usd),
        ),
    )


def _format_values(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {_format_values(value) if isinstance(value, Mapping) else value}"
        for name, value in values.items()
    )


def _build_spending(amount: float, limit: float | None) -> Spending:
    # Sums of floating-point amounts end in noise such as 0.30000000000000004.
    amount = round(amount, 9)
    return Spending(amount, limit, None if limit is None else max(0, round(limit - amount, 9)))
