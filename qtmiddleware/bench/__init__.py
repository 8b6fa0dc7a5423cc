"""A data set, its index and a model, with every system of a comparison around them."""

from __future__ import annotations

from qtmiddleware.bench.bench import TOP_K, Bench
from qtmiddleware.bench.index import build_index

__all__ = ["TOP_K", "Bench", "build_index"]
