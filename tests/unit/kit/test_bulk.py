"""A file of questions, and the file of results: what is there is skipped, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit import bulk
from qtmiddleware.kit.bulk import BulkReport, transform_file
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.types import Deadline

CONFIG = Config.load({"transformationType": "rewrite"}, environ={})
TURNS = [{"role": "user", "content": "Who?"}]


class Rewriting:
    """Rewrites every question, or raises what *fail* returns for it and the number of its calls."""

    name = "rewriting"

    def __init__(self, fail: Callable[[str, int], ModelError | None] = lambda *_: None) -> None:
        self.fail = fail
        self.asked: list[str] = []
        self.seconds: list[float] = []

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        self.asked.append(prompt.query)
        self.seconds.append(deadline.remaining())
        if error := self.fail(prompt.query, self.asked.count(prompt.query)):
            raise error
        text = json.dumps({"rewrite": f"please {prompt.query}"})
        return Reply(text)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        return self.complete(prompt, deadline)


def run(
    folder: Path, questions: list[str], model: Any = None, config: Config = CONFIG
) -> BulkReport:
    (folder / "in.txt").write_text("\n".join(questions), "utf-8")
    client = model or Rewriting()
    return transform_file(folder / "in.txt", folder / "out.jsonl", config=config, client=client)


def records(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        (
            "q.jsonl",
            json.dumps({"query": "Why?", "id": "q1", "history": TURNS}),
            [{"id": "q1", "query": "Why?"}],
        ),
        (
            "q.csv",
            '\ufeffQuestion,id\n"Where, exactly?",p-1\nWhy?,p-2\n',
            [{"id": "p-1", "query": "Where, exactly?"}, {"id": "p-2", "query": "Why?"}],
        ),
        (
            "q.txt",
            '\ufeffWhy?\r\n\r\n   \n{"query": 1}\n',
            [{"id": "1", "query": "Why?"}, {"id": "4", "query": '{"query": 1}'}],
        ),
        ("q.jsonl", '{"query": "\\ud800"}', [{"id": "1", "query": "\ud800"}]),
    ],
)
def test_questions_are_read_as_people_keep_them(
    tmp_path: Path, name: str, data: str, expected: list[Any]
) -> None:
    (tmp_path / name).write_text(data, "utf-8")
    out = tmp_path / "out.jsonl"
    config = Config.load({"transformationType": "none"}, environ={})
    # A second run finds each of them.
    for before in (0, len(expected)):
        report = transform_file(tmp_path / name, out, config=config)
        assert (report.total, report.before) == (len(expected), before)
    found = [{key: row.get(key) for key in expected[0]} for row in records(tmp_path)]
    assert sorted(found, key=lambda row: row["id"]) == expected


@pytest.mark.parametrize("tail", [b'{"id": "3", "qu', b"{", b""])
def test_lines_that_are_there_are_skipped_and_half_a_line_of_a_killed_run_is_cut_off(
    tmp_path: Path, tail: bytes
) -> None:
    report = run(tmp_path, ["Why?", "Who?"])
    assert (report.made, report.failed) == (2, {})
    with (tmp_path / "out.jsonl").open("ab") as file:
        file.write(tail)
    report = run(tmp_path, ["Why?", "Who?", "When?"])
    assert (report.before, report.made, report.total) == (2, 1, 3)
    found = {row["id"]: row["rewrite"] for row in records(tmp_path)}
    assert found == {"1": "please Why?", "2": "please Who?", "3": "please When?"}


def test_a_line_that_is_inserted_is_the_only_one_that_is_asked(tmp_path: Path) -> None:
    model = Rewriting()
    for lines in ("Why?\nWho?\n", "When?\nWhy?\nWho?\nWhy?\n", "Who?\nWhere?\n"):
        (tmp_path / "q.txt").write_text(lines, "utf-8")
        transform_file(tmp_path / "q.txt", tmp_path / "out.jsonl", config=CONFIG, client=model)
    assert sorted(model.asked[:2]) == ["Who?", "Why?"]
    assert sorted(model.asked[2:]) == ["When?", "Where?", "Why?"]
    assert len({row["id"] for row in records(tmp_path)}) == 5


def test_a_question_with_an_id_of_its_own_is_asked_whatever_its_text_is(tmp_path: Path) -> None:
    for count in (1, 2):
        text = "\n".join(["id,question", *["10,Why?", "20,Why?"][:count]])
        (tmp_path / "q.csv").write_text(text, "utf-8")
        out = tmp_path / "out.jsonl"
        transform_file(tmp_path / "q.csv", out, config=CONFIG, client=Rewriting())
    assert {row["id"] for row in records(tmp_path)} == {"10", "20"}


def test_an_output_of_another_config_stays_as_it_is(tmp_path: Path) -> None:
    run(tmp_path, ["Why?"])
    before = (tmp_path / "out.jsonl").read_bytes()
    config = Config.load({"transformationType": "hyde"}, environ={})
    with pytest.raises(ConfigError, match="lines that this config has not written"):
        run(tmp_path, ["Why?"], config=config)
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_a_question_that_changed_is_asked_again(tmp_path: Path) -> None:
    run(tmp_path, ["Why?", "Who?"])
    report = run(tmp_path, ["Why?", "Whose?"])
    assert (report.before, report.made) == (1, 1)


@pytest.mark.parametrize("content", ["precious", '{"a": 1}\n', "[1]\n"])
def test_a_file_that_no_run_made_stays_as_it_is(tmp_path: Path, content: str) -> None:
    (tmp_path / "out.jsonl").write_text(content, "utf-8")
    with pytest.raises(ConfigError, match="lines that this config has not written"):
        run(tmp_path, ["Why?"])
    assert (tmp_path / "out.jsonl").read_text("utf-8") == content


def test_what_a_busy_service_refuses_is_asked_again(tmp_path: Path) -> None:
    def fail(question: str, calls: int) -> ModelError | None:
        reason = ("rate_limited", "unavailable", "timeout")[calls - 1 : calls]
        return ModelError(reason[0], retry_after=0.01) if question == "Who?" and reason else None

    model = Rewriting(fail)
    report = run(tmp_path, ["Why?", "Who?", "When?"], model)
    assert (report.made, report.failed) == (3, {})
    assert model.asked.count("Who?") == 4


def test_what_a_function_could_not_reach_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PAUSE", 0.01)
    calls = []

    def ask(messages: Any) -> str:
        calls.append(messages)
        if len(calls) == 1:
            raise ConnectionError
        return json.dumps({"rewrite": "please Why?"})

    assert run(tmp_path, ["Why?"], ask).made == len(calls) - 1 == 1


def test_a_question_that_the_model_refuses_gets_no_line_and_is_asked_again(tmp_path: Path) -> None:
    questions = ["Who?", "Whose?", "Whom?", "What?", "Why?"]
    model = Rewriting(lambda question, _: None if question == "Why?" else ModelError("refused"))
    report = run(tmp_path, questions, model)
    assert (report.failed, report.made) == ({"refused": 4}, 5)
    assert [row["query"] for row in records(tmp_path)] == ["Why?"]
    assert run(tmp_path, questions).made == 4


def test_a_key_that_is_rejected_stops_the_run(tmp_path: Path) -> None:
    model = Rewriting(lambda *_: ModelError("unauthorized"))
    with pytest.raises(ModelError, match="unauthorized"):
        run(tmp_path, [f"Who is {number}?" for number in range(100)], model)
    assert len(model.asked) <= 8
    assert records(tmp_path) == []


def test_no_more_questions_are_asked_if_a_result_cannot_be_used(tmp_path: Path) -> None:
    def fail(_: BulkReport) -> None:
        raise OSError("the disk is full")

    model = Rewriting(lambda *_: sleep(0.01))
    (tmp_path / "in.txt").write_text("Who?\n" * 200, "utf-8")
    with pytest.raises(OSError, match="full") as caught:
        transform_file(
            tmp_path / "in.txt", tmp_path / "out.jsonl", config=CONFIG, client=model, show=fail
        )
    # The traceback of the error keeps the run's variables.
    asked = len(model.asked)
    sleep(0.1)
    assert caught.value.__traceback__ is not None
    assert len(model.asked) == asked < 100


def test_a_dead_service_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PATIENCE", 0.1)
    monkeypatch.setattr(bulk, "PAUSE", 0.05)
    dead = Rewriting(lambda *_: ModelError("unavailable"))
    with pytest.raises(ModelError, match="unavailable"):
        run(tmp_path, ["Why?"] * 30, dead)
    assert records(tmp_path) == []
