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
from tests.support.ingest_world import SENTENCES, Counting, World

NAMES = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=700)


def documents_of(world: World) -> set[str]:
    return {id_.rpartition("#")[0] for id_ in world.ids()}


@given(NAMES, NAMES)
def test_different_files_have_different_names_of_short_printable_ascii(
    one: str, other: str
) -> None:
    one, other = (text.encode("utf-8", "replace").decode() for text in (one, other))
    names = build_document_name(one), build_document_name(other)
    assert (names[0] == names[1]) == (one == other)
    assert all(name.isascii() and name.isprintable() for name in names)
    assert max(map(len, names)) <= LONGEST_NAME


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("a.txt", "a.txt"),
        ("sub/my notes.md", "sub/my notes.md"),
        ("C#~1%.txt", "C%23%7E1%25.txt"),
        ("é.md", "%C3%A9.md"),
    ],
)
def test_plain_names_stay_readable(source: str, name: str) -> None:
    assert build_document_name(source) == name


def test_odd_file_names_are_ingested(empty: World) -> None:
    names = ["Übersicht (neu).txt", "文書.md", "#1%~.txt", "a" * 240 + ".txt"]
    if os.name == "posix":
        names.append(os.fsdecode(b"not utf-8 \xff.txt"))
    for name in names:
        empty.write(name, f"This is the text of a document with {len(name)} letters in its name.")
    assert empty.ingest().added == len(names)
    assert all(id_.isascii() for id_ in empty.ids())
    assert "Übersicht (neu).txt" in {
        metadata["source"] for _, metadata, _ in empty.passages().values()
    }
    assert empty.ingest().unchanged == len(names)


def test_a_file_a_folder_and_a_glob_can_be_ingested(world: World) -> None:
    assert world.ingest(world.docs / "alpha.txt").documents == 1
    assert documents_of(world) == {"alpha.txt"}
    other = World(world.folder / "other")
    assert other.ingest(world.docs / "**" / "*.md").documents == 1
    assert documents_of(other) == {"sub/beta.md"}


def test_equal_names_of_two_data_paths_do_not_meet(world: World) -> None:
    other = World(world.folder / "other")
    other.write("alpha.txt", "A wholly different alpha.")
    world.ingest()
    before = world.passages()
    world.ingest(other.docs)
    held = world.passages()
    assert before.items() <= held.items()
    (own,) = held.keys() - before.keys()
    assert own.startswith("alpha.txt~")
    # And so it stays, also when the other one goes.
    (world.docs / "alpha.txt").unlink()
    world.ingest()
    assert world.ingest(other.docs).unchanged == 1
    assert own in world.ids()


def test_deletions_touch_no_other_data_path(world: World) -> None:
    other = World(world.folder / "other")
    other.write("one.txt", "This is number one of the other folder.")
    other.write("two.txt", "This is number two of the other folder.")
    world.ingest()
    world.ingest(other.docs)
    (other.docs / "one.txt").unlink()
    (world.docs / "alpha.txt").unlink()
    assert world.ingest(other.docs).removed == 1
    assert {"two.txt", "alpha.txt", "gamma.txt"} <= documents_of(world)


def test_a_file_in_two_data_paths_is_there_once(world: World) -> None:
    world.ingest()
    before = world.passages()
    embed = Counting()
    report = world.ingest(world.docs / "*.txt", embed=embed)
    assert (report.unchanged, report.added, embed.calls) == (2, 0, 0)
    assert world.passages() == before
    assert world.ingest().removed == 0
    assert world.passages() == before


def test_a_relative_and_an_absolute_data_path_are_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ingest()
    monkeypatch.chdir(world.folder)
    assert world.ingest("docs").unchanged == 3
    assert world.ingest("./docs/../docs/").unchanged == 3


@pytest.mark.parametrize("pattern", ["", "*.txt", "**/*.txt"])
@pytest.mark.parametrize("leads_to", ["credentials", "alpha.txt", "nowhere.txt"])
def test_a_link_to_a_file_that_is_found_in_a_folder_is_skipped_and_told(
    world: World, tmp_path: Path, pattern: str, leads_to: str
) -> None:
    before = world.ingest(world.docs / pattern).documents
    (tmp_path / "credentials").write_text("The password is swordfish.")
    (world.docs / "link.txt").symlink_to(
        (tmp_path if leads_to == "credentials" else world.docs) / leads_to
    )
    report = world.ingest(world.docs / pattern)
    (skipped,) = report.skipped
    assert (Path(skipped.path).name, report.documents) == ("link.txt", before)
    assert skipped.reason == "cannot be opened (it is a link; name the file it leads to)"
    assert "swordfish" not in str(world.passages())


def test_a_link_that_is_put_there_while_it_is_read_is_skipped(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").write_text("the precious password")
    found = world.docs / "alpha.txt"
    read = open_regular_file

    def swap_and_open(path: Path, **options: Any) -> Any:
        if path == found and not found.is_symlink():
            found.unlink()
            found.symlink_to(tmp_path / "credentials")
        return read(path, **options)

    monkeypatch.setattr(sources, "open_regular_file", swap_and_open)
    report = world.ingest()
    assert [Path(one.path).name for one in report.skipped] == ["alpha.txt"]
    assert "precious" not in repr(world.passages())


def test_a_link_that_is_named_itself_is_read(world: World, tmp_path: Path) -> None:
    (tmp_path / "real").write_text(SENTENCES["gamma"])
    (tmp_path / "link.txt").symlink_to(tmp_path / "real")
    report = world.ingest(tmp_path / "link.txt")
    assert (report.added, report.skipped) == (1, ())


def test_a_document_that_a_pattern_finds_on_several_ways_is_counted_once(world: World) -> None:
    world.write("other/gamma.txt", SENTENCES["gamma"])
    assert world.ingest(world.docs / "*" / ".." / "alpha.txt").added == 1
