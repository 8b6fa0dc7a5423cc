"""A file of questions: every line is a question or is named with why it is none."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.bulk.queries import (
    MOST_BYTES,
    BrokenLine,
    InputQuery,
    count_non_blank_lines,
    read_queries,
)
from qtmiddleware.types import Message

SETTINGS = Settings()


def read(data: bytes, *, has_json: bool | None = True) -> list[InputQuery | BrokenLine]:
    return list(read_queries(io.BytesIO(data), has_json=has_json))


def read_one(record: object) -> InputQuery | BrokenLine:
    (line,) = read(json.dumps(record).encode())
    return line


def test_a_line_says_query_id_and_history() -> None:
    turns = [{"role": "user", "content": "Who runs Nike?"}]
    query = read_one({"query": "And Puma?", "id": "q1", "history": turns})
    assert isinstance(query, InputQuery)
    assert (query.line, query.id, query.text) == (1, "q1", "And Puma?")
    assert query.history.messages == (Message("user", "Who runs Nike?"),)
    assert query.to_record() == {"line": 1, "id": "q1", "query": "And Puma?", "history": turns}


def test_the_layout_of_beir_and_bare_strings_are_read_too() -> None:
    turns = [{"role": "user", "content": "Who?"}]
    beir = read_one({"_id": 7, "text": "Why?", "metadata": {"history": turns}})
    assert isinstance(beir, InputQuery)
    assert beir.to_record() == {"line": 1, "id": 7, "query": "Why?", "history": turns}
    assert read_one("Why?") == InputQuery(1, "Why?")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"7", "neither an object nor text"),
        (b"{}", "no query"),
        (b'{"query": 3}', "the query must be text, not int"),
        (b'{"query": "  "}', "the query must not be blank"),
        (b'{"query": "a\\u0000b"}', "a NUL character in it"),
        (b'{"query": "\\ud800"}', "not UTF-8"),
        (b'"\xff"', "not UTF-8"),
        (
            json.dumps("x" * 9_000).encode(),
            "the query has 9,000 characters; the limit is 8,000",
        ),
        (b'{"query": "a", "id": [1]}', "an id that is neither text nor a whole number"),
        (b'{"query": "a", "id": true}', "an id that is neither text nor a whole number"),
        (
            b'{"query": "a", "history": "b"}',
            "a history that is not a list of messages with role and content",
        ),
        (
            b'{"query": "a", "history": [3]}',
            "a history that is not a list of messages with role and content",
        ),
    ],
)
def test_a_broken_line_is_named_and_the_others_are_read(line: bytes, why: str) -> None:
    assert read(b'"first"\n' + line + b'\n"last"') == [
        InputQuery(1, "first"),
        BrokenLine(2, why),
        InputQuery(3, "last"),
    ]


def test_a_line_without_end_is_passed_over_without_being_kept() -> None:
    data = b'"first"\n"' + b"x" * (2 * MOST_BYTES) + b'"\n"last"\n'
    assert [it.line for it in read(data)] == [1, 2, 3]
    assert read(data)[1] == BrokenLine(2, "longer than 10,000,000 bytes")


def test_in_other_files_a_line_is_a_question_as_it_stands() -> None:
    data = b'\xef\xbb\xbfWhy?\r\n\r\n   \n{"query": 1}\n'
    assert read(data, has_json=False) == [InputQuery(1, "Why?"), InputQuery(4, '{"query": 1}')]


@pytest.mark.parametrize(
    ("first", "has_json"), [(b'{"query": "a"}', True), (b'"a"', True), (b"a", False)]
)
def test_the_first_line_says_what_a_pipe_holds(first: bytes, has_json: bool) -> None:
    second = read(first + b"\nb\n", has_json=None)[1]
    assert second == (BrokenLine(2, "not JSON") if has_json else InputQuery(2, "b"))


@given(
    st.text(min_size=1).filter(lambda it: not it.isspace() and "\0" not in it),
    st.none() | st.text() | st.integers(),
)
def test_every_text_and_id_comes_through_as_it_is(text: str, id_: str | int | None) -> None:
    read_line = read_one({"query": text, "id": id_})
    if isinstance(id_, str) and "\0" in id_:
        assert read_line == BrokenLine(1, "a NUL character in it")
    else:
        assert read_line == InputQuery(1, text, id_)


@given(st.lists(st.binary(max_size=40)))
def test_whatever_is_in_a_file_is_read_or_named_line_by_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    data = b"\n".join(lines)
    path = tmp_path_factory.mktemp("queries") / "queries.jsonl"
    path.write_bytes(data)
    for has_json in (True, False):
        numbers = [it.line for it in read(data, has_json=has_json)]
        assert numbers == sorted(set(numbers))
        assert len(numbers) == count_non_blank_lines(path)


@given(st.binary(min_size=1, max_size=200))
def test_no_text_of_a_broken_line_is_told(data: bytes) -> None:
    known = read(b'"fine"')
    for it in read(b'{"query": "secretword", "id": ' + data.replace(b"\n", b" ") + b"}"):
        assert it in known or isinstance(it, InputQuery) or "secretword" not in it.error
