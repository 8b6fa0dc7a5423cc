"""Documents that are no text: what is read of each format, where it stands, and what becomes of odd ones."""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
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

from qtmiddleware.errors import MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents import Converter, cut_document, read_document
from qtmiddleware.kit.documents.converting import READERS
from qtmiddleware.kit.documents.records import RECORD_READERS
from tests.support.office_files import make_office_files
from tests.support.waiting import PATIENCE, with_enough_time

OFFICE = (".docx", ".pptx", ".xlsx")
FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
Found = list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def converter() -> Iterator[Converter]:
    with Converter() as made:
        yield made


@pytest.fixture
def read(tmp_path: Path, converter: Converter) -> Any:
    """Writes a file and gives back its pieces."""

    def write_and_read(name: str, content: bytes | str) -> Found:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return [
            (it.text.rstrip("\n"), dict(it.location))
            for it in read_document(path, converter=converter)
        ]

    return write_and_read


@pytest.fixture
def reason(read: Any) -> Any:
    def refuse(name: str, content: bytes | str) -> str:
        with pytest.raises(UnreadableDocument) as caught:
            read(name, content)
        assert name in str(caught.value)
        return caught.value.reason

    return refuse


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


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_what_parts_the_cells_and_the_encoding_are_seen(
    read: Any, mark: str, encoding: str
) -> None:
    content = f"Größe{mark}Preis{mark}Ort\nzwölf{mark}7{mark}Köln\n".encode(encoding)
    assert read("a.csv", content)[1] == ("Größe: zwölf | Preis: 7 | Ort: Köln", {"row": 2})


def test_a_csv_in_another_encoding_is_refused_and_not_guessed(reason: Any) -> None:
    assert reason("a.csv", "Größe;Preis\n".encode("latin-1")) == "not text in UTF-8"


def test_a_table_that_begins_with_numbers_has_no_names(read: Any) -> None:
    assert read("a.csv", "1,2024-01-01,$5\n2,x,6\n") == [
        ("1 | 2024-01-01 | $5", {"row": 1}),
        ("2 | x | 6", {"row": 2}),
    ]


def test_a_title_above_a_table_is_not_taken_for_its_columns(read: Any) -> None:
    rows = [
        ["Budget"],
        [],
        ["Item", "Price"],
        ["Pump", 7],
        ["Hose", 3, "and a cell without a name"],
    ]
    assert [text for text, _ in read("a.xlsx", saved(workbook(Costs=rows)))] == [
        "Budget", "Item | Price", "Item: Pump | Price: 7", "Item: Hose | Price: 3 | and a cell without a name",
    ]  # fmt: skip


def test_cells_of_a_sheet_are_written_as_people_read_them(read: Any) -> None:
    moment = dt.datetime(2024, 3, 1, 14, 30, tzinfo=dt.UTC).replace(
        tzinfo=None
    )  # sheets know no zones
    values = [
        1,
        2.0,
        0.1 + 0.2,
        True,
        moment.date(),
        moment,
        moment.time(),
        "text",
        None,
        "#N/A",
        1234567.5,
    ]
    book = workbook(A=[["name"], values])
    sheet = book["A"]
    sheet["B3"], sheet["B3"].number_format = 0.256, "0.0%"
    assert read("a.xlsx", saved(book))[1] == (
        "1 | 2 | 0.3 | TRUE | 2024-03-01 | 2024-03-01 14:30 | 14:30:00 | text | #N/A | 1234567.5",
        {"sheet": "A", "row": 2},
    )
    assert "25.6%" in read("a.xlsx", saved(book))[2][0]


def test_merged_cells_count_once_and_a_formula_without_a_value_is_empty(read: Any) -> None:
    book = workbook(A=[["Item", "Price"], ["Pump and hose", None], ["Sum", "=1+1"]])
    book["A"].merge_cells("A2:B2")
    assert [text for text, _ in read("a.xlsx", saved(book))] == [
        "Item | Price",
        "Item: Pump and hose",
        "Item: Sum",
    ]


def test_a_chunk_of_a_sheet_knows_its_first_and_last_row(
    tmp_path: Path, converter: Converter
) -> None:
    rows = [["Item", "Price"], *([f"Item {number}", number] for number in range(2, 60))]
    workbook(Costs=rows, More=[["End", "of it"]]).save(tmp_path / "a.xlsx")
    made = list(cut_document(tmp_path / "a.xlsx", size=300, overlap=0, converter=converter))
    assert made[0].location == {"sheet": "Costs", "row": 1, "last_row": made[1].location["row"] - 1}  # type: ignore[operator]
    for it in made[1:-1]:
        first, last = it.location["row"], it.location["last_row"]
        assert [f"Item {number} " in it.chunk.text for number in (first, last)] == [True, True]
    assert (made[-1].location["last_sheet"], made[-1].location["last_row"]) == ("More", 1)


