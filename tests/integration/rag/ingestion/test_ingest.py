"""What an ingest promises of one data path, run after run."""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.errors import ConfigError, StoreError
from qtmiddleware.kit.index.ingestion import Progress, ingest
from qtmiddleware.kit.stores import MemoryStore
from tests.support.ingest_world import DIMENSION, SENTENCES, Counting, World, hashed


def counts(report: Any) -> tuple[int, int, int, int]:
    return report.added, report.changed, report.unchanged, report.removed


def test_documents_become_passages_that_say_where_they_stand(world: World) -> None:
    report = world.ingest()
    held = world.passages()
    assert counts(report) == (3, 0, 0, 0)
    assert (report.documents, report.chunks, report.written) == (3, len(held), len(held))
    text, metadata, vector = held["sub/beta.md#1"]
    document = (world.docs / "sub" / "beta.md").read_text()
    assert document[metadata.pop("start") : metadata.pop("end")] == text
    assert metadata == {"source": "sub/beta.md", "title": "All about beta", "chunk": 1}
    assert vector == struct.pack(f"<{DIMENSION}f", *hashed([text])[0])
    assert held["alpha.txt#0"][1]["title"] == "alpha"


def test_the_title_of_markdown_is_its_first_heading(empty: World) -> None:
    empty.write("notes.md", "---\ntags: [a]\n---\n\n## The title ##\nSome text.")
    empty.write("plain.md", "Some text.")
    empty.ingest()
    held = empty.passages()
    assert held["notes.md#0"][1]["title"] == "The title"
    assert held["plain.md#0"][1]["title"] == "plain"


def test_each_run_brings_in_what_changed_since_the_last_one_and_embeds_nothing_twice(
    world: World,
) -> None:
    def check(wanted: tuple[int, int, int, int], most_embedded: int) -> None:
        embed = Counting()
        report = world.ingest(embed=embed)
        assert counts(report) == wanted
        assert report.embedded == len(embed.texts) <= most_embedded
        assert report.chunks == len(world.ids())
        assert world.passages() == world.clean()

    world.ingest()
    check((0, 0, 3, 0), 0)
    # The last chunk may have grown, the ones before it are as they were.
    world.write("alpha.txt", SENTENCES["alpha"] + " One more sentence stands at the end.")
    check((0, 1, 2, 0), 2)
    world.write("alpha.txt", "Alpha is short now.")
    check((0, 1, 2, 0), 1)
    (world.docs / "gamma.txt").rename(world.docs / "omega.txt")
    check((1, 0, 2, 1), 0)
    (world.docs / "omega.txt").unlink()
    check((0, 0, 2, 1), 0)
    # A store that was deleted gets everything back.
    for file in world.index.parent.glob("it.sqlite*"):
        if file.suffix != ".ingest":
            file.unlink()
    check((0, 2, 0, 0), 0)


def test_another_chunk_size_cuts_everything_anew(world: World) -> None:
    world.ingest()
    assert counts(world.ingest(config={"chunkSize": 300})) == (0, 3, 0, 0)
    assert max(len(text) for text, _, _ in world.passages().values()) > 200
    assert world.passages() == world.clean(config={"chunkSize": 300})


def test_an_index_of_another_model_is_refused_and_a_new_one_holds_no_old_vector(
    world: World,
) -> None:
    world.ingest()
    before = world.passages()
    with pytest.raises(StoreError, match="hashed"):
        world.ingest(name="other")
    assert world.passages() == before
    world.index.unlink()
    embed = Counting()
    assert world.ingest(embed=embed, name="other").embedded == len(embed.texts) == len(before)


def test_what_cannot_be_read_is_told_and_keeps_what_was_indexed_of_it(world: World) -> None:
    world.ingest()
    before = world.passages()
    world.write("alpha.txt", b"\x00" * 100)
    world.write("torn.pdf", b"%PDF-1.4 and then nothing of the kind")
    report = world.ingest()
    skipped = [(Path(it.path).name, it.reason.partition(" (")[0]) for it in report.skipped]
    assert skipped == [("alpha.txt", "binary"), ("torn.pdf", "damaged")]
    assert (counts(report), report.documents, report.all_skipped) == ((0, 0, 2, 0), 3, False)
    assert world.passages() == before
    world.write("alpha.txt", SENTENCES["alpha"])
    assert counts(world.ingest()) == (0, 0, 3, 0)
    assert world.ingest(world.docs / "torn.pdf").all_skipped


def test_a_data_path_without_documents_changes_nothing(world: World, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        ingest(config={"indexPath": str(tmp_path / "new.sqlite")}, embedder=hashed)
    assert raised.value.path == "dataPath"
    assert not (tmp_path / "new.sqlite").exists()
    world.ingest()
    before = world.passages()
    for path in list(world.docs.rglob("*.*")):
        path.unlink()
    with pytest.raises(ConfigError):
        world.ingest()
    assert world.passages() == before


def test_progress_and_log_lines_have_counts_and_no_text(
    world: World,
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[Progress] = []
    caplog.set_level(logging.DEBUG, "qtmiddleware")
    report = world.ingest(progress=told.append)
    last = {it.stage: (it.done, it.total) for it in told}
    chunks = report.chunks
    assert list(last) == ["reading", "embedding", "publishing"]
    assert last == {
        "reading": (3, 3),
        "embedding": (chunks, chunks),
        "publishing": (chunks, chunks),
    }
    lines = {record.event: record.meta for record in caplog.records if hasattr(record, "event")}
    assert lines["Loaded documents"]["count"] == 3
    assert lines["Created chunks"]["count"] == lines["Persisted vector index"]["chunks"] == chunks
    assert "says something" not in caplog.text


def test_a_store_in_memory_takes_all_again_and_writes_no_file(world: World) -> None:
    with MemoryStore(embedding_model="hashed", dimension=DIMENSION) as store:
        for _ in range(2):
            report = world.ingest(store=store)
            assert (report.added, store.count()) == (3, report.chunks)
    assert not world.index.parent.exists()
