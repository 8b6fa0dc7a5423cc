"""Open a data set with its index and a model, and measure systems on it."""

from __future__ import annotations

from qtmiddleware.kit.evaluation.bench.bench import (
    CACHE,
    Bench,
    BenchOptions,
    OpenedBench,
    ask_ahead,
    build_config,
    build_index,
    open_bench,
    open_index,
    open_model,
)
from qtmiddleware.kit.evaluation.bench.caches import CachedEmbedder, CachedModel
from qtmiddleware.kit.evaluation.bench.function import (
    READING,
    Forecast,
    FunctionSource,
    forecast_searches,
)
from qtmiddleware.kit.evaluation.bench.recordings import EstimatedModel

__all__ = [
    "CACHE",
    "READING",
    "Bench",
    "BenchOptions",
    "CachedEmbedder",
    "CachedModel",
    "EstimatedModel",
    "Forecast",
    "FunctionSource",
    "OpenedBench",
    "ask_ahead",
    "build_config",
    "build_index",
    "forecast_searches",
    "open_bench",
    "open_index",
    "open_model",
]
