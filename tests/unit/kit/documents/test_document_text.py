"""Text files: their encodings, and what is no text."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qtmiddleware.errors import QtMiddlewareError, UnreadableDocument
from qtmiddleware.kit.documents import Piece, read_document

PRINTED = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff"), min_size=1
)


def text_of(path: Path) -> str:
    pieces = list(read_document(path))
    assert all(not piece.location for piece in pieces)
    return "".join(piece.text for piece in pieces)


def reason(path: Path) -> str:
    with pytest.raises(UnreadableDocument) as caught:
        list(read_document(path))
    assert ascii(str(path))[1:-1] in str(caught.value)
    assert caught.value.path == path
    return caught.value.reason


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
@given(text=PRINTED.filter(str.strip), times=st.sampled_from([1, 30_000]))
def test_text_comes_back_as_it_was_written(
    tmp_path: Path, encoding: str, text: str, times: int
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes((text * min(times, 200_000 // len(text))).encode(encoding))
    assert text_of(path) == text * min(times, 200_000 // len(text))


def test_utf_16_of_either_byte_order_is_read_by_its_mark(tmp_path: Path) -> None:
    for order, mark in (("le", b"\xff\xfe"), ("be", b"\xfe\xff")):
        (tmp_path / "a.md").write_bytes(mark + "Grüße, 漢字".encode(f"utf-16-{order}"))
        assert text_of(tmp_path / "a.md") == "Grüße, 漢字"


@pytest.mark.parametrize("shift", range(4))
def test_every_kind_of_line_end_becomes_one_also_between_blocks(tmp_path: Path, shift: int) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * shift + b"ab\r\n" * 50_000 + b"c\rd\ne")
    assert text_of(path) == "x" * shift + "ab\n" * 50_000 + "c\nd\ne"


def test_markdown_is_read_as_it_is_written(tmp_path: Path) -> None:
    text = "---\ntitle: A\n---\n\n# Heading\n\n*Text* and [link](x).\n"
    (tmp_path / "a.md").write_text(text)
    assert text_of(tmp_path / "a.md") == text


def test_a_file_of_another_extension_is_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("text")
    assert text_of(tmp_path / "notes") == "text"


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b"\xff\xfe", "empty"),
        (b" \r\n\t ", "empty"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "binary"),
        (b"text, then\0", "binary"),
        (b"\x01\x02\x03\x04", "binary"),
        ("text\0".encode("utf-16"), "binary"),
        ("Gr\u00fc\u00dfe".encode("latin-1"), "not text in UTF-8"),
        ("text".encode("utf-16-le")[:-1] + b"x", "binary"),
        (b"\xff\xfea", "not text in UTF-8"),
        (b"cut in the middle \xe6\xbc", "not text in UTF-8"),
        (b"overlong \xc0\xaf, surrogate \xed\xa0\x80", "not text in UTF-8"),
    ],
)
def test_what_is_no_text_is_reported_by_name_and_never_guessed(
    tmp_path: Path, content: bytes, wanted: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    assert reason(path) == wanted


def test_a_stray_control_character_spoils_no_text(tmp_path: Path) -> None:
    text = "A page of text.\f" * 20 + "\x1b[1mbold\x1b[0m \x02 end \x1a"
    (tmp_path / "a.txt").write_text(text)
    assert text_of(tmp_path / "a.txt") == text


def test_folders_pipes_and_dangling_links_cannot_be_opened_and_do_not_hang(tmp_path: Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    os.mkfifo(tmp_path / "pipe.pdf")
    (tmp_path / "link.txt").symlink_to(tmp_path / "gone")
    (tmp_path / "loop.txt").symlink_to(tmp_path / "loop.txt")
    for name in (
        "folder.txt",
        "pipe.txt",
        "pipe.pdf",
        "link.txt",
        "loop.txt",
        "nul\0.txt",
        "gone.txt",
    ):
        assert reason(tmp_path / name) == "cannot be opened"


def test_the_error_holds_nothing_of_the_text_and_can_be_sent_to_another_process(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"secret \xff")
    with pytest.raises(UnreadableDocument) as caught:
        list(read_document(path))
    assert caught.value.__cause__ is None
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value, QtMiddlewareError)
    sent = pickle.loads(pickle.dumps(caught.value))
    assert (sent.path, sent.reason, str(sent)) == (path, "not text in UTF-8", str(caught.value))
    assert repr(Piece("secret", {"page": 3})) == "Piece(location={'page': 3})"
