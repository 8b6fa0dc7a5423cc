"""Replay recorded replies instead of asking a model, and estimate their cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.evaluation import Dataset, Question
from qtmiddleware.kit.evaluation.recorded import RecordedModel, read_records
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.providers.llms.prices import Prices
from qtmiddleware.transforms import PROMPTS, build_prompts
from qtmiddleware.types import Deadline

CHARACTERS_PER_TOKEN: Final = 4
"""The number of characters per token: OpenAI's rule of thumb for English texts.

Texts in other languages have more tokens, so the estimate is too low for them.
"""
_STANDALONE: Final = "standalone"


def select_recorded_questions(
    dataset: Dataset, path: Path
) -> tuple[RecordedModel, Dataset, frozenset[str]]:
    """Load the recording at *path*, and select the questions of *dataset* that it contains.

    Returns:
        The recording, as a model.
        The data set with only the recorded questions.
        The names of the reply fields that are recorded for these questions.

    Raises:
        ConfigError: The recording cannot be read, or no question of *dataset* is recorded.
    """
    no_match = ConfigError(
        f"none of the {len(dataset.questions)} questions of {dataset.name} is in the recording"
        f" {path}; name the recording of this data set",
        path="recordings",
    )
    lines = list(read_records(path))
    # Two questions may have the same text. If the recording has ids, the id decides.
    known_ids = {str(line.get("_id")) for line in lines} & {
        question.id for question in dataset.questions
    }
    dataset = dataset.only(known_ids) if known_ids else dataset
    try:
        queries = [question.to_record() for question in dataset.questions]
        model = RecordedModel(lines, queries, name=f"recorded:{path.stem}")
    except ConfigError as error:
        raise no_match from error
    recorded: set[str] = set()
    fields: set[str] = set()
    for question in dataset.questions:
        try:
            reply = model.complete(_build_full_prompt(question), Deadline())
        except ModelError as error:
            # A record without any reply field still counts as a recorded question.
            if error.reason == "unrecorded":
                continue
        else:
            fields |= json.loads(reply.text).keys()
        recorded.add(question.id)
    if not recorded:
        raise no_match
    return model, dataset.only(recorded), frozenset(fields)


def list_reply_fields(system_settings: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the reply fields that a system requests from the model.

    The field for the standalone form of a follow-up question is not included.
    """
    settings = Config.load(system_settings, environ={}).settings
    return frozenset(
        field.name for prompt in build_prompts(settings, "?") for field in prompt.fields
    ) - {_STANDALONE}


def _build_full_prompt(question: Question) -> Prompt:
    """Return a prompt for *question* that requests all reply fields."""
    fields = {
        field.name: field
        for template in PROMPTS.values()
        for field in template.build_prompt(Settings(), "?").fields
    }
    prompt = PROMPTS["combined"].build_prompt(Settings(), question.text, question.history)
    return replace(prompt, mode="", fields=tuple(fields.values()))


class EstimatedModel:
    """Wraps a model, and adds estimates to replies without tokens, cost or time.

    Tokens are estimated from the length of the texts. The cost in US dollars is estimated from a
    model's prices, and is ``None`` if the prices are not known. The time is a fixed number of
    seconds. A reply that reports tokens keeps its tokens and cost.
    """

    def __init__(
        self,
        inner: LanguageModel,
        priced_model: str,
        reply_seconds: float = 0.0,
        *,
        input_price: float | None = None,
        output_price: float | None = None,
    ) -> None:
        """Wrap *inner* to add estimates to its replies.

        Args:
            inner: The model that replies.
            priced_model: The name of the model whose prices are used.
            reply_seconds: The time in seconds of a reply that reports no time.
            input_price: The price of the tokens that the model reads, in US dollars per million.
                Default: the known price.
            output_price: The price of the tokens that the model writes, in US dollars per million.
                Default: the known price.
        """
        self._inner = inner
        self._priced_model = priced_model
        self._reply_seconds = reply_seconds
        self._prices = Prices(priced_model, input_price, output_price)
        self.can_async: bool = getattr(inner, "can_async", True)

    def __repr__(self) -> str:
        return f"EstimatedModel({self._inner!r}, {self._priced_model!r})"

    @property
    def name(self) -> str:
        """The name of the inner model."""
        return self._inner.name

    @property
    def note(self) -> str:
        """A sentence for the report on how tokens and costs are estimated."""
        money = (
            f"costs use the prices of {self._priced_model}"
            if self._prices.compute_cost(1, 1) is not None
            else f"the prices of {self._priced_model} are not known"
        )
        return f"Tokens are estimated, {CHARACTERS_PER_TOKEN} characters each; {money}."

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt* with estimates. Exceptions of the model pass through."""
        return self._add_estimates(prompt, self._inner.complete(prompt, deadline))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt* with estimates. Exceptions of the model pass through."""
        return self._add_estimates(prompt, await self._inner.acomplete(prompt, deadline))

    def _add_estimates(self, prompt: Prompt, reply: Reply) -> Reply:
        """Return *reply* with estimates for missing time, tokens and cost."""
        # A replayed reply has neither tokens nor a time. A live reply keeps its figures.
        timed = replace(reply, seconds=reply.seconds or self._reply_seconds)
        if reply.input_tokens or reply.output_tokens:
            return timed
        input_tokens, output_tokens = (
            _estimate_tokens(prompt.system + prompt.user),
            _estimate_tokens(reply.text),
        )
        return replace(
            timed,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cost_usd=self._prices.compute_cost(input_tokens, output_tokens),
        )


def _estimate_tokens(text: str) -> int:
    """Return the estimated number of tokens in *text*."""
    return ceil(len(text) / CHARACTERS_PER_TOKEN)
