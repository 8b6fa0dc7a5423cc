"""What calls share adds up, however many threads use it at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextvars import Context
from random import Random
from threading import Barrier, Lock, Thread
from typing import Final, TypeVar

import pytest

from qtmiddleware.config.settings import BudgetSettings
from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.circuit_breaker import Breaker, BreakerState
from qtmiddleware.runtime.spending import Meter
from tests.support.clock import Clock

THREADS: Final = 16
ROUNDS: Final = 200

T = TypeVar("T")


@pytest.fixture(autouse=True)
def hasty_threads() -> Iterator[None]:
    """Threads take turns as often as they can, so that a Python with the GIL shows races too."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run_storm(work: Callable[[int], T], threads: int = THREADS) -> list[T]:
    """What *work* returns for each number of a thread; all begin together, and the first error of one is raised."""
    start = Barrier(threads)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            start.wait()
            # Nobody in the storm was called by somebody else in it.
            results[number] = Context().run(work, number)
        except BaseException as error:
            errors.append(error)

    running = [Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    for error in errors:
        raise error
    return [results[number] for number in range(threads)]


class Alone:
    """A place for one at a time: entering it while somebody is inside fails the test."""

    def __init__(self) -> None:
        self._lock = Lock()

    def __enter__(self) -> None:
        assert self._lock.acquire(blocking=False), "somebody else is inside"

    def __exit__(self, *_: object) -> None:
        self._lock.release()


# --- budget ---------------------------------------------------------------------------------------


def test_a_budget_is_never_overspent_and_every_token_is_counted() -> None:
    meter, budget = Meter(), BudgetSettings(max_tokens=100_000, max_usd=50.0)

    def spend(thread: int) -> tuple[int, float, int]:
        drawn, tokens, cents, refused = Random(thread), 0, 0, 0
        for _ in range(ROUNDS):
            most = drawn.randint(1, 100)
            try:
                reserved = meter.reserve_cost(budget, tokens=most, usd=most / 128)
            except ModelError as error:
                if error.reason != "over_budget":
                    raise
                refused += 1
                continue
            _, seen, paid = meter.spent()
            assert seen <= 100_000
            assert paid <= 50.0
            spent = drawn.randint(0, most)
            reserved.record_actual_cost(spent, spent / 128)
            tokens += spent
            cents += spent
        return tokens, cents / 128, refused

    spent = run_storm(spend)
    calls, tokens, usd = meter.spent()
    # Parts of a dollar that are powers of two, so that sums are exact in any order.
    assert (tokens, usd) == (sum(it[0] for it in spent), sum(it[1] for it in spent))
    assert calls == THREADS * ROUNDS - sum(it[2] for it in spent)


# --- circuit breaker ------------------------------------------------------------------------------


def test_one_call_at_a_time_tries_a_service_that_failed() -> None:
    clock, inside = Clock(), Alone()
    breaker = Breaker(1, 1.0, clock=clock)
    first = breaker.begin_attempt()
    assert first is not None
    first.end(has_failed=True)
    clock.now += 2.0

    def probe(_: int) -> int:
        probes = 0
        for _ in range(ROUNDS):
            attempt = breaker.begin_attempt()
            if attempt is not None:
                assert attempt.is_probe
                with inside:
                    probes += 1
                # It is given up, so that the next one tries.
                attempt.end(has_failed=None)
        return probes

    assert sum(run_storm(probe)) > 0
    assert breaker.report()[:2] == (BreakerState.HALF_OPEN, 1)