# --- records


def test_each_record_of_json_is_a_paragraph_that_names_its_values(read: Any) -> None:
    records = [
        {"name": "Ada", "tags": ["a", None, True], "at": {"city": "London", "no": None}},
        {"name": "Bob", "x": []},
    ]
    wanted = ["name: Ada", "tags: a, , true", "at.city: London", "", "name: Bob", ""]
    for name, text in (
        ("a.json", json.dumps(records)),
        ("a.jsonl", "\n".join(map(json.dumps, records))),
    ):
        found = read(name, text)
        assert [line for line, _ in found] == wanted
        assert [place["record"] for _, place in found] == [1, 1, 1, 1, 2, 2]


def test_numbers_stay_as_they_are_written(read: Any) -> None:
    text = (
        '{"a": 1.10, "b": 1e400, "c": '
        + "9" * 5_000
        + ', "d": NaN, "e": 123456789012345678901234567890}'
    )
    assert [line for line, _ in read("a.json", text)][:2] == ["a: 1.10", "b: 1e400"]


def test_a_record_may_be_longer_than_what_is_read_at_once(read: Any) -> None:
    long = [{"text": "word " * 50_000, "n": 1}, 1234567, {"text": "end"}] * 3
    found = [line for line, _ in read("a.json", json.dumps(long, indent=1)) if line]
    assert [line[:9] for line in found] == ["text: wor", "n: 1", "1234567", "text: end"] * 3


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '[{"a": 1}',
        "[1, 2",
        "[1] x",
        "nonsense",
        '{"a": 1}}',
        "[" * 100_000,
        '{"a":' * 100_000,
        "]",
        "[,",
    ],
)
def test_what_is_no_json_is_damaged(reason: Any, text: str) -> None:
    assert reason("a.json", text) == "damaged"


@pytest.mark.parametrize("text", ["[]", "{}", "[null]", '""', '{"a": null}'])
def test_json_without_a_value_has_no_text(reason: Any, text: str) -> None:
    assert reason("a.json", text) == "no text in it"


def test_a_long_name_does_not_make_a_large_text_of_a_small_one(read: Any) -> None:
    found = read("a.json", json.dumps({"k" * 100_000: {str(number): 1 for number in range(1_000)}}))
    assert sum(len(line) for line, _ in found) < 200_000


# --- pages

PAGE = """<!doctype html><html><head><title> Costs &amp;
 more </title><style>p {}</style></head><body><nav>Home</nav><p>Before
<h1>Costs of <i>pumps</i></h1><p>They rose<br>by <b>5</b>%.<ul><li>One<li>Two</ul>
<table><tr><th>A<th>B<tr><td>1<td>2</table><pre>a
  b</pre><script>alert("<p>no</p>")</script><footer>Imprint</footer></body></html>"""


def test_a_page_is_read_without_its_tags_scripts_and_navigation(read: Any) -> None:
    found = read("a.html", PAGE)
    lines = [
        "Before",
        "Costs of pumps",
        "They rose",
        "by 5%.",
        "One",
        "Two",
        "A | B",
        "1 | 2",
        "a\n  b",
    ]
    assert [text for text, _ in found] == lines
    assert found[0][1] == {"title": "Costs & more"}
    assert all(
        place == {"title": "Costs & more", "heading": "Costs of pumps"} for _, place in found[1:]
    )


