"""Several data paths in one index, and what documents are called."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.kit.files import open_regular_file
from qtmiddleware.kit.index import sources
from qtmiddleware.kit.index.sources import LONGEST_NAME, build_document_name
from tests.support.ingest_world import Counting, World

NAMES = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=700)


def documents_of(world: World) -> set[str]:
    return {id_.rpartition("#")[0] for id_ in world.ids()}


@given(NAMES, NAMES)
def test_different_files_have_different_names_of_short_printable_ascii(
    one: str,
    other: str,
) -> None:
    one, other = (text.encode("utf-8", "replace").decode() for text in (one, other))
    names = build_document_name(one), build_document_name(other)
    assert (names[0] == names[1]) == (one == other)
    assert all(name.isascii() and name.isprintable() for name in names)
    assert max(map(len, names)) <= LONGEST_NAME


def test_odd_file_names_are_ingested_and_plain_ones_stay_readable(empty: World) -> None:
    names = {"my notes.md": "my notes.md", "#1%~é.txt": "%231%25%7E%C3%A9.txt"}
    names["a" * 240 + ".txt"] = "a" * 240 + ".txt"
    if os.name == "posix":
        names[os.fsdecode(b"no utf-8 \xff.txt")] = "no utf-8 %FF.txt"
    for name in names:
        empty.write(name, f"This is the text of a document with {len(name)} letters in its name.")
    assert empty.ingest().added == len(names)
    assert documents_of(empty) == set(names.values())
    assert "#1%~é.txt" in {metadata["source"] for _, metadata, _ in empty.passages().values()}
    assert empty.ingest().unchanged == len(names)


def test_files_folders_and_patterns_share_an_index_and_a_file_is_in_it_once(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert world.ingest(world.docs / "alpha.txt").documents == 1
    assert world.ingest(world.docs / "**" / "*.md").documents == 1
    assert documents_of(world) == {"alpha.txt", "sub/beta.md"}
    world.ingest()
    before, embed = world.passages(), Counting()
    report = world.ingest(world.docs / "*.txt", embed=embed)
    assert (report.unchanged, report.added, embed.calls) == (2, 0, 0)
    assert world.ingest().removed == 0
    monkeypatch.chdir(world.folder)
    assert world.ingest("./docs/../docs/").unchanged == 3
    # A pattern may find a document on several ways.
    world.write("other/more.txt", "A folder more.")
    assert world.ingest(world.docs / "*" / ".." / "alpha.txt").unchanged == 1
    assert world.passages() == before


def test_equal_names_and_deletions_touch_no_other_data_path(world: World) -> None:
    other = World(world.folder / "other")
    other.write("alpha.txt", "A wholly different alpha.")
    other.write("two.txt", "This is number two of the other folder.")
    world.ingest()
    before = world.passages()
    world.ingest(other.docs)
    assert before.items() <= world.passages().items()
    (own,) = [id_ for id_ in world.ids() - before.keys() if id_.startswith("alpha.txt~")]
    # And so it stays, also when the other one goes.
    (world.docs / "alpha.txt").unlink()
    (other.docs / "two.txt").unlink()
    world.ingest()
    report = world.ingest(other.docs)
    assert (report.unchanged, report.removed) == (1, 1)
    assert documents_of(world) == {own.rpartition("#")[0], "gamma.txt", "sub/beta.md"}


@pytest.mark.parametrize("path", ["sub/beta.md", "sub", "**/*.md"])
def test_a_deleted_file_goes_from_its_folder_however_it_was_last_ingested(
    world: World,
    path: str,
) -> None:
    hidden = world.write("sub/.hidden é%.md", "A hidden file that was named itself.")
    for data_path in (world.docs, world.docs / path, hidden):
        world.ingest(data_path)
    (world.docs / "sub" / "beta.md").unlink()
    assert (world.ingest(world.docs / "alpha.txt").removed, world.ingest().removed) == (0, 1)
    assert documents_of(world) == {"alpha.txt", "gamma.txt", ".hidden %C3%A9%25.md"}


@pytest.mark.parametrize("pattern", ["", "**/*.txt"])
@pytest.mark.parametrize("leads_to", ["../credentials", "alpha.txt", "nowhere.txt"])
def test_a_link_to_a_file_that_is_found_in_a_folder_is_skipped_and_told(
    world: World,
    pattern: str,
    leads_to: str,
) -> None:
    before = world.ingest(world.docs / pattern).documents
    (world.folder / "credentials").write_text("The password is swordfish.")
    link = world.docs / "link.txt"
    link.symlink_to(world.docs / leads_to)
    report = world.ingest(world.docs / pattern)
    (skipped,) = report.skipped
    assert (Path(skipped.path).name, report.documents) == ("link.txt", before)
    assert skipped.reason == "cannot be opened (it is a link; put the file itself there)"
    assert "swordfish" not in str(world.passages())
    # One that is named itself is read.
    if leads_to != "nowhere.txt":
        assert (world.ingest(link).skipped, world.ingest(link).documents) == ((), 1)


def test_a_link_that_is_put_there_while_it_is_read_is_skipped(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (world.folder / "credentials").write_text("the precious password")
    found = world.docs / "alpha.txt"

    def swap_and_open(path: Path, **options: Any) -> Any:
        if path == found and not found.is_symlink():
            found.unlink()
            found.symlink_to(world.folder / "credentials")
        return open_regular_file(path, **options)

    monkeypatch.setattr(sources, "open_regular_file", swap_and_open)
    assert [Path(one.path).name for one in world.ingest().skipped] == ["alpha.txt"]
    assert "precious" not in repr(world.passages())


def test_a_folder_that_is_empty_for_now_loses_nothing_of_another_path(world: World) -> None:
    disk = world.docs / "disk"
    disk.mkdir()
    (disk / "note.txt").write_text("The boiler is in the cellar.")
    world.ingest(disk)
    disk.rename(world.folder / "away")
    disk.mkdir()
    assert world.ingest(world.docs).removed == 0
    disk.rmdir()
    assert world.ingest(world.docs).removed == 1
