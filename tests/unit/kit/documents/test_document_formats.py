"""What is read of texts, tables, records, pages and Office files, and where it stands."""

from __future__ import annotations

import datetime as dt
import io
import json
from pathlib import Path
from typing import Any

import docx
import openpyxl
import pptx
import pytest
from docx.oxml import OxmlElement
from docx.oxml.ns import qn
from pptx.util import Inches
from pytest_httpserver import HTTPServer

from qtmiddleware.kit.documents import Converter, cut_document
from qtmiddleware.kit.documents.pieces import describe_chunk_location


def saved(document: Any) -> bytes:
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def texts(pieces: list[tuple[str, Any]]) -> list[str]:
    return [text for text, _ in pieces if text]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(("name", "line_end"), [("a.md", "\r\n"), ("notes", "\r")])
def test_text_comes_back_as_it_was_written_with_one_kind_of_line_end(
    tmp_path: Path, encoding: str, name: str, line_end: str
) -> None:
    text = "---\ntitle: Grüße\n---\n\n# 漢字 👍\n\n*Text*\f \x1b[1mbold\x1b[0m \x1a\n" * 9
    (tmp_path / name).write_bytes(text.replace("\n", line_end).encode(encoding))
    (piece,) = Converter().read(tmp_path / name)
    assert (piece.text, piece.location) == (text, {})


def test_each_row_of_a_csv_names_its_columns_and_its_number(read: Any) -> None:
    assert read("a.csv", 'Item,Price\r\nPump,7.50\r\n\r\n"Hose, ""long""\nand thin",\r\n') == [
        ("Item | Price", {"row": 1}),
        ("Item: Pump | Price: 7.50", {"row": 2}),
        ('Item: Hose, "long" and thin', {"row": 4}),
    ]


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_what_parts_the_cells_is_seen(read: Any, mark: str) -> None:
    content = f'"Größe, ca."{mark}Preis{mark}Ort{mark}Land\nzwölf{mark}7{mark}Köln{mark}\n'
    found = read("a.tsv", content.encode("utf-16"))
    assert found[1] == ("Größe, ca.: zwölf | Preis: 7 | Ort: Köln", {"row": 2})


@pytest.mark.parametrize(
    ("content", "row"),
    [
        ('A;B, c;D, e\nx;"7,50";y\n', "A: x | B, c: 7,50 | D, e: y"),
        ("A, b;C\n7,50;y\n", "A, b: 7,50 | C: y"),
        ('A,b; c\nx,"y; z"\n\nx,y\n', "A: x | b; c: y; z"),
        ("A\nx, y\n", "A: x, y"),
    ],
)
def test_a_separator_may_stand_in_the_names_of_columns(read: Any, content: str, row: str) -> None:
    assert texts(read("a.csv", content))[1] == row


def test_each_record_of_json_is_a_paragraph_that_names_its_values(read: Any) -> None:
    records = [
        {"name": "Ada", "tags": ["a", None, True], "at": {"city": "London", "no": None}},
        {"name": "Bob", "x": []},
    ]
    lines = "\n".join(map(json.dumps, records))
    for name, text in (("a.json", json.dumps(records)), ("b.json", lines), ("a.jsonl", lines)):
        assert [(line, place["record"]) for line, place in read(name, text)] == [
            ("name: Ada\ntags: a, None, True\nat.city: London", 1),
            ("name: Bob", 2),
        ]
    odd = '{"a": 1e400, "b": NaN, "c": {"d": [{"e": 0.5}]}}'
    assert texts(read("a.json", odd)) == ["a: 1e400\nb: NaN\nc.d 1.e: 0.5"]