@pytest.mark.parametrize(
    "content",
    [
        "<p>Größe</p>".encode(),
        '<meta charset="iso-8859-1"><p>Größe</p>'.encode("latin-1"),
        '<?xml version="1.0" encoding="windows-1252"?><p>Größe</p>'.encode("cp1252"),
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


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("<p title=\"a > b\">One <img alt='>'/>two", ["One two"]),
        ("<p>1 < 2 <3 << 4</p>", ["1 < 2 <3 << 4"]),
        ("<p>One<!-- two > three --> four <!----> five <!--> six", ["One four five six"]),
        ("<p>One <!doctype x> two <? three ?> four </> five </3> six", ["One two four five six"]),
        ("<p>One <![CDATA[two <p> three]]> four", ["One three]]> four"]),
        ("<script>if (a < b) '</p>' </scripts> </SCRIPT ><p>One", ["One"]),
        ("<script src=a.js/>var x = '<p>no'</script><p>One", ["One"]),
        ('<script src="a.js"/><p>One', ["One"]),
        ("<p>One<style>p > a {}", ["One"]),
        ("<p>One <a b='two> three <p>four", ["One"]),
        ("<p>One <!-- two <b>three", ["One"]),
        ("<p>One <a two", ["One"]),
        ("<div><nav>two</div>One", ["One"]),
        (
            "<p>&lt;One&gt; &amp;amp; &#65; &nosuch; &#" + "9" * 5_000 + "; two",
            ["<One> &amp; A &nosuch; \ufffd two"],
        ),
    ],
)
def test_what_is_a_tag_and_what_is_text_is_told_apart_as_browsers_do(
    read: Any, written: str, wanted: list[str]
) -> None:
    assert [text for text, _ in read("a.html", written)] == wanted


SHOWN = st.sampled_from(["word", "1 < 2", "&amp;", "<b>bold</b>", "it's", 'a "b"', "="])
HIDDEN = st.sampled_from(
    [
        "<!-- <p>no > -->",
        "<script>'<p>no'</script>",
        "<style>no > no</style>",
        '<img alt="<p>no">',
        "<nav>no</nav>",
    ]
)


@FUZZ
@given(parts=st.lists(SHOWN | HIDDEN, min_size=1, max_size=20))
def test_the_words_of_a_page_are_those_that_are_shown(
    tmp_path: Path, converter: Converter, parts: list[str]
) -> None:
    shown = [part for part in parts if "no" not in part]
    (tmp_path / "a.html").write_text("<p>begin " + " ".join(parts))
    found = [it.text for it in read_document(tmp_path / "a.html", converter=converter)]
    wanted = (
        " ".join(["begin", *shown]).replace("<b>", "").replace("</b>", "").replace("&amp;", "&")
    )
    assert " ".join(" ".join(found).split()) == wanted


# --- Office


def test_a_word_document_is_read_in_order_with_tables_and_headings(read: Any) -> None:
    document = docx.Document()
    document.add_paragraph("Before")
    document.add_heading("Costs", 1)
    document.add_paragraph("They rose.").add_run("\tBy 5%.")
    table = document.add_table(2, 2)
    for cell, text in zip(
        (c for row in table.rows for c in row.cells), ["Item", "Price", "Pump", "7"], strict=True
    ):
        cell.text = text
    document.add_paragraph("After")
    # A content control and a change that is tracked, which python-docx itself leaves out of its
    # paragraphs.
    control = OxmlElement("w:sdt")
    inner = OxmlElement("w:sdtContent")
    control.append(inner)
    moved = document.add_paragraph("In a control")._p
    moved.addprevious(control)
    inner.append(moved)
    changed = document.add_paragraph("Inserted")._p
    insertion = OxmlElement("w:ins")
    run = changed.find(qn("w:r"))
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


# --- odd ones


@pytest.mark.parametrize("ending", sorted({*READERS, *RECORD_READERS}))
def test_an_empty_file_is_empty_and_noise_is_no_text(reason: Any, ending: str) -> None:
    assert reason(f"a{ending}", b"") == "empty"
    assert reason(f"a{ending}", b" \n ") in ("empty", "damaged")
    if ending not in (".html", ".htm"):
        assert reason(f"a{ending}", bytes(range(256)) * 40) in ("binary", "damaged")


@pytest.mark.parametrize("ending", OFFICE)
def test_a_file_of_another_kind_or_an_encrypted_one_is_named(reason: Any, ending: str) -> None:
    assert reason(f"a{ending}", "<html>a page</html>") == "damaged"
    assert reason(f"a{ending}", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600) == "encrypted"


@pytest.mark.parametrize("ending", OFFICE)
def test_a_file_cut_off_anywhere_or_of_other_parts_is_damaged(
    reason: Any, tmp_path: Path, ending: str
) -> None:
    whole = make_office_files(tmp_path)[ending].read_bytes()
    for share in (0.1, 0.5, 0.9, 0.99):
        assert reason(f"b{ending}", whole[: int(len(whole) * share)]) == "damaged"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("a.txt", "text")
    assert reason(f"b{ending}", file.getvalue()) == "damaged"


