"""An index and a model with any system around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from qtmiddleware.config import Config
from qtmiddleware.evaluation import (
    BASELINE,
    DEPTH,
    MEASURED,
    TOP_K,
    Comparison,
    Dataset,
    Progress,
    Question,
    Run,
    System,
    measure,
    run_of,
)
from qtmiddleware.evaluation.bench.cached_embedder import CachedEmbedder
from qtmiddleware.protocols import Embedder, LanguageModel, Store
from qtmiddleware.types import Retrieval
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.wrapped import Wrapped


@dataclass(frozen=True, slots=True)
class Bench:
    """An index, an embedder and a model, which any system can be made of."""

    store: Store = field(repr=False)
    embedder: Embedder = field(repr=False)
    model: LanguageModel

    def wrapped(self, settings: Mapping[str, Any]) -> Wrapped[..., Any]:
        """The search of the index with the middleware of *settings* around it."""
        wrapped: Any = QueryMiddleware(
            config_of(settings), client=self.model, store=self.store, embedder=self.embedder
        ).retriever
        return wrapped  # type: ignore[no-any-return]

    def retrieve(self, settings: Mapping[str, Any], question: Question) -> Retrieval:
        """What the system of *settings* finds for one question."""
        return self.wrapped(settings).retrieve(question.text, top_k=TOP_K, history=question.history)

    def system(self, settings: Mapping[str, Any], top_k: int = TOP_K) -> System:
        """The system of *settings*, to be measured, one question at a time.

        Vectors and replies that were kept take no time now; what they took at first is part of the time added.
        """
        wrapped = self.wrapped(settings)

        def run(question: Question) -> Run:
            with self._replaying() as replayed:
                found = wrapped.retrieve(question.text, top_k=top_k, history=question.history)
            measured = run_of(found)
            # The question itself is embedded in a plain search too.
            beyond = sum(replayed.values()) - replayed.get(found.variants[0].text, 0.0)
            return replace(measured, seconds_added=(measured.seconds_added or 0.0) + beyond)

        return run

    def _replaying(self) -> AbstractContextManager[Mapping[str, float]]:
        return self.embedder.replaying() if isinstance(self.embedder, CachedEmbedder) else nullcontext({})

    def measure(
        self,
        data: Dataset,
        systems: Mapping[str, Mapping[str, Any]],
        *,
        deep: bool = False,
        notes: Sequence[str] = (),
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Comparison:
        """Every one of the *systems* on every question of *data*, measured against the raw query.

        With *deep* each is asked once more, for a hundred passages, which R@100 is measured by.
        """
        return measure(
            {name: self.system(settings) for name, settings in systems.items()},
            data,
            baseline=BASELINE,
            deep={name: self.system(settings, DEPTH) for name, settings in systems.items()} if deep else None,
            notes=notes,
            seed=seed,
            progress=progress,
        )


def config_of(settings: Mapping[str, Any]) -> Config:
    """The config under which a system of these *settings* is measured, whatever the environment sets.

    A model that fails is asked all the same: what is measured is the system, not the outage before.
    """
    return Config.load(MEASURED, environ={}).overridden(settings).overridden({"breaker": {"enabled": False}})
