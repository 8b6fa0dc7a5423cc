"""Requests are cut into files within the limits, each in exactly one, and what comes back is read whatever it is."""

from __future__ import annotations

import json
from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.bulk.batch.model import compute_request_id
from qtmiddleware.kit.bulk.batch.parts import (
    LIMITS,
    Limits,
    assign_file_numbers,
    build_request_line,
    parse_result_line,
)
from qtmiddleware.kit.bulk.batch.service import split_lines

TEXTS = st.text(st.characters(codec=None), max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda it: st.dictionaries(TEXTS, it) | st.lists(it),
)


@given(st.lists(st.binary(min_size=1, max_size=30)), st.integers(1, 7), st.integers(30, 100))
def test_every_request_is_in_exactly_one_file_in_order_and_all_are_within_the_limits(
    data: list[bytes], requests: int, size: int
) -> None:
    lines = [(str(number), line) for number, line in enumerate(data)]
    parts = [
        [line for _, line in part]
        for _, part in groupby(assign_file_numbers(lines, Limits(requests, size)), lambda it: it[0])
    ]
    assert [line for part in parts for line in part] == lines
    assert all(
        len(part) <= requests and sum(len(line) for _, line in part) <= size for part in parts
    )
    # No file is begun that the one before had room for.
    for part, (first, *_) in pairwise(parts):
        assert len(part) == requests or sum(len(line) for _, line in (*part, first)) > size


def test_a_request_larger_than_a_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="not 11"):
        list(assign_file_numbers([("a", b"x" * 11)], Limits(5, 10)))


def test_the_limits_are_those_of_the_api() -> None:
    assert (LIMITS.requests, LIMITS.size) == (50_000, 200_000_000)


@given(TEXTS, TEXTS)
def test_a_request_is_one_line_of_json_that_says_it(system: str, user: str) -> None:
    request: dict[str, Any] = {"model": "m", "messages": [{"content": system}, {"content": user}]}
    id_, line = build_request_line(compute_request_id(request), request)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    said = json.loads(line)
    assert said == {
        "custom_id": id_,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": request,
    }
    assert compute_request_id(said["body"]) == id_
    assert len(id_) == 32


@given(JSON, JSON, JSON, TEXTS)
def test_whatever_a_line_says_it_is_read_or_is_none(
    response: Any, error: Any, status: Any, id_: str
) -> None:
    said = {"custom_id": id_, "response": response, "error": error}
    read = parse_result_line(json.dumps(said).encode())
    assert read is not None
    assert read.id == id_
    answered = parse_result_line(
        json.dumps({**said, "response": {"status_code": status, "body": response}}).encode()
    )
    assert answered is not None
    is_status = isinstance(status, int) and not isinstance(status, bool) and 0 <= status < 1_000
    assert answered.status == (status if is_status else None)
    assert parse_result_line(json.dumps(said).encode()[:-1]) is None
    assert parse_result_line(json.dumps([said, status]).encode()) is None


@given(st.binary(max_size=60))
def test_a_line_of_anything_is_none(line: bytes) -> None:
    assert parse_result_line(line) is None


@pytest.mark.parametrize(
    ("line", "status", "failure", "is_final"),
    [
        ({"response": {"status_code": 200, "body": {}}}, 200, "", True),
        ({"response": {"status_code": 400, "body": {}}}, 400, "HTTP 400", True),
        ({"response": {"status_code": 403, "body": {}}}, 403, "HTTP 403", False),
        ({"response": {"status_code": 429, "body": {}}}, 429, "HTTP 429", False),
        ({"response": {"status_code": 503, "body": {}}}, 503, "HTTP 503", False),
        (
            {"response": None, "error": {"code": "batch_expired", "message": "x"}},
            None,
            "batch_expired",
            False,
        ),
        ({"response": None, "error": {"code": "what the user asked"}}, None, "no response", False),
        ({}, None, "no response", False),
    ],
)
def test_what_would_be_refused_again_is_told_from_what_is_asked_again(
    line: dict[str, Any], status: int | None, failure: str, is_final: bool
) -> None:
    read = parse_result_line(json.dumps({"custom_id": "a", **line}).encode())
    assert read is not None
    assert (read.status, read.failure, read.is_final) == (status, failure, is_final)


@given(st.lists(st.binary(max_size=20)), st.integers(1, 9))
def test_lines_are_put_together_out_of_any_chunks(lines: list[bytes], size: int) -> None:
    whole = b"\n".join(lines)
    chunks = [whole[at : at + size] for at in range(0, len(whole), size)]
    expected = whole.split(b"\n")
    assert list(split_lines(chunks)) == (expected if expected[-1] else expected[:-1])


def test_letters_that_end_lines_elsewhere_end_none_here() -> None:
    line = json.dumps(
        {"custom_id": "a", "text": "one\u2028two\x85three"}, ensure_ascii=False
    ).encode()
    assert list(split_lines([line + b"\n"])) == [line]
