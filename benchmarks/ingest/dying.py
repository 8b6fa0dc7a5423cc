"""An ingest in a process of its own that kills itself, with vectors that cost nothing."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from qtmiddleware.kit.index.ingestion import ingest
from qtmiddleware.kit.stores import SQLiteStore
from qtmiddleware.providers.embedders import CallableEmbedder

DIMENSION = 32
MODEL = "hash"
PLACES = ("reading", "embedding", "publishing", "written", "time")
"""Where it can die."""


def hashed(texts: list[str]) -> list[list[float]]:
    """A vector a text, out of its hash."""
    return [
        [byte / 256 + 0.001 for byte in hashlib.sha256(text.encode()).digest()] for text in texts
    ]


def hashing_ingest(docs: Path, index: Path, **options: Any) -> Any:
    """An ingest with vectors that cost nothing."""
    embedder = CallableEmbedder(hashed, name=MODEL, dimension=DIMENSION)
    config = {"indexPath": str(index), "chunkSize": 150, "chunkOverlap": 30}
    return ingest(docs, config=config, embedder=embedder, **options)


class DyingStore(SQLiteStore):
    """The store of every day, in a process that ends right after its write and before anybody noted it."""

    def write(self, passages: Iterable[Any], *, delete: Sequence[str] = ()) -> None:
        super().write(passages, delete=delete)
        die()


def die() -> None:
    """End this process as ``kill -9`` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def worker(docs: Path, index: Path, place: str, number: float) -> None:
    """One ingest that dies at the *number*-th note of the stage *place*, after the write, or after so many seconds."""
    seen = 0

    def listen(step: Any) -> None:
        nonlocal seen
        seen += step.stage == place
        if step.stage == place and seen == number:
            die()

    if place == "time":
        threading.Timer(number, die).start()
    store = (
        DyingStore(index, embedding_model=MODEL, dimension=DIMENSION)
        if place == "written"
        else None
    )
    hashing_ingest(docs, index, progress=listen, store=store)
    os._exit(0)
