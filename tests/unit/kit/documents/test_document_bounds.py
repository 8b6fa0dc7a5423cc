"""A document of a stranger ends: in bytes, in text and in time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pptx
import pytest

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents import Converter, cut_document, read_document, text
from qtmiddleware.kit.documents.text import CHARS_PER_BYTE, PLACE_CHARS, SPARE_CHARS
from tests.support.office_files import write_endless_sheet
from tests.support.pdf_files import content, stream
from tests.support.pdf_files import pdf as make_pdf

SENTENCE = "All work and no play makes Jack a dull boy. "


@pytest.fixture(scope="module")
def converter() -> Iterator[Converter]:
    with Converter() as made:
        yield made


def test_a_small_file_of_endless_text_is_refused_with_its_numbers(
    tmp_path: Path, converter: Converter
) -> None:
    path = tmp_path / "a.xlsx"
    write_endless_sheet(path)
    size = path.stat().st_size
    assert size < 200_000
    with pytest.raises(UnreadableDocument) as caught:
        read_document(path, converter=converter)
    assert caught.value.reason == "too large"
    most = SPARE_CHARS + CHARS_PER_BYTE * size
    assert f"{size:,} bytes give more than {most:,} characters" in caught.value.detail
    assert "save the file as CSV or plain text" in caught.value.detail


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.pdf"])
def test_a_file_beyond_the_limit_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(text.MOST_BYTES + 1)
    with pytest.raises(UnreadableDocument, match="more than 256 MB"):
        read_document(tmp_path / name)


def test_a_table_of_digits_under_long_names_is_read_to_its_end(tmp_path: Path) -> None:
    name = "Question {}: how satisfied are you with this part of our service"
    names = [name.format(at).ljust(100, ".") for at in range(40)]
    rows = (",".join("1" * 40) + "\n") * 500
    (tmp_path / "a.csv").write_text(",".join(names) + "\n" + rows)
    found = read_document(tmp_path / "a.csv")
    assert len(found) == 501
    assert sum(len(it.text) for it in found) > 40 * (tmp_path / "a.csv").stat().st_size


def test_a_presentation_that_names_a_slide_many_times_has_it_once(
    tmp_path: Path, converter: Converter
) -> None:
    deck = pptx.Presentation()
    for title in ("One", "Two"):
        deck.slides.add_slide(deck.slide_layouts[5]).shapes.title.text = title
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


def billion_branches() -> bytes:
    branches = [
        b"<< /Type /Pages /Count 9 /Kids [%s] >>" % (b"%d 0 R " % number * 10)
        for number in range(7, 16)
    ]
    made = make_pdf(
        [content("Page one.")], more=[*branches, b"<< /Type /Pages /Count 1 /Kids [4 0 R] >>"]
    )
    return made.replace(b"/Kids [4 0 R] /Count", b"/Kids [6 0 R] /Count")


def nested_forms() -> bytes:
    """One page whose form draws the next one 40 times, 12 levels deep."""
    resources = (
        b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X %d 0 R >> >>"
    )
    forms = [
        stream(b"/X Do " * 40 if level < 11 else b"BT (deep) Tj ET " * 40, resources % (7 + level))
        for level in range(12)
    ]
    page = content("Page one.") + b" /X Do"
    return make_pdf([page], more=forms, resources=b"/XObject << /X 6 0 R >>")


@pytest.mark.parametrize("made", [billion_branches(), nested_forms()])
def test_a_bomb_takes_a_limited_time_and_no_other_document(tmp_path: Path, made: bytes) -> None:
    (tmp_path / "a.pdf").write_bytes(made)
    (tmp_path / "b.pdf").write_bytes(make_pdf([content("Page one.")]))
    with Converter(seconds=8) as converter:
        try:
            found = read_document(tmp_path / "a.pdf", converter=converter)
        except UnreadableDocument as error:
            assert error.reason in ("its reader failed", "too large", "damaged")  # noqa: PT017
        else:
            assert len(found) == 1
    assert [it.text for it in read_document(tmp_path / "b.pdf")] == ["Page one.\n"]


def test_a_long_heading_is_not_repeated_whole_at_each_paragraph(
    tmp_path: Path, converter: Converter
) -> None:
    (tmp_path / "a.html").write_text(
        f"<title>{'t' * 500_000}</title><h1>{'h' * 500_000}</h1>" + "<p>text" * 20_000
    )
    found = read_document(tmp_path / "a.html", converter=converter)
    assert len(found) == 20_001
    assert found[-1].location == {"title": "t" * PLACE_CHARS, "heading": "h" * PLACE_CHARS}


def test_metadata_of_a_record_has_a_length_as_each_of_its_chunks_has_all_of_it(
    tmp_path: Path,
) -> None:
    record = {"text": SENTENCE * 2_000, **{f"field {at}": "x" * 100 for at in range(5_000)}}
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    made = list(cut_document(tmp_path / "a.jsonl", size=800, overlap=0))
    assert len(made) > 100
    assert {len(it.location) for it in made} == {len(made[0].location)}
    assert 100 < len(made[0].location) < 200
    assert made[0].location["field 0"] == "x" * 100
