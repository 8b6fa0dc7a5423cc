"""Tokens, money and time for replies that came without them."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Final

from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.providers.llms.openai.prices import Prices
from qtmiddleware.types import Deadline

CHARACTERS_A_TOKEN: Final = 4
"""OpenAI's own rule of thumb for English; other languages need more tokens, so they are estimated too low."""


class EstimatedModel:
    """Passes on the replies of *inner*, as if the well-known model called *name* had given them.

    What a reply does not say is estimated: its tokens by the length of the texts, its cost in US dollars by the prices
    of *name* (``None`` where they are not known), and the *seconds* it took. A reply that counted its tokens keeps them
    and its cost.
    """

    def __init__(
        self,
        inner: LanguageModel,
        name: str,
        seconds: float = 0.0,
        *,
        input_price: float | None = None,
        output_price: float | None = None,
    ) -> None:
        self._inner = inner
        self._priced_as = name
        self._seconds = seconds
        self._prices = Prices(name, input_price, output_price)
        self.can_async: bool = getattr(inner, "can_async", True)

    def __repr__(self) -> str:
        return f"EstimatedModel({self._inner!r}, {self._priced_as!r})"

    @property
    def name(self) -> str:
        """The name of the model that answers."""
        return self._inner.name

    @property
    def note(self) -> str:
        """One sentence that says what is estimated."""
        money = (
            f"money by the prices of {self._priced_as}"
            if self._prices.cost(1, 1) is not None
            else f"the prices of {self._priced_as} are not known"
        )
        return f"Tokens are estimated, {CHARACTERS_A_TOKEN} characters each; {money}."

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*; raises what the inner model raises."""
        return self._estimated(prompt, self._inner.complete(prompt, deadline))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*; raises what the inner model raises."""
        return self._estimated(prompt, await self._inner.acomplete(prompt, deadline))

    def _estimated(self, prompt: Prompt, reply: Reply) -> Reply:
        timed = replace(reply, seconds=reply.seconds or self._seconds)
        if reply.input_tokens or reply.output_tokens:
            return timed
        read, written = _tokens(prompt.system + prompt.user), _tokens(reply.text)
        return replace(timed, input_tokens=read, output_tokens=written, cost_usd=self._prices.cost(read, written))


def _tokens(text: str) -> int:
    return ceil(len(text) / CHARACTERS_A_TOKEN)
