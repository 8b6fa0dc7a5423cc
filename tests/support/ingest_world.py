"""An index of a folder of texts, with a cheap embedder that counts, and an independent look into the store's file."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qtmiddleware.kit.index.ingestion import IngestReport, ingest
from qtmiddleware.providers.embedding import CallableEmbedder

DIMENSION = 8
SENTENCES = {
    name: " ".join(
        f"Sentence {number} of {name} says something about {name} {number * 7}."
        for number in range(60)
    )
    for name in ("alpha", "beta", "gamma")
}


def hashed(texts: list[str]) -> list[list[float]]:
    """A vector a text, out of its hash: the same for the same text and no other."""
    return [
        [byte / 256 + 0.001 for byte in hashlib.sha256(text.encode()).digest()[:DIMENSION]]
        for text in texts
    ]


class Counting:
    """`hashed`, with all texts it was given; *fail_at* is the call that raises."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.texts: list[str] = []
        self.calls = 0
        self.fail_at = fail_at

    def __call__(self, texts: list[str]) -> list[list[float]]:
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError("the embedder is out of order")
        self.texts += texts
        return hashed(texts)


Passages = dict[str, tuple[str, dict[str, Any], bytes]]


def passages_in(index: Path) -> Passages:
    """Everything in a store's file by id, read by SQL alone."""
    if not index.exists():
        return {}
    with sqlite3.connect(index) as run:
        rows = run.execute("SELECT id, text, metadata, vector FROM passages").fetchall()
    run.close()
    return {id_: (text, json.loads(metadata), vector) for id_, text, metadata, vector in rows}


@dataclass
class World:
    """A folder of documents and an index beside it."""

    folder: Path
    docs: Path = field(init=False)
    index: Path = field(init=False)

    def __post_init__(self) -> None:
        self.docs = self.folder / "docs"
        self.index = self.folder / "index" / "it.sqlite"
        self.docs.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def ingest(
        self,
        data_path: Any = None,
        *,
        embed: Any = hashed,
        name: str = "hashed",
        **options: Any,
    ) -> IngestReport:
        config = {
            "indexPath": str(options.pop("index", self.index)),
            "chunkSize": 200,
            "chunkOverlap": 40,
            **options.pop("config", {}),
        }
        embedder = CallableEmbedder(embed, takes_list=True, name=name, dimension=DIMENSION)
        path = data_path if data_path is not None else self.docs
        return ingest(path, config=config, embedder=embedder, **options)

    def passages(self) -> Passages:
        return passages_in(self.index)

    def ids(self) -> set[str]:
        return set(self.passages())

    def clean(self, **options: Any) -> Passages:
        """What a first ingest of the documents as they are now puts into an empty index."""
        with TemporaryDirectory() as folder:
            other = Path(folder) / "clean.sqlite"
            self.ingest(index=other, **options)
            return passages_in(other)
