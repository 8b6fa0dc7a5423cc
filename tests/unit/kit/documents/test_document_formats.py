"""What is read of tables, records, pages and Office files, and where it stands."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docx
import openpyxl
import pptx
import pytest
from docx.oxml import OxmlElement
from docx.oxml.ns import qn
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pptx.util import Inches
from pytest_httpserver import HTTPServer

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents import Converter, cut_document, read_document

FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
Found = list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def converter() -> Iterator[Converter]:
    with Converter() as opened:
        yield opened


@pytest.fixture
def read(tmp_path: Path, converter: Converter) -> Any:
    """Writes a file and returns its pieces."""

    def write_and_read(name: str, content: bytes | str) -> Found:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return [
            (it.text.rstrip("\n"), dict(it.location))
            for it in read_document(path, converter=converter)
        ]

    return write_and_read


def saved(document: Any) -> bytes:
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def workbook(**sheets: list[list[Any]]) -> openpyxl.Workbook:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    return book


# --- tables


def test_each_row_of_a_csv_names_its_columns_and_its_number(read: Any) -> None:
    assert read("a.csv", 'Item,Price\r\nPump,7.50\r\n\r\n"Hose, ""long""\nand thin",\r\n') == [
        ("Item | Price", {"row": 1}),
        ("Item: Pump | Price: 7.50", {"row": 2}),
        ('Item: Hose, "long" and thin', {"row": 4}),
    ]
    # A table that begins with numbers has no names.
    found = read("a.csv", "1,2024-01-01,$5\n2,x,6\n")
    assert found == [("1 | 2024-01-01 | $5", {"row": 1}), ("2 | x | 6", {"row": 2})]


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_what_parts_the_cells_is_seen(read: Any, mark: str, encoding: str) -> None:
    content = f'"Größe\nin mm, ca."{mark}Preis{mark}Ort\nzwölf{mark}7{mark}Köln\n'
    found = read("a.tsv", content.encode(encoding))
    assert found[1] == ("Größe in mm, ca.: zwölf | Preis: 7 | Ort: Köln", {"row": 2})


CELLS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)


@FUZZ
@example(rows=[["0", ",,"]], mark=";")
@given(
    rows=st.lists(st.lists(CELLS, min_size=2, max_size=5), min_size=1, max_size=8),
    mark=st.sampled_from(",;\t"),
)
def test_every_cell_of_a_csv_is_in_the_text_of_its_row(
    tmp_path: Path, converter: Converter, rows: list[list[str]], mark: str
) -> None:
    quoted = [mark.join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows]
    (tmp_path / "a.csv").write_text("\n".join(quoted) + "\n", encoding="utf-8", newline="")
    pieces = read_document(tmp_path / "a.csv", converter=converter)
    texts = {it.location["row"]: it.text for it in pieces}
    for number, row in enumerate(rows, 1):
        assert all(cell in texts[number] for cell in row)


def test_a_title_above_a_table_is_not_taken_for_its_columns(read: Any) -> None:
    rows = [["Budget"], [], ["Item", "Price"], ["Pump", 7], ["Hose", 3, "and a cell more"]]
    assert [text for text, _ in read("a.xlsx", saved(workbook(Costs=rows)))] == [
        "Budget", "Item | Price", "Item: Pump | Price: 7", "Item: Hose | Price: 3 | and a cell more",
    ]  # fmt: skip


def test_cells_of_a_sheet_are_written_as_people_read_them(read: Any) -> None:
    moment = dt.datetime.fromisoformat("2024-03-01T14:30")
    numbers = [1, 2.0, 0.1 + 0.2, True, 1234567.5]
    book = workbook(
        A=[["name"], [*numbers, moment.date(), moment, moment.time(), "#N/A", None, "=1+1"]]
    )
    book["A"]["B3"], book["A"]["B3"].number_format = 0.256, "0.0%"
    book["A"]["C3"] = "merged"
    book["A"].merge_cells("C3:D3")
    assert read("a.xlsx", saved(book))[1:] == [
        (
            "1 | 2 | 0.3 | TRUE | 1234567.5 | 2024-03-01 | 2024-03-01 14:30 | 14:30:00 | #N/A",
            {"sheet": "A", "row": 2},
        ),
        ("25.6% | merged", {"sheet": "A", "row": 3}),
    ]


def test_a_chunk_of_a_sheet_knows_its_first_and_last_row(
    tmp_path: Path, converter: Converter
) -> None:
    rows = [["Item", "Price"], *([f"Item {number}", number] for number in range(2, 60))]
    workbook(Costs=rows, More=[["End", "of it"]]).save(tmp_path / "a.xlsx")
    chunks = list(cut_document(tmp_path / "a.xlsx", size=300, overlap=0, converter=converter))
    last_row = int(chunks[1].location["row"]) - 1
    assert chunks[0].location == {"sheet": "Costs", "row": 1, "last_row": last_row}
    for it in chunks[1:-1]:
        first, last = it.location["row"], it.location["last_row"]
        assert [f"Item {number} " in it.text for number in (first, last)] == [True, True]
    assert (chunks[-1].location["last_sheet"], chunks[-1].location["last_row"]) == ("More", 1)


# --- records


def test_each_record_of_json_is_a_paragraph_that_names_its_values(read: Any) -> None:
    records = [
        {"name": "Ada", "tags": ["a", None, True], "at": {"city": "London", "no": None}},
        {"name": "Bob", "x": []},
    ]
    wanted = ["name: Ada", "tags: a, , true", "at.city: London", "", "name: Bob", ""]
    for name, text in (
        ("a.json", json.dumps(records)),
        ("b.json", "\n".join(map(json.dumps, records))),
        ("a.jsonl", "\n".join(map(json.dumps, records))),
    ):
        found = read(name, text)
        assert [line for line, _ in found] == wanted
        assert [place["record"] for _, place in found] == [1, 1, 1, 1, 2, 2]
    digits = '{"a": 1.10, "b": 1e400, "c": ' + "9" * 5_000 + ', "d": NaN, "e": 0.00000001}'
    lines = [line for line, _ in read("a.json", digits)]
    assert lines[:2] + lines[3:] == ["a: 1.10", "b: 1e400", "d: NaN", "e: 0.00000001", ""]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


def leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves(inner)
    elif value is not None:
        yield json.dumps(value).strip('"') if isinstance(value, bool) else str(value)


@FUZZ
@given(records=st.lists(VALUES, min_size=1, max_size=6))
def test_every_value_of_json_is_in_the_text_of_its_record(
    tmp_path: Path, converter: Converter, records: list[Any]
) -> None:
    (tmp_path / "a.json").write_text(json.dumps(records))
    texts = dict.fromkeys(range(1, len(records) + 1), "")
    try:
        for it in read_document(tmp_path / "a.json", converter=converter):
            texts[int(it.location["record"])] += it.text
    except UnreadableDocument:
        assert not "".join(leaf for record in records for leaf in leaves(record)).strip()
        return
    for number, record in enumerate(records, 1):
        assert all(leaf in texts[number] for leaf in leaves(record))


def test_a_json_line_with_a_text_has_its_chunks_for_itself_and_metadata(tmp_path: Path) -> None:
    rows = [
        {"_id": "a", "title": "Pumps", "text": "It runs at 3 bar. " * 20, "year": 2021, "price": 1.5, "new": True},
        {"id": 7, "text": "No title here.", "metadata": {"lang": "en", "deep": {"x": 1}}, "tags": ["x"], "chunk": 1},
        {"name": "Ada", "age": 36},
        {"text": "Long metadata. " * 90, **{f"field {at}": "x" * 100 for at in range(5_000)}},
    ]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    chunks = list(cut_document(tmp_path / "a.jsonl", size=100, overlap=20))
    by_record = {
        number: [it for it in chunks if it.location["record"] == number] for number in range(1, 5)
    }
    assert by_record[1][0].text.startswith("Pumps\nIt runs at 3 bar.")
    place = {"record": 1, "title": "Pumps", "record_id": "a", "year": 2021, "price": 1.5, "new": True}  # fmt: skip
    assert all(it.location == place for it in by_record[1])
    (second,), (third,) = by_record[2], by_record[3]
    assert second.text == "No title here."
    assert second.location == {"record": 2, "record_id": "7", "lang": "en"}
    assert third.text == "name: Ada\nage: 36\n\n"
    assert [it.start for it in chunks] == sorted({it.start for it in chunks})
    assert second.start == by_record[1][-1].end == second.end - len("No title here.")
    # Each chunk repeats all metadata, so it has a limit.
    assert {100 < len(it.location) < 200 for it in by_record[4]} == {True}


# --- pages

PAGE = """<!doctype html><html><head><title> Costs &amp;
 more </title><style>p {}</style></head><body><nav>Home</nav><p>Before
