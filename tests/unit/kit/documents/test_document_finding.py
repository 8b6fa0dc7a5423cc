"""Which documents a path means."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.documents import (
    count_unsupported_files_by_extension,
    find_documents,
    format_file_counts,
)

FILES = [
    "a.txt", "b.MD", "c.htm", "d.Pdf", "e.RST", "f.doc", "f.txt.bak", "txt", ".hidden.txt",
    "sub/g.txt", "sub/deep/h.md", ".git/i.txt", "sub/.cache/j.txt", "odd [1]/k.txt", "odd [1]/deep/l.md",
    "[x].txt", "x.txt",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    return tmp_path / "docs"


def names(folder: Path, data_path: str | Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in find_documents(data_path)]


def test_a_folder_means_all_documents_below_it_in_order(folder: Path) -> None:
    wanted = [
        "[x].txt",
        "a.txt",
        "b.MD",
        "c.htm",
        "d.Pdf",
        "e.RST",
        "odd [1]/deep/l.md",
        "odd [1]/k.txt",
    ]
    assert names(folder, folder) == [*wanted, "sub/deep/h.md", "sub/g.txt", "x.txt"]
    assert find_documents(str(folder)) == find_documents(folder)


@pytest.mark.parametrize(
    "name",
    ["a.txt", "e.RST", "f.doc", "f.txt.bak", "txt", ".hidden.txt", "[x].txt", "odd [1]/k.txt"],
)
def test_a_single_file_is_taken_whatever_its_name(folder: Path, name: str) -> None:
    assert names(folder, folder / name) == [name]


def test_what_is_no_document_is_counted_by_its_ending(folder: Path) -> None:
    (folder / "sub/m.DOC").write_text("<p>text</p>")
    assert list(count_unsupported_files_by_extension(folder).items()) == [
        (".doc", 2),
        ("", 1),
        (".bak", 1),
    ]
    assert (
        format_file_counts(count_unsupported_files_by_extension(folder))
        == "2 .doc, 1 without an ending, 1 .bak"
    )
    assert count_unsupported_files_by_extension(f"{folder}/*.doc") == {".doc": 1}
    assert count_unsupported_files_by_extension(folder / "f.doc") == {}
    with pytest.raises(ConfigError, match=r"which holds no documents but 1 \.doc;"):
        find_documents(f"{folder}/*.doc")


def test_every_file_of_a_folder_is_taken_where_a_reader_is_asked_for_each(folder: Path) -> None:
    every = {
        path.relative_to(folder).as_posix()
        for path in find_documents(folder, should_include_all_files=True)
    }
    assert every == {
        name for name in FILES if not any(part.startswith(".") for part in name.split("/"))
    }


def test_a_folder_of_a_hundred_endings_is_told_in_a_line() -> None:
    assert format_file_counts({f".{number}": 1 for number in range(100)}).endswith(
        ", 1 .7, 92 others"
    )


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("*.txt", ["[x].txt", "a.txt", "x.txt"]),
        ("**/*.md", ["odd [1]/deep/l.md", "sub/deep/h.md"]),
        ("sub/**", ["sub/deep/h.md", "sub/g.txt"]),
        ("odd [1]/**/*.md", ["odd [1]/deep/l.md"]),
        ("odd [1]/*", ["odd [1]/k.txt"]),
        ("[abc].*", ["a.txt", "b.MD", "c.htm"]),
        ("[[]x].txt", ["[x].txt"]),
        ("?.txt", ["a.txt", "x.txt"]),
        (".g*/*.txt", [".git/i.txt"]),
        ("*/*.txt", ["odd [1]/k.txt", "sub/g.txt"]),
    ],
)
def test_a_pattern_means_the_documents_it_matches(
    folder: Path, pattern: str, wanted: list[str]
) -> None:
    assert names(folder, f"{folder}/{pattern}") == wanted


def test_relative_paths_and_patterns_start_where_the_program_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find_documents("docs/?.txt") == [Path("docs/a.txt"), Path("docs/x.txt")]
    assert find_documents("docs/sub") == [Path("docs/sub/deep/h.md"), Path("docs/sub/g.txt")]
    assert find_documents("~/docs/sub/*.txt") == [folder / "sub/g.txt"]


def test_links_that_lead_in_circles_do_no_harm(folder: Path) -> None:
    before = names(folder, folder)
    for number in range(3):
        (folder / f"sub/again{number}").symlink_to(folder)
    assert names(folder, folder) == before
    assert names(folder, f"{folder}/**/*.txt") == [name for name in before if name.endswith(".txt")]


@pytest.mark.parametrize("pattern", ["*/*.txt", "**/*.txt", "s*/g.txt", "[o]*/*"])
def test_no_pattern_leaves_the_folder_through_a_link(
    folder: Path, tmp_path: Path, pattern: str
) -> None:
    before = names(folder, f"{folder}/{pattern}")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "g.txt").write_text("secret")
    for name in ("out", "secrets"):
        (folder / name).symlink_to(tmp_path / "elsewhere")
    assert names(folder, f"{folder}/{pattern}") == before


def test_a_link_to_a_folder_is_read_when_it_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder / "sub")
    assert names(tmp_path, tmp_path / "link") == ["link/deep/h.md", "link/g.txt"]


def test_what_cannot_be_read_is_found_all_the_same_so_that_it_is_reported(tmp_path: Path) -> None:
    (tmp_path / "dangling.txt").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "folder.txt" / "in.md").write_text("text")
    assert names(tmp_path, tmp_path) == ["dangling.txt", "folder.txt/in.md", "pipe.txt"]
    assert names(tmp_path, tmp_path / "dangling.txt") == ["dangling.txt"]


def test_a_folder_that_cannot_be_looked_into_is_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path is longer than the system takes; that fails for every user alike."""
    (tmp_path / "a.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    for _ in range(20):
        Path("d" * 250).mkdir()
        os.chdir("d" * 250)
    monkeypatch.chdir(tmp_path)
    try:
        with pytest.raises(ConfigError, match="cannot be read: File name too long"):
            find_documents(tmp_path)
    finally:
        shutil.rmtree("d" * 250)


@pytest.mark.parametrize(
    "name",
    [
        "gone",
        "gone.txt",
        "gone/*.txt",
        "*.bak",
        "empty",
        "",
        " ",
        "nul\0.txt",
        "nul\0*",
        "a" * 5_000,
        "a**",
        "~nobody/x",
    ],
)
def test_where_nothing_is_found_the_error_says_where_and_what_is_allowed(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/x.bak").write_text("text")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        find_documents(name)
    assert caught.value.path == "dataPath"
    assert caught.value.value == name
    assert ".txt .md .rst .pdf" in str(caught.value)
    assert not name.strip() or repr(name) in str(caught.value)
