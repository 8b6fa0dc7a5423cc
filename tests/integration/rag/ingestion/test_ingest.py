"""What an ingest promises of one data path, run after run."""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.errors import ConfigError, EmbeddingError, StoreError
from qtmiddleware.kit.index.ingestion import Progress, ingest
from qtmiddleware.kit.stores import MemoryStore
from tests.support.ingest_world import DIMENSION, SENTENCES, Counting, World, hashed


def counts(report: Any) -> tuple[int, int, int, int]:
    return report.added, report.changed, report.unchanged, report.removed


def test_documents_become_passages_that_say_where_they_stand(world: World) -> None:
    report = world.ingest()
    assert counts(report) == (3, 0, 0, 0)
    held = world.passages()
    assert report.documents == 3
    assert report.chunks == report.written == len(held) > 30
    text, metadata, vector = held["sub/beta.md#1"]
    assert metadata["source"] == "sub/beta.md"
    assert metadata["title"] == "All about beta"
    assert metadata["chunk"] == 1
    document = (world.docs / "sub" / "beta.md").read_text()
    assert document[metadata["start"] : metadata["end"]] == text
    assert vector == struct.pack(f"<{DIMENSION}f", *hashed([text])[0])
    assert held["alpha.txt#0"][1]["title"] == "alpha"


@pytest.mark.parametrize(
    ("opening", "title"),
    [
        ("---\n# a comment\ntags: [a]\n---\n\n# The title\n", "The title"),
        ("```sh\n# a comment\n```\n\n## The title ##\n", "The title"),
        ("~~~\n# a comment\n", "notes"),
        ("---\n\n# The title\n\n---\n", "The title"),
        ("No heading\n", "notes"),
    ],
)
def test_the_title_of_markdown_is_its_first_heading_and_no_comment(
    empty: World, opening: str, title: str
) -> None:
    empty.write("notes.md", f"{opening}Some text.")
    empty.ingest()
    assert empty.passages()["notes.md#0"][1]["title"] == title


def test_a_second_run_leaves_everything_alone(world: World) -> None:
    world.ingest()
    before = world.passages()
    embed = Counting()
    report = world.ingest(embed=embed)
    assert counts(report) == (0, 0, 3, 0)
    assert (report.written, report.embedded, embed.calls) == (0, 0, 0)
    assert report.chunks == len(before)
    assert world.passages() == before


def test_a_changed_document_replaces_its_passages(world: World) -> None:
    world.ingest()
    world.write("alpha.txt", "Alpha is short now.")
    report = world.ingest()
    assert counts(report) == (0, 1, 2, 0)
    assert [id_ for id_ in world.ids() if id_.startswith("alpha")] == ["alpha.txt#0"]
    assert world.passages() == world.clean()


def test_what_is_appended_is_all_that_is_embedded(world: World) -> None:
    world.ingest()
    before = len(world.ids())
    world.write("alpha.txt", SENTENCES["alpha"] + " One more sentence stands at the end.")
    report = world.ingest()
    # The last chunk may have grown, the ones before it are as they were.
    assert report.embedded <= 2 + len(world.ids()) - before
    assert world.passages() == world.clean()


def test_a_deleted_document_leaves(world: World) -> None:
    world.ingest()
    (world.docs / "alpha.txt").unlink()
    assert counts(world.ingest()) == (0, 0, 2, 1)
    assert {id_.partition("#")[0] for id_ in world.ids()} == {"sub/beta.md", "gamma.txt"}


def test_a_renamed_document_is_not_embedded_again(world: World) -> None:
    world.ingest()
    (world.docs / "alpha.txt").rename(world.docs / "omega.txt")
    report = world.ingest()
    assert counts(report) == (1, 0, 2, 1)
    assert report.embedded == 0
    assert report.reused == report.written > 10
    assert world.passages() == world.clean()


def test_a_store_that_was_deleted_gets_everything_back_without_embedding(world: World) -> None:
    world.ingest()
    before = world.passages()
    for file in world.index.parent.glob("it.sqlite*"):
        if file.suffix != ".ingest":
            file.unlink()
    embed = Counting()
    report = world.ingest(embed=embed)
    assert embed.calls == 0
    assert report.written == len(before)
    assert world.passages() == before


def test_passages_that_a_lost_ledger_knew_of_are_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.ingest()
    assert caplog.text == ""
    held = len(world.ids())
    world.index.with_name(f"{world.index.name}.ingest").unlink()
    world.ingest()
    (record,) = [it for it in caplog.records if it.levelno == logging.WARNING]
    assert f"holds {held} passages" in record.getMessage()
    caplog.clear()
    world.ingest()
    assert caplog.text == ""