@pytest.mark.parametrize(
    ("ending", "better"), [(".doc", ".docx"), (".XLS", ".xlsx"), (".ppt", ".pptx")]
)
def test_an_old_office_file_comes_with_advice(tmp_path: Path, ending: str, better: str) -> None:
    (tmp_path / f"a{ending}").write_bytes(b"\xd0\xcf\x11\xe0")
    with pytest.raises(
        UnreadableDocument, match=f"an old Office format .save it as {better} first"
    ):
        list(read_document(tmp_path / f"a{ending}"))


@pytest.mark.parametrize(
    ("ending", "package"),
    [
        (".docx", "python-docx"),
        (".pptx", "python-pptx"),
        (".xlsx", "openpyxl"),
        (".html", "lxml"),
    ],
)
def test_without_its_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, package: str
) -> None:
    # A folder in front of all others, as it would be on sys.path, in which the package cannot be
    # imported.
    name = {"python-docx": "docx", "python-pptx": "pptx"}.get(package, package)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / f"{name}.py").write_text("raise ImportError")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "modules"), *sys.path])
    (tmp_path / "report.html").write_text(PAGE)
    path = {**make_office_files(tmp_path), ".html": tmp_path / "report.html"}[ending]
    with pytest.raises(
        MissingExtra,
        match=rf'{package} is not installed; run: pip install "qtmiddleware\[documents\]"',
    ):
        list(read_document(path))


