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
"""The number of bytes of a request that count as one token.

A token is about four characters of English, or one Chinese character, which has three bytes.
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """The number of tokens in some requests and replies, and their cost in US dollars.

    Attributes:
        read: The number of input tokens.
        written: The number of output tokens.
        live: The cost in US dollars of requests sent one by one; ``None`` if unknown.
        batch: The cost in US dollars of requests sent in a batch; ``None`` if unknown.
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
        price_factor: The batch price as a fraction of the normal price; ``None`` if unknown.
        max_tokens: The maximum length of a reply in tokens, for estimates.
    """

    prices: Prices
    price_factor: float | None
    max_tokens: int | None

    def compute_cost(self, input_tokens: int, output_tokens: int) -> Cost:
        """Return the cost of this number of *input_tokens* and *output_tokens*."""
        # A service may report more tokens than `Prices` accepts. Without the limit, the cost would
        # be unknown and count as 0.
        live = self.prices.compute_cost(
            min(input_tokens, MOST_TOKENS // 2), min(output_tokens, MOST_TOKENS // 2)
        )
        return Cost(
            input_tokens,
            output_tokens,
            live,
            None if live is None or self.price_factor is None else live * self.price_factor,
        )

    def estimate_cost(self, batch_parts: Iterable[Part]) -> Cost:
        """Return the estimated maximum cost of the requests in *batch_parts*.

        Assumes `TOKEN_BYTES` bytes per input token, and replies of the maximum length.
        """
        sizes = [
            (part.size // TOKEN_BYTES, part.requests * (self.max_tokens or 0))
            for part in batch_parts
        ]
        return self.compute_cost(
            sum(read for read, _ in sizes), sum(written for _, written in sizes)
        )

    def compute_actual_cost(self, batch_parts: Iterable[Part], usage: Usage) -> Cost:
        """Return the cost of all replies so far, from their token counts in *usage*.

        A reply without token counts is assumed to have the maximum length, and its request to have
        the average size of all requests in *batch_parts*.
        """
        part_list = list(batch_parts)
        size, requests = (
            sum(part.size for part in part_list),
            sum(part.requests for part in part_list) or 1,
        )
        read = usage.uncounted * size // requests // TOKEN_BYTES
        return self.compute_cost(
            usage.read + read, usage.written + usage.uncounted * (self.max_tokens or 0)
        )

    def check_budget(self, budget: BudgetSettings, actual_cost: Cost, planned_cost: Cost) -> None:
        """Raise `ModelError` if *actual_cost* plus *planned_cost* exceeds *budget*.

        The error's reason is ``over_budget``. If the batch price is unknown, the check uses the
        price of requests sent one by one.
        """
        tokens = sum(
            (actual_cost.read, actual_cost.written, planned_cost.read, planned_cost.written)
        )
        usd = sum(
            cost.live or 0.0 if cost.batch is None else cost.batch
            for cost in (actual_cost, planned_cost)
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