def test_another_chunk_size_cuts_everything_anew(world: World) -> None:
    world.ingest()
    report = world.ingest(config={"chunkSize": 300})
    assert counts(report) == (0, 3, 0, 0)
    assert max(len(text) for text, _, _ in world.passages().values()) > 200
    assert world.passages() == world.clean(config={"chunkSize": 300})


def test_an_index_of_another_model_is_refused_and_stays(world: World) -> None:
    world.ingest()
    before = world.passages()
    with pytest.raises(StoreError, match="hashed"):
        world.ingest(name="other")
    assert world.passages() == before


def test_a_new_store_of_another_model_holds_no_vector_of_the_old_one(world: World) -> None:
    world.ingest()
    world.index.unlink()
    embed = Counting()
    report = world.ingest(embed=embed, name="other")
    assert report.embedded == len(embed.texts) == len(world.ids()) == report.chunks


def test_what_cannot_be_read_is_reported_by_name_and_skipped(world: World) -> None:
    world.write("bad.txt", b"\x00\x01\x02" * 50)
    world.write("torn.pdf", b"%PDF-1.4 and then nothing of the kind")
    report = world.ingest()
    skipped = [(Path(it.path).name, it.reason.partition(" (")[0]) for it in report.skipped]
    assert skipped == [("bad.txt", "binary"), ("torn.pdf", "damaged")]
    assert not report.all_skipped
    assert {id_.partition("#")[0] for id_ in world.ids()} == {
        "alpha.txt",
        "sub/beta.md",
        "gamma.txt",
    }


def test_a_document_that_became_unreadable_keeps_what_was_indexed_of_it(world: World) -> None:
    world.ingest()
    before = world.passages()
    world.write("alpha.txt", b"\x00" * 100)
    report = world.ingest()
    assert counts(report) == (0, 0, 2, 0)
    assert report.documents == 3
    assert world.passages() == before
    world.write("alpha.txt", SENTENCES["alpha"])
    assert counts(world.ingest()) == (0, 0, 3, 0)


def test_all_documents_unreadable_is_told(empty: World) -> None:
    empty.write("a.txt", b"")
    empty.write("b.txt", b"\x00\x00")
    report = empty.ingest()
    assert report.all_skipped
    assert (report.documents, report.chunks, len(report.skipped)) == (0, 0, 2)


def test_without_a_data_path_nothing_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        ingest(config={"indexPath": str(tmp_path / "i.sqlite")}, embedder=hashed)
    assert raised.value.path == "dataPath"
    assert list(tmp_path.iterdir()) == []


def test_a_data_path_without_documents_changes_nothing(world: World) -> None:
    world.ingest()
    before = world.passages()
    for path in (
        world.docs / "alpha.txt",
        world.docs / "gamma.txt",
        world.docs / "sub" / "beta.md",
    ):
        path.unlink()
    with pytest.raises(ConfigError):
        world.ingest()
    assert world.passages() == before


@pytest.mark.parametrize(
    "embed",
    [
        lambda texts: hashed(texts)[:-1],
        lambda texts: [[float("nan")] * DIMENSION for _ in texts],
        lambda texts: [[1e300] * DIMENSION for _ in texts],
    ],
)
def test_vectors_that_are_not_sound_are_refused_and_not_kept(world: World, embed: Any) -> None:
    with pytest.raises(EmbeddingError):
        world.ingest(embed=embed)
    assert world.ids() == set()
    world.ingest()
    assert world.passages() == world.clean()


def test_progress_tells_of_documents_and_chunks(world: World) -> None:
    told: list[Progress] = []
    report = world.ingest(progress=told.append)
    last = {one.stage: one for one in told}
    assert list(last) == ["reading", "embedding", "publishing"]
    assert (last["reading"].done, last["reading"].total) == (3, 3)
    assert last["embedding"].done == last["embedding"].total == report.embedded
    assert last["publishing"].done == last["publishing"].total == report.written


def test_log_lines_have_counts_and_no_text(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "qtmiddleware")
    world.ingest()
    lines = {record.event: record.meta for record in caplog.records if hasattr(record, "event")}
    assert lines["Loaded documents"]["count"] == 3
    assert (
        lines["Created chunks"]["count"]
        == lines["Persisted vector index"]["chunks"]
        == len(world.ids())
    )
    assert "says something" not in caplog.text


def test_a_store_in_memory_knows_what_it_holds(world: World) -> None:
    store = MemoryStore(embedding_model="hashed", dimension=DIMENSION)
    world.ingest(store=store)
    (world.docs / "alpha.txt").unlink()
    embed = Counting()
    report = world.ingest(store=store, embed=embed)
    assert counts(report) == (0, 0, 2, 1)
    assert embed.calls == 0
    assert store.count() == report.chunks
    assert not world.index.parent.exists()
    store.close()
