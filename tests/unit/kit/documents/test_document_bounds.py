"""Documents that are small and whose text never ends, and those that are large and honest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pptx
import pytest

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents import (
    Converter,
    TextBound,
    bounds,
    cut_document,
    pdf,
    read_document,
)
from qtmiddleware.kit.documents.bounds import (
    CHARS_PER_BYTE,
    SPARE_CHARS,
    compute_time_limit,
    count_chars,
    limit_reading_time,
)
from qtmiddleware.kit.documents.text import PLACE_CHARS, Piece
from tests.support.office_files import write_endless_sheet
from tests.support.pdf_files import content
from tests.support.pdf_files import pdf as make_pdf

SENTENCE = "All work and no play makes Jack a dull boy. "


@pytest.fixture(scope="module")
def converter() -> Iterator[Converter]:
    with Converter() as made:
        yield made


def read_until_refused(pieces: Iterator[Piece]) -> tuple[int, UnreadableDocument]:
    """How many characters *pieces* had, and what ended them."""
    chars = 0
    try:
        for piece in pieces:
            chars += count_chars(piece)
    except UnreadableDocument as error:
        return chars, error
    raise AssertionError("this was read to its end")


def test_a_small_file_of_endless_text_is_refused_with_its_numbers(
    tmp_path: Path, converter: Converter
) -> None:
    path = tmp_path / "a.xlsx"
    write_endless_sheet(path)
    size = path.stat().st_size
    assert size < 200_000
    chars, error = read_until_refused(read_document(path, converter=converter))
    assert error.reason == "too large"
    assert f"{size:,} bytes give more than" in error.detail
    assert f"{CHARS_PER_BYTE} per byte and {SPARE_CHARS:,} more" in error.detail
    assert "save the file as CSV or plain text" in error.detail
    assert 0 < chars <= SPARE_CHARS + CHARS_PER_BYTE * size


def test_the_documents_of_a_run_share_what_goes_beyond_their_sizes(
    tmp_path: Path, converter: Converter
) -> None:
    bound, kept = TextBound(1_000_000), []
    for number in range(4):
        path = tmp_path / f"{number}.xlsx"
        write_endless_sheet(path)
        chars, error = read_until_refused(read_document(path, converter=converter, bound=bound))
        assert error.reason == "too large"
        kept.append(chars - CHARS_PER_BYTE * path.stat().st_size)
    assert 0 < kept[0] <= 1_000_000
    assert max(kept[1:]) <= 0
    # Documents of an ordinary density are read all the same.
    (tmp_path / "a.csv").write_text("Item,Price\n" + "Pump,7\n" * 100)
    assert len(list(read_document(tmp_path / "a.csv", converter=converter, bound=bound))) == 101


def test_a_table_of_digits_under_long_names_is_read_to_its_end(
    tmp_path: Path, converter: Converter
) -> None:
    names = [f"Question {at}: how satisfied are you with this part of our service".ljust(100, ".")
             for at in range(40)]  # fmt: skip
    (tmp_path / "a.csv").write_text(",".join(names) + "\n" + (",".join("1" * 40) + "\n") * 500)
    found = list(read_document(tmp_path / "a.csv", converter=converter, bound=TextBound(0)))
    assert len(found) == 501
    assert sum(len(it.text) for it in found) > 40 * (tmp_path / "a.csv").stat().st_size


def test_a_presentation_that_names_a_slide_many_times_has_it_once(
    tmp_path: Path, converter: Converter
) -> None:
    deck = pptx.Presentation()
    for text in ("One", "Two"):
        deck.slides.add_slide(deck.slide_layouts[5]).shapes.title.text = text
    slides = deck.slides._sldIdLst
    first, second = list(slides)
    for number in range(2_000):
        again = slides._add_sldId(rId=first.rId, id=1_000 + number)
        second.addprevious(again)
    deck.save(str(tmp_path / "a.pptx"))
    found = [
        (it.text, it.location) for it in read_document(tmp_path / "a.pptx", converter=converter)
    ]
    # Slides keep their numbers.
    assert found == [("One\n\n", {"slide": 1}), ("Two\n\n", {"slide": 2_002})]


def test_a_pdf_that_names_a_page_many_times_has_it_once(tmp_path: Path) -> None:
    branch = b"<< /Type /Pages /Count 2 /Kids [%s 6 0 R] >>" % (b"4 0 R " * 20_000)
    made = make_pdf([content("Page one."), content("Page two.")], more=[branch])
    (tmp_path / "a.pdf").write_bytes(made.replace(b"/Kids [4 0 R 6 0 R]", b"/Kids [8 0 R      ]"))
    assert [it.text for it in read_document(tmp_path / "a.pdf")] == ["Page one.\n", "Page two.\n"]


def test_a_pdf_whose_tree_has_a_billion_branches_is_read(tmp_path: Path) -> None:
    branches = [
        b"<< /Type /Pages /Count 9 /Kids [%s] >>" % (b"%d 0 R " % number * 10)
        for number in range(7, 16)
    ]
    made = make_pdf(
        [content("Page one.")], more=[*branches, b"<< /Type /Pages /Count 1 /Kids [4 0 R] >>"]
    )
    (tmp_path / "a.pdf").write_bytes(made.replace(b"/Kids [4 0 R] /Count", b"/Kids [6 0 R] /Count"))
    assert [it.text for it in read_document(tmp_path / "a.pdf")] == ["Page one.\n"]


def test_a_long_heading_is_not_repeated_whole_at_each_paragraph(
    tmp_path: Path, converter: Converter
) -> None:
    (tmp_path / "a.html").write_text(
        f"<title>{'t' * 500_000}</title><h1>{'h' * 500_000}</h1>" + "<p>text" * 20_000
    )
    found = list(read_document(tmp_path / "a.html", converter=converter))
    assert len(found) == 20_001
    assert found[-1].location == {"title": "t" * PLACE_CHARS, "heading": "h" * PLACE_CHARS}


def test_metadata_of_a_record_has_a_length_as_each_of_its_chunks_has_all_of_it(
    tmp_path: Path, converter: Converter
) -> None:
    record = {"text": SENTENCE * 2_000, **{f"field {at}": "x" * 100 for at in range(5_000)}}
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    made = list(cut_document(tmp_path / "a.jsonl", size=800, overlap=0, converter=converter))
    assert len(made) > 100
    assert {len(it.location) for it in made} == {len(made[0].location)}
    assert 100 < len(made[0].location) < 200
    assert made[0].location["field 0"] == "x" * 100


class Clock:
    """The processor's time, which goes on by what is done."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def leave_time(clock: Clock, pieces: Iterator[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        clock.now += 1_000
        yield piece


def test_a_document_has_as_much_of_the_processors_time_as_belongs_to_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(bounds, "thread_time", clock)

    def read_slowly() -> Iterator[Piece]:
        while True:
            clock.now += 1
            yield Piece("text")

    for size in (0, 1 << 20):
        found: list[Piece] = []
        with pytest.raises(
            UnreadableDocument, match=r"reading it takes more than .+ seconds of processor time"
        ):
            # What the one that reads the pieces does takes its own time.
            found.extend(
                leave_time(clock, limit_reading_time(tmp_path / "a.xlsx", read_slowly(), size))
            )
        assert len(found) == compute_time_limit(size)


def test_a_pdf_of_slow_pages_without_text_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, read = Clock(), []
    monkeypatch.setattr(pdf, "thread_time", clock)

    def extract_slowly(page: object) -> str:
        read.append(page)
        clock.now += 10
        return ""

    monkeypatch.setattr(pdf, "_extract_text", extract_slowly)
    path = tmp_path / "a.pdf"
    path.write_bytes(make_pdf([b""] * 100))
    with pytest.raises(UnreadableDocument, match="too large"):
        list(read_document(path))
    assert len(read) == compute_time_limit(path.stat().st_size) // 10 + 1
