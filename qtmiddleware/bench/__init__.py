"""A data set, its index and a model, with every system of a comparison around them."""

from __future__ import annotations

from qtmiddleware.bench.ahead import ask_ahead
from qtmiddleware.bench.bench import Bench, config_of
from qtmiddleware.bench.cached_embedder import CachedEmbedder
from qtmiddleware.bench.cached_model import CachedModel
from qtmiddleware.bench.estimates import EstimatedModel
from qtmiddleware.bench.index import build_index, open_index
from qtmiddleware.bench.opening import CACHE, OpenedBench, asked_model, open_bench

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
