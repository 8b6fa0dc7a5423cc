"""How a middleware is: what an operator asks of it, and whether it takes questions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from qtmiddleware.runtime.cache import TransformationCache
from qtmiddleware.runtime.circuit_breaker import BreakerState
from qtmiddleware.wrapping.components import Components


class RedisState(StrEnum):
    """What is known of the shared cache without asking it."""

    NOT_USED = "not_used"
    NOT_ASKED_YET = "not_asked_yet"
    REACHED = "reached"
    NOT_REACHED = "not_reached"


class NotReady(StrEnum):
    """Why a middleware should get no questions."""

    CLOSED = "closed"
    LOADING = "loading"


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """A language model and its circuit breaker.

    *is_configured* says that there is a client, a key or an address, not that the service answers.
    *failures* is how many calls failed or were late in a row, of *allowed_failures*, with which the
    breaker opens (0: never). In
    *retry_in* seconds the model may be asked again; 0 where the next call may.
    """

    name: str
    is_configured: bool
    breaker: BreakerState
    failures: int
    allowed_failures: int
    retry_in: float

    def __str__(self) -> str:
        limit = f" of {self.allowed_failures}" if self.allowed_failures else ""
        again = f", next try in {self.retry_in:.1f} s" if self.retry_in else ""
        state = "" if self.is_configured else ", no key or address"
        breaker = self.breaker.replace("_", "-")
        return (
            f"{self.name}{state}, breaker {breaker} ({self.failures}{limit} failures in a"
            f" row{again})"
        )


@dataclass(frozen=True, slots=True)
class ThreadsHealth:
    """The threads for what is done beside the originals' own searches.

    *in_use* of *limit* are taken now, for *refused* calls none was free, and *given_up* calls were
    left to themselves because they were late; both are counted since the middleware was made.
    """

    in_use: int
    limit: int
    refused: int
    given_up: int

    def __str__(self) -> str:
        return (
            f"{self.in_use} of {self.limit} in use, {self.refused:,} refused, {self.given_up:,}"
            " abandoned"
        )


@dataclass(frozen=True, slots=True)
class ShadowHealth:
    """Retrievals in the shadow: *running* now, and since the middleware was made *finished*, *failed* and *dropped*."""

    running: int
    finished: int
    failed: int
    dropped: int

    def __str__(self) -> str:
        return (
            f"{self.running} running, {self.finished:,} finished, {self.failed:,} failed,"
            f" {self.dropped:,} dropped"
        )


@dataclass(frozen=True, slots=True)
class CacheHealth:
    """The transformations this process remembers: *entries* of at most *limit*.

    *hits* and *misses* count the questions whose transformation was looked for; *hit_rate* is 0 to
    1, ``None`` before the first of them.
    """

    is_enabled: bool
    entries: int
    limit: int
    hits: int
    misses: int
    hit_rate: float | None

    def __str__(self) -> str:
        rate = "" if self.hit_rate is None else f" ({self.hit_rate:.0%})"
        held = (
            f"{self.entries:,} of {self.limit:,} entries, {self.hits:,} hits, {self.misses:,}"
            f" misses{rate}"
        )
        return held if self.is_enabled else f"off; {held}"


@dataclass(frozen=True, slots=True)
class RedisHealth:
    """The shared cache as it was when it was last asked; it is left alone for *rest* seconds."""

    state: RedisState
    where: str = ""
    rest: float = 0.0

    def __str__(self) -> str:
        rest = f", next try in {self.rest:.1f} s" if self.rest else ""
        return f"{self.where}: {self.state.replace('_', ' ')}{rest}" if self.where else "not used"


@dataclass(frozen=True, slots=True)
class Spending:
    """What was *spent* of a *limit*, with what calls under way may come to; *left* is ``None`` without a limit."""

    spent: float
    limit: float | None
    left: float | None

    def __str__(self) -> str:
        return f"{self.spent:,g}" if self.limit is None else f"{self.spent:,g} of {self.limit:,g}"


@dataclass(frozen=True, slots=True)
class BudgetHealth:
    """What this process spent, with all its middlewares: *calls* in a minute, *tokens* and *usd* in *hours*."""

    calls: Spending
    tokens: Spending
    usd: Spending
    hours: float

    def __str__(self) -> str:
        return (
            f"{self.calls} calls in the last minute; {self.tokens} tokens and {self.usd} US dollars"
            f" in the last {self.hours:g} hours"
        )


@dataclass(frozen=True, slots=True)
class Health:
    """How a middleware is at one moment, as far as it knows without asking anybody; printed, it is a line a part.

    *model* makes the transformations and *chat_model* the answers; the same service and model share
    one breaker.
    """

    model: ModelHealth
    chat_model: ModelHealth
    threads: ThreadsHealth
    shadow: ShadowHealth
    cache: CacheHealth
    redis: RedisHealth
    budget: BudgetHealth

    def to_dict(self) -> dict[str, Any]:
        """The same in nested dicts that `json.dumps` takes; an enum is its text."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(f"{name:<11} {getattr(self, name)}" for name in self.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a middleware takes questions: true where there are no *reasons* against it."""

    reasons: tuple[NotReady, ...] = ()

    def __bool__(self) -> bool:
        return not self.reasons

    def to_dict(self) -> dict[str, Any]:
        """``{"ready": ..., "reasons": [...]}``, which `json.dumps` takes."""
        return {"ready": bool(self), "reasons": list(self.reasons)}


def read_health(components: Components, cache: TransformationCache) -> Health:
    """The health of a middleware with this *components* and *cache*; nothing is asked, waited for or changed."""
    settings, bulkhead, local, shared = (
        components.config.settings,
        components.bulkhead,
        cache.local,
        cache.shared,
    )
    runs = components.shadow_runs
    model, chat, budget = components.model(settings), components.chat(settings), settings.budget
    hits, misses = local.hits, local.misses
    rate = hits / (hits + misses) if hits + misses else None
    redis = RedisHealth(RedisState.NOT_USED)
    if shared is not None:
        states = {
            None: RedisState.NOT_ASKED_YET,
            True: RedisState.REACHED,
            False: RedisState.NOT_REACHED,
        }
        redis = RedisHealth(states[shared.was_reached], shared.where, shared.rest)
    calls, tokens, usd = model.meter.sum_spending(budget.hours)
    return Health(
        model=ModelHealth(model.name, components.has_model, *model.breaker.read_state()),
        chat_model=ModelHealth(chat.name, components.has_model, *chat.breaker.read_state()),
        threads=ThreadsHealth(bulkhead.in_use, bulkhead.limit, bulkhead.refused, bulkhead.given_up),
        shadow=ShadowHealth(runs.running, runs.finished, runs.failed, runs.dropped),
        cache=CacheHealth(
            settings.cache.enabled, len(local), local.max_entries, hits, misses, rate
        ),
        redis=redis,
        budget=BudgetHealth(
            _compare(calls, budget.max_llm_calls_per_minute),
            _compare(tokens, budget.max_tokens),
            _compare(usd, budget.max_usd),
            budget.hours,
        ),
    )


def _compare(spent: float, limit: float | None) -> Spending:
    # Sums of money end in noise.
    spent = round(spent, 9)
    return Spending(spent, limit, None if limit is None else max(0, round(limit - spent, 9)))
