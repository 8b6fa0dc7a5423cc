"""The passages of a bench, embedded by several processes with the real model."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.embedding import MiniLMEmbedder
from qtmiddleware.kit.engines import Engine, LocalEngine
from qtmiddleware.kit.evaluation import Dataset, chosen
from qtmiddleware.kit.evaluation.bench.bench import BATCH
from qtmiddleware.protocols import Passage
from tests.support.bench_world import CountingEmbedder, bridges_data, open_bench, write_data

pytestmark = pytest.mark.thorough


class NoEngine:
    """An engine that nothing may be sent to."""

    def map(self, build: Any, batches: Any) -> Any:
        raise AssertionError(f"{build} was sent to an engine")

    def close(self) -> None:
        """There is nothing to end."""


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are embedded in this process."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "QTM_LLM_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    texts: list[str] = []
    embed = MiniLMEmbedder.embed

    def note(self: MiniLMEmbedder, given: Sequence[str]) -> list[list[float]]:
        texts.extend(given)
        return embed(self, given)

    monkeypatch.setattr(MiniLMEmbedder, "embed", note)
    return texts


@pytest.fixture
def data() -> Dataset:
    """Three pages of passages; one text is in two of them."""
    bridges = bridges_data()
    many = [
        Passage(f"lamp{at}", f"Lamp {at} of the quay was lit at dusk.") for at in range(2 * BATCH)
    ]
    return replace(bridges, passages=(*bridges.passages, *many, replace(many[0], id="again")))


def run(
    data: Dataset, folder: Path, engine: Engine | None
) -> tuple[Any, list[Any], list[tuple[str, int, int]]]:
    """The figures, the rows of the index, and the progress that was told."""
    told: list[tuple[str, int, int]] = []
    source = write_data(folder / "bridges", data)
    cache = folder / "cache"
    with open_bench(
        source,
        settings=Settings(),
        cache=cache,
        engine=engine,
        progress=lambda *step: told.append(step),
    ) as opened:
        found = opened.measure(chosen(["rules"]), deep=True)
    [index] = cache.glob("index-*.sqlite")
    with closing(sqlite3.connect(index)) as connection:
        rows = connection.execute("SELECT * FROM passages ORDER BY row").fetchall()
    return (
        {name: (found[name].per_query, found[name].means) for name in ("raw", "rules")},
        rows,
        told,
    )


def test_two_workers_give_the_figures_and_the_index_of_one(
    data: Dataset, embedded: list[str], tmp_path: Path
) -> None:
    texts = {passage.text for passage in data.passages}
    figures, rows, _ = run(data, tmp_path / "one", None)
    assert texts <= set(embedded)
    embedded.clear()
    shared, shared_rows, told = run(data, tmp_path / "two", LocalEngine(workers=2))
    assert (shared, shared_rows) == (figures, rows)
    assert len(rows) == len(data.passages)
    assert embedded, "the questions are embedded here"
    assert not texts & set(embedded), "no passage is"
    assert ("embedding by the engine", len(texts), len(texts)) in told


def test_an_embedder_that_cannot_be_sent_embeds_in_this_process(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inner = CountingEmbedder()
    monkeypatch.setattr(
        "qtmiddleware.kit.evaluation.bench.bench.find_embedder", lambda *_, **__: inner
    )
    run(data, tmp_path, NoEngine())
    assert {passage.text for passage in data.passages} <= set(inner.texts)
