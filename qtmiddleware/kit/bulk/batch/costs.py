"""Compute the cost of requests in batches, and of the same requests sent one by one."""

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
"""How many bytes of a request count as a token.

A token is about four characters of English, or one of Chinese, which has three bytes.
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """A number of tokens and their cost in US dollars.

    Attributes:
        read: The number of input tokens.
        written: The number of output tokens.
        live: The cost of the requests if sent one by one; ``None`` if unknown.
        batch: The cost of the requests in a batch; ``None`` if unknown.
    """

    read: int
    written: int
    live: float | None
    batch: float | None


@dataclass(frozen=True, slots=True)
class Tariff:
    """The prices of a model for requests sent one by one and in batches.

    Attributes:
        prices: The prices of requests sent one by one.
        share: The batch price as a fraction of the normal price; ``None`` if unknown.
        max_tokens: The maximum length of a reply in tokens, used in estimates.
    """

    prices: Prices
    share: float | None
    max_tokens: int | None

    def cost(self, read: int, written: int) -> Cost:
        """Return the cost of *read* input tokens and *written* output tokens."""
        # The tokens that a service reports may exceed the most that `Prices` accepts. Without the
        # limit their cost would be unknown, and count as 0.
        live = self.prices.compute_cost(min(read, MOST_TOKENS // 2), min(written, MOST_TOKENS // 2))
        return Cost(
            read, written, live, None if live is None or self.share is None else live * self.share
        )

    def estimate(self, parts: Iterable[Part]) -> Cost:
        """Return the estimated maximum cost of the requests in *parts*.

        `TOKEN_BYTES` bytes of a request count as a token, and each reply is assumed to have the
        maximum length.
        """
        sizes = [
            (part.size // TOKEN_BYTES, part.requests * (self.max_tokens or 0)) for part in parts
        ]
        return self.cost(sum(read for read, _ in sizes), sum(written for _, written in sizes))

    def sum_up(self, parts: Iterable[Part], usage: Usage) -> Cost:
        """Return the cost of all replies so far; *usage* has their token counts.

        *parts* are all batches. Replies without a token count are estimated from the average size
        of the requests in *parts*, and the maximum length of a reply.
        """
        part_list = list(parts)
        size, requests = (
            sum(part.size for part in part_list),
            sum(part.requests for part in part_list) or 1,
        )
        read = usage.uncounted * size // requests // TOKEN_BYTES
        return self.cost(
            usage.read + read, usage.written + usage.uncounted * (self.max_tokens or 0)
        )

    def check(self, budget: BudgetSettings, spent: Cost, planned: Cost) -> None:
        """Raise `ModelError` (``over_budget``) if *spent* plus *planned* costs exceed *budget*.

        If the batch price is unknown, the price of requests sent one by one is used.
        """
        tokens = sum((spent.read, spent.written, planned.read, planned.written))
        usd = sum(
            cost.live or 0.0 if cost.batch is None else cost.batch for cost in (spent, planned)
        )
        shortage = ""
        if budget.max_tokens is not None and tokens > budget.max_tokens:
            shortage = (
                f"budget.maxTokens allows {budget.max_tokens:,} tokens; with the next batch the"
                f" total may be {tokens:,}"
            )
        elif budget.max_usd is not None and usd > budget.max_usd:
            shortage = (
                f"budget.maxUsd allows {budget.max_usd:g} US dollars; with the next batch the total"
                f" may be {usd:.2f}"
            )
        if shortage:
            raise ModelError(
                "over_budget",
                f"{shortage}; raise the limit, or lower llm.maxTokens, the length assumed for each"
                " reply",
            )
