"""Whole retrievals return the passages and scores they returned before."""

from __future__ import annotations

import pytest

from tests.support import golden_orders
from tests.support.shared_data import needs_shared_data

DEMO, *OTHERS = golden_orders.CASES
# Other processors add up the same numbers in another order.
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def embedder() -> golden_orders.RememberingEmbedder:
    return golden_orders.RememberingEmbedder()


@pytest.mark.parametrize(
    "case",
    [DEMO, *(pytest.param(it, marks=[pytest.mark.thorough, needs_shared_data]) for it in OTHERS)],
    ids=lambda case: case.folder,
)
def test_every_retrieval_returns_the_kept_passages_in_the_kept_order_with_the_kept_scores(
    case: golden_orders.Case, embedder: golden_orders.RememberingEmbedder
) -> None:
    now, kept = golden_orders.measure(case, embedder), golden_orders.read()[case.folder]
    moved = list(golden_orders.find_differences(kept, now, tolerance=TOLERANCE))
    assert not moved, "if this is meant, run: python -m tests.support.golden_orders"


def test_an_order_or_a_score_that_changed_is_found() -> None:
    kept: golden_orders.CaseOrders = {
        "dense": {"rules": {"q1": [("a", 0.5, 1.0), ("b", None, 0.9)]}}
    }
    swapped: golden_orders.CaseOrders = {
        "dense": {"rules": {"q1": [("b", None, 0.9), ("a", 0.5, 1.0)]}}
    }
    rescored: golden_orders.CaseOrders = {
        "dense": {"rules": {"q1": [("a", 0.5, 1.0), ("b", 0.1, 0.9)]}}
    }
    shorter: golden_orders.CaseOrders = {"dense": {"rules": {"q1": [("a", 0.5, 1.0)]}}}
    for now in (swapped, rescored, shorter):
        assert list(golden_orders.find_differences(kept, now, tolerance=TOLERANCE)) == [
            "dense, rules, q1"
        ]
    close: golden_orders.CaseOrders = {
        "dense": {"rules": {"q1": [("a", 0.500001, 1.0), ("b", None, 0.9)]}}
    }
    assert not list(golden_orders.find_differences(kept, close, tolerance=TOLERANCE))
