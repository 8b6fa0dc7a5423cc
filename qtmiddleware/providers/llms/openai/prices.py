"""What is known of models by their names: what a reply costs, and when OpenAI shuts one down."""

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
    """US dollars for a million tokens; ``None`` is what `find_prices` knows of *model* of *provider*."""

    model: str
    input: float | None = None
    output: float | None = None
    provider: str = OPENAI

    def cost(self, input_tokens: int, output_tokens: int) -> float | None:
        """The cost in US dollars; ``None`` where a price is unknown or no tokens were counted, or more than can be."""
        if not 0 < input_tokens + output_tokens <= MOST_TOKENS:
            return None
        a_read, a_written = self.input, self.output
        if a_read is None or a_written is None:
            known = find_prices(self.model, self.provider)
            if known is None:
                return None
            a_read = known[0] if a_read is None else a_read
            a_written = known[1] if a_written is None else a_written
        return (input_tokens * a_read + output_tokens * a_written) / _MILLION


@cache
def find_prices(model: str, provider: str = OPENAI) -> tuple[float, float] | None:
    """The prices of *model* in US dollars for a million tokens, read and written; ``None`` where not known.

    They come from the package genai-prices where that is installed (extra ``prices``), where
    *provider* is its name for who is paid, and else for OpenAI's models from ``prices.json``. A
    dated snapshot costs what its model costs, unless it is listed itself. Nothing is asked over the
    network.
    """
    kept = _find_packaged_prices(model, provider)
    if kept is not None or provider != OPENAI:
        return kept
    table = _table()["models"]
    listed = table.get(model) or table.get(_SNAPSHOT.sub("", model))
    return None if listed is None else (listed[0], listed[1])


def _find_packaged_prices(model: str, provider: str = OPENAI) -> tuple[float, float] | None:
    try:
        from genai_prices import Usage, calc_price

        # Of one token each way: some models cost more a token for long prompts.
        found = calc_price(Usage(input_tokens=1, output_tokens=1), model, provider_id=provider)
        return float(found.input_price * _MILLION), float(found.output_price * _MILLION)
    except Exception:
        # Not installed, a name it does not know, or an interface of another version: a price must
        # not cost a reply.
        return None


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The *day* from which OpenAI does not serve a model, and its *successor* where OpenAI names one."""

    day: date
    successor: str | None


def find_shutdown(model: str) -> Shutdown | None:
    """When OpenAI shuts *model* down, of a dated snapshot or fine-tuned model its model; ``None`` where not known."""
    tuned = _FINE_TUNED.match(model)
    name = tuned[1] if tuned else model
    table = _table()["shutdowns"]
    listed = table.get(name) or table.get(_SNAPSHOT.sub("", name))
    return None if listed is None else Shutdown(date.fromisoformat(listed[0]), listed[1])


@cache
def _table() -> dict[str, Any]:
    text = (
        files("qtmiddleware.providers.llms.openai")
        .joinpath("prices.json")
        .read_text(encoding="utf-8")
    )
    return dict(json.loads(text))
