"""Questions with answers and judgements, out of the files that people and other tools write."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import Dataset, Question, load_judged, load_questions
from qtmiddleware.protocols import Passage
from qtmiddleware.types import Message

HEALTH, FEE = "Does Jaco have any health concerns?", "How much is the fee, if I may ask?"
PLAIN = f'question,id\n{HEALTH},health\n"{FEE}",fees\n'


def write(folder: Path, content: str | bytes, name: str = "questions.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def judged(data: Dataset) -> dict[str, dict[str, int]]:
    """The grades of each question's passages, by its text."""
    return {question.text: {**data.qrels[question.id]} for question in data.questions}


# --- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(PLAIN.encode("utf-8-sig"), id="a byte order mark"),
        pytest.param(PLAIN.encode("utf-16"), id="UTF-16"),
        pytest.param(f"question;id\n{HEALTH};health\n{FEE};fees\n", id="semicolons"),
        pytest.param(f"question;id;a, b, c, d\n{HEALTH};health;1\n{FEE};fees;1\n", id="commas"),
        pytest.param(f'\n question , id \n{HEALTH}, health \n,\n"{FEE}", fees\n\n', id="blanks"),
        pytest.param(f'Query,Passage ID\n{HEALTH},health\n"{FEE}",fees\n', id="other names"),
    ],
)
def test_a_table_is_read_as_spreadsheets_write_it(tmp_path: Path, content: str | bytes) -> None:
    data = load_judged(write(tmp_path, content))
    assert judged(data) == {HEALTH: {"health": 1}, FEE: {"fees": 1}}
    assert (data.name, data.passages) == ("questions", ())
    assert [question.id for question in data.questions] == ["1", "2"]


@pytest.mark.parametrize("ids", ["a,b", " a ; b", "a|b|", "a\nb", '["a", "b"]', "['a', 'b']"])
def test_a_cell_may_hold_several_ids(tmp_path: Path, ids: str) -> None:
    cell = ids.replace('"', '""')
    path = write(tmp_path, f'question,ids\nWhat?,"{cell}"\n')
    assert judged(load_judged(path)) == {"What?": {"a": 1, "b": 1}}


@pytest.mark.parametrize(
    ("table", "grades"),
    [
        ("question,id,relevance\nWhat?,a,2\nWhat?,b,0\n", {"a": 2, "b": 0}),
        ("question,id,Grade\nWhat?,a,1.0\nWhat?,b,0.0\n", {"a": 1, "b": 0}),
        ("question,id,score\nWhat?,a,yes\nWhat?,b,no\n", {"a": 1, "b": 0}),
        ('question,ids,grade\nWhat?,"a;b",2\n', {"a": 2, "b": 2}),
        ("question,id\nWhat?,a\nWhat? ,b\nWhat?,a\n", {"a": 1, "b": 1}),
        ('question,id\nWhat?,"a,b; c|d"\n', {"a,b; c|d": 1}),
    ],
)
def test_grades_and_rows_of_one_question_are_put_together(
    tmp_path: Path, table: str, grades: dict[str, int]
) -> None:
    assert judged(load_judged(write(tmp_path, table))) == {"What?": grades}


