"""The index of a data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from qtmiddleware.evaluation import Dataset
from qtmiddleware.ports import Embedder
from qtmiddleware.stores import SQLiteStore

BATCH: Final = 16


def build_index(
    data: Dataset,
    path: str | Path,
    embedder: Embedder,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> SQLiteStore:
    """The passages of *data* embedded and stored at *path*; *progress* is told how many of how many are done."""
    store = SQLiteStore(path, embedding_model=embedder.name, dimension=embedder.dimension)
    for start in range(0, len(data.passages), BATCH):
        batch = data.passages[start : start + BATCH]
        store.upsert(batch, embedder.embed([passage.text for passage in batch]))
        if progress is not None:
            progress(min(start + BATCH, len(data.passages)), len(data.passages))
    return store
