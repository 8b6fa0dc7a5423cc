"""What a config may cost and harm."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite
from typing import Final

from qtmiddleware.config.keys import camel
from qtmiddleware.errors import ConfigError
from qtmiddleware.evaluation import SystemScore

_CHANCE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of a search; ``None`` is no limit.

    *max_call_rate* is the share of the questions for which the model is asked. *max_added_ms* holds for 95 of 100
    questions (p95, beyond a plain search, with the time of replayed replies): a median would say nothing about those
    that wait for the model where only some do. *max_usd_per_thousand* is US dollars for a thousand questions; a config
    whose cost is not known is beyond any. *max_hurt_rate* is the share of questions that may do worse than with the raw
    query. Raises `ConfigError` for impossible limits.
    """

    max_call_rate: float | None = None
    max_added_ms: float | None = None
    max_usd_per_thousand: float | None = None
    max_hurt_rate: float | None = None

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            limit, most = getattr(self, name), 1.0 if name.endswith("_rate") else float("inf")
            if limit is not None and not (isfinite(limit) and 0.0 <= limit <= most):
                allowed = "a number from 0 to 1" if most == 1.0 else "a finite number of at least 0"
                raise ConfigError(f"{name} is {limit}; allowed: {allowed}", path=name, value=limit, allowed=allowed)

    def broken_by(self, score: SystemScore, *, kept_rate: float | None = None) -> tuple[str, ...]:
        """Every limit that *score* is beyond, each as a sentence's part.

        *kept_rate* is the call rate a gate keeps over time: where it is within the limit, a sample of questions may be
        beyond it by what chance explains (exact binomial test, 5 %).
        """
        return tuple(
            text
            for text in (
                self._calls(score, kept_rate),
                _beyond(score.added_ms.p95, self.max_added_ms, "it adds {:.0f} ms (p95), the budget is {:.0f}"),
                _beyond(
                    score.usd_per_thousand,
                    self.max_usd_per_thousand,
                    "a thousand questions cost ${:.3g}, the budget is ${:.3g}",
                ),
                _beyond(score.hurt_rate, self.max_hurt_rate, "it hurts {:.1%} of the questions, the budget is {:.1%}"),
            )
            if text
        )

    def _calls(self, score: SystemScore, kept_rate: float | None) -> str:
        limit = self.max_call_rate
        text = _beyond(score.call_rate, limit, "it asks the model about {:.1%} of the questions, the budget is {:.1%}")
        if not text or limit is None or kept_rate is None or kept_rate > limit:
            return text
        asked = sum(run.llm_calls > 0 for run in score.runs.values())
        return text if _at_least(asked, len(score.runs), kept_rate) < _CHANCE else ""

    def to_dict(self) -> dict[str, float | None]:
        """The limits as plain data."""
        return {camel(field.name): getattr(self, field.name) for field in fields(self)}


def _beyond(value: float | None, limit: float | None, text: str) -> str:
    if limit is None or (value is not None and value <= limit):
        return ""
    return "what it costs is not known" if value is None else text.format(value, limit)


def _at_least(count: int, total: int, rate: float) -> float:
    """The probability of *count* or more of *total*, each of probability *rate*."""
    from scipy.stats import binom

    return float(binom.sf(count - 1, total, rate))
