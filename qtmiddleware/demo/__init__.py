"""The comparison that ships with the project: its own text, its own questions, real vectors, every transformation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from qtmiddleware.evaluation import Comparison, Dataset, Question, Run, compare
from qtmiddleware.llms.recorded import RecordedModel
from qtmiddleware.ports import Embedder, LanguageModel
from qtmiddleware.query_middleware import QueryMiddleware
from qtmiddleware.stores import SQLiteStore
from qtmiddleware.types import Retrieval
from qtmiddleware.wrapped import Wrapped

TOP_K: Final = 10
BASELINE: Final = "raw"
BATCH: Final = 16

_NO_RULES: Final[Mapping[str, Any]] = {"preprocess": {"enabled": False}, "keywordEvidence": {"enabled": False}}

SYSTEMS: Final[Mapping[str, Mapping[str, Any]]] = {
    BASELINE: {"transformationType": "none", **_NO_RULES},
    "preprocessed as text": {
        "transformationType": "none",
        "preprocess": {"applyTo": "text"},
        "keywordEvidence": {"enabled": False},
    },
    "rules": {"transformationType": "none"},
    "rewrite": {"transformationType": "rewrite"},
    "stepback": {"transformationType": "stepback"},
    "decompose": {"transformationType": "decompose"},
    "multi_query": {"transformationType": "multi_query"},
    "hyde": {"transformationType": "hyde"},
    "keywords": {"transformationType": "keywords"},
    "all": {"transformationType": "all"},
    "combined": {"transformationType": "combined"},
    "combined, auto": {"transformationType": "combined", "escalation": {"mode": "auto"}},
}
"""Each system of the comparison, as the settings that make it. The cache is off, so that every call is counted."""


def dataset() -> Dataset:
    """The passages, questions and judgements shipped with the package."""
    return Dataset.load(_data())


def recorded_model() -> RecordedModel:
    """The recorded replies shipped with the package, as a model."""
    questions = [question.to_record() for question in dataset().questions]
    return RecordedModel.from_file(_data() / "recordings.jsonl", questions)


def _data() -> Path:
    return Path(str(files(__package__))) / "data"


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


@dataclass(frozen=True, slots=True)
class Bench:
    """An index and a model with every system of the comparison around them."""

    store: SQLiteStore = field(repr=False)
    embedder: Embedder = field(repr=False)
    model: LanguageModel

    def search(self, vector: Sequence[float], top_k: int = TOP_K) -> list[dict[str, Any]]:
        """The plain retrieval function: the nearest passages of the index."""
        return self.store.search(vector, top_k)

    def wrapped(self, settings: Mapping[str, Any]) -> Wrapped[..., Any]:
        """The plain function with the middleware of *settings* around it."""
        limits = {"llmTimeoutMs": 30_000, "deadlineMs": 60_000}
        middleware = QueryMiddleware({"cache": {"enabled": False}, "limits": limits, **settings}, client=self.model)
        return middleware.wrap(self.search, embed=self.embedder)

    def retrieve(self, system: str, question: Question) -> Retrieval:
        """What one system finds for one question."""
        return self.wrapped(SYSTEMS[system]).retrieve(question.text, top_k=TOP_K, history=question.history)

    def compare(self, data: Dataset, *, progress: Callable[[str, int, int], None] | None = None) -> Comparison:
        """Every system on every question of *data*, measured against the raw query."""
        systems = {name: _system(self.wrapped(settings)) for name, settings in SYSTEMS.items()}
        return compare(systems, data, baseline=BASELINE, progress=progress)


def _system(wrapped: Wrapped[..., Any]) -> Callable[[Question], Run]:
    def run(question: Question) -> Run:
        found = wrapped.retrieve(question.text, top_k=TOP_K, history=question.history)
        return Run(
            ids=tuple(match.id or "" for match in found.matches),
            seconds_added=found.trace.added_ms / 1e3,
            llm_calls=found.trace.llm_calls,
            degraded=found.status == "degraded",
        )

    return run
