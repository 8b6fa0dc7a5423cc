"""Asking a model many things at once, without waiting for one that hangs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qtmiddleware.errors import ConfigError, ModelError, QtMiddlewareError, as_model_error
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.runtime.drivers import ModelOnly, run
from qtmiddleware.runtime.steps import Ask, Flow, Outcome, Together
from qtmiddleware.transforms.json_reading import Cut, Members, find_json
from qtmiddleware.transforms.parsing import READ_CHARS, strip_thoughts
from qtmiddleware.types import Deadline


class Asking:
    """Puts prompts to *model*, *concurrency* at a time, and waits *timeout* seconds for each reply.

    *cost_usd* is what the replies cost so far, ``None`` as soon as one did not say. Raises `ConfigError` for
    numbers that are impossible.
    """

    def __init__(self, model: LanguageModel, timeout: float, concurrency: int) -> None:
        if not 0 < timeout < float("inf"):
            raise ConfigError(f"timeout must be some seconds, not {timeout}", path="timeout", value=timeout)
        if concurrency < 1:
            raise ConfigError(
                f"concurrency must be at least 1, not {concurrency}", path="concurrency", value=concurrency
            )
        self.cost_usd: float | None = 0.0
        self._world = ModelOnly(model)
        self._timeout = timeout
        self._concurrency = concurrency

    def replies(self, prompts: Sequence[Prompt]) -> list[Reply | ModelError]:
        """The reply to each of *prompts*, or why there is none, in their order."""
        waves = range(0, len(prompts), self._concurrency)
        outcomes = [one for at in waves for one in run(self._asked(prompts[at : at + self._concurrency]), self._world)]
        return [self._reply(outcome) for outcome in outcomes]

    def _asked(self, prompts: Sequence[Prompt]) -> Flow[list[Outcome]]:
        patience = Deadline.after(self._timeout)
        # Each has a deadline of its own, which can be cancelled.
        asks = [Ask(prompt, Deadline(patience.at)) for prompt in prompts]
        outcomes: list[Outcome] = yield Together(asks, patience, len(asks))
        return outcomes

    def _reply(self, outcome: Outcome) -> Reply | ModelError:
        if outcome.ok:
            reply: Reply = outcome.value
            # Clients of other making pass on a missing content as it is, whatever the type says.
            if not isinstance(reply.text, str):
                return ModelError("empty", "the language model answered nothing")
            unknown = self.cost_usd is None or reply.cost_usd is None
            self.cost_usd = None if unknown else (self.cost_usd or 0.0) + (reply.cost_usd or 0.0)
            return reply
        if outcome.late:
            return ModelError("timeout", f"the language model did not answer within {self._timeout:g} seconds")
        if isinstance(outcome.error, QtMiddlewareError) and not isinstance(outcome.error, ModelError):
            raise outcome.error  # A missing library or an impossible setting is no fault of the model.
        return as_model_error(outcome.error)


def members(reply: Reply, names: Sequence[str]) -> dict[str, Any]:
    """The first JSON object in *reply* that has all of *names* as keys; empty where there is none.

    Keys are taken without case, the last of two alike counts, and a value whose end is missing does not.
    """
    text, _ = strip_thoughts(reply.text)
    for found in find_json(text[:READ_CHARS]):
        if isinstance(found.value, Members):
            given = {key.strip().casefold(): value for key, value in found.value if not isinstance(value, Cut)}
            if given.keys() >= set(names):
                return given
    return {}
