"""PDF files: their pages, and all the ways in which they are broken."""

from __future__ import annotations

import logging
import sys
from difflib import SequenceMatcher
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfReader, PdfWriter

from qtmiddleware.errors import ConfigError, MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents import DocumentChunk, cut_document, read_document
from tests.support.pdf_files import HELVETICA, content, pdf, stream
from tests.support.shared_data import SHARED, needs_shared_data

ONE, TWO, THREE = content("Page one."), content("Page two", "goes on."), content("Page three.")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.pdf"


def texts(path: Path) -> dict[str | int, str]:
    return {piece.location["page"]: piece.text for piece in read_document(path)}


def reason(path: Path) -> str:
    with pytest.raises(UnreadableDocument) as caught:
        list(read_document(path))
    assert str(path) in str(caught.value)
    return caught.value.reason


def encrypted(made: bytes, user: str, algorithm: str = "RC4-128") -> bytes:
    writer = PdfWriter(clone_from=PdfReader(BytesIO(made)))
    writer.encrypt(user, owner_password="owner", algorithm=algorithm)
    out = BytesIO()
    writer.write(out)
    return out.getvalue()


def test_pages_come_one_by_one_with_their_numbers(path: Path) -> None:
    path.write_bytes(pdf([ONE, b"", TWO, THREE]))
    assert texts(path) == {1: "Page one.\n", 3: "Page two\ngoes on.\n", 4: "Page three.\n"}


def test_the_extension_may_be_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "A.PDF").write_bytes(pdf([ONE]))
    assert texts(tmp_path / "A.PDF") == {1: "Page one.\n"}


def test_layout_that_is_no_text_is_dropped_and_hyphens_stay(path: Path) -> None:
    path.write_bytes(pdf([content("spaces   ", "self-", "made soft\xad", "ware in\xadside")]))
    assert texts(path) == {1: "spaces\nself-\nmade software inside\n"}


def test_ligatures_are_spelled_out(path: Path) -> None:
    # The two ligatures of MacRoman.
    font = HELVETICA.replace(b"/WinAnsiEncoding", b"/MacRomanEncoding")
    path.write_bytes(pdf([b"BT /F1 12 Tf 72 720 Td (e\xde cient \xdf ow) Tj ET"], font=font))
    assert texts(path)[1].replace(" ", "") == "eficientflow\n"


def test_text_that_no_file_could_hold_is_made_good(path: Path) -> None:
    """A font may say that its letters are control characters, or half of a character."""
    letters = b"4 beginbfchar <41> <0000> <42> <D800> <43> <D83DDC4D> <44> <0044> endbfchar"
    codes = b"1 begincodespacerange <00> <FF> endcodespacerange"
    font = HELVETICA.replace(b"/Encoding", b"/ToUnicode 6 0 R /Encoding")
    path.write_bytes(pdf([content("DABCD")], font=font, more=[stream(codes + b"\n" + letters)]))
    assert texts(path) == {1: "D\ufffd👍D\n"}


@needs_shared_data
@pytest.mark.parametrize(
    ("name", "pages"), [("AI_Information", 15), ("Understanding_Climate_Change", 33)]
)
def test_every_word_of_real_files_is_read_in_its_order(name: str, pages: int) -> None:
    read = texts(SHARED / "docs" / f"{name}.pdf")
    assert list(read) == list(range(1, pages + 1))
    words = (SHARED / "docs" / f"{name}.txt").read_text("utf-8-sig").split()
    assert (
        SequenceMatcher(None, words, "".join(read.values()).split(), autojunk=False).ratio() == 1.0
    )


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-128", "AES-256"])
def test_an_empty_user_password_opens_a_file_and_another_does_not(
    path: Path, algorithm: str
) -> None:
    path.write_bytes(encrypted(pdf([ONE]), "", algorithm))
    assert texts(path) == {1: "Page one.\n"}
    path.write_bytes(encrypted(pdf([ONE]), "secret", algorithm))
    assert reason(path) == "encrypted"


