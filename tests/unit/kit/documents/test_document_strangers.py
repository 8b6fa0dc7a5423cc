"""A document of a stranger ends, in bytes, text, memory and time, and takes no other with it."""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.errors import MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents import Converter, Piece, pieces
from qtmiddleware.kit.documents.formats import READERS
from tests.support.office_files import write_word_file
from tests.support.pdf_files import content, pdf
from tests.support.waiting import PATIENCE, with_enough_time


@pytest.mark.thorough
@pytest.mark.parametrize("ending", [".txt", *sorted(READERS)])
def test_an_empty_file_is_empty_and_noise_is_no_text(reason: Any, ending: str) -> None:
    assert reason(f"a{ending}", b"") == "empty"
    assert reason(f"a{ending}", b" \n ") in ("no text in it", "damaged")
    if ending not in (".html", ".htm"):
        assert reason(f"a{ending}", bytes(range(256)) * 40) in ("binary", "damaged")


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("a.txt", b"\xef\xbb\xbf \r\n\t ", "no text in it"),
        ("a.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "binary"),
        ("a.txt", b"\x01\x02\x03\x04", "binary"),
        ("a.txt", "text\0".encode("utf-16"), "binary"),
        ("a.txt", "Gr\u00fc\u00dfe".encode("latin-1"), "not text in UTF-8"),
        ("a.txt", b"\xff\xfea", "not text in UTF-8"),
        *(("a.json", text, "damaged") for text in ("[1, 2", "[1] x", "nonsense", "[" * 10**5)),
        *(("a.json", text, "no text in it") for text in ("[]", '{"a": null}')),
        ("a.docx", "<html>a page</html>", "damaged"),
    ],
)
def test_what_is_no_text_or_damaged_is_named_and_never_guessed(
    reason: Any, name: str, text: bytes | str, wanted: str
) -> None:
    assert reason(name, text) == wanted


def test_a_word_file_cut_off_anywhere_is_damaged(reason: Any, tmp_path: Path) -> None:
    whole = write_word_file(tmp_path).read_bytes()
    for share in (0.1, 0.99):
        assert reason("b.docx", whole[: int(len(whole) * share)]) == "damaged"


