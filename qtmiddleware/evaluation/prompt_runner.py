"""Asks a model many prompts at once, without waiting for one that hangs."""

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


class PromptRunner:
    """Asks *model* prompts, *concurrency* at a time, and waits *timeout* seconds for each reply.

    *cost_usd* is the cost of the replies so far, ``None`` as soon as the cost of one is unknown. Raises `ConfigError`
    for impossible numbers.
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

    def run(self, prompts: Sequence[Prompt]) -> list[Reply | ModelError]:
        """Returns the reply to each of *prompts*, or the error in its place, in their order."""
        size = self._concurrency
        batches = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        return [self._reply(outcome) for batch in batches for outcome in run(self._ask(batch), self._world)]

    def _ask(self, prompts: Sequence[Prompt]) -> Flow[list[Outcome]]:
        deadline = Deadline.after(self._timeout)
        # Each has a deadline of its own, which can be cancelled.
        asks = [Ask(prompt, Deadline(deadline.at)) for prompt in prompts]
        outcomes: list[Outcome] = yield Together(asks, deadline, len(asks))
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


def parse_object(reply: Reply, names: Sequence[str]) -> dict[str, Any]:
    """Returns the first JSON object in *reply* that has all of *names* as keys; an empty dict where there is none.

    Case does not count in keys, the last of two equal keys wins, and a value that is cut off is left out.
    """
    text, _ = strip_thoughts(reply.text)
    for found in find_json(text[:READ_CHARS]):
        if isinstance(found.value, Members):
            given = {key.strip().casefold(): value for key, value in found.value if not isinstance(value, Cut)}
            if given.keys() >= set(names):
                return given
    return {}
