"""What a run over a file came to, in words."""

from __future__ import annotations

import pytest

from qtmiddleware.kit.bulk.run import BulkReport
from qtmiddleware.kit.cli.transform_file import summarize_bulk_report


@pytest.mark.parametrize(
    ("calls", "said"),
    [(0, "\n0 calls, "), (1, "\n1 call, "), (2, "\n2 calls, "), (1_000, "\n1,000 calls, ")],
)
def test_calls_are_counted_as_one_says_it(calls: int, said: str) -> None:
    assert said in summarize_bulk_report(BulkReport(asked=calls, calls=calls))


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (None, "cost not known"),
        (0.0, "$0.0000"),
        (1e-9, "<$0.0001"),
        (0.000049, "<$0.0001"),
        (0.00005, "$0.0001"),
        (0.0123, "$0.0123"),
        (1_234.5, "$1,234.5000"),
    ],
)
def test_a_cost_is_never_shown_as_nothing_unless_it_is(cost: float | None, said: str) -> None:
    assert f" written, {said}; " in summarize_bulk_report(
        BulkReport(asked=1, calls=1, cost_usd=cost)
    )
