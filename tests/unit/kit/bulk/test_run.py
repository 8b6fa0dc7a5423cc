"""A file of questions, and the file of results: what is there is skipped, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.bulk import BulkReport, transform_file
from qtmiddleware.kit.bulk.run import MOST_BYTES, InputQuery, read_questions
from qtmiddleware.testing import ScriptedModel

CONFIG = Config.load({"transformationType": "rewrite"}, environ={})
MODEL = ScriptedModel('{"rewrite": "a rewritten question"}')


def read(folder: Path, data: bytes, extension: str = ".jsonl") -> list[Any]:
    file = folder / f"questions{extension}"
    file.write_bytes(data)
    return [
        found.to_record() if isinstance(found, InputQuery) else found
        for found in read_questions(file)
    ]


TURNS = [{"role": "user", "content": "Who?"}]


@pytest.mark.parametrize(
    ("extension", "data", "records"),
    [
        (
            ".jsonl",
            json.dumps({"query": "Why?", "id": "q1", "history": TURNS}),
            [{"line": 1, "id": "q1", "query": "Why?", "history": TURNS}],
        ),
        (
            ".jsonl",
            json.dumps({"_id": 7, "text": "Why?", "history": TURNS}),
            [{"line": 1, "id": 7, "query": "Why?", "history": TURNS}],
        ),
        (".json", '"Why?"', [{"line": 1, "query": "Why?"}]),
        (
            ".txt",
            '\ufeffWhy?\r\n\r\n   \n{"query": 1}\n',
            [{"line": 1, "query": "Why?"}, {"line": 4, "query": '{"query": 1}'}],
        ),
        ("", '"Why?"\n', [{"line": 1, "query": "Why?"}]),
        ("", 'Why?\n"Who?"', [{"line": 1, "query": "Why?"}, {"line": 2, "query": '"Who?"'}]),
        (
            ".csv",
            '\ufeffQuestion,id\n"Where, exactly?",p-1\nWhy?,\n,p-3\n',
            [
                {"line": 2, "id": "p-1", "query": "Where, exactly?"},
                {"line": 3, "query": "Why?"},
                (4, "no query"),
            ],
        ),
        (".tsv", "id\tquery\n1\tWhy?\n", [{"line": 2, "id": "1", "query": "Why?"}]),
        (".csv", "name,id\nWhy?,1\n", [(2, "no query")]),
    ],
)
def test_questions_are_read_as_people_keep_them(
    tmp_path: Path, extension: str, data: str, records: list[Any]
) -> None:
    assert read(tmp_path, data.encode(), extension) == records


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"7", "neither an object nor text"),
        (b"{}", "no query"),
        (b'{"query": 3}', "the query must be text, not int"),
        (b'{"query": "\\ud800"}', "not UTF-8"),
        (b'"\xff"', "not UTF-8"),
        (b'{"query": "a", "id": true}', "an id that is neither text nor a whole number"),
        (
            b'{"query": "a", "history": "b"}',
            "a history that is not a list of messages with role and content",
        ),
    ],
)
def test_a_broken_line_is_named_and_the_others_are_read(
    tmp_path: Path, line: bytes, why: str
) -> None:
    assert read(tmp_path, b'"first"\n' + line + b'\n"last"') == [
        {"line": 1, "query": "first"},
        (2, why),
        {"line": 3, "query": "last"},
    ]


@given(st.lists(st.binary(max_size=40)), st.sampled_from([".jsonl", ".txt", ".csv", ""]))
def test_whatever_is_in_a_file_is_read_or_named_line_by_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], extension: str
) -> None:
    folder = tmp_path_factory.mktemp("given")
    for found in read(folder, b"\n".join([b"query", *lines]), extension):
        assert isinstance(found, tuple) or ("query" in found and found["line"] > 0)


def test_a_file_is_read_within_a_limit(tmp_path: Path) -> None:
    with (tmp_path / "large.jsonl").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(ConfigError, match="must have at most 256 MB; split it"):
        list(read_questions(tmp_path / "large.jsonl"))


def run(folder: Path, questions: list[str], **options: Any) -> BulkReport:
    (folder / "in.jsonl").write_text("\n".join(map(json.dumps, questions)), "utf-8")
    return transform_file(
        folder / "in.jsonl",
        folder / "out.jsonl",
        **{"config": CONFIG, "client": MODEL, **options},
    )


def records(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_bytes().splitlines()]


def test_lines_that_are_there_are_skipped(tmp_path: Path) -> None:
    assert run(tmp_path, ["Why?", "Who?"]).made == 2
    report = run(tmp_path, ["Why?", "Who?", "When?"])
    assert (report.before, report.made, report.total) == (2, 1, 3)
    assert sorted(it["line"] for it in records(tmp_path)) == [1, 2, 3]
    assert records(tmp_path)[2]["rewrite"] == "a rewritten question"


@pytest.mark.parametrize("tail", [b'{"line": 2, "qu', b"{"])
def test_what_a_crash_left_is_asked_again(tmp_path: Path, tail: bytes) -> None:
    run(tmp_path, ["Why?"])
    with (tmp_path / "out.jsonl").open("ab") as file:
        file.write(tail)
    report = run(tmp_path, ["Why?", "Who?"])
    assert (report.before, report.made) == (1, 1)
    assert [it["query"] for it in records(tmp_path)] == ["Why?", "Who?"]


@pytest.mark.parametrize(
    ("questions", "options", "why"),
    [
        (["Where?"], {}, "line 1 of the input is not the question"),
        (
            ["Why?"],
            {"config": Config.load({"transformationType": "hyde"}, environ={})},
            "was started with another config",
        ),
    ],
)
def test_an_output_of_another_input_or_config_stays_as_it_is(
    tmp_path: Path, questions: list[str], options: dict[str, Any], why: str
) -> None:
    run(tmp_path, ["Why?"])
    before = (tmp_path / "out.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=why):
        run(tmp_path, questions, **options)
    assert (tmp_path / "out.jsonl").read_bytes() == before
    assert run(tmp_path, questions, overwrite=True, **options).made == 1


def test_a_question_that_failed_gets_no_line_and_is_asked_again(tmp_path: Path) -> None:
    refusing = ScriptedModel(ModelError("refused"))
    report = run(tmp_path, ["Why?"], client=refusing)
    assert (report.failed, report.made, report.is_whole) == ({"refused": 1}, 1, False)
    assert records(tmp_path) == []
    assert run(tmp_path, ["Why?"]).asked == 1


@pytest.mark.parametrize(
    "content", ["precious\n", "precious", '{"a": 1}\n', "[1]\n", '{"line": ' + "[" * 99_999 + "\n"]
)
def test_a_file_that_no_run_made_stays_as_it_is(tmp_path: Path, content: str) -> None:
    (tmp_path / "out.jsonl").write_text(content, "utf-8")
    with pytest.raises(ConfigError, match="lines that no run has written"):
        run(tmp_path, ["Why?"])
    assert (tmp_path / "out.jsonl").read_text("utf-8") == content


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_a_link_leads_to_stays_as_it_is(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "victim").write_text("precious", "utf-8")
    (tmp_path / "out.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigError, match="links are not followed"):
        run(tmp_path, ["Why?"], overwrite=overwrite)
    assert (tmp_path / "victim").read_text("utf-8") == "precious"


def test_a_folder_is_no_output(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        run(tmp_path, ["Why?"])
