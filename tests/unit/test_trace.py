"""The account of one retrieval."""

from __future__ import annotations

import json

import pytest

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


def test_the_account_is_plain_json_with_stages_in_the_order_they_ended() -> None:
    for trace in (full_trace(), Trace()):
        account = trace.to_dict()
        assert json.loads(json.dumps(account, allow_nan=False)) == account
    stages = full_trace().to_dict()["stages"]
    assert [(it["name"], it["ms"], it["status"], it["detail"]) for it in stages] == [
        ("search.original", 250.0, "ok", ""),
        ("transform.rewrite", 500.0, "degraded", "timeout"),
    ]


def test_a_stage_never_begins_before_the_retrieval() -> None:
    trace = Trace()
    trace.record_stage("clock.went.back", 1e6)
    assert trace.stages == (Stage("clock.went.back", 0.0, 1e9),)


def test_costs_add_up_and_one_unknown_price_makes_the_sum_unknown() -> None:
    trace = full_trace()
    assert (trace.llm_calls, trace.input_tokens, trace.output_tokens) == (3, 110, 22)
    assert trace.cost_usd == pytest.approx(0.003)
    trace.record_usage(calls=1, input_tokens=1, output_tokens=1, cost_usd=None)
    trace.record_usage(calls=1, input_tokens=1, output_tokens=1, cost_usd=0.5)
    assert (trace.cost_usd, trace.to_dict()["cost_usd"], trace.llm_calls) == (None, None, 5)


def test_it_has_no_place_for_a_text_and_its_print_shows_numbers_alone() -> None:
    with pytest.raises(AttributeError):
        Trace().query = "what the user asked"  # type: ignore[attr-defined]
    assert "number repaired" not in repr(full_trace())