<h1>Costs of <i>pumps</i></h1><p>They rose<br>by <b>5</b>%.<ul><li>One<li>Two</ul>
<table><tr><th>A<th>B<tr><td>1<td>2</table><pre>a
  b</pre><script>alert("<p>no</p>")</script><footer>Imprint</footer></body></html>"""


def test_a_page_is_read_without_its_tags_scripts_and_navigation(read: Any) -> None:
    found = read("a.html", PAGE)
    assert [text for text, _ in found] == [
        "Before", "Costs of pumps", "They rose", "by 5%.", "One", "Two", "A | B", "1 | 2", "a\n  b",
    ]  # fmt: skip
    assert found[0][1] == {"title": "Costs & more"}
    under = {"title": "Costs & more", "heading": "Costs of pumps"}
    assert all(place == under for _, place in found[1:])


@pytest.mark.parametrize(
    "content",
    [
        "<p>Größe</p>".encode(),
        '<meta charset="iso-8859-1"><p>Größe</p>'.encode("latin-1"),
        '<meta charset="iso-8859-2"><p>Größe</p>'.encode("iso-8859-2"),
        "<p>Größe</p>".encode("cp1252"),
        "<p>Größe</p>".encode("utf-16"),
        "<p>Größe</p>".encode("utf-8-sig"),
        '<meta charset="no-such"><p>Größe</p>'.encode(),
    ],
)
def test_the_encoding_of_a_page_is_what_a_browser_takes(read: Any, content: bytes) -> None:
    assert [text for text, _ in read("a.htm", content)] == ["Größe"]


@pytest.mark.parametrize("tags", ["<div>", "<b>", "<p>", "<ul><li>", "<table>", "<svg></svg><b>"])
def test_a_page_nested_deeply_is_read(read: Any, tags: str) -> None:
    assert [text for text, _ in read("a.html", tags * 100_000 + "text")] == ["text"]


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


SHOWN = st.sampled_from(["word", "1 < 2", "&amp;", "<b>bold</b>", "it's", 'a "b"', "="])
HIDDEN = st.sampled_from(
    ["<!-- <p>no > -->", "<script>'<p>no'</script>", "<style>no > no</style>", '<img alt="<p>no">', "<nav>no</nav>"]
)  # fmt: skip


@FUZZ
@given(parts=st.lists(SHOWN | HIDDEN, min_size=1, max_size=20))
def test_the_words_of_a_page_are_those_that_are_shown(
    tmp_path: Path, converter: Converter, parts: list[str]
) -> None:
    (tmp_path / "a.html").write_text("<p>begin " + " ".join(parts))
    found = [it.text for it in read_document(tmp_path / "a.html", converter=converter)]
    shown = " ".join(["begin", *(part for part in parts if "no" not in part)])
    shown = shown.replace("<b>", "").replace("</b>", "").replace("&amp;", "&")
    assert " ".join(" ".join(found).split()) == shown


# --- Office


def test_a_word_document_is_read_in_order_with_tables_and_headings(read: Any) -> None:
    document = docx.Document()
    document.add_paragraph("Before")
    document.add_heading("Costs", 1)
    document.add_paragraph("They rose.").add_run("\tBy 5%.")
    table = document.add_table(2, 2)
    cells = (cell for row in table.rows for cell in row.cells)
    for cell, text in zip(cells, ["Item", "Price", "Pump", "7"], strict=True):
        cell.text = text
    document.add_paragraph("After")
    # A content control and a change that is tracked, which python-docx itself leaves out of its
    # paragraphs.
    control = OxmlElement("w:sdt")
    control.append(OxmlElement("w:sdtContent"))
    moved = document.add_paragraph("In a control")._p
    moved.addprevious(control)
    control[0].append(moved)
    run = document.add_paragraph("Inserted")._p.find(qn("w:r"))
    insertion = OxmlElement("w:ins")
    run.addprevious(insertion)
    insertion.append(run)
    found = [(text, place) for text, place in read("a.docx", saved(document)) if text]
    assert [text for text, _ in found] == [
        "Before", "Costs", "They rose. By 5%.", "Item | Price", "Item: Pump | Price: 7", "After",
        "In a control", "Inserted",
    ]  # fmt: skip
    assert found[0][1] == {}
    assert found[2][1] == {"heading": "Costs"}
    assert found[4][1] == {"heading": "Costs", "row": 2}


def test_slides_are_read_with_their_tables_groups_and_notes(read: Any) -> None:
    deck = pptx.Presentation()
    for number in (1, 2):
        slide = deck.slides.add_slide(deck.slide_layouts[5])
        slide.shapes.title.text = f"Title {number}"
    box = slide.shapes.add_group_shape().shapes.add_textbox(0, 0, Inches(1), Inches(1))
    box.text_frame.text = "In a group"
    table = slide.shapes.add_table(2, 2, 0, 0, Inches(2), Inches(2)).table
    for at, text in enumerate(["Item", "Price", "Pump", "7"]):
        table.cell(at // 2, at % 2).text = text
    slide.notes_slide.notes_text_frame.text = "Say it slowly"
    found = [(text, place) for text, place in read("a.pptx", saved(deck)) if text]
    assert found[0] == ("Title 1", {"slide": 1})
    assert {text for text, _ in found[1:]} == {
        "Title 2", "In a group", "Item | Price", "Item: Pump | Price: 7", "Notes: Say it slowly",
    }  # fmt: skip
    assert all(place == {"slide": 2} for _, place in found[1:])
