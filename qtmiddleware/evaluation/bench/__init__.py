"""A data set, its index and a model, with every system of a comparison around them."""

from __future__ import annotations

from qtmiddleware.evaluation.bench.ahead import ask_ahead
from qtmiddleware.evaluation.bench.bench import Bench, config_of
from qtmiddleware.evaluation.bench.cached_embedder import CachedEmbedder
from qtmiddleware.evaluation.bench.cached_model import CachedModel
from qtmiddleware.evaluation.bench.estimates import EstimatedModel
from qtmiddleware.evaluation.bench.index import build_index, open_index
from qtmiddleware.evaluation.bench.opening import CACHE, OpenedBench, asked_model, open_bench

__all__ = [
    "CACHE",
    "Bench",
    "CachedEmbedder",
    "CachedModel",
    "EstimatedModel",
    "OpenedBench",
    "ask_ahead",
    "asked_model",
    "build_index",
    "config_of",
    "open_bench",
    "open_index",
]
