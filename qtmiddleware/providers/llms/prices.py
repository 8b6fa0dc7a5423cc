"""Look up a model's prices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from qtmiddleware.runtime.spending import MOST_TOKENS

_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """A model's prices in US dollars per million tokens. ``None`` uses the list price."""

    model: str
    input: float | None = None
    output: float | None = None

    def compute_cost(self, input_tokens: int, output_tokens: int) -> float | None:
        """Return the cost in US dollars; ``None`` if a price or the tokens are unknown."""
        if not 0 < input_tokens + output_tokens <= MOST_TOKENS:
            return None
        input_price = self.input
        output_price = self.output
        if input_price is None or output_price is None:
            if (prices := find_prices(self.model)) is None:
                return None
            input_price = prices[0] if input_price is None else input_price
            output_price = prices[1] if output_price is None else output_price
        return (input_tokens * input_price + output_tokens * output_price) / _MILLION


@cache
def find_prices(model: str) -> tuple[float, float] | None:
    """Return OpenAI's prices of *model* in US dollars per million tokens: for input and output.

    They come from the package genai-prices (extra ``prices``); without it, they are unknown.
    """
    try:
        from genai_prices import Usage, calc_price

        # The price of one token each way, because some models cost more per token for long prompts.
        price = calc_price(
            Usage(input_tokens=1, output_tokens=1),
            model,
            provider_id="openai",
        )
        return float(price.input_price * _MILLION), float(price.output_price * _MILLION)
    except Exception:
        # The package is missing, does not know the name, or has another interface. A missing price
        # must not cost a reply.
        return None
