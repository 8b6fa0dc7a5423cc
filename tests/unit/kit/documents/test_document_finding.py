"""Which documents a path means."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.documents.finding import find_documents, format_file_counts

VISIBLE = [
    "[x].txt", "a.txt", "b.MD", "d.Pdf", "odd [1]/deep/l.md", "odd [1]/k.txt", "sub/deep/h.md",
    "sub/g.txt", "x.txt",
]  # fmt: skip
OTHERS = ["f.doc", "sub/m.DOC", "f.txt.bak", "txt"]
HIDDEN = [".hidden.txt", ".git/i.txt", "sub/.cache/j.txt"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in VISIBLE + OTHERS + HIDDEN:
        path = tmp_path / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    return tmp_path / "docs"


def names(folder: Path, data_path: str | Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in find_documents(data_path).paths]


def test_a_folder_means_all_documents_below_it_and_others_are_counted(folder: Path) -> None:
    assert names(folder, folder) == names(folder, str(folder)) == VISIBLE
    others = find_documents(folder).left_out
    assert others == {".doc": 2, ".bak": 1, "": 1}
    assert format_file_counts(others).startswith("2 .doc, 1 ")
    assert "1 without an ending" in format_file_counts(others)
    assert format_file_counts({f".{number}": 1 for number in range(100)}).endswith("1 .7")


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        *((name, [name]) for name in ("f.doc", "txt", ".hidden.txt", "[x].txt", "odd [1]/k.txt")),
        ("*.txt", ["[x].txt", "a.txt", "x.txt"]),
        ("sub/**", ["sub/deep/h.md", "sub/g.txt"]),
        ("odd [1]/**/*.md", ["odd [1]/deep/l.md"]),
        ("[[]x].txt", ["[x].txt"]),
        (".g*/*.txt", [".git/i.txt"]),
        ("*/*.txt", ["odd [1]/k.txt", "sub/g.txt"]),
    ],
)
def test_a_file_is_taken_whatever_its_name_and_a_pattern_means_the_documents_it_matches(
    folder: Path, pattern: str, wanted: list[str]
) -> None:
    assert names(folder, f"{folder}/{pattern}") == wanted


def test_relative_paths_and_patterns_start_where_the_program_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find_documents("docs/?.txt").paths == [Path("docs/a.txt"), Path("docs/x.txt")]
    assert find_documents("~/docs/sub/*.txt").paths == [folder / "sub/g.txt"]


@pytest.mark.parametrize("pattern", ["", "**/*.txt", "s*/g.txt"])
def test_no_folder_or_pattern_is_left_through_a_link(
    folder: Path, tmp_path: Path, pattern: str
) -> None:
    before = names(folder, folder / pattern)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "g.txt").write_text("secret")
    (folder / "secrets").symlink_to(tmp_path / "elsewhere")
    (folder / "sub/again").symlink_to(folder)
    assert names(folder, folder / pattern) == before
    # One that is named itself is read.
    assert find_documents(folder / "secrets").paths == [folder / "secrets" / "g.txt"]


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


@pytest.mark.parametrize("name", ["gone/*.txt", "gone", "empty", "", "nul\0.txt", "~nobody/x"])
def test_if_nothing_is_found_the_error_says_where_and_what_is_allowed(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/x.bak").write_text("text")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        find_documents(name)
    assert (caught.value.path, caught.value.value) == ("dataPath", name)
    assert ".txt .md .rst .pdf" in str(caught.value)
    assert repr(name) in str(caught.value)
