"""Look up a model's prices and its shutdown date."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Any, Final

from qtmiddleware.runtime.budget import MOST_TOKENS

OPENAI: Final = "openai"
_MILLION: Final = 1_000_000
_SNAPSHOT: Final = re.compile(r"-\d{4}-\d{2}-\d{2}$")
_FINE_TUNED: Final = re.compile(r"ft:([^:]+)")


@dataclass(frozen=True, slots=True)
class Prices:
    """A model's prices in US dollars per million tokens.

    Attributes:
        model: The name that the provider uses for the model, such as ``gpt-4o-mini``.
        input: The price of input tokens; ``None`` uses the list price from `find_prices`.
        output: The price of output tokens; ``None`` uses the list price from `find_prices`.
        provider: The provider's name in the package genai-prices.
    """

    model: str
    input: float | None = None
    output: float | None = None
    provider: str = OPENAI

    def compute_cost(self, input_tokens: int, output_tokens: int) -> float | None:
        """Return the cost of a call in US dollars; ``None`` if it is unknown.

        The cost is unknown if a price is unknown, or if the number of tokens is 0 or more than
        `MOST_TOKENS`.
        """
        if not 0 < input_tokens + output_tokens <= MOST_TOKENS:
            return None
        input_price, output_price = self.input, self.output
        if input_price is None or output_price is None:
            prices = find_prices(self.model, self.provider)
            if prices is None:
                return None
            input_price = prices[0] if input_price is None else input_price
            output_price = prices[1] if output_price is None else output_price
        return (input_tokens * input_price + output_tokens * output_price) / _MILLION


@cache
def find_prices(model: str, provider: str = OPENAI) -> tuple[float, float] | None:
    """Return the input and output prices of *model*; ``None`` if they are unknown.

    Prices are in US dollars per million tokens. They come from the package genai-prices (extra
    ``prices``), or else, for OpenAI's models, from ``prices.json``. If ``prices.json`` has no
    prices for a dated snapshot, the prices of its base model are returned. This function sends no
    request.

    Args:
        model: The name that the provider uses for the model.
        provider: The provider's name in the package genai-prices.
    """
    packaged = _find_packaged_prices(model, provider)
    if packaged is not None or provider != OPENAI:
        return packaged
    table = _read_price_table()["models"]
    row = table.get(model) or table.get(_SNAPSHOT.sub("", model))
    return None if row is None else (row[0], row[1])


def _find_packaged_prices(model: str, provider: str = OPENAI) -> tuple[float, float] | None:
    try:
        from genai_prices import Usage, calc_price

        # The price of one token each way, because some models cost more per token for long prompts.
        price = calc_price(Usage(input_tokens=1, output_tokens=1), model, provider_id=provider)
        return float(price.input_price * _MILLION), float(price.output_price * _MILLION)
    except Exception:
        # The package is missing, does not know the name, or has another interface. A missing price
        # must not cost a reply.
        return None


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The planned shutdown of an OpenAI model.

    Attributes:
        day: The first day on which the model cannot be called.
        successor: The model that OpenAI recommends instead; ``None`` if there is none.
    """

    day: date
    successor: str | None


def find_shutdown(model: str) -> Shutdown | None:
    """Return the planned shutdown of *model*; ``None`` if no date is known.

    If a snapshot or a fine-tuned model has no date, the date of its base model is returned.
    """
    fine_tuned = _FINE_TUNED.match(model)
    name = fine_tuned[1] if fine_tuned else model
    table = _read_price_table()["shutdowns"]
    row = table.get(name) or table.get(_SNAPSHOT.sub("", name))
    return None if row is None else Shutdown(date.fromisoformat(row[0]), row[1])


@cache
def _read_price_table() -> dict[str, Any]:
    text = (
        files("qtmiddleware.providers.llms.openai")
        .joinpath("prices.json")
        .read_text(encoding="utf-8")
    )
    return dict(json.loads(text))
