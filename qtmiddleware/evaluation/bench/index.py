"""The index of a data set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from qtmiddleware.evaluation import Dataset, Progress
from qtmiddleware.protocols import Embedder
from qtmiddleware.providers.stores import SQLiteStore

BATCH: Final = 64


def build_index(
    data: Dataset,
    path: str | Path,
    embedder: Embedder,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> SQLiteStore:
    """The passages of *data* embedded and stored at *path*; *progress* is told how many of how many are done."""
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
    """The index of *data* in *folder*, built where it is not there or was not finished.

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

    def told(done: int, total: int) -> None:
        if progress is not None:
            progress("embedding passages", done, total)

    return build_index(data, path, embedder, progress=told)
