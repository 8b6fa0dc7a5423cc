"""The model's part of a bench, asked by batches: the replies end in the bench's own cache."""

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
    """Puts all that *systems* ask a model to one that is asked by batches; what that answers is kept in the cache.

    The bench of *data* is opened by *options*. A reply that came by batch counts with the
    `model_ms` of the options, as nobody knows how long it took.
    """

    systems: Mapping[str, Mapping[str, Any]]
    data: Path
    options: BenchOptions = field(repr=False)

    def __call__(self, model: BatchModel) -> Iterator[None]:
        """Yields after each question of each system."""
        # Around the model and within the cache, which keeps the time.
        timed = EstimatedModel(model, model.name, self.options.model_ms / 1e3)
        with open_bench(self.data, replace(self.options, client=timed)) as opened:
            for settings in self.systems.values():
                if build_config(settings).settings.transformation_type != "none":
                    yield from _ask(opened, settings)


def _ask(opened: OpenedBench, settings: Mapping[str, Any]) -> Iterator[None]:
    config = build_config(settings)
    gated = config.settings.escalation.mode == "auto"
    wrapped = opened.bench.wrap(settings)
    with QueryMiddleware(config.overridden(REPLAYED), client=opened.bench.model) as middleware:
        for question in opened.data.questions:
            if gated and not question.history:
                # A gate decides by what is found.
                wrapped.retrieve(question.text, top_k=TOP_K, history=question.history)
            else:
                middleware.transform(question.text, history=question.history)
            yield
