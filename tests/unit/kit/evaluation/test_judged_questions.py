"""Judged questions out of tables, JSON and folders."""

from __future__ import annotations

import csv
import io
import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.ask_file import read_question_file
from qtmiddleware.kit.evaluation import Dataset, load_judged, load_questions
from tests.support.bench_world import bridges_data, write_data

HEALTH, FEE = "Does Jaco have any health concerns?", "How much is the fee, if I may ask?"
PLAIN = f'question,id\n{HEALTH},health\n"{FEE}",fees\n'
EXPECTED = {HEALTH: ["health"], FEE: ["fees"]}


def write(folder: Path, content: str | bytes, name: str = "questions.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def judged(data: Dataset) -> dict[str, list[str]]:
    """The ids of each question's passages, by its text."""
    return {question.text: [*data.qrels[question.id]] for question in data.questions}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(PLAIN, id="commas"),
        pytest.param(PLAIN.encode("utf-8-sig"), id="a byte order mark"),
        pytest.param(PLAIN.encode("utf-16"), id="UTF-16"),
        pytest.param(PLAIN.replace("\n", "\r\n"), id="Windows line ends"),
        pytest.param(f"question;id\n{HEALTH};health\n{FEE};fees\n", id="semicolons"),
        pytest.param(f"question\tid\n{HEALTH}\thealth\n{FEE}\tfees", id="tabs, no line end"),
        pytest.param(
            f'"id","Question "\n"health","{HEALTH}"\n"fees","{FEE}"\n', id="all quoted, other order"
        ),
        pytest.param(
            f'\n question , id \n{HEALTH}, health \n,\n"{FEE}", fees\n\n',
            id="blanks and blank lines",
        ),
        pytest.param(
            f'note,query,ids,more\nx,{HEALTH},health,\n,"{FEE}",fees,y\n', id="more columns"
        ),
        pytest.param(
            f'question,relevant\n{HEALTH},"[""health""]"\n"{FEE}",fees\n', id="JSON lists"
        ),
    ],
)
def test_a_table_is_read_as_spreadsheets_write_it(tmp_path: Path, content: str | bytes) -> None:
    data = load_judged(write(tmp_path, content))
    assert judged(data) == EXPECTED
    assert (data.name, data.passages) == ("questions", ())
    assert [question.id for question in data.questions] == ["1", "2"]


@pytest.mark.parametrize("ids", ["a,b", " a ; b", "a|b|", "a\nb", '["a", "b"]', "a,b,a"])
def test_a_cell_may_hold_several_ids(tmp_path: Path, ids: str) -> None:
    cell = ids.replace('"', '""')
    assert judged(load_judged(write(tmp_path, f'question,ids\nWhat?,"{cell}"\n'))) == {
        "What?": ["a", "b"]
    }


def test_one_id_may_hold_what_separates_several(tmp_path: Path) -> None:
    path = write(tmp_path, 'question,id\nWhat?,"a,b; c|d"\n')
    assert judged(load_judged(path)) == {"What?": ["a,b; c|d"]}


def test_rows_of_the_same_question_are_one_question(tmp_path: Path) -> None:
    data = load_judged(write(tmp_path, "question,id\nWhat?,a\nWhen?,c\nWhat? ,b\nWhat?,a\n"))
    assert data.qrels == {"1": {"a": 1, "b": 1}, "2": {"c": 1}}


