"""Report the health of a middleware to operators and probes."""

from __future__ import annotations

from typing import Any

from qtmiddleware.providers.llms.governed import GovernedModel
from qtmiddleware.runtime.cache import MAX_ENTRIES
from qtmiddleware.wrapping.engine import Engine


def read_health(engine: Engine) -> dict[str, dict[str, Any]]:
    """Return the health of a middleware without contacting any service."""
    bulkhead, runs, cache = engine.bulkhead, engine.shadow_runs, engine.cache
    limits = engine.settings.budget
    calls, tokens, usd = engine.model.meter.spent()
    return {
        "model": _describe_model(engine, engine.model),
        "chat_model": _describe_model(engine, engine.chat_model),
        "threads": {name: getattr(bulkhead, name) for name in ("in_use", "limit", "refused")},
        "shadow": {
            name: getattr(runs, name) for name in ("running", "finished", "failed", "dropped")
        },
        "cache": {
            "is_enabled": engine.settings.cache.enabled,
            "entries": len(cache),
            "limit": MAX_ENTRIES,
            "hits": cache.hits,
            "misses": cache.misses,
        },
        "budget": {
            "calls": {"spent": calls, "limit": limits.max_llm_calls_per_minute},
            "tokens": {"spent": tokens, "limit": limits.max_tokens},
            # Sums of floating-point amounts end in noise such as 0.30000000000000004.
            "usd": {"spent": round(usd, 9), "limit": limits.max_usd},
        },
    }


def _describe_model(engine: Engine, model: GovernedModel) -> dict[str, Any]:
    state, failures, allowed_failures, retry_in = model.breaker.report()
    return {
        "name": model.name,
        "is_configured": engine.has_model,
        "breaker": state,
        "failures": failures,
        "allowed_failures": allowed_failures,
        "retry_in": retry_in,
        "kept": model.relevance.mean,
    }
