"""What a reply cost."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

_SNAPSHOT: Final = re.compile(r"-\d{4}-\d{2}-\d{2}$")


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for a million tokens; ``None`` where they are not known."""

    input: float | None = None
    output: float | None = None

    @classmethod
    def of(cls, model: str, input_price: float | None = None, output_price: float | None = None) -> Prices:
        """The given prices; where one is missing, that of the table of well-known models (``prices.json``).

        A dated snapshot costs what its model costs, unless the table names it.
        """
        if input_price is not None and output_price is not None:
            return cls(input_price, output_price)
        table = _table()
        known = table.get(model) or table.get(_SNAPSHOT.sub("", model)) or cls()
        return cls(
            known.input if input_price is None else input_price, known.output if output_price is None else output_price
        )

    def cost(self, input_tokens: int, output_tokens: int) -> float | None:
        """The cost in US dollars; ``None`` where a price is unknown or no tokens were counted."""
        if self.input is None or self.output is None or not (input_tokens or output_tokens):
            return None
        return (input_tokens * self.input + output_tokens * self.output) / 1_000_000


@cache
def _table() -> dict[str, Prices]:
    text = files("qtmiddleware.llms.openai").joinpath("prices.json").read_text(encoding="utf-8")
    return {name: Prices(*pair) for name, pair in json.loads(text)["models"].items()}
