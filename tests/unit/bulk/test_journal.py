"""The output that a later run goes on from: whole, of one config and one input, and one run's alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.bulk.fingerprint import read_fingerprint
from qtmiddleware.bulk.journal import hold_journal
from qtmiddleware.bulk.queries import InputQuery
from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError, StoreError

CONFIG = {"transformationType": "rewrite"}


def fingerprint(**changed: Any) -> dict[str, Any]:
    return read_fingerprint(Config.load({**CONFIG, **changed}, environ={}).settings)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def write(out: Path, *records: dict[str, Any], **options: Any) -> None:
    with hold_journal(out, fingerprint(), **options) as journal:
        for record in records:
            journal.append(record)


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()]


def done(out: Path, *queries: InputQuery) -> list[bool]:
    with hold_journal(out, fingerprint()) as journal:
        return [journal.holds(query) for query in queries]


FIRST, SECOND = InputQuery(1, "Why?", "a"), InputQuery(2, "Who?")


def test_what_is_written_is_done_for_the_next_run(out: Path) -> None:
    write(out, FIRST.to_record())
    assert done(out, FIRST, SECOND, InputQuery(9_999, "Where?")) == [True, False, False]
    assert (out.stat().st_mode & 0o777) == 0o600


@pytest.mark.parametrize("torn", ['{"line": 2, "que', "\0\0\0\0", '{"line": 2, "query": "Who?"}', "[]\n", "nonsense\n"])
def test_what_a_crash_left_is_taken_out(out: Path, torn: str) -> None:
    write(out, FIRST.to_record())
    with out.open("a") as file:
        file.write(torn)
    assert done(out, FIRST, SECOND) == [True, False]
    assert records(out) == [FIRST.to_record()]


def test_damage_in_the_middle_costs_its_own_line_alone(out: Path) -> None:
    write(out, FIRST.to_record(), SECOND.to_record())
    damaged = out.read_bytes().replace(b'"Why?"', b'"Wh\0\0\0')
    out.write_bytes(damaged)
    assert done(out, FIRST, SECOND) == [False, True]
    assert records(out) == [SECOND.to_record()]


def test_what_failed_is_taken_out_to_be_asked_again(out: Path) -> None:
    write(out, {**FIRST.to_record(), "error": "refused"}, SECOND.to_record(), {"line": 3, "error": "not JSON"})
    assert len(records(out)) == 3
    assert done(out, FIRST, SECOND) == [False, True]
    assert records(out) == [SECOND.to_record()]


@pytest.mark.parametrize(
    "other",
    [InputQuery(1, "What?", "a"), InputQuery(1, "Why?", "b"), InputQuery(1, "Why?")],
    ids=["text", "id", "no id"],
)
def test_another_input_is_refused_by_its_line(out: Path, other: InputQuery) -> None:
    write(out, FIRST.to_record())
    with pytest.raises(
        ConfigError, match=r"line 1 of the input is not the question that .*out.jsonl holds.*--overwrite"
    ):
        done(out, other)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"transformationType": "hyde"}, r"transformationType \(was rewrite, is hyde\)"),
        ({"transformationModel": "gpt-6-mini"}, r"transformationModel \(was gpt-6-luna, is gpt-6-mini\)"),
        ({"llm": {"prompts": {"rewrite": "Rewrite it."}}}, "llm.prompts"),
        ({"preprocess": {"extraWords": ["please"]}}, "preprocess.extraWords"),
    ],
)
def test_another_config_is_refused_with_what_changed(out: Path, changed: dict[str, Any], said: str) -> None:
    write(out, FIRST.to_record())
    with pytest.raises(ConfigError, match=said), hold_journal(out, fingerprint(**changed)):
        pass
    assert records(out) == [FIRST.to_record()]


@pytest.mark.parametrize("changed", [{"limits": {"llmTimeoutMs": 7}}, {"budget": {"maxTokens": 7}}, {"topK": 9}])
def test_what_decides_no_text_may_change(out: Path, changed: dict[str, Any]) -> None:
    write(out, FIRST.to_record())
    with hold_journal(out, fingerprint(**changed)) as journal:
        assert journal.holds(FIRST)


def test_overwriting_begins_anew_under_any_config(out: Path) -> None:
    write(out, FIRST.to_record())
    with hold_journal(out, fingerprint(transformationType="hyde"), overwrite=True) as journal:
        assert not journal.holds(FIRST)
    with hold_journal(out, fingerprint(transformationType="hyde")):
        pass
    assert out.read_bytes() == b""


def test_a_file_that_no_run_made_is_left_alone(out: Path) -> None:
    out.write_text("my notes\n")
    with pytest.raises(ConfigError, match="says how it was made"), hold_journal(out, fingerprint()):
        pass
    assert out.read_text() == "my notes\n"


def test_a_second_run_is_refused_as_long_as_the_first_is_there(out: Path) -> None:
    with hold_journal(out, fingerprint()) as journal:
        with pytest.raises(StoreError, match="another run writes to this output"), hold_journal(out, fingerprint()):
            pass
        journal.append(FIRST.to_record())
    assert done(out, FIRST) == [True]


def test_a_folder_or_a_link_is_no_output(out: Path, tmp_path: Path) -> None:
    out.mkdir()
    with pytest.raises(ConfigError, match="is not a file"), hold_journal(out, fingerprint()):
        pass
    link = tmp_path / "link.jsonl"
    link.symlink_to(tmp_path / "real.jsonl")
    with pytest.raises(StoreError, match="it is a link"), hold_journal(link, fingerprint()):
        pass


def test_a_disk_that_fills_up_leaves_whole_lines(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(out, FIRST.to_record())
    really, room = os.write, 10

    def write_a_little(descriptor: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(28, "No space left on device")
        written = really(descriptor, data[:room])
        room -= written
        return written

    with hold_journal(out, fingerprint()) as journal:
        monkeypatch.setattr(os, "write", write_a_little)
        with pytest.raises(StoreError, match=r"out.jsonl cannot be written: No space left.*to go on"):
            journal.append(SECOND.to_record())
        monkeypatch.undo()
        assert records(out) == [FIRST.to_record()]
        journal.append(SECOND.to_record())
    assert records(out) == [FIRST.to_record(), SECOND.to_record()]


@given(st.lists(st.text()), st.integers(0, 200))
def test_wherever_a_file_is_cut_off_every_whole_line_stays(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], at: int
) -> None:
    out = tmp_path_factory.mktemp("cut") / "out.jsonl"
    queries = [InputQuery(number, text) for number, text in enumerate(texts, 1)]
    write(out, *(query.to_record() for query in queries))
    whole = out.read_bytes()[:at].count(b"\n")
    os.truncate(out, min(at, out.stat().st_size))
    assert done(out, *queries) == [number < whole for number in range(len(queries))]
    assert records_of(out) == [query.to_record() for query in queries[:whole]]


def records_of(out: Path) -> list[dict[str, Any]]:
    # Texts may hold what `splitlines` takes for the end of a line.
    return [json.loads(line) for line in out.read_bytes().split(b"\n") if line]
