"""The account of one retrieval."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.types import Decision, Stage, Trace


def full_trace() -> Trace:
    trace = Trace()
    trace.record_stage("search.original", 0.25)
    trace.record_stage("transform.rewrite", 0.5, "degraded", "timeout")
    trace.record_usage(calls=1, input_tokens=100, output_tokens=20, cost_usd=0.001)
    trace.record_usage(calls=2, input_tokens=10, output_tokens=2, cost_usd=0.002)
    trace.searches = 3
    trace.decision = Decision(call=True, reason="low_spread", signals={"spread": 0.01})
    trace.note("rewrite", "number repaired")
    trace.finish()
    return trace


def test_the_account_is_plain_json() -> None:
    for trace in (full_trace(), Trace()):
        account = trace.to_dict()
        assert json.loads(json.dumps(account, allow_nan=False)) == account


def test_stages_stand_in_the_order_they_ended() -> None:
    account = full_trace().to_dict()
    assert [(it["name"], it["ms"], it["status"], it["detail"]) for it in account["stages"]] == [
        ("search.original", 250.0, "ok", ""),
        ("transform.rewrite", 500.0, "degraded", "timeout"),
    ]


def test_a_stage_never_begins_before_the_retrieval() -> None:
    trace = Trace()
    trace.record_stage("clock.went.back", 1e6)
    assert trace.stages == (Stage("clock.went.back", 0.0, 1e9),)


def test_costs_add_up() -> None:
    trace = full_trace()
    assert (trace.llm_calls, trace.input_tokens, trace.output_tokens) == (3, 110, 22)
    assert trace.cost_usd == pytest.approx(0.003)


def test_one_unknown_price_makes_the_sum_unknown() -> None:
    trace = Trace()
    trace.record_usage(calls=1, input_tokens=1, output_tokens=1, cost_usd=None)
    trace.record_usage(calls=1, input_tokens=1, output_tokens=1, cost_usd=0.5)
    assert trace.cost_usd is None
    assert trace.to_dict()["cost_usd"] is None
    assert trace.llm_calls == 2


@given(st.floats(0, 1e5), st.floats(0, 1e5))
def test_added_time_is_what_the_original_search_did_not_take(total: float, original: float) -> None:
    trace = Trace()
    trace.total_ms, trace.original_ms = total, original
    assert trace.added_ms == max(0.0, total - original)


def test_it_began_when_it_was_made_and_its_time_is_taken_at_its_end() -> None:
    before = datetime.now(UTC).timestamp()
    trace = Trace()
    after = datetime.now(UTC).timestamp()
    assert before - 0.5 <= trace.started_at <= after + 0.5
    least = trace.measure_elapsed()
    trace.finish()
    assert least * 1e3 <= trace.total_ms <= trace.measure_elapsed() * 1e3


def test_every_trace_has_a_name_of_its_own_that_stays() -> None:
    traces = [Trace() for _ in range(100)]
    assert len({it.query_id for it in traces}) == 100
    assert all(it.query_id == it.query_id == it.to_dict()["query_id"] for it in traces)
    assert all(
        len(it.query_id) == 16 and set(it.query_id) <= set("0123456789abcdef") for it in traces
    )


def test_it_has_no_place_for_a_text_and_its_print_shows_numbers_alone() -> None:
    with pytest.raises(AttributeError):
        Trace().query = "what the user asked"  # type: ignore[attr-defined]
    assert "number repaired" not in repr(full_trace())


def test_decisions_and_stages_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Decision(call=True, reason="x").call = False  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        Stage("a", 0.0, 1.0).ms = 2.0  # type: ignore[misc]


def test_a_search_that_does_not_say_what_it_read_counts_one_unit() -> None:
    trace = Trace()
    trace.count_search(1)
    trace.count_search(1, [2, 3.5])  # two requests of one search
    assert (trace.searches, trace.read_units) == (2, 6.5)


def test_searches_cost_their_read_units_by_the_price() -> None:
    trace, more = Trace(read_price=16.0), Trace()
    trace.count_search(1)
    more.count_search(1, [9])
    trace.add_searches(more)
    assert (trace.searches, trace.read_units) == (2, 10)
    assert trace.read_cost_usd == trace.to_dict()["read_cost_usd"] == pytest.approx(16e-5)
    assert trace.cost_usd == 0.0  # the model's alone


def test_without_a_price_what_searches_cost_is_not_known() -> None:
    assert full_trace().read_cost_usd is None
