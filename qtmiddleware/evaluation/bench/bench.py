"""An index of a data set and a model, with any system around them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

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
from qtmiddleware.evaluation.bench.caches import CachedEmbedder
from qtmiddleware.protocols import Embedder, LanguageModel, Store
from qtmiddleware.providers.stores import SQLiteStore
from qtmiddleware.types import Retrieval
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.wrapped import Wrapped

BATCH: Final = 64
"""Passages that are embedded and stored at a time."""


@dataclass(frozen=True, slots=True)
class Bench:
    """An index, an embedder and a model, which any system can be made of."""

    store: Store = field(repr=False)
    embedder: Embedder = field(repr=False)
    model: LanguageModel

    def wrapped(self, settings: Mapping[str, Any]) -> Wrapped[..., Any]:
        """Return the search of the index with the middleware of *settings* around it."""
        wrapped: Any = QueryMiddleware(
            config_of(settings), client=self.model, store=self.store, embedder=self.embedder
        ).retriever
        return wrapped  # type: ignore[no-any-return]

    def retrieve(self, settings: Mapping[str, Any], question: Question) -> Retrieval:
        """Return what the system of *settings* finds for one question."""
        return self.wrapped(settings).retrieve(question.text, top_k=TOP_K, history=question.history)

    def system(self, settings: Mapping[str, Any], top_k: int = TOP_K) -> System:
        """Return the system of *settings*, to be measured one question at a time.

        Vectors and replies that were kept take no time now; what they took at first is part of the time added.
        """
        wrapped = self.wrapped(settings)

        def run(question: Question) -> Run:
            with self._record_replays() as replayed:
                found = wrapped.retrieve(question.text, top_k=top_k, history=question.history)
            measured = run_of(found)
            # The question itself is embedded in a plain search too.
            beyond = sum(replayed.values()) - replayed.get(found.variants[0].text, 0.0)
            return replace(measured, seconds_added=(measured.seconds_added or 0.0) + beyond)

        return run

    def _record_replays(self) -> AbstractContextManager[Mapping[str, float]]:
        return self.embedder.record_replays() if isinstance(self.embedder, CachedEmbedder) else nullcontext({})

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
        """Measure every one of the *systems* on every question of *data* against the raw query.

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
    """Return the config under which a system of these *settings* is measured, whatever the environment sets.

    A model that fails is asked all the same: what is measured is the system, not the outage before.
    """
    return Config.load(MEASURED, environ={}).overridden(settings).overridden({"breaker": {"enabled": False}})


def build_index(
    data: Dataset,
    path: str | Path,
    embedder: Embedder,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> SQLiteStore:
    """Embed the passages of *data* and store them at *path*; *progress* receives how many of how many are done."""
    store = SQLiteStore(path, embedding_model=embedder.name, dimension=embedder.dimension)
    try:
        for start in range(0, len(data.passages), BATCH):
            batch = data.passages[start : start + BATCH]
            store.upsert(batch, embedder.embed([passage.text for passage in batch]))
            if progress is not None:
                progress(min(start + BATCH, len(data.passages)), len(data.passages))
    except BaseException:
        store.close()
        raise
    return store


def open_index(data: Dataset, folder: Path, embedder: Embedder, *, progress: Progress | None = None) -> SQLiteStore:
    """Open the index of *data* in *folder*, built where it is not there or was not finished.

    Its file is named by a hash of the passages and the embedding model, and nothing else is ever written to it: with
    as many passages as *data* has it is complete. Two processes may build it at once.
    """
    passages = replace(data, questions=(), qrels={}).data_hash
    name = hashlib.sha256(f"{passages}\n{embedder.name}\n{embedder.dimension}".encode()).hexdigest()[:16]
    path = folder / f"index-{name}.sqlite"
    store = SQLiteStore(path, embedding_model=embedder.name, dimension=embedder.dimension)
    if store.count() == len(data.passages):
        return store
    store.close()

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress("embedding passages", done, total)

    return build_index(data, path, embedder, progress=report)
