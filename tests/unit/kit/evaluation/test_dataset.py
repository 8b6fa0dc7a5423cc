from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import Dataset, Question
from qtmiddleware.types import Message
from tests.support.shared_data import COLLECTIONS, SHARED, needs_shared_data

DATA = SHARED / "data"


def write(
    folder: Path,
    *,
    corpus: list[Any]
    | str = '{"_id": "p1", "title": "A title", "text": "a text"}\n{"_id": "p2", "text": "other"}\n',
    queries: str = '{"_id": "q1", "text": "what?"}\n{"_id": "q2", "text": "unjudged"}\n',
    qrels: str = "query-id\tcorpus-id\tscore\nq1\tp1\t1\n",
) -> Path:
    (folder / "qrels").mkdir()
    (folder / "corpus.jsonl").write_text(
        corpus if isinstance(corpus, str) else "\n".join(map(json.dumps, corpus))
    )
    (folder / "queries.jsonl").write_text(queries)
    (folder / "qrels" / "test.tsv").write_text(qrels)
    return folder


def test_a_collection_is_read_with_its_judged_questions(tmp_path: Path) -> None:
    data = Dataset.load(write(tmp_path))
    assert [(one.id, one.text, dict(one.metadata)) for one in data.passages] == [
        ("p1", "A title\na text", {"title": "A title"}),
        ("p2", "other", {}),
    ]
    assert [question.id for question in data.questions] == ["q1"]
    assert data.qrels == {"q1": {"p1": 1}}
    assert data.name == tmp_path.name


@pytest.mark.parametrize(
    "qrels", ["q1\tp1\t2", "\ufeffquery-id\tcorpus-id\tscore\r\nq1\tp1\t2\r\n", "q1\t0\tp1\t2\n\n"],
    ids=["no header", "from another system", "four columns"],
)  # fmt: skip
def test_judgements_are_read_in_each_of_their_layouts(tmp_path: Path, qrels: str) -> None:
    assert Dataset.load(write(tmp_path, qrels=qrels)).qrels == {"q1": {"p1": 2}}


def test_ids_written_as_numbers_are_ids(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        corpus=[{"_id": 7, "text": "x"}],
        queries='{"_id": 3, "text": "y"}',
        qrels="3\t7\t1",
    )
    assert Dataset.load(folder).qrels == {"3": {"7": 1}}


@pytest.mark.parametrize(
    ("part", "content", "said"),
    [
        ("queries", '{"_id": "q1", "text": "x"}\n\n{"text": "x"}\n', r'queries\.jsonl line 3: no "_id"'),
        ("queries", '{"_id": "q1"}\n', r'queries\.jsonl line 1: no "text"'),
        ("queries", '{"_id": "q1", "text": 5}\n', r'line 1: "text" must be text, not int'),
        ("queries", "[]\n", r"line 1: must be a JSON object"),
        ("queries", "{\n", r"line 1: is not JSON"),
        ("queries", '{"_id": "q1", "text": "x", "metadata": 3}', r'line 1: "metadata" must be an object, not int'),
        ("queries", '{"_id": "q1", "text": "x", "metadata": {"history": [3]}}', r'line 1: "history" must be a list'),
        pytest.param("corpus", "[" * 100_000, r"corpus\.jsonl line 1: is not JSON", id="deep"),
        ("corpus", '{"_id": "p1", "text": ""}\n{"_id": "p1", "text": ""}\n', r"corpus\.jsonl line 2: the id 'p1' oc"),
        ("qrels", "a\tb\tc\nq1\tp1\n", r"test\.tsv line 2: is not a question's id"),
        ("qrels", "a\tb\tc\nq1\tp1\thigh\n", r"test\.tsv line 2: is not a question's id"),
        ("qrels", "q1\tp1\t10001\n", r"line 1: is not .* a whole number of at most 10,000"),
        pytest.param("qrels", f"q1\tp1\t{'9' * 5000}\n", r"line 1: is not a question's id", id="long"),
        ("qrels", "q1\tp1\t1\nq1\tp1\t1\nq1\tp1\t0", r"line 3: judges 'p1' for 'q1' a second time"),
        ("qrels", "q1\tp9\t1\n", r"test\.tsv line 1: judges 'p9', which is not in corpus\.jsonl"),
        ("qrels", "q9\tp1\t1\n", r"test\.tsv line 1: judges 'q9', which is not in queries\.jsonl"),
    ],
)  # fmt: skip
def test_an_error_names_file_and_line(tmp_path: Path, part: str, content: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        Dataset.load(write(tmp_path, **{part: content}))
    file, line = caught.value.path.rsplit(":", 1)
    assert Path(file).is_file()
    assert line.isdecimal()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no such pipes here")
@pytest.mark.parametrize("file", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, file: str) -> None:
    folder = write(tmp_path)
    (folder / file).unlink()
    os.mkfifo(folder / file)
    with pytest.raises(ConfigError, match=r"cannot be read: it is not a file"):
        Dataset.load(folder)


def test_text_that_is_not_utf8_is_named_by_its_line(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "corpus.jsonl").write_bytes(
        b'{"_id": "p1", "text": "x"}\n{"_id": "p2", "text": "\xe9"}\n'
    )
    with pytest.raises(ConfigError, match=r"corpus\.jsonl line 2: is not UTF-8"):
        Dataset.load(folder)


def test_a_missing_file_says_what_a_collection_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"corpus\.jsonl cannot be read: .*queries\.jsonl"):
        Dataset.load(tmp_path)