def bomb(size: int, name: str, *, says: int | None = None) -> bytes:
    """A document with a part of *size* zeros, whose size is given as *says*."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed,
        packed.open(name, "w", force_zip64=False) as part,
    ):
        for _ in range(size >> 20):
            part.write(b" " * (1 << 20))
    content = file.getvalue()
    if says is not None:
        content = content.replace(struct.pack("<L", size), struct.pack("<L", says))
    return content


PARTS = {
    ".docx": "word/document.xml",
    ".pptx": "ppt/presentation.xml",
    ".xlsx": "xl/sharedStrings.xml",
}


@pytest.mark.parametrize("ending", sorted(PARTS))
def test_a_zip_bomb_is_refused_by_the_size_it_says_or_found_to_lie(
    reason: Any, ending: str
) -> None:
    # The sizes are what each says of itself, which is looked at first; one that says less than it
    # holds is found out.
    assert reason(f"a{ending}", bomb(1 << 20, PARTS[ending], says=600 << 20)) == "too large"
    assert reason(f"a{ending}", bomb(64 << 20, PARTS[ending], says=1 << 20)) == "damaged"


ENTITIES = (
    '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY {chr(98 + at)} "{f"&{chr(97 + at)};" * 10}">' for at in range(10))
    + "]>"
)


@pytest.mark.parametrize("ending", sorted(PARTS))
def test_entities_that_name_each_other_do_no_harm(
    tmp_path: Path, converter: Converter, ending: str
) -> None:
    file = io.BytesIO()
    source = make_office_files(tmp_path)[ending]
    with zipfile.ZipFile(source) as whole, zipfile.ZipFile(file, "w") as packed:
        for part in whole.infolist():
            content = whole.read(part)
            if part.filename.endswith(".xml") and b"<?xml" in content[:10]:
                at = content.index(b"?>") + 2
                content = (
                    content[:at]
                    + ENTITIES.encode()
                    + content[at:].replace(b"</w:t>", b"&k;</w:t>", 1)
                )
            packed.writestr(part, content)
    (tmp_path / f"b{ending}").write_bytes(file.getvalue())
    try:
        found = list(read_document(tmp_path / f"b{ending}", converter=converter))
    except UnreadableDocument:
        found = []
    assert sum(len(it.text) for it in found) < 100_000


def test_a_cell_that_is_too_long_is_named_by_its_line(tmp_path: Path, converter: Converter) -> None:
    for number in (1, 3):
        (tmp_path / "a.csv").write_text("a,b\n" * (number - 1) + "x" * 200_000)
        with pytest.raises(
            UnreadableDocument, match=f"near line {number}: is a quotation mark missing"
        ):
            list(read_document(tmp_path / "a.csv", converter=converter))


@FUZZ
@given(
    text=st.text(
        st.characters(exclude_categories=["Cs"]) | st.sampled_from('<>/"&[]{},:;|=- \n\t'),
        max_size=300,
    )
)
@pytest.mark.parametrize("ending", [".csv", ".json", ".html"])
def test_any_text_is_read_or_named_as_unreadable(
    tmp_path: Path, converter: Converter, ending: str, text: str
) -> None:
    path = tmp_path / f"a{ending}"
    path.write_text(text, encoding="utf-8", newline="")
    try:
        pieces = list(read_document(path, converter=converter))
    except UnreadableDocument:
        return
    assert "".join(it.text for it in pieces).strip()


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


@FUZZ
@given(records=st.lists(VALUES, min_size=1, max_size=6))
def test_every_value_of_json_is_in_the_text_of_its_record(
    tmp_path: Path, converter: Converter, records: list[Any]
) -> None:
    def leaves(value: Any) -> Iterator[str]:
        if isinstance(value, dict | list):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from leaves(inner)
        elif value is not None:
            yield json.dumps(value).strip('"') if isinstance(value, bool) else str(value)

    (tmp_path / "a.json").write_text(json.dumps(records))
    texts = dict.fromkeys(range(1, len(records) + 1), "")
    try:
        for it in read_document(tmp_path / "a.json", converter=converter):
            texts[it.location["record"]] += it.text  # type: ignore[index]
    except UnreadableDocument:
        assert not "".join(leaf for record in records for leaf in leaves(record)).strip()
        return
    for number, record in enumerate(records, 1):
        assert all(leaf in texts[number] for leaf in leaves(record))


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
    texts = {
        it.location["row"]: it.text for it in read_document(tmp_path / "a.csv", converter=converter)
    }
    for number, row in enumerate(rows, 1):
        assert all(cell in texts[number] for cell in row)


# --- the process they are read in


def break_openpyxl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let *code* stand for openpyxl in the processes of converters: what a broken library does."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "openpyxl.py").write_text(f"def load_workbook(*_, **__):\n    {code}\n")
    monkeypatch.setattr(sys, "path", [str(modules), *sys.path])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("while True: pass", "reading it takes too long"),
        ("import time; time.sleep(3600)", "reading it takes too long"),
        # In C, without ever letting go of the interpreter.
        ("sum(iter(int, 1))", "reading it takes too long"),
        ("import ctypes; ctypes.string_at(0)", "reading it crashed"),
        ("import os; os._exit(3)", "reading it crashed"),
        ("bytearray(1 << 33)", "reading it takes too much memory"),
        ("raise SystemExit(5)", "reading it crashed"),
        ("print('noise'); raise KeyError('secret')", "KeyError"),
        ("def f(): f()\n    f()", "RecursionError"),
    ],
)
def test_a_reader_that_hangs_or_dies_takes_one_file_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    if "bytearray" in code and sys.platform != "linux":
        pytest.skip("the system holds no process to a limit of memory")
    files = make_office_files(tmp_path)
    beside = files[".docx"]
    break_openpyxl(tmp_path, monkeypatch, code)

    def read(seconds: float) -> list[int]:
        """How many pieces the file beside has, each time after the bad one, if there was time to read it."""
        found: list[int] = []
        with Converter(seconds) as converter:
            for _ in range(2):
                with pytest.raises(UnreadableDocument, match=why) as caught:
                    list(read_document(files[".xlsx"], converter=converter))
                assert "secret" not in str(caught.value)
                with suppress(UnreadableDocument):
                    found.append(len(read_document(beside, converter=converter)))
        return found

    # What hangs is waited for to the end; everything else has time.
    seconds = 3.0 if "too long" in why else PATIENCE
    assert with_enough_time(read, lambda found: len(found) == 2, seconds=seconds)


def test_one_process_reads_all_and_ends_with_the_converter(tmp_path: Path) -> None:
    path = make_office_files(tmp_path)[".docx"]
    with Converter() as converter:
        read_document(path, converter=converter)
        process = converter._process
        assert process is not None
        read_document(path, converter=converter)
        assert converter._process is process
        assert process.poll() is None
    assert process.poll() is not None


def test_a_module_in_the_working_folder_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_office_files(tmp_path)[".xlsx"]
    for name in ("openpyxl", "json", "docx"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'planted')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [it for it in sys.path if it])
    assert list(read_document(path))
    assert not (tmp_path / "planted").exists()


def test_a_link_is_not_followed_unless_it_is_named(tmp_path: Path, converter: Converter) -> None:
    for name, content in (("a.csv", "a,b\n"), ("a.html", PAGE)):
        link = tmp_path / f"link{Path(name).suffix}"
        (tmp_path / name).write_text(content)
        link.symlink_to(tmp_path / name)
        with pytest.raises(UnreadableDocument, match="cannot be opened"):
            read_document(link, follow_link=False, converter=converter)
        assert read_document(link, converter=converter)