def test_an_id_beside_ids_is_the_question_s_own(tmp_path: Path) -> None:
    path = write(tmp_path, "id,question,ids,answer\nq7,What?,a,It is.\nq8,What?,b,\n")
    data = load_judged(path)
    assert data.qrels == {"q7": {"a": 1}, "q8": {"b": 1}}
    assert [question.reference for question in data.questions] == ["It is.", ""]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", r"questions\.csv must hold questions, one per row; it is empty"),
        ("\n \n", "it is empty"),
        ("question,id\n", r"must hold questions with the ids of their passages; it holds none"),
        (
            "question,answer\nWhat?,x\n",
            r"must name the columns question and id \(or ids\) .* not 'question', 'answer'",
        ),
        ("What?,a\nWhen?,b\n", r"must name the columns question and id .* not 'What\?', 'a'"),
        (
            "question,id\nWhat?,a\nWhen?,\n",
            r"csv line 3: has no passage id under \"id\"\. Fill it in",
        ),
        ("question,id\n,a\n", r"csv line 2: must have a question"),
        (
            "question,id\nWhat, and when?,a\n",
            r"line 2: has 3 cells, .* names 2 columns\. Put a cell .* a comma in quotes",
        ),
        ("question,id\nWhat?\n", r"line 2: must have the id of a passage"),
        ('question,id\n"What?,a\nWhen?,b\n', r"line 2: cannot be read as CSV \(unexpected end"),
        ('question,id\n"What" is it?,a\n', r"line 2: cannot be read as CSV .*double the quotes"),
        ('question,ids\nWhat?,"[a"\n', r"line 2: must have ids with commas"),
        (
            b"question,id\nWhat?,a\nWas hei\xdft das?,b\n",
            r"line 3: not valid UTF-8\. Save the table as UTF-8",
        ),
        ("id,question,ids\nq,What?,a\nq,When?,b\n", r"line 3: the id 'q' occurs a second time"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_by_its_line(
    tmp_path: Path, content: str | bytes, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load_judged(write(tmp_path, content))


def test_a_row_over_several_lines_is_called_by_its_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"csv line 4: has no passage id"):
        load_judged(write(tmp_path, 'question,id\n"What\nis it?",a\n"And\nwhen?",\n'))


@pytest.mark.parametrize(
    "lines",
    [
        [{"question": HEALTH, "id": "health"}, {"query": FEE, "id": "fees"}],
        [{"text": HEALTH, "ids": ["health"]}, {"question": FEE, "relevant": "fees"}],
        [
            {"_id": "q1", "question": HEALTH, "relevant": ["health"]},
            {"id": 2, "question": FEE, "ids": ["fees"]},
        ],
    ],
)
@pytest.mark.parametrize("as_list", [True, False])
def test_json_has_the_same_keys_as_a_table(tmp_path: Path, lines: list[Any], as_list: bool) -> None:
    text = json.dumps(lines, indent=1) if as_list else "\n".join(map(json.dumps, lines))
    assert judged(load_judged(write(tmp_path, text, "questions.jsonl"))) == EXPECTED


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"question": "What?"}, "must have the id of a passage"),
        ({"question": "What?", "ids": []}, 'has no passage id under "ids"'),
        ({"question": "What?", "id": None}, 'has no passage id under "id"'),
        ({"question": "What?", "ids": [{"a": 1}]}, "texts or numbers as passage ids"),
        ({"question": "What?", "ids": [True]}, "texts or numbers as passage ids"),
        ({"ids": ["a"]}, "must have a question"),
        (["What?"], "must be a JSON object"),
    ],
)
def test_what_is_wrong_with_a_line_of_json_is_said(tmp_path: Path, line: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"(line|question) 1: .*{said}"):
        load_judged(write(tmp_path, json.dumps(line), "questions.jsonl"))


def test_a_folder_needs_no_passages_and_keeps_its_grades(tmp_path: Path) -> None:
    folder = write_data(tmp_path / "set", bridges_data(history=True))
    (folder / "qrels" / "test.tsv").write_text("Arlo\tnowhere#7\t2\nlater\tArlo#0\t1\n")
    (folder / "corpus.jsonl").unlink()
    data = load_judged(folder)
    assert data.qrels == {"Arlo": {"nowhere#7": 2}, "later": {"Arlo#0": 1}}
    assert len(data.questions[1].history) == 2
    with pytest.raises(ConfigError, match=r"corpus\.jsonl cannot be read"):
        Dataset.load(folder)


def test_a_file_has_no_splits_and_a_missing_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a file, which has no splits"):
        load_judged(write(tmp_path, PLAIN), split="test")
    for name in ("nowhere.csv", "nowhere.jsonl"):
        with pytest.raises(ConfigError, match=f"{name} cannot be read: No such file"):
            load_judged(tmp_path / name)


def test_a_file_where_a_data_set_is_needed_says_how_to_measure_a_function(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="add --function module:name"):
        Dataset.load(write(tmp_path, PLAIN))


def test_the_same_table_serves_check_and_compare(tmp_path: Path) -> None:
    path = write(tmp_path, f'question,id,answer\n{HEALTH},health,None.\n"{FEE}",fees,120 euros.\n')
    assert read_question_file(path) == [*EXPECTED]
    assert {one.text: one.reference for one in load_questions(path)} == {
        HEALTH: "None.",
        FEE: "120 euros.",
    }


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60).filter(str.strip)
ROWS = st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=8)


@given(ROWS, st.sampled_from(",;\t"), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans())
def test_whatever_is_written_as_csv_is_read_as_it_was(
    rows: list[tuple[str, str]], separator: str, end: str, quotes_all: bool, with_mark: bool
) -> None:
    written = io.StringIO(newline="")
    # Before Python 3.13 the writer leaves a lone carriage return without quotes.
    has_return = any("\r" in cell for row in rows for cell in row)
    form = csv.unix_dialect if quotes_all or has_return else csv.excel
    writer = csv.writer(written, form, delimiter=separator, lineterminator=end)
    writer.writerows([("question", "id"), *rows])
    expected: dict[str, list[str]] = {}
    for text, id_ in rows:
        ids = expected.setdefault(text.strip(), [])
        ids += [] if id_.strip() in ids else [id_.strip()]
    with TemporaryDirectory() as folder:
        path = write(Path(folder), written.getvalue().encode("utf-8-sig" if with_mark else "utf-8"))
        assert judged(load_judged(path)) == expected


@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=200).map(lambda it: f"question,id\n{it}".encode("utf-8", "replace")),
    )
)
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        for name in ("questions.csv", "questions.jsonl"):
            path = write(Path(folder), content, name)
            # Whatever else it raised would be a fault of ours.
            with suppress(ConfigError):
                data = load_judged(path)
                assert all(
                    data.qrels[question.id] and question.text.strip() for question in data.questions
                )