def test_a_question_may_have_an_id_of_its_own(tmp_path: Path) -> None:
    content = "question_id,question,passage_id,grade\nq7,What?,a,2\nq7,What?,b,0\nq8,Who?,a,1\n"
    assert load_judged(write(tmp_path, content)).qrels == {"q7": {"a": 2, "b": 0}, "q8": {"a": 1}}
    rows = "id,question,ids,answer\nq7,What?,a,It is.\nq8,What?,b,\n,Who?,c,\n"
    data = load_judged(write(tmp_path, rows))
    assert data.qrels == {"q7": {"a": 1}, "q8": {"b": 1}, "3": {"c": 1}}
    assert [question.reference for question in data.questions] == ["It is.", "", ""]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("question,gold\nWhat?,a\n", r"line 2: has no passage id under"),
        ("", r"questions\.csv must hold questions with the ids of their passages; it holds none"),
        ("What?,a\nWhen?,b\n", r"line 2: must have a question, under .*, not what\?, a"),
        ('question,id\n"What\nis it?",a\n"And\nwhen?",\n', r"csv line 4: has no passage id"),
        ("question,id\nWhat, and when?,a\n", r"line 2: has 3 cells, .* holds ',' in quotes"),
        ('question,id\n"What?,a\nWhen?,b\n', r"line 2: cannot be read as CSV \(unexpected end"),
        ("question,id,score\nWhat?,a,0.83\n", r"line 2: has '0.83' as a grade.* Rename the column"),
        ("question,id,grade\nWhat?,a,1\nWhat?,a,0\n", r"line 3: judges 'a' a second time"),
        (b"question,id\nWhat?,a\nWas hei\xdft das?,b\n", r"line 3: is not UTF-8\. Save the file"),
        ("id,question,ids\nq,What?,a\nq,When?,b\n", r"line 3: the id 'q' occurs a second time"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_by_its_line(
    tmp_path: Path, content: str | bytes, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load_judged(write(tmp_path, content))


# --- JSON, and the test sets of other tools -------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        '[{"question": "What?", "ideal_answer": "That."}]',
        '{"_id": "1", "text": "What?", "metadata": {"answer": "That."}}\n',
        '{"goldens": [{"input": "What?", "expected_output": "That."}]}',
    ],
)
def test_questions_with_ideal_answers_need_no_judgements(tmp_path: Path, content: str) -> None:
    (question,) = load_questions(write(tmp_path, content, "val.json")).questions
    assert (question.id, question.text, question.reference) == ("1", "What?", "That.")


TEXT = "Jaco eats twice a day, and is fond of carrots."
GOLD = {"user_input": "What?", "reference_contexts": [TEXT], "reference": "x"}
INDEXED = {"queries": {"q": "What?"}, "corpus": {"n": TEXT}, "relevant_docs": {"q": ["n"]}}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ragas.jsonl", json.dumps(GOLD)),
        ("ragas.csv", f"user_input,reference_contexts,reference\nWhat?,\"['{TEXT}']\",x\n"),
        ("llamaindex.json", json.dumps(INDEXED)),
        ("rag.json", json.dumps({"examples": [{"query": "What?", "reference_contexts": [TEXT]}]})),
    ],
)
def test_passages_given_as_text_are_the_right_ones_whatever_their_ids(
    tmp_path: Path, name: str, content: str
) -> None:
    data = load_judged(write(tmp_path, content, name))
    (question,) = data.questions
    assert list(question.relevant_texts.values()) == [TEXT]
    assert data.qrels == {question.id: dict.fromkeys(question.relevant_texts, 1)}
    assert question.to_record()["reference_contexts"] == question.relevant_texts


