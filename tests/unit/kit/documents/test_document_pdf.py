"""PDF files: their pages, and the ways in which they are broken."""

from __future__ import annotations

import logging
from difflib import SequenceMatcher
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfReader, PdfWriter

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents import Converter, cut_document, read_document
from tests.support.pdf_files import HELVETICA, content, pdf, stream
from tests.support.shared_data import SHARED, needs_shared_data

ONE, TWO, THREE = content("Page one."), content("Page two", "goes on."), content("Page three.")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "A.PDF"


def texts(path: Path) -> dict[str | int, str]:
    return {piece.location["page"]: piece.text for piece in read_document(path)}


def reason(path: Path) -> str:
    with pytest.raises(UnreadableDocument) as caught:
        read_document(path)
    return caught.value.reason


def test_pages_come_one_by_one_with_their_numbers(path: Path) -> None:
    path.write_bytes(pdf([ONE, b"", TWO, THREE]))
    assert texts(path) == {1: "Page one.\n", 3: "Page two\ngoes on.\n", 4: "Page three.\n"}


def test_layout_that_is_no_text_is_dropped_and_ligatures_are_spelled_out(path: Path) -> None:
    path.write_bytes(pdf([content("spaces   ", "self-", "made soft\xad", "ware in\xadside")]))
    assert texts(path) == {1: "spaces\nself-\nmade software inside\n"}
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
def test_every_word_of_a_real_file_is_read_in_its_order() -> None:
    read = texts(SHARED / "docs" / "AI_Information.pdf")
    assert list(read) == list(range(1, 16))
    words = (SHARED / "docs" / "AI_Information.txt").read_text("utf-8-sig").split()
    found = "".join(read.values()).split()
    assert SequenceMatcher(None, words, found, autojunk=False).ratio() == 1.0


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-256"])
@pytest.mark.parametrize("password", ["", "secret"])
def test_an_empty_user_password_opens_a_file_and_another_does_not(
    path: Path, algorithm: str, password: str
) -> None:
    writer = PdfWriter(clone_from=PdfReader(BytesIO(pdf([ONE]))))
    writer.encrypt(password, owner_password="owner", algorithm=algorithm)
    writer.write(path)
    if password:
        assert reason(path) == "encrypted"
    else:
        assert texts(path) == {1: "Page one.\n"}


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (b"", "empty"),
        (b"<html>not a PDF</html>" * 50, "damaged"),
        (pdf([ONE])[:150], "damaged"),
        (pdf([ONE]).replace(b"/Kids [4 0 R]", b"/Kids 17     "), "damaged"),
        (pdf([ONE]).replace(b"/Kids [4 0 R]", b"/Kids [2 0 R]"), "damaged"),
        (pdf([b"", b"0 0 10 10 re f"]), "no text in it (scanned?)"),
        (pdf([]), "no text in it (scanned?)"),
    ],
    ids=["empty", "html", "cut off", "pages are a number", "a circle", "drawings", "no page"],
)
def test_what_gives_no_text_is_reported_by_name(path: Path, made: bytes, wanted: str) -> None:
    path.write_bytes(made)
    assert reason(path) == wanted


def test_a_damaged_page_is_left_out_and_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The second page names a compression that there is not.
    broken = pdf([ONE, TWO, THREE]).replace(stream(TWO), stream(TWO, b"/Filter /Lost"))
    path.write_bytes(broken)
    with caplog.at_level(logging.WARNING, logger="qtmiddleware.documents"):
        assert list(texts(path)) == [1, 3]
    (logged,) = [it.getMessage() for it in caplog.records if it.name == "qtmiddleware.documents"]
    assert logged.startswith(f"{path}: page 2 is damaged and was skipped")


@pytest.mark.parametrize("boundary", ["sentence", "character"])
@pytest.mark.parametrize(("size", "overlap"), [(7, 0), (40, 39), (400, 100)])
def test_the_pages_of_a_chunk_are_exactly_those_its_words_stand_on(
    path: Path, boundary: Any, size: int, overlap: int
) -> None:
    words = [[f"p{number}w{word}" for word in range(number % 5)] for number in range(1, 40)]
    path.write_bytes(pdf([content(*lines) for lines in words]))
    # The page of each character that is no white space, in the order of the text.
    page_of = {}
    at = 0
    for piece in read_document(path):
        for offset, sign in enumerate(piece.text):
            if not sign.isspace():
                page_of[at + offset] = piece.location["page"]
        at += len(piece.text)
    chunks = list(cut_document(path, size=size, overlap=overlap, boundary=boundary))
    assert chunks[-1].end == at
    for chunk in chunks:
        pages = [page_of[place] for place in range(chunk.start, chunk.end) if place in page_of]
        last = {"last_page": pages[-1]} if pages and pages[-1] != pages[0] else {}
        assert chunk.location == ({"page": pages[0], **last} if pages else {})


def billion_branches() -> bytes:
    branches = [
        b"<< /Type /Pages /Count 9 /Kids [%s] >>" % (b"%d 0 R " % number * 10)
        for number in range(7, 16)
    ]
    leaf = b"<< /Type /Pages /Count 1 /Kids [4 0 R] >>"
    made = pdf([ONE], more=[*branches, leaf])
    return made.replace(b"/Kids [4 0 R] /Count", b"/Kids [6 0 R] /Count")


def nested_forms() -> bytes:
    """One page whose form draws the next one 40 times, 12 levels deep."""
    entries = (
        b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X %d 0 R >> >>"
    )
    drawn = [b"/X Do " * 40] * 11 + [b"BT (deep) Tj ET " * 40]
    forms = [stream(draw, entries % (7 + level)) for level, draw in enumerate(drawn)]
    return pdf([ONE + b" /X Do"], more=forms, resources=b"/XObject << /X 6 0 R >>")


@pytest.mark.parametrize("made", [billion_branches(), nested_forms()], ids=["pages", "forms"])
def test_a_bomb_takes_a_limited_time_and_no_other_document(tmp_path: Path, made: bytes) -> None:
    (tmp_path / "a.pdf").write_bytes(made)
    (tmp_path / "b.pdf").write_bytes(pdf([ONE]))
    with Converter(seconds=8) as converter:
        try:
            found = read_document(tmp_path / "a.pdf", converter=converter)
        except UnreadableDocument as error:
            assert error.reason in ("its reader failed", "too large", "damaged")  # noqa: PT017
        else:
            assert len(found) == 1
    assert [it.text for it in read_document(tmp_path / "b.pdf")] == ["Page one.\n"]
