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
from qtmiddleware.kit.documents import Converter, cut_document
from tests.support.pdf_files import HELVETICA, content, pdf, stream
from tests.support.shared_data import SHARED, needs_shared_data

ONE, TWO, THREE = content("Page one."), content("Page two", "goes on."), content("Page three.")


def test_pages_come_one_by_one_with_their_numbers(read: Any) -> None:
    assert read("A.PDF", pdf([ONE, b"", TWO, THREE])) == [
        ("Page one.", {"page": 1}),
        ("Page two\ngoes on.", {"page": 3}),
        ("Page three.", {"page": 4}),
    ]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (
            pdf([content("spaces   ", "self-", "made soft\xad", "ware in\xadside")]),
            "spaces\nself-\nmade software inside",
        ),
        # The two ligatures of MacRoman.
        (
            pdf(
                [b"BT /F1 12 Tf 72 720 Td (e\xdecient\xdfow) Tj ET"],
                font=HELVETICA.replace(b"/WinAnsiEncoding", b"/MacRomanEncoding"),
            ),
            "eficientflow",
        ),
    ],
    ids=["layout", "ligatures"],
)
def test_hidden_signs_are_dropped_and_ligatures_are_spelled_out(
    read: Any, made: bytes, text: str
) -> None:
    assert read("a.pdf", made) == [(text, {"page": 1})]


@needs_shared_data
def test_every_word_of_a_real_file_is_read_in_its_order(converter: Converter) -> None:
    pieces = converter.read(SHARED / "docs" / "AI_Information.pdf")
    assert [piece.location["page"] for piece in pieces] == list(range(1, 16))
    words = (SHARED / "docs" / "AI_Information.txt").read_text("utf-8-sig").split()
    found = "".join(piece.text for piece in pieces).split()
    assert SequenceMatcher(None, words, found, autojunk=False).ratio() == 1.0


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-256"])
def test_an_empty_user_password_opens_a_file_and_another_does_not(
    read: Any, reason: Any, algorithm: str
) -> None:
    for password in ("", "secret"):
        file = BytesIO()
        writer = PdfWriter(clone_from=PdfReader(BytesIO(pdf([ONE]))))
        writer.encrypt(password, owner_password="owner", algorithm=algorithm)
        writer.write(file)
        if password:
            assert reason("a.pdf", file.getvalue()) == "encrypted"
        else:
            assert read("a.pdf", file.getvalue()) == [("Page one.", {"page": 1})]


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (b"<html>not a PDF</html>" * 50, "damaged"),
        (pdf([ONE])[:150], "damaged"),
        (pdf([ONE]).replace(b"/Kids [4 0 R]", b"/Kids [2 0 R]"), "damaged"),
        (pdf([b"", b"0 0 10 10 re f"]), "no text in it (scanned?)"),
        (pdf([]), "no text in it (scanned?)"),
    ],
    ids=["html", "cut off", "a circle", "drawings", "no page"],
)
def test_what_gives_no_text_is_reported_by_name(reason: Any, made: bytes, wanted: str) -> None:
    assert reason("a.pdf", made) == wanted


def test_a_damaged_page_is_left_out_and_logged(
    read: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The second page names a compression that there is not.
    broken = pdf([ONE, TWO, THREE]).replace(stream(TWO), stream(TWO, b"/Filter /Lost"))
    with caplog.at_level(logging.WARNING, logger="qtmiddleware.documents"):
        assert [place["page"] for _, place in read("a.pdf", broken)] == [1, 3]
    (logged,) = [it.getMessage() for it in caplog.records if it.name == "qtmiddleware.documents"]
    assert logged.startswith(f"{tmp_path / 'a.pdf'}: page 2 is damaged and was skipped")


@pytest.mark.parametrize(("size", "overlap"), [(7, 0), (40, 39), (400, 100)])
def test_the_pages_of_a_chunk_are_exactly_those_its_words_stand_on(
    tmp_path: Path, converter: Converter, size: int, overlap: int
) -> None:
    path = tmp_path / "a.pdf"
    words = [[f"p{number}w{word}" for word in range(number % 5)] for number in range(1, 40)]
    path.write_bytes(pdf([content(*lines) for lines in words]))
    # The page of each character, in the order of the text; 0 for white space.
    page_of = [
        0 if sign.isspace() else piece.location["page"]
        for piece in converter.read(path)
        for sign in piece.text
    ]
    for chunk in cut_document(path, converter, size=size, overlap=overlap):
        pages = [page for page in page_of[chunk.start : chunk.end] if page]
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


@pytest.mark.thorough
@pytest.mark.parametrize("made", [billion_branches(), nested_forms()], ids=["pages", "forms"])
def test_a_bomb_takes_a_limited_time_and_no_other_document(tmp_path: Path, made: bytes) -> None:
    (tmp_path / "a.pdf").write_bytes(made)
    (tmp_path / "b.pdf").write_bytes(pdf([ONE]))
    with Converter(seconds=8) as converter:
        try:
            found = converter.read(tmp_path / "a.pdf")
        except UnreadableDocument as error:
            assert error.reason in ("its reader failed", "too large", "damaged")  # noqa: PT017
        else:
            assert len(found) == 1
        assert converter.read(tmp_path / "b.pdf")[0].text == "Page one.\n"