def test_a_json_line_with_a_text_has_its_chunks_for_itself_and_metadata(
    tmp_path: Path, converter: Converter
) -> None:
    rows = [
        {"_id": "a", "title": "Pumps", "text": "It runs at 3 bar. " * 20, "year": 2021, "size": 10**4_200},
        {"id": 7, "text": "No title.", "metadata": {"lang": "en", "deep": {"x": 1}}, "source": "wiki"},
        {"name": "Ada", "price": 1.5},
        {"body": "Long metadata. " * 90, **{f"field {at}": "x" * 100 for at in range(5_000)}},
    ]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    chunks = list(cut_document(tmp_path / "a.jsonl", converter, size=100, overlap=20))
    first, (second,), (third,), fourth = (
        [it for it in chunks if it.location["record"] == number] for number in (1, 2, 3, 4)
    )
    place = {"record": 1, "title": "Pumps", "record_id": "a", "year": 2021, "size": "1" + "0" * 199}
    assert first[0].text.startswith("Pumps\nIt runs at 3 bar.")
    assert all(it.location == place for it in first)
    assert second.text == "No title."
    assert second.location == {"record": 2, "record_id": "7", "lang": "en", "record_source": "wiki"}
    assert third.text == "name: Ada\nprice: 1.5\n\n"
    assert [it.start for it in chunks] == sorted({it.start for it in chunks})
    assert second.start == first[-1].end == second.end - len("No title.")
    # Each chunk repeats all metadata, so it has a limit.
    assert {len(it.location) for it in fourth} == {51}


PAGE = """<!doctype html><html><head><title> Costs &amp;
 more </title><style>p {}</style></head><body><nav>Home</nav><!-- <p>no > --><p>Before
<h1>Costs of <i>pumps</i></h1><p>They rose<br>by <b>5</b>%.<ul><li>One<li>Two</ul>
<table><tr><th>A<th>B<tr><td>1<td>2 < 3</table><pre>a
  b</pre><script>alert("<p>no</p>")</script><footer>Imprint</footer></body></html>"""


def test_a_page_is_read_without_its_tags_scripts_and_navigation(read: Any) -> None:
    found = read("a.html", PAGE)
    assert texts(found) == [
        *("Before", "Costs of pumps", "They rose", "by 5%.", "One", "Two", "A | B", "1 | 2 < 3"),
        "a\n  b",
    ]
    assert all(place == {"title": "Costs & more"} for _, place in found)


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ("", "utf-8-sig"),
        ("", "utf-16"),
        ("", "latin-1"),
        ('<meta charset="iso-8859-2">', "iso-8859-2"),
        ('<meta charset="no-such">', "utf-8"),
    ],
)
def test_the_encoding_of_a_page_is_what_a_browser_takes(
    read: Any, head: str, encoding: str
) -> None:
    assert texts(read("a.htm", f"{head}<p>Größe</p>".encode(encoding))) == ["Größe"]


@pytest.mark.parametrize("tags", ["<div>", "<ul><li>", "<svg></svg><b>"])
def test_a_page_nested_deeply_is_read_or_damaged_and_never_read_in_part(
    read: Any, reason: Any, tags: str
) -> None:
    assert texts(read("a.html", tags * 200 + "text")) == ["text"]
    assert reason("a.html", "<p>Above" + tags * 100_000 + "text") == "damaged"