@pytest.mark.parametrize("file", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_a_line_beyond_all_measure_is_not_read_to_its_end(tmp_path: Path, file: str) -> None:
    folder = write(tmp_path)
    (folder / file).write_bytes(b"x" * (1 << 24) + b"x\n")
    with pytest.raises(ConfigError, match="line 1: is longer than 16,777,216 bytes"):
        Dataset.load(folder)


def test_missing_judgements_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    with pytest.raises(ConfigError, match=r"dev\.tsv cannot be read"):
        Dataset.load(folder, split="dev")
    (folder / "qrels" / "test.tsv").unlink()
    with pytest.raises(ConfigError, match=r"qrels must hold a \.tsv"):
        Dataset.load(folder)


@needs_shared_data
def test_the_first_questions_keep_their_judgements_and_all_passages() -> None:
    data = Dataset.load(DATA / "nq_small").first(5)
    assert (len(data.passages), len(data.questions), len(data.qrels)) == (1_938, 5, 5)


@needs_shared_data
def test_conversations_come_with_their_history() -> None:
    data = Dataset.load(DATA / "canard_dev")
    assert data.questions[0].history[0] == Message("user", "What group disbanded?")
    assert "history" not in data.questions[0].metadata
    assert "human_rewrite" in data.questions[0].metadata


@pytest.mark.parametrize(
    "folder", COLLECTIONS, ids=lambda folder: f"{folder.parent.name}/{folder.name}"
)
def test_every_shared_collection_is_read(folder: Path) -> None:
    data = Dataset.load(folder)
    assert data.passages
    assert len(data.questions) == len(data.qrels) > 0


def test_no_text_is_printed_with_the_nouns(tmp_path: Path) -> None:
    data = Dataset.load(write(tmp_path))
    assert "what?" not in repr(data) + repr(data.questions)


def twenty(tmp_path: Path) -> Dataset:
    lines = "".join(f'{{"_id": "q{number}", "text": "what {number}?"}}\n' for number in range(20))
    return Dataset.load(
        write(tmp_path, queries=lines, qrels="".join(f"q{number}\tp1\t1\n" for number in range(20)))
    )


def test_a_sample_depends_on_the_seed_alone_and_keeps_the_order(tmp_path: Path) -> None:
    data = twenty(tmp_path)
    ids = [[question.id for question in data.sampled(7, seed=seed).questions] for seed in (1, 1, 2)]
    assert ids[0] == ids[1] != ids[2]
    order = [question.id for question in data.questions]
    assert ids[0] == sorted(ids[0], key=order.index)
    assert len(set(ids[0])) == 7
    assert data.sampled(50) == data


def test_a_part_keeps_the_passages_and_its_own_judgements(tmp_path: Path) -> None:
    part = twenty(tmp_path).only({"q3", "q1", "unknown"})
    assert ([question.id for question in part.questions], set(part.qrels)) == (
        ["q1", "q3"],
        {"q1", "q3"},
    )
    assert len(part.passages) == 2


def test_equal_content_has_one_hash_and_every_change_another(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    data = Dataset.load(write(tmp_path / "one"))
    same = Dataset.load(write(tmp_path / "two", qrels="q1\t0\tp1\t1\n"))
    question, passage = data.questions[0], data.passages[0]
    changed = [
        replace(data, passages=data.passages[:1]),
        replace(data, passages=(replace(passage, text="other"), *data.passages[1:])),
        replace(data, passages=(replace(passage, metadata={}), *data.passages[1:])),
        replace(data, questions=(replace(question, text="other"),)),
        replace(data, questions=(replace(question, history=(Message("user", "before"),)),)),
        replace(data, qrels={"q1": {"p1": 2}}),
        replace(data, qrels={"q1": {"p2": 1}}),
    ]
    assert data.data_hash == same.data_hash
    assert len({data.data_hash, *(one.data_hash for one in changed)}) == len(changed) + 1


def test_text_that_is_no_unicode_has_a_hash_too() -> None:
    assert len(Dataset("x", (), (Question("q", "\ud800"),), {"q": {}}).data_hash) == 64


def test_questions_that_a_model_wrote_make_a_set_synthetic(tmp_path: Path) -> None:
    data = twenty(tmp_path)
    assert not data.is_synthetic
    first = replace(data.questions[0], metadata={"synthetic": True})
    assert replace(data, questions=(first, *data.questions[1:])).is_synthetic
