"""The library as it is measured: wrapped functions and the model they ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from benchmarks.speed.workload import QUESTIONS, REPLIES
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

MULTI_QUERY: dict[str, Any] = {
    "transformationType": "multi_query",
    "llm": {"paraphrases": 4},
    "keywordEvidence": {"enabled": False},
    "cache": {"enabled": False},
}
"""One model call for four paraphrases, five searches, anchored fusion, trace; nothing remembered between calls."""


class _Forgetful(list[Prompt]):
    """Does not keep the prompts, as a model that is called a million times must not."""

    def append(self, _: Prompt) -> None:
        return


def _reply(prompt: Prompt) -> str:
    return REPLIES[prompt.query]


def paraphrasing_model(seconds: float = 0.0) -> ScriptedModel:
    """Answers each question with its paraphrases, after *seconds*."""
    model = ScriptedModel(_reply, seconds=seconds)
    model.prompts = _Forgetful()
    return model


class HangingModel:
    """A model that minds no deadline."""

    name = "hanging"
    can_sync = can_async = True

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def complete(self, _prompt: Prompt, _deadline: Deadline) -> Reply:
        time.sleep(self._seconds)
        return Reply("")

    async def acomplete(self, _prompt: Prompt, _deadline: Deadline) -> Reply:
        await asyncio.sleep(self._seconds)
        return Reply("")


def wrapped(fn: Callable[..., Any], config: dict[str, Any], model: Any) -> Any:
    """*fn* with the middleware around it."""
    return QueryMiddleware(config, client=model).wrap(fn)


def check(wrapped_search: Any, *, searches: int) -> None:
    """Make sure that what is measured does all of its work: every variant searched, nothing degraded."""
    for question in QUESTIONS[:3]:
        came = wrapped_search.retrieve(question)
        if came.status != "full" or came.trace.searches != searches:
            raise RuntimeError(f"{came.trace.searches} searches instead of {searches}, {came.degradations}")


def with_options(**options: Any) -> dict[str, Any]:
    """`MULTI_QUERY` with *options* over it."""
    return {**MULTI_QUERY, **options}
