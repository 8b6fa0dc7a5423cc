"""Text files: their encodings, and what is no text."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents import Piece, pieces, read_document


def text_of(path: Path) -> str:
    (piece,) = read_document(path)
    assert not piece.location
    return piece.text


def reason(path: Path) -> str:
    with pytest.raises(UnreadableDocument) as caught:
        read_document(path)
    assert str(path) in str(caught.value)
    return caught.value.reason


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("name", ["a.txt", "a.md", "notes"])
def test_text_comes_back_as_it_was_written_with_one_kind_of_line_end(
    tmp_path: Path, encoding: str, name: str
) -> None:
    text = "---\ntitle: Grüße\n---\n\n# 漢字 👍\n\n*Text*\f \x1b[1mbold\x1b[0m \x1a\n" * 9
    (tmp_path / name).write_bytes(text.replace("\n", "\r\n").encode(encoding))
    assert text_of(tmp_path / name) == text
    (tmp_path / name).write_bytes(text.replace("\n", "\r").encode(encoding))
    assert text_of(tmp_path / name) == text


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b" \r\n\t ", "empty"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "binary"),
        (b"\x01\x02\x03\x04", "binary"),
        ("text\0".encode("utf-16"), "binary"),
        ("Gr\u00fc\u00dfe".encode("latin-1"), "not text in UTF-8"),
        (b"\xff\xfea", "not text in UTF-8"),
        (b"cut in the middle \xe6\xbc", "not text in UTF-8"),
    ],
)
def test_what_is_no_text_is_reported_by_name_and_never_guessed(
    tmp_path: Path, content: bytes, wanted: str
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    assert reason(tmp_path / "a.txt") == wanted


def test_folders_pipes_and_dangling_links_cannot_be_opened_and_do_not_hang(tmp_path: Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    os.mkfifo(tmp_path / "pipe.pdf")
    (tmp_path / "link.txt").symlink_to(tmp_path / "gone")
    for name in ("folder.txt", "pipe.txt", "pipe.pdf", "link.txt", "gone.txt"):
        assert reason(tmp_path / name) == "cannot be opened"


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.pdf"])
def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(pieces.MOST_BYTES + 1)
    with pytest.raises(UnreadableDocument, match="more than 256 MB"):
        read_document(tmp_path / name)


def test_the_error_holds_nothing_of_the_text_and_can_be_sent_to_another_process(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a\n.txt"
    path.write_bytes(b"secret \xff")
    with pytest.raises(UnreadableDocument) as caught:
        read_document(path)
    assert caught.value.__cause__ is None
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    sent = pickle.loads(pickle.dumps(caught.value))
    assert (sent.path, sent.reason, str(sent)) == (path, "not text in UTF-8", str(caught.value))
    assert repr(Piece("secret", {"page": 3})) == "Piece(location={'page': 3})"