def test_the_error_holds_nothing_of_the_text_and_can_be_sent_to_another_process(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a\n.txt"
    path.write_bytes(b"secret \xff")
    with pytest.raises(UnreadableDocument) as caught:
        Converter().read(path)
    assert caught.value.__cause__ is None
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
    sent = pickle.loads(pickle.dumps(caught.value))
    assert (sent.path, sent.reason, str(sent)) == (path, "not text in UTF-8", str(caught.value))
    assert repr(Piece("secret", {"page": 3})) == "Piece(location={'page': 3})"


def test_folders_pipes_and_dangling_links_cannot_be_opened_and_do_not_hang(
    tmp_path: Path, converter: Converter
) -> None:
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    os.mkfifo(tmp_path / "pipe.pdf")
    (tmp_path / "link.txt").symlink_to(tmp_path / "gone")
    for name in ("folder.txt", "pipe.txt", "pipe.pdf", "link.txt", "gone.txt"):
        with pytest.raises(UnreadableDocument, match="cannot be opened"):
            converter.read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.txt", "a.csv"])
def test_a_file_beyond_the_limit_is_not_read(
    tmp_path: Path, converter: Converter, name: str
) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(pieces.MOST_BYTES + 1)
    with pytest.raises(UnreadableDocument, match="more than 256 MB"):
        converter.read(tmp_path / name)


# --- bombs


def bomb(size: int, name: str, *, says: int) -> bytes:
    """A document with a part of *size* blanks, whose size is given as *says*."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(name, b" " * size)
    return file.getvalue().replace(struct.pack("<L", size), struct.pack("<L", says))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("a.docx", "word/document.xml"),
        pytest.param("a.pptx", "ppt/presentation.xml", marks=pytest.mark.thorough),
        pytest.param("a.xlsx", "xl/workbook.xml", marks=pytest.mark.thorough),
    ],
)
def test_a_zip_bomb_is_refused_by_the_size_it_says_or_found_to_lie(
    reason: Any, name: str, part: str
) -> None:
    assert reason(name, bomb(1 << 20, part, says=300 << 20)) == "too large"
    assert reason(name, bomb(64 << 20, part, says=1 << 20)) == "damaged"


def test_a_small_file_of_endless_text_is_refused(reason: Any) -> None:
    names = ",".join("n" * 100 for _ in range(1_000))
    rows = ("1," * 1_000 + "\n") * 3_000
    assert reason("a.csv", f"{names}\n{rows}") == "too large"


ENTITIES = (
    b'<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + at, b"&%c;" % (97 + at) * 10) for at in range(10))
    + b"]>"
)


def test_entities_that_name_each_other_do_no_harm(read: Any, tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(write_word_file(tmp_path)) as whole, zipfile.ZipFile(file, "w") as packed:
        for part in whole.infolist():
            head, end, body = whole.read(part).partition(b"?>")
            if part.filename.endswith(".xml") and head.startswith(b"<?xml"):
                body = body.replace(b"</w:t>", b"&k;</w:t>", 1)
                end += ENTITIES
            packed.writestr(part, head + end + body)
    found = []
    with suppress(UnreadableDocument):
        found = read("b.docx", file.getvalue())
    assert sum(len(text) for text, _ in found) < 100_000


def test_a_long_name_or_title_makes_no_large_text_of_a_small_file(read: Any) -> None:
    found = read("a.html", f"<title>{'t' * 500_000}</title>" + "<p>text" * 20_000)
    assert len(found) == 20_000
    assert found[-1][1] == {"title": "t" * pieces.PLACE_CHARS}
    values = ",".join(f'"{number}": 1' for number in range(1_000))
    found = read("a.json", '{"' + "k" * 100_000 + '": {' + values + "}}")
    assert sum(len(text) for text, _ in found) < 200_000


# --- the process they are read in


def replace_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str) -> None:
    """Let *code* be the package *name* in the processes of converters."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / f"{name}.py").write_text(code)
    monkeypatch.setattr(sys, "path", [str(modules), *sys.path])


@pytest.mark.parametrize(
    ("ending", "name", "package"),
    [(".docx", "docx", "python-docx"), (".html", "lxml", "lxml"), (".pdf", "pypdf", "pypdf")],
)
def test_without_its_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, name: str, package: str
) -> None:
    path = write_word_file(tmp_path)
    if ending != ".docx":
        path = tmp_path / f"a{ending}"
        path.write_bytes(pdf([content("Page one.")]))
    replace_package(tmp_path, monkeypatch, name, "raise ImportError")
    install = rf'{package} is not installed; run: pip install "qtmiddleware\[documents\]"'
    with pytest.raises(MissingExtra, match=install), Converter() as converter:
        converter.read(path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("code", "why"),
    [
        # In C, without ever letting go of the interpreter.
        ("sum(iter(int, 1))", "reading it takes too long"),
        ("import ctypes; ctypes.string_at(0)", "reading it crashed"),
        ("bytearray(1 << 33)", "reading it takes too much memory"),
        ("print('noise'); raise KeyError('secret')", "KeyError"),
        ("def f(): f()\n    f()", "RecursionError"),
    ],
)
def test_a_reader_that_hangs_or_dies_takes_one_file_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    if "bytearray" in code and sys.platform != "linux":
        pytest.skip("the system holds no process to a limit of memory")
    bad, good = tmp_path / "a.pdf", write_word_file(tmp_path)
    bad.write_bytes(pdf([content("Page one.")]))
    replace_package(tmp_path, monkeypatch, "pypdf", f"def PdfReader(_):\n    {code}\n")

    def read(seconds: float) -> list[int]:
        """Return how many pieces the file beside the bad one has, each time there was time."""
        found: list[int] = []
        with Converter(seconds) as converter:
            for _ in range(2):
                with pytest.raises(UnreadableDocument, match=why) as caught:
                    converter.read(bad)
                assert "secret" not in str(caught.value)
                with suppress(UnreadableDocument):
                    found.append(len(converter.read(good)))
        return found

    # What hangs is waited for to the end; everything else has time.
    seconds = 3.0 if "too long" in why else PATIENCE
    assert with_enough_time(read, lambda found: len(found) == 2, seconds=seconds)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_one_process_without_secrets_reads_all_and_ends_with_the_converter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "MY_SERVICE", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "precious")
    path = write_word_file(tmp_path)
    with Converter() as converter:
        converter.read(path)
        process = converter._process
        assert process is not None
        environment = Path(f"/proc/{process.pid}/environ").read_text()
        assert "PATH=" in environment
        assert "precious" not in environment
        converter.read(path)
        assert converter._process is process
        assert process.poll() is None
    assert process.poll() is not None


def test_a_module_in_the_working_folder_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_word_file(tmp_path)
    for name in ("json", "docx", "pypdf"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'planted')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [it for it in sys.path if it])
    with Converter() as converter:
        assert converter.read(path)
    assert not (tmp_path / "planted").exists()
