"""Calls, tokens and money of a process are held against budgets."""

from __future__ import annotations

import pytest

from qtmiddleware.config.settings import BudgetSettings
from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.spending import Meter
from tests.support.clock import Clock

FREE = BudgetSettings()


@pytest.fixture
def meter(clock: Clock) -> Meter:
    return Meter(clock=clock)


def refusal(
    meter: Meter, budget: BudgetSettings, *, tokens: int = 0, usd: float = 0.0
) -> ModelError | None:
    """Why a call that costs this much is not made; it is undone if it is."""
    try:
        meter.reserve_cost(budget, tokens=tokens, usd=usd).record_actual_cost(0, 0.0)
    except ModelError as error:
        return error
    return None


def test_no_more_calls_are_made_in_a_minute_than_allowed(meter: Meter, clock: Clock) -> None:
    budget = BudgetSettings(max_llm_calls_per_minute=3)
    for _ in range(3):
        clock.now += 10
        meter.reserve_cost(budget, tokens=1, usd=0.0)
        # Other middlewares of the process have no limit.
        assert meter.find_exceeded_limit(FREE) is None
    with pytest.raises(ModelError, match="maxLlmCallsPerMinute allows 3") as caught:
        meter.reserve_cost(budget, tokens=1, usd=0.0)
    # The minute began with the first of them.
    assert (caught.value.reason, caught.value.retry_after) == ("over_budget", 40.0)
    clock.now += 40
    meter.reserve_cost(budget, tokens=1, usd=0.0)


def test_money_is_counted_over_a_day(meter: Meter, clock: Clock) -> None:
    budget = BudgetSettings(max_usd=1.0)
    meter.reserve_cost(budget, tokens=1, usd=0.6)
    clock.now += 12 * 3_600
    meter.reserve_cost(budget, tokens=1, usd=0.4)
    error = refusal(meter, budget, usd=0.01)
    assert "maxUsd allows 1 US dollars in 24 hours" in str(error)
    clock.now += 12 * 3_600 + 60
    assert refusal(meter, budget, usd=0.6) is None
    assert refusal(meter, budget, usd=0.61)