def test_a_page_takes_nothing_from_other_files_and_addresses(
    read: Any, httpserver: HTTPServer, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    address = httpserver.url_for("/page")
    outside = (
        f'<!DOCTYPE html [<!ENTITY a SYSTEM "{(tmp_path / "secret.txt").as_uri()}">'
        f'<!ENTITY b SYSTEM "{address}"><!ENTITY % c SYSTEM "{address}"> %c;]>'
        f'<base href="{address}"><link rel="stylesheet" href="{address}"><script src="{address}">'
        f'</script><img src="{address}"><object data="{address}"></object><p>&a;&b;One'
    )
    assert "secret" not in str(read("a.html", outside))
    assert httpserver.log == []


def test_a_word_document_is_read_in_order_with_tables_and_what_was_inserted(read: Any) -> None:
    document = docx.Document()
    document.add_paragraph("Before")
    document.add_heading("Costs", 1)
    document.add_paragraph("They rose.").add_run("\tBy 5%.")
    table = document.add_table(2, 2)
    cells = (cell for row in table.rows for cell in row.cells)
    for cell, text in zip(cells, ["Item", "Price", "Pump", "7"], strict=True):
        cell.text = text
    # A content control and a tracked change, which python-docx leaves out of its paragraphs.
    control = OxmlElement("w:sdt")
    control.append(OxmlElement("w:sdtContent"))
    moved = document.add_paragraph("In a control")._p
    moved.addprevious(control)
    control[0].append(moved)
    run = document.add_paragraph("Inserted")._p.find(qn("w:r"))
    insertion = OxmlElement("w:ins")
    run.addprevious(insertion)
    insertion.append(run)
    assert texts(read("a.docx", saved(document))) == [
        *("Before", "Costs", "They rose. By 5%.", "Item | Price", "Pump | 7"),
        *("In a control", "Inserted"),
    ]


def test_cells_of_a_sheet_are_written_as_people_read_them_below_their_columns(read: Any) -> None:
    book = openpyxl.Workbook()
    book.active.title = "Costs"
    day = dt.datetime.fromisoformat("2024-03-01")
    for row in ([], ["Item", "Price"], ["Pump", 7, "one more"], [0.1 + 0.2, day, None, "=1+1"]):
        book.active.append(row)
    book.create_sheet("More").append(["End", day.replace(hour=14)])
    assert read("a.xlsx", saved(book)) == [
        ("Item | Price", {"sheet": "Costs", "row": 2}),
        ("Item: Pump | Price: 7 | one more", {"sheet": "Costs", "row": 3}),
        ("Item: 0.3 | Price: 2024-03-01", {"sheet": "Costs", "row": 4}),
        ("End | 2024-03-01 14:00:00", {"sheet": "More", "row": 1}),
    ]


def test_slides_are_read_with_their_tables_groups_and_notes(read: Any) -> None:
    deck = pptx.Presentation()
    for number in (1, 2):
        slide = deck.slides.add_slide(deck.slide_layouts[5])
        slide.shapes.title.text = f"Title {number}"
    box = slide.shapes.add_group_shape().shapes.add_textbox(0, 0, Inches(1), Inches(1))
    box.text_frame.text = "In a group"
    table = slide.shapes.add_table(1, 2, 0, 0, Inches(2), Inches(2)).table
    table.cell(0, 0).text, table.cell(0, 1).text = "Pump", "7"
    slide.notes_slide.notes_text_frame.text = "Say it slowly"
    assert sorted((text, place["slide"]) for text, place in read("a.pptx", saved(deck))) == [
        *(("In a group", 2), ("Notes: Say it slowly", 2), ("Pump | 7", 2)),
        *(("Title 1", 1), ("Title 2", 2)),
    ]


def test_a_chunk_of_a_table_knows_its_first_and_last_row(
    tmp_path: Path, converter: Converter
) -> None:
    rows = "".join(f"Item {number},{number}\n" for number in range(2, 30))
    (tmp_path / "a.csv").write_text(f"Item,Price\n{rows}")
    for it in list(cut_document(tmp_path / "a.csv", converter, size=300, overlap=0))[1:]:
        assert f"Item {it.location['row']} " in it.text
        assert f"Item {it.location['last_row']} " in it.text


@pytest.mark.parametrize(
    ("metadata", "shown"),
    [
        ({"page": 3.0, "source": "a.pdf"}, "page 3"),
        ({"page": 3, "last_page": 4}, "page 3 to 4"),
        ({"sheet": "Costs", "row": 12, "last_row": 31}, "sheet Costs, row 12 to 31"),
        ({"row": 7, "page": ""}, "row 7"),
        ({"page": [3]}, ""),
    ],
)
def test_a_place_is_shown_as_people_find_it(metadata: dict[str, Any], shown: str) -> None:
    assert describe_chunk_location(metadata) == shown
