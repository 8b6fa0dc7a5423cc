"""What is kept of batches: nothing a service says is believed beyond what the API documents, and no budget forgets."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.config.settings import BudgetSettings
from qtmiddleware.errors import ModelError, StoreError
from qtmiddleware.kit.bulk.batch.costs import Tariff
from qtmiddleware.kit.bulk.batch.parts import RequestResult
from qtmiddleware.kit.bulk.batch.service import limit_total_bytes
from qtmiddleware.kit.bulk.batch.state import BatchState, Part, Usage, parse_batch_description
from qtmiddleware.providers.llms.openai.prices import Prices

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=400),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["data", "code", "message", "completed"]), inner)
    ),
    max_leaves=10,
)
NAMES = [
    "id",
    "status",
    "created_at",
    "expires_at",
    "output_file_id",
    "error_file_id",
    "request_counts",
    "errors",
]
TARIFF = Tariff(Prices("m", 1.0, 10.0), None, 1_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.batch"


def add_replies(path: Path, *usages: str) -> Usage:
    with BatchState(path) as state:
        state.add_part([str(at) for at in range(len(usages))], 3_000 * len(usages))
        replies = (
            RequestResult(str(at), 200, f'{{"usage": {usage}}}', "")
            for at, usage in enumerate(usages)
        )
        state.add_replies(replies)
        return state.sum_usage()


@given(st.dictionaries(st.sampled_from(NAMES), JSON) | JSON)
def test_whatever_is_said_of_a_batch_it_can_be_shown(said: Any) -> None:
    batch = parse_batch_description(said)
    part = Part(1, 5, 100, None, batch, settled=False)
    assert len(part.status) <= 200
    assert part.completed >= 0
    assert part.failed >= 0
    assert all(len(error) < 700 for error in part.errors)
    assert json.loads(json.dumps(part.to_dict()))
    assert bool(batch) == ("id" in batch)
    assert parse_batch_description(json.loads(json.dumps(batch))) == batch


def test_what_the_api_documents_is_kept() -> None:
    said = {
        "id": "batch_1", "status": "failed", "created_at": 1, "expires_at": 2.5, "output_file_id": None,
        "error_file_id": "file-1", "request_counts": {"total": 3, "completed": 1, "failed": 2},
        "errors": {"data": [{"code": "a", "message": "b", "line": 1}, {"code": None, "message": "x" * 300_000}]},
    }  # fmt: skip
    part = Part(1, 3, 100, None, parse_batch_description(said), settled=False)
    assert (part.status, part.completed, part.failed) == ("failed", 1, 2)
    assert part.errors == ["a: b", "x" * 300 + "..."]
    assert part.to_dict()["expires_at"] == 2.5


@pytest.mark.parametrize(
    "count", ["-1000000000", "1e999", "NaN", '"9e999"', "true", "null", "[7]", "9" * 30, "0.5"]
)
def test_tokens_that_cannot_be_count_as_many_as_were_expected(path: Path, count: str) -> None:
    usage = add_replies(
        path, '{"prompt_tokens": 100, "completion_tokens": 20}', f'{{"prompt_tokens": {count}}}'
    )
    assert usage == Usage(100, 20, 1)
    with BatchState(path) as state:
        spent = TARIFF.compute_actual_cost(state.list_parts(), usage)
    # So many bytes of the request by three, and a reply as long as it may be.
    assert (spent.read, spent.written) == (1_100, 1_020)
    budget = BudgetSettings(max_tokens=2_000)
    with pytest.raises(ModelError, match=r"budget\.maxTokens"):
        TARIFF.check_budget(budget, spent, TARIFF.compute_cost(0, 0))


def test_a_sum_beyond_all_bounds_is_not_free(path: Path) -> None:
    usage = add_replies(path, *['{"prompt_tokens": 1000000000000}'] * 3)
    assert usage == Usage(3 * 10**12, 0, 0)
    with pytest.raises(ModelError, match=r"budget\.maxUsd"):
        TARIFF.check_budget(
            BudgetSettings(max_usd=1_000.0),
            TARIFF.compute_actual_cost([], usage),
            TARIFF.compute_cost(0, 0),
        )


def test_a_reply_that_comes_again_is_counted_once(path: Path) -> None:
    said = '{"prompt_tokens": 100, "completion_tokens": 20}'
    assert add_replies(path, said) == add_replies(path, said) == Usage(100, 20, 0)


def test_replies_that_were_kept_before_their_tokens_were_are_counted(path: Path) -> None:
    add_replies(
        path, '{"prompt_tokens": 100, "completion_tokens": 20}', '{"prompt_tokens": Infinity}'
    )
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM meta WHERE key = 'usage'")
    with BatchState(path) as state:
        assert state.sum_usage() == Usage(100, 20, 1)


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("UPDATE parts SET batch = ?", "{"),
        ("UPDATE parts SET batch = ?", "[" * 100_000),
        ("UPDATE parts SET batch = ?", '{"status": "completed"}'),
        ("UPDATE parts SET batch = ?", b"\xff"),
        ("UPDATE parts SET requests = ?", "many"),
        ("UPDATE parts SET bytes = ?", -1),
        ("UPDATE parts SET file = ?", b"\xff"),
        ("UPDATE meta SET value = ? WHERE key = 'run'", "../x\nqtm: ok"),
        ("UPDATE replies SET status = ?", "fine"),
        ("UPDATE replies SET body = ?", b"\xff"),
    ],
    ids=range(10),
)
def test_a_file_that_nobody_here_wrote_is_refused_in_one_line(
    path: Path, statement: str, value: Any
) -> None:
    add_replies(path, "{}")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, (value,))

    def read() -> None:
        with BatchState(path) as state:
            state.list_parts()
            state.find_reply_status_and_body("0")

    with pytest.raises(
        StoreError, match=r"out.batch cannot be used .*; move the file away"
    ) as refused:
        read()
    assert str(refused.value).isprintable()


@given(st.lists(st.binary(max_size=9)), st.integers(0, 30))
def test_no_more_is_read_of_a_file_than_it_may_have(chunks: list[bytes], most: int) -> None:
    read: list[bytes] = []
    refused = (
        nullcontext()
        if sum(map(len, chunks)) <= most
        else pytest.raises(ModelError, match="is larger")
    )
    with refused:
        read.extend(limit_total_bytes(chunks, most))
    assert sum(map(len, read)) <= most
    assert chunks[: len(read)] == read
    assert read == chunks or sum(map(len, chunks)) > most
