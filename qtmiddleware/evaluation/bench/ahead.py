"""Asking the model about many questions at once, before each of them is measured alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.evaluation import Dataset, Progress, Question
from qtmiddleware.evaluation.bench.bench import config_of
from qtmiddleware.evaluation.compare import refuse_running_loop
from qtmiddleware.protocols import LanguageModel
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

CONCURRENCY: Final = 8


def ask_ahead(
    model: LanguageModel,
    data: Dataset,
    systems: Mapping[str, Mapping[str, Any]],
    *,
    concurrency: int = CONCURRENCY,
    progress: Progress | None = None,
) -> None:
    """Ask *model*, which keeps its replies, all that *systems* will ask it about *data*, *concurrency* at a time.

    Left out are the questions of which a gate decides, since it decides by what was found before. Where this is
    interrupted, every reply that had come is kept. Raises `ModelError` where none of the first questions is answered:
    what would be measured then is the model's absence. Raises `WrapError` inside a running event loop.
    """
    with suppress(ImportError):
        # To load a client is no part of the time the first replies take.
        import_module("openai")
    refuse_running_loop("ask_ahead")
    asyncio.run(_ask_all(model, data, systems, concurrency, progress))


async def _ask_all(
    model: LanguageModel,
    data: Dataset,
    systems: Mapping[str, Mapping[str, Any]],
    concurrency: int,
    progress: Progress | None,
) -> None:
    for name, settings in systems.items():
        config = config_of(settings)
        if config.settings.transformation_type == "none":
            continue
        middleware = QueryMiddleware(config, client=model)
        gated = config.settings.escalation.mode == "auto"
        questions = [question for question in data.questions if question.history or not gated]
        told = _Told(f"asking: {name}", len(questions), progress)
        # A few at first: a model that is not there is noticed before all of them wait for it.
        failures = await _ask(middleware, questions[:concurrency], concurrency, told)
        if failures and all(failures):
            raise ModelError(
                failures[0],
                f"{model.name} answered none of the first {len(failures)} questions ({failures[0]}); check the key, "
                "llm.baseUrl and the model's name, and see that the service is up",
            )
        await _ask(middleware, questions[concurrency:], concurrency, told)


class _Told:
    """Counts questions for whoever wants to know."""

    def __init__(self, name: str, total: int, progress: Progress | None) -> None:
        self._name = name
        self._total = total
        self._progress = progress
        self._done = 0

    def one_more(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._name, self._done, self._total)


async def _ask(middleware: QueryMiddleware, questions: Sequence[Question], concurrency: int, told: _Told) -> list[str]:
    """Why the model failed on each of the *questions*, as one word; ``""`` where it did not."""
    free = asyncio.Semaphore(concurrency)

    async def one(question: Question) -> str:
        async with free:
            made = await middleware.atransform(question.text, history=question.history)
        told.one_more()
        reasons = [what for stage, what in made.notes if stage.startswith("transform.")]
        return reasons[0] if made.is_empty and reasons else ""

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(question)) for question in questions]
    return [task.result() for task in tasks]
