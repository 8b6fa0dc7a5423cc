"""Look up a model's prices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from qtmiddleware.runtime.budget import MOST_TOKENS

_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """A model's prices in US dollars per million tokens.

    Attributes:
        model: The model's name, such as ``gpt-4o-mini``.
        input: The price of input tokens; ``None`` uses the list price from `find_prices`.
        output: The price of output tokens; ``None`` uses the list price from `find_prices`.
    """

    model: str
    input: float | None = None
    output: float | None = None

    def compute_cost(self, input_tokens: int, output_tokens: int) -> float | None:
        """Return the cost of a call in US dollars; ``None`` if it is unknown.

        The cost is unknown if a price is unknown, or if the number of tokens is 0 or more than
        `MOST_TOKENS`.
        """
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
    """Return the input and output prices of *model*; ``None`` if they are unknown.

    *model* is OpenAI's name for the model. Prices are in US dollars per million tokens. They come
    from the package genai-prices (extra ``prices``). Without the package, all prices are unknown.
    This function sends no request.
    """
    try:
        from genai_prices import Usage, calc_price

        # The price of one token each way, because some models cost more per token for long prompts.
        price = calc_price(Usage(input_tokens=1, output_tokens=1), model, provider_id="openai")
        return float(price.input_price * _MILLION), float(price.output_price * _MILLION)
    except Exception:
        # The package is missing, does not know the name, or has another interface. A missing price
        # must not cost a reply.
        return None
