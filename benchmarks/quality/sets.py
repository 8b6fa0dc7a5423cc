"""The data sets with their recorded replies, indexes and vectors, all kept under `.tmp/quality`."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from qtmiddleware.kit.embedding import find_embedder
from qtmiddleware.kit.evaluation import Comparison, Dataset
from qtmiddleware.kit.evaluation.bench import open_index
from qtmiddleware.kit.evaluation.compare import measure
from qtmiddleware.kit.evaluation.measures import TOP_K
from qtmiddleware.kit.evaluation.recorded import RecordedModel
from qtmiddleware.kit.evaluation.systems import System, index_system
from qtmiddleware.protocols import Embedder, LanguageModel, Store

MODEL: Final = "all-MiniLM-L6-v2"
KEPT: Final = Path(".tmp/quality")


@dataclass(frozen=True)
class Source:
    """Where the data sets and their recordings lie, and which of them are measured."""

    data: Path
    recordings: Path
    names: tuple[str, ...]
    is_whole: bool = True

    @classmethod
    def of(cls, data: Path, recordings: Path, names: str = "") -> Source:
        """Those of *names*, with commas between them; by default all that were recorded."""
        recorded = sorted(path.stem for path in recordings.glob("*.jsonl"))
        return cls(
            data, recordings, tuple(names.split(",") if names else recorded), is_whole=not names
        )

    def recording(self, name: str) -> Path:
        """The file with the replies of one set: its own, or the one of its name among the recordings."""
        own = self.data / name / "recordings.jsonl"
        return own if own.is_file() else self.recordings / f"{name}.jsonl"

    def hashes(self) -> dict[str, str]:
        """For each set, the head of the sha256 of its files and, where there is one, its recording."""
        return {name: _digest(self.data / name, self.recording(name)) for name in self.names}


def _digest(folder: Path, recording: Path) -> str:
    data = sorted(path for path in folder.rglob("*") if path.suffix in {".jsonl", ".tsv"})
    found = hashlib.sha256()
    for file in [*data, *([recording] if recording.is_file() else ())]:
        found.update(file.read_bytes())
    return found.hexdigest()[:12]


@dataclass(frozen=True)
class Prepared:
    """One data set, ready to be measured: the questions that are asked, the index, and a model where there is one."""

    name: str
    data: Dataset
    store: Store
    embedder: Embedder
    model: LanguageModel

    @property
    def is_conversation(self) -> bool:
        """Whether questions have a history."""
        return any(question.history for question in self.data.questions)

    def measured(self, systems: Mapping[str, Mapping[str, Any]], seed: int) -> Comparison:
        """Every one of the *systems*, by their settings."""
        return measure(self.asking(self.model).with_each(systems), self.data, seed=seed)

    def asking(self, model: LanguageModel) -> System:
        """The search of the index, with *model*."""
        return index_system(self.store, self.embedder, model, top_k=TOP_K)

    def vectors(self, texts: Sequence[str]) -> Any:
        """One row a text, 32-bit floats."""
        import numpy as np

        return np.asarray(self.embedder.embed(texts), dtype=np.float32)


@contextmanager
def prepared(source: Source, name: str) -> Iterator[Prepared]:
    """One set with the questions that were recorded."""
    replies = records(source.recording(name))
    data = Dataset.load(source.data / name).only(replies)
    model = RecordedModel(replies.values(), [question.to_record() for question in data.questions])
    with prepared_with(data, name, model) as one:
        yield one


@contextmanager
def prepared_with(
    data: Dataset, name: str, model: LanguageModel, embedder: Embedder | None = None
) -> Iterator[Prepared]:
    """The data set with any model and, by default, `MODEL`; what is embedded is kept, and so is the index."""
    inner = embedder or find_embedder(MODEL)
    with (
        closing(CachedEmbedder(inner, KEPT / "vectors.sqlite")) as cached,
        open_index(data, KEPT, cached) as store,
    ):
        yield Prepared(name, data, store, cached, model)


class CachedEmbedder:
    """An embedder that embeds each text once, as the same texts are searched by many systems and runs."""

    def __init__(self, inner: Embedder, file: Path) -> None:
        self.name, self.dimension, self._inner = inner.name, inner.dimension, inner
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = sqlite3.connect(file, check_same_thread=False)
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS vectors (text TEXT PRIMARY KEY, vector BLOB)"
        )

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text."""
        known = {text: self._look_up(text) for text in texts}
        missing = [text for text, vector in known.items() if not vector]
        if missing:
            known |= zip(missing, self._inner.embed(missing), strict=True)
            rows = [(self._key(text), array("d", known[text]).tobytes()) for text in missing]
            with self._file:
                self._file.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)
        return [known[text] for text in texts]

    def close(self) -> None:
        """The file is closed."""
        self._file.close()

    def _key(self, text: str) -> str:
        return f"{self.name} {self.dimension} {text}"

    def _look_up(self, text: str) -> list[float]:
        statement = "SELECT vector FROM vectors WHERE text = ?"
        row = self._file.execute(statement, (self._key(text),)).fetchone()
        return [] if row is None else array("d", row[0]).tolist()


def records(file: Path) -> dict[str, dict[str, Any]]:
    """The recorded replies in *file*, by the question's id."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return {record["_id"]: record for record in map(json.loads, filter(str.strip, lines))}
