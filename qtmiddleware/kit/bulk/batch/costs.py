"""What batches cost, beside what the same requests cost one by one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from qtmiddleware.config.settings import BudgetSettings
from qtmiddleware.errors import ModelError
from qtmiddleware.kit.bulk.batch.state import Part, Usage
from qtmiddleware.providers.llms.openai.prices import Prices
from qtmiddleware.runtime.budget import MOST_TOKENS

TOKEN_BYTES: Final = 3
"""Bytes of a request taken for a token: that is about four characters of English, and one of Chinese of three bytes."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens, and US dollars for them: *live* one by one, *batch* in a batch; ``None`` where that is not known."""

    read: int
    written: int
    live: float | None
    batch: float | None


@dataclass(frozen=True, slots=True)
class Tariff:
    """The *prices* of a model one by one, and the *share* of them that a batch costs; ``None`` where not known.

    A reply is taken to have *max_tokens* before it is there.
    """

    prices: Prices
    share: float | None
    max_tokens: int | None

    def cost(self, read: int, written: int) -> Cost:
        """What so many tokens cost."""
        # A sum of what a service says may be more than is priced, and must not be free for that.
        live = self.prices.cost(min(read, MOST_TOKENS // 2), min(written, MOST_TOKENS // 2))
        return Cost(
            read, written, live, None if live is None or self.share is None else live * self.share
        )

    def estimate(self, parts: Iterable[Part]) -> Cost:
        """What *parts* cost at most: as many tokens as their bytes may be, and replies as long as they may get."""
        sizes = [
            (part.size // TOKEN_BYTES, part.requests * (self.max_tokens or 0)) for part in parts
        ]
        return self.cost(sum(read for read, _ in sizes), sum(written for _, written in sizes))

    def sum_up(self, parts: Iterable[Part], usage: Usage) -> Cost:
        """What the replies to *parts* cost, those whose tokens nobody counted at most."""
        sent = list(parts)
        size, requests = sum(part.size for part in sent), sum(part.requests for part in sent) or 1
        read = usage.uncounted * size // requests // TOKEN_BYTES
        return self.cost(
            usage.read + read, usage.written + usage.uncounted * (self.max_tokens or 0)
        )

    def check(self, budget: BudgetSettings, spent: Cost, planned: Cost) -> None:
        """Raise `ModelError` (``over_budget``) where *budget* has no room for what is *planned* beside what is *spent*.

        What a batch costs where its price is not known is taken for the price one by one.
        """
        tokens = sum((spent.read, spent.written, planned.read, planned.written))
        usd = sum(
            cost.live or 0.0 if cost.batch is None else cost.batch for cost in (spent, planned)
        )
        lacking = ""
        if budget.max_tokens is not None and tokens > budget.max_tokens:
            lacking = (
                f"budget.maxTokens allows {budget.max_tokens:,} tokens; with the next batch the"
                f" total may be {tokens:,}"
            )
        elif budget.max_usd is not None and usd > budget.max_usd:
            lacking = (
                f"budget.maxUsd allows {budget.max_usd:g} US dollars; with the next batch the total"
                f" may be {usd:.2f}"
            )
        if lacking:
            raise ModelError(
                "over_budget",
                f"{lacking}; raise the limit, or lower llm.maxTokens, the length assumed for each"
                " reply",
            )