def test_a_file_encrypted_with_aes_is_reported_as_encrypted(path: Path) -> None:
    # Whether or not AES is installed: without it the file cannot be tried, with it the password is
    # wrong.
    key, short = b"<" + b"5a" * 48 + b">", b"<" + b"5a" * 32 + b">"
    filters = b"/CF << /StdCF << /CFM /AESV3 /Length 32 >> >> /StmF /StdCF /StrF /StdCF"
    entry = b"/Encrypt << /Filter /Standard /V 5 /R 6 /Length 256 /P -4 /O %s /U %s /OE %s /UE %s /Perms <%s> %s >>"
    path.write_bytes(pdf([ONE], trailer=entry % (key, key, short, short, b"5a" * 16, filters)))
    assert reason(path) == "encrypted"


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (b"", "empty"),
        (b"%PDF-1.7", "damaged"),
        (b"<html>not a PDF</html>" * 50, "damaged"),
        (b"\0" * 2_000, "damaged"),
        (pdf([ONE])[:150], "damaged"),
        (pdf([ONE]).replace(b"/Kids [4 0 R]", b"/Kids 17     "), "damaged"),
        (pdf([ONE]).replace(b"/Kids [4 0 R]", b"/Kids [2 0 R]"), "damaged"),
        (pdf([b"", b"0 0 10 10 re f"]), "no text in it (scanned?)"),
        (pdf([]), "no text in it (scanned?)"),
    ],
    ids=[
        "empty",
        "header alone",
        "html",
        "zeros",
        "cut off",
        "pages are a number",
        "pages in a circle",
        "drawings",
        "no page",
    ],
)
def test_what_gives_no_text_is_reported_by_name(path: Path, made: bytes, wanted: str) -> None:
    path.write_bytes(made)
    assert reason(path) == wanted


def test_blank_pages_of_another_writer_hold_no_text(path: Path) -> None:
    writer = PdfWriter()
    writer.add_blank_page(100, 100)
    writer.write(path)
    assert reason(path) == "no text in it (scanned?)"


def broken_in_the_middle() -> bytes:
    """Three pages, of which the second names a compression that there is not."""
    return pdf([ONE, TWO, THREE]).replace(stream(TWO), stream(TWO, b"/Filter /Lost"))


def test_a_damaged_page_is_left_out_and_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(broken_in_the_middle())
    with caplog.at_level(logging.WARNING, logger="qtmiddleware.documents"):
        assert list(texts(path)) == [1, 3]
    logged = [it.getMessage() for it in caplog.records if it.name == "qtmiddleware.documents"]
    assert len(logged) == 1
    assert logged[0].startswith(f"{path}: page 2 is damaged and was skipped")


def test_without_pypdf_the_error_says_what_to_install(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(pdf([ONE]))
    (path.parent / "pypdf.py").write_text("raise ImportError")
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    with pytest.raises(MissingExtra, match=r'pip install "qtmiddleware\[documents\]"'):
        list(read_document(path))


def test_chunks_know_the_pages_their_words_stand_on(path: Path) -> None:
    path.write_bytes(
        pdf([content(f"Page {number} holds this sentence alone.") for number in range(1, 7)])
    )
    made = list(cut_document(path, size=80, overlap=0))
    assert [it.location for it in made] == [{"page": at, "last_page": at + 1} for at in (1, 3, 5)]
    whole = "".join(piece.text for piece in read_document(path))
    assert "".join(it.chunk.text for it in made) == whole
    for it in cut_document(path, size=50, overlap=30):
        shown = [number for number in range(1, 7) if f"Page {number}" in it.chunk.text]
        first = it.location["page"]
        assert {*shown} <= {*range(int(first), int(it.location.get("last_page", first)) + 1)}


@pytest.mark.parametrize("boundary", ["sentence", "character"])
@pytest.mark.parametrize(("size", "overlap"), [(7, 0), (17, 5), (40, 39), (400, 100)])
def test_the_pages_of_a_chunk_are_exactly_those_its_words_stand_on(
    path: Path, boundary: Any, size: int, overlap: int
) -> None:
    path.write_bytes(
        pdf(
            [
                content(*(f"p{number}w{word}" for word in range(number % 5)))
                for number in range(1, 40)
            ]
        )
    )
    # The page of each character that is no white space, in the order of the text.
    page_of = {}
    at = 0
    for piece in read_document(path):
        page_of |= {
            at + offset: piece.location["page"]
            for offset, sign in enumerate(piece.text)
            if not sign.isspace()
        }
        at += len(piece.text)
    made = list(cut_document(path, size=size, overlap=overlap, boundary=boundary))
    assert made[-1].chunk.end == at
    for it in made:
        pages = [
            page_of[place] for place in range(it.chunk.start, it.chunk.end) if place in page_of
        ]
        last = {"last_page": pages[-1]} if pages and pages[-1] != pages[0] else {}
        assert it.location == ({"page": pages[0], **last} if pages else {})


def test_a_text_has_no_pages(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (made,) = cut_document(tmp_path / "a.txt", size=10, overlap=0)
    assert (made, made.chunk.text) == (DocumentChunk(made.chunk, {}), "text")


def test_an_impossible_overlap_is_refused_before_the_file_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chunkOverlap"):
        cut_document(tmp_path / "gone.txt", size=10, overlap=10)
