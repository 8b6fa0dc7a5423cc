"""Ask a model prompts that are not part of retrieval: to judge answers, and to write questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from qtmiddleware.errors import (
    ModelError,
    QtMiddlewareError,
    build_safe_error,
    convert_to_model_error,
)
from qtmiddleware.protocols import LanguageModel, Prompt, Reply, ReplyField
from qtmiddleware.runtime.concurrency import Bulkhead, Outcome
from qtmiddleware.runtime.services import Services, run
from qtmiddleware.transforms.prompt import MAX_TOKENS, format_json_message
from qtmiddleware.transforms.replies import READ_CHARS, read_json, strip_thoughts
from qtmiddleware.types import Deadline


@dataclass(frozen=True, slots=True)
class Task:
    """A template for prompts. *data* says what the user message contains."""

    mode: str
    version: str
    instruction: str
    data: str
    rules: tuple[str, ...]
    fields: tuple[ReplyField, ...]

    def build_prompt(
        self,
        material: Mapping[str, Any],
        max_tokens: int = MAX_TOKENS,
    ) -> Prompt:
        """Return a prompt whose user message is *material* as JSON."""
        user = format_json_message(material)
        keys = (f'- "{field.name}" (string): {field.description}' for field in self.fields)
        system = (
            self.instruction,
            self.data,
            "\n".join(f"- {rule}" for rule in self.rules),
            "Reply with one JSON object and nothing else (no code fence). Its keys:\n"
            + "\n".join(keys),
        )
        return Prompt(
            self.mode,
            self.version,
            "\n\n".join(system),
            user,
            self.fields,
            user,
            max_tokens=max_tokens,
        )


class PromptRunner:
    """Asks a model several prompts at a time, and adds up what the replies cost."""

    def __init__(self, model: LanguageModel, timeout: float) -> None:
        self.cost_usd: float | None = 0.0
        self._model = model
        self._bulkhead = Bulkhead()
        self._timeout = timeout

    def run_prompts(
        self,
        prompts: Sequence[Prompt],
    ) -> list[Reply | ModelError]:
        """Ask all *prompts* at the same time, and return the reply to each, or the error.

        Errors of the setup, such as a missing package, are raised.
        """

        async def ask_all(services: Services) -> list[Outcome[Reply]]:
            deadline = Deadline.after(self._timeout)
            asks = [partial(services.ask, prompt, deadline, self._model) for prompt in prompts]
            return await services.io.gather(asks, deadline, len(asks))

        return [self._read_outcome(outcome) for outcome in run(ask_all, self._bulkhead)]

    def _read_outcome(
        self,
        outcome: Outcome[Reply],
    ) -> Reply | ModelError:
        if outcome.has_succeeded:
            reply = outcome.get()
            if not isinstance(reply.text, str):
                return ModelError("empty", "the language model's answer is empty")
            unknown = self.cost_usd is None or reply.cost_usd is None
            self.cost_usd = None if unknown else (self.cost_usd or 0.0) + (reply.cost_usd or 0.0)
            return reply
        if outcome.late:
            return ModelError(
                "timeout", f"the language model did not answer within {self._timeout:g} seconds"
            )
        cause = outcome.error
        if isinstance(cause, QtMiddlewareError) and not isinstance(cause, ModelError):
            raise cause
        error = convert_to_model_error(cause)
        # The message of another model's error may quote the prompt.
        is_builtin = type(self._model).__module__.startswith("qtmiddleware.")
        return error if is_builtin else build_safe_error(error, self._model.name)


def parse_reply(
    reply: Reply,
    required_keys: Sequence[str],
) -> dict[str, Any]:
    """Return the first JSON object in *reply* that has *required_keys*; ``{}`` if there is none."""
    text, _ = strip_thoughts(reply.text)
    values, _ = read_json(text[:READ_CHARS])
    for value in values:
        if isinstance(value, dict):
            members = {key.strip().casefold(): member for key, member in value.items()}
            if members.keys() >= set(required_keys):
                return members
    return {}
