"""A data set, its index and a model, with every system of a comparison around them."""

from __future__ import annotations

from qtmiddleware.evaluation.bench.bench import (
    CACHE,
    Bench,
    OpenedBench,
    ask_ahead,
    build_config,
    build_index,
    open_bench,
    open_index,
    open_model,
)
from qtmiddleware.evaluation.bench.caches import CachedEmbedder, CachedModel
from qtmiddleware.evaluation.bench.recordings import EstimatedModel

__all__ = [
    "CACHE",
    "Bench",
    "CachedEmbedder",
    "CachedModel",
    "EstimatedModel",
    "OpenedBench",
    "ask_ahead",
    "build_config",
    "build_index",
    "open_bench",
    "open_index",
    "open_model",
]
