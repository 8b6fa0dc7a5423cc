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
    """Sends the prompts of several systems to a batch service, and caches the replies.

    Attributes:
        systems: The settings of each system, by the system's name.
        folder: The folder of the data set.
        options: The options of the bench. A batch service does not report times, so each reply
            counts with the time in `model_ms`.
    """

    systems: Mapping[str, Mapping[str, Any]]
    folder: Path
    options: BenchOptions = field(repr=False)

    def __call__(self, model: BatchModel) -> Iterator[None]:
        """Send the prompts of all systems to *model*. Yield after each question."""
        # The cache must wrap the estimates, because it also keeps the time of a reply.
        timed = EstimatedModel(model, model.name, self.options.model_ms / 1e3)
        with open_bench(self.folder, replace(self.options, client=timed)) as opened_bench:
            for settings in self.systems.values():
                if build_config(settings).settings.transformation_type != "none":
                    yield from _send_prompts(opened_bench, settings)


def _send_prompts(opened_bench: OpenedBench, system_settings: Mapping[str, Any]) -> Iterator[None]:
    """Send the prompts of one system to the bench's model. Yield after each question."""
    config = build_config(system_settings)
    is_gated = config.settings.escalation.mode == "auto"
    wrapped = opened_bench.bench.build_wrapped_function(system_settings)
    with QueryMiddleware(
        config.overridden(REPLAYED), client=opened_bench.bench.model
    ) as middleware:
        for question in opened_bench.dataset.questions:
            # A gate needs the search results to decide about the model call.
            if is_gated and not question.history:
                wrapped.retrieve(question.text, top_k=TOP_K, history=question.history)
            else:
                middleware.transform(question.text, history=question.history)
            yield
