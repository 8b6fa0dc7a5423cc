"""Send the prompts of a bench to a batch service, and cache the replies for the bench."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qtmiddleware.kit.bulk.batch.model import BatchModel
from qtmiddleware.kit.bulk.batch.transforming import REPLAYED
from qtmiddleware.kit.evaluation import TOP_K
from qtmiddleware.kit.evaluation.bench.bench import (
    BenchOptions,
    OpenedBench,
    build_config,
    open_bench,
)
from qtmiddleware.kit.evaluation.bench.recordings import EstimatedModel
from qtmiddleware.wrapping.query_middleware import QueryMiddleware


@dataclass(frozen=True, slots=True)
class BenchPass:
    """Sends a batch model the prompts of several systems for a data set, and caches the replies.

    Attributes:
        systems: The settings of each system, by the system's name.
        data: The folder of the data set.
        options: The options of the bench. Their `model_ms` counts as the time of each reply,
            because a batch does not report times.
    """

    systems: Mapping[str, Mapping[str, Any]]
    data: Path
    options: BenchOptions = field(repr=False)

    def __call__(self, model: BatchModel) -> Iterator[None]:
        """Send *model* the prompts of all systems for all questions. Yield after each question."""
        # The cache must wrap the estimates, because it also keeps the time of a reply.
        timed = EstimatedModel(model, model.name, self.options.model_ms / 1e3)
        with open_bench(self.data, replace(self.options, client=timed)) as opened:
            for settings in self.systems.values():
                if build_config(settings).settings.transformation_type != "none":
                    yield from _send_prompts(opened, settings)


def _send_prompts(opened: OpenedBench, settings: Mapping[str, Any]) -> Iterator[None]:
    """Send the bench's model the prompts of one system for all questions.

    Yield after each question. *settings* are the system's settings.
    """
    config = build_config(settings)
    is_gated = config.settings.escalation.mode == "auto"
    wrapped = opened.bench.build_wrapped_function(settings)
    with QueryMiddleware(config.overridden(REPLAYED), client=opened.bench.model) as middleware:
        for question in opened.data.questions:
            # A gate needs the search results to decide about the model call.
            if is_gated and not question.history:
                wrapped.retrieve(question.text, top_k=TOP_K, history=question.history)
            else:
                middleware.transform(question.text, history=question.history)
            yield