def test_history_date_grades_and_answer_come_with_a_question(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Who is Jaco?"}]
    record = {"question": "What?", "history": turns, "date": "2025-03-01", "answer": "That."}
    path = write(tmp_path, json.dumps([{**record, "ids": {"a": 2, "b": False}}]), "q.json")
    data = load_questions(path)
    (question,) = data.questions
    assert question.history == (Message("user", "Who is Jaco?"),)
    assert question.metadata == {"answer": "That.", "date": "2025-03-01"}
    assert judged(data) == judged(load_judged(path)) == {"What?": {"a": 2, "b": 0}}
    cell = json.dumps(turns).replace('"', '""')
    (asked,) = load_questions(write(tmp_path, f'question,history\nWhat?,"{cell}"\n')).questions
    assert asked.history == question.history


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "must hold questions; it holds none"),
        ('[{"question": "What?"}, {"ideal_answer": "That."}]', "question 2: must have a question"),
        ('[{"question": "What?"', r"line 1: is not JSON"),
        ('[{"question": "What?", "ids": [true]}]', "texts or numbers as passage ids"),
        ('{"question": "x", "history": [3]}', '"history" must be a list'),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_what_is_wrong_with_json_is_said_by_its_place(
    tmp_path: Path, content: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load_questions(write(tmp_path, content, "val.json"))


# --- folders --------------------------------------------------------------------------------------


def write_folder(
    folder: Path,
    *,
    corpus: str = '{"_id": "p1", "title": "A title", "text": "a text"}\n{"_id": 2, "text": "b"}\n',
    queries: str = '{"_id": "q1", "text": "what?"}\n{"_id": "q2", "text": "unjudged"}\n',
    qrels: str = "query-id\tcorpus-id\tscore\nq1\tp1\t1\n",
) -> Path:
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(corpus)
    (folder / "queries.jsonl").write_text(queries)
    (folder / "qrels" / "test.tsv").write_text(qrels)
    return folder


def test_a_folder_is_read_with_its_passages_and_judged_questions(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    data = Dataset.load(folder)
    assert [(it.id, it.text, dict(it.metadata)) for it in data.passages] == [
        ("p1", "A title\na text", {"title": "A title"}),
        ("2", "b", {}),
    ]
    assert [question.id for question in data.questions] == ["q1"]
    assert (data.qrels, data.name) == ({"q1": {"p1": 1}}, tmp_path.name)
    assert "what?" not in repr(data) + repr(data.questions)
    (folder / "qrels" / "train.tsv").write_text("\ufeffa\tb\tscore\r\nq2\tnowhere#7\t2\r\n\n")
    # Without passages, a folder serves an index of one's own.
    assert load_judged(folder).qrels == {"q1": {"p1": 1}, "q2": {"nowhere#7": 2}}
    with pytest.raises(ConfigError, match=r"judges 'nowhere#7', which is not in corpus\.jsonl"):
        Dataset.load(folder)


@pytest.mark.parametrize(
    ("part", "content", "said"),
    [
        ("queries", '{"_id": "q", "text": "x"}\n{"_id": "q", "text": "y"}', r"line 2: the id 'q'"),
        ("corpus", '{"_id": "p1", "text": ""}\n' * 2, r"line 2: the id 'p1' oc"),
        ("qrels", "a\tb\tc\nq1\tp1\n", r"test\.tsv line 2: is not a question's id"),
        ("qrels", "q9\tp1\t1\n", r"test\.tsv line 1: judges 'q9', which is not in queries\.jsonl"),
    ],
)
def test_an_error_in_a_folder_names_file_and_line(
    tmp_path: Path, part: str, content: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Dataset.load(write_folder(tmp_path, **{part: content}))


@pytest.mark.parametrize(
    ("load", "name", "said"),
    [
        (Dataset.load, ".", r"corpus\.jsonl cannot be read: .*queries\.jsonl"),
        (Dataset.load, "questions.csv", "add --function module:name"),
        (load_judged, "nowhere.csv", r"nowhere\.csv cannot be read: No such file"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, load: Any, name: str, said: str) -> None:
    write(tmp_path, PLAIN)
    with pytest.raises(ConfigError, match=said):
        load(tmp_path / name)


# --- hashes, and any input ------------------------------------------------------------------------


def test_every_change_of_the_data_has_another_hash_and_another_order_has_not() -> None:
    passages = (Passage("p1", "one"), Passage("p2", "two"))
    questions = (Question("q1", "what?"), Question("q2", "who?"))
    data = Dataset("x", passages, questions, {"q1": {"p1": 1}, "q2": {"p1": 1}})
    changed = [
        replace(data, passages=(replace(passages[0], metadata={"a": 1}), passages[1])),
        replace(data, questions=(replace(questions[0], history=(Message("user", "x"),)),)),
        replace(data, qrels={"q1": {"p1": 2}}),
    ]
    prints = {json.dumps(data.fingerprints) for data in (data, *changed)}
    assert len(prints) == len(changed) + 1
    turned = replace(data, passages=passages[::-1], questions=questions[::-1])
    assert turned.fingerprints == data.fingerprints
    assert Dataset("x", (), (Question("q", "\ud800"),), {}).fingerprints["passages"] == ""


ODD: Any = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=200).map(lambda it: f"question,id,grade\n{it}".encode("utf-8", "replace")),
    st.text(max_size=200).map(lambda it: json.dumps([{"question": "x", "ids": it}]).encode()),
)


@given(ODD)
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        for name in ("questions.csv", "questions.jsonl"):
            path = write(Path(folder), content, name)
            # Whatever else it raised would be a fault of ours.
            with suppress(ConfigError):
                data = load_judged(path)
                assert all(data.qrels[it.id] and it.text.strip() for it in data.questions)
