"""What fails again and again is left alone for a while, and tried again by one call."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.runtime.circuit_breaker import Attempt, Breaker, BreakerState
from tests.support.clock import Clock


def begun(breaker: Breaker, until: float = float("inf")) -> Attempt:
    attempt = breaker.attempt(until)
    assert attempt is not None
    return attempt


def opened(clock: Clock, failures: int = 3, seconds: float = 30.0) -> Breaker:
    breaker = Breaker(failures, seconds, clock=clock)
    for _ in range(failures):
        begun(breaker).fail()
    return breaker


def test_calls_pass_until_enough_failed_in_a_row(clock: Clock) -> None:
    breaker = Breaker(3, 30, clock=clock)
    for _ in range(2):
        begun(breaker).fail()
    assert breaker.rest == 0
    begun(breaker).fail()
    assert (breaker.rest, breaker.attempt()) == (30, None)


def test_a_success_forgets_the_failures_before_it(clock: Clock) -> None:
    breaker = Breaker(2, 30, clock=clock)
    for _ in range(5):
        begun(breaker).fail()
        begun(breaker).succeed()
    assert breaker.attempt() is not None


def test_after_the_wait_one_call_tries_alone(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 29.999
    assert breaker.attempt() is None
    clock.now += 0.001
    probe = begun(breaker)
    assert (probe.is_probe, breaker.attempt()) == (True, None)
    assert breaker.rest > 0
    probe.succeed()
    assert breaker.rest == 0
    assert not begun(breaker).is_probe


def test_a_trial_that_fails_begins_the_wait_anew(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 30
    begun(breaker).fail()
    assert (breaker.rest, breaker.attempt()) == (30, None)


def test_a_trial_that_was_given_up_leaves_the_next_one_to_try(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 30
    begun(breaker).abandon()
    assert begun(breaker).is_probe


def test_a_call_that_hangs_beyond_its_time_has_failed(clock: Clock) -> None:
    breaker = Breaker(2, 30, clock=clock)
    first, second = begun(breaker, clock.now + 5), begun(breaker, clock.now + 5)
    clock.now += 5
    assert breaker.rest == 30
    # What it says in the end comes too late.
    first.succeed()
    second.succeed()
    assert breaker.attempt() is None


def test_a_trial_that_hangs_beyond_its_time_has_failed(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 30
    begun(breaker, clock.now + 5)
    clock.now += 5
    assert breaker.rest == 30


@pytest.mark.parametrize("hangs", [True, False])
def test_one_that_had_too_little_time_says_nothing_by_being_late(clock: Clock, hangs: bool) -> None:
    breaker = opened(clock, failures=1)
    clock.now += 30
    for _ in range(3):
        hasty = breaker.attempt(clock.now + 0.1, has_time=False)
        assert hasty is not None
        clock.now += 0.1
        if not hangs:
            hasty.time_out()
    assert begun(breaker).is_probe


def test_one_that_had_too_little_time_may_still_fail(clock: Clock) -> None:
    breaker = Breaker(1, 30, clock=clock)
    hasty = breaker.attempt(clock.now + 0.1, has_time=False)
    assert hasty is not None
    hasty.fail()
    assert breaker.rest == 30


def test_one_that_had_time_has_failed_where_it_is_late(clock: Clock) -> None:
    breaker = Breaker(1, 30, clock=clock)
    begun(breaker, clock.now + 5).time_out()
    assert breaker.rest == 30


def test_a_trial_that_failed_earlier_than_others_keeps_the_later_wait(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 30
    begun(breaker).fail(rest=90)
    clock.now += 30
    assert breaker.rest == 60


def test_calls_that_are_over_are_forgotten(clock: Clock) -> None:
    breaker = Breaker(1, 30, clock=clock)
    for _ in range(1_000):
        begun(breaker, clock.now + 60).succeed()
    assert len(breaker._under_way) <= 1


def test_what_began_before_does_not_end_the_wait(clock: Clock) -> None:
    breaker = Breaker(2, 30, clock=clock)
    early = begun(breaker)
    for _ in range(2):
        begun(breaker).fail()
    early.succeed()
    assert breaker.rest == 30
    clock.now += 10
    assert breaker.rest == 20


def test_one_that_asks_to_be_left_alone_is_at_once(clock: Clock) -> None:
    breaker = Breaker(5, 30, clock=clock)
    begun(breaker).fail(rest=120)
    assert breaker.rest == 120


def test_a_trial_that_fails_after_a_rest_that_was_asked_for_is_enough(clock: Clock) -> None:
    breaker = Breaker(5, 30, clock=clock)
    begun(breaker).fail(rest=40)
    clock.now += 40
    begun(breaker).fail()
    assert breaker.rest == 30


def test_without_a_number_of_failures_nothing_is_ever_left_alone(clock: Clock) -> None:
    breaker = Breaker(0, 30, clock=clock)
    for _ in range(50):
        begun(breaker, clock.now + 1).fail(rest=60)
        begun(breaker, clock.now + 1)
        clock.now += 2
    assert breaker.rest == 0


def test_of_many_threads_one_tries(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 30
    start = Barrier(16)

    def attempt(_: int) -> bool:
        start.wait()
        return breaker.attempt() is not None

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(attempt, range(16))) == 1


ENDS: dict[str, Callable[[Attempt], None]] = {
    "succeeded": Attempt.succeed,
    "failed": Attempt.fail,
    "abandoned": Attempt.abandon,
}


@given(st.lists(st.tuples(st.sampled_from(sorted(ENDS)), st.floats(0, 40)), max_size=40), st.integers(1, 4))
def test_it_is_shut_for_no_longer_than_the_wait_after_the_last_call(
    events: list[tuple[str, float]], failures: int
) -> None:
    clock = Clock()
    breaker = Breaker(failures, 30, clock=clock)
    row = 0
    for end, pause in events:
        clock.now += pause
        attempt = breaker.attempt(clock.now + 5)
        if attempt is None:
            assert row >= failures
            continue
        ENDS[end](attempt)
        row = row + 1 if end == "failed" else 0 if end == "succeeded" else row
    clock.now += 30
    assert breaker.attempt() is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_does_not_wait_for_a_trial_of_its_parent(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 30
    begun(breaker)
    child = os.fork()
    if not child:
        os._exit(0 if breaker.attempt() is not None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert breaker.attempt() is None


def test_it_tells_how_it_is_and_is_not_changed_by_that(clock: Clock) -> None:
    breaker = Breaker(2, 30.0, clock=clock)
    assert breaker.look() == (BreakerState.CLOSED, 0, 2, 0.0)
    for _ in range(2):
        begun(breaker).fail()
    assert breaker.look() == (BreakerState.OPEN, 2, 2, 30.0)
    clock.now += 30
    assert breaker.look() == breaker.look() == (BreakerState.HALF_OPEN, 2, 2, 0.0)
    probe = begun(breaker)
    assert breaker.look()[0] is BreakerState.HALF_OPEN
    probe.succeed()
    assert breaker.look() == (BreakerState.CLOSED, 0, 2, 0.0)


def test_other_limits_leave_it_open_and_none_close_it(clock: Clock) -> None:
    breaker = opened(clock, failures=2)
    breaker.change(5, 60.0)
    assert breaker.look()[:3] == (BreakerState.OPEN, 2, 5)
    clock.now += 30
    begun(breaker).fail()
    assert breaker.rest == 60.0
    breaker.change(0, 60.0)
    assert breaker.look()[0] is BreakerState.CLOSED
    begun(breaker).fail()
    assert breaker.rest == 0.0
