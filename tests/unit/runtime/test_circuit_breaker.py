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
    attempt = breaker.begin_attempt(until)
    assert attempt is not None
    return attempt


def opened(clock: Clock, failures: int = 3, seconds: float = 30.0) -> Breaker:
    breaker = Breaker(failures, seconds, clock=clock)
    for _ in range(failures):
        begun(breaker).report_failure()
    return breaker


def test_calls_pass_until_enough_failed_in_a_row(clock: Clock) -> None:
    breaker = Breaker(3, 30, clock=clock)
    for _ in range(2):
        begun(breaker).report_failure()
    assert breaker.wait_seconds == 0
    begun(breaker).report_failure()
    assert (breaker.wait_seconds, breaker.begin_attempt()) == (30, None)


def test_a_success_forgets_the_failures_before_it(clock: Clock) -> None:
    breaker = Breaker(2, 30, clock=clock)
    for _ in range(5):
        begun(breaker).report_failure()
        begun(breaker).report_success()
    assert breaker.begin_attempt() is not None


def test_after_the_wait_one_call_tries_alone(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 29.999
    assert breaker.begin_attempt() is None
    clock.now += 0.001
    probe = begun(breaker)
    assert (probe.is_probe, breaker.begin_attempt()) == (True, None)
    assert breaker.wait_seconds > 0
    probe.report_success()
    assert breaker.wait_seconds == 0
    assert not begun(breaker).is_probe


def test_a_trial_that_fails_begins_the_wait_anew(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 30
    begun(breaker).report_failure()
    assert (breaker.wait_seconds, breaker.begin_attempt()) == (30, None)


def test_a_trial_that_was_given_up_leaves_the_next_one_to_try(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 30
    begun(breaker).report_unknown_result()
    assert begun(breaker).is_probe


def test_a_call_that_hangs_beyond_its_time_has_failed(clock: Clock) -> None:
    breaker = Breaker(2, 30, clock=clock)
    first, second = begun(breaker, clock.now + 5), begun(breaker, clock.now + 5)
    clock.now += 5
    assert breaker.wait_seconds == 30
    # What it says in the end comes too late.
    first.report_success()
    second.report_success()
    assert breaker.begin_attempt() is None


def test_a_trial_that_hangs_beyond_its_time_has_failed(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 30
    begun(breaker, clock.now + 5)
    clock.now += 5
    assert breaker.wait_seconds == 30


@pytest.mark.parametrize("hangs", [True, False])
def test_one_that_had_too_little_time_says_nothing_by_being_late(clock: Clock, hangs: bool) -> None:
    breaker = opened(clock, failures=1)
    clock.now += 30
    for _ in range(3):
        hasty = breaker.begin_attempt(clock.now + 0.1, has_enough_time=False)
        assert hasty is not None
        clock.now += 0.1
        if not hangs:
            hasty.report_timeout()
    assert begun(breaker).is_probe


def test_one_that_had_too_little_time_may_still_fail(clock: Clock) -> None:
    breaker = Breaker(1, 30, clock=clock)
    hasty = breaker.begin_attempt(clock.now + 0.1, has_enough_time=False)
    assert hasty is not None
    hasty.report_failure()
    assert breaker.wait_seconds == 30


def test_one_that_had_time_has_failed_where_it_is_late(clock: Clock) -> None:
    breaker = Breaker(1, 30, clock=clock)
    begun(breaker, clock.now + 5).report_timeout()
    assert breaker.wait_seconds == 30


def test_a_trial_that_failed_earlier_than_others_keeps_the_later_wait(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 30
    begun(breaker).report_failure(pause_seconds=90)
    clock.now += 30
    assert breaker.wait_seconds == 60


def test_calls_that_are_over_are_forgotten(clock: Clock) -> None:
    breaker = Breaker(1, 30, clock=clock)
    for _ in range(1_000):
        begun(breaker, clock.now + 60).report_success()
    assert len(breaker._under_way) <= 1


def test_what_began_before_does_not_end_the_wait(clock: Clock) -> None:
    breaker = Breaker(2, 30, clock=clock)
    early = begun(breaker)
    for _ in range(2):
        begun(breaker).report_failure()
    early.report_success()
    assert breaker.wait_seconds == 30
    clock.now += 10
    assert breaker.wait_seconds == 20


@pytest.mark.parametrize("pause", [0.2, 1, 30, 120])
def test_a_pause_that_the_service_asks_for_is_kept_to_the_second(
    clock: Clock, pause: float
) -> None:
    breaker = Breaker(5, 30, clock=clock)
    begun(breaker).report_failure(pause_seconds=pause)
    assert breaker.read_state_and_counts() == (BreakerState.OPEN, 1, 5, pytest.approx(pause))
    assert breaker.begin_attempt() is None
    clock.now += pause
    assert breaker.read_state_and_counts() == (BreakerState.CLOSED, 1, 5, 0.0)


def test_after_a_pause_that_was_asked_for_all_may_call_at_once(clock: Clock) -> None:
    breaker = Breaker(5, 30, clock=clock)
    begun(breaker).report_failure(pause_seconds=1)
    clock.now += 1
    assert [begun(breaker).is_probe for _ in range(8)] == [False] * 8


def test_a_service_that_asks_for_pauses_and_never_answers_opens_the_breaker_like_any_other(
    clock: Clock,
) -> None:
    breaker, rests = Breaker(5, 30, clock=clock), list[float]()
    for _ in range(6):
        begun(breaker).report_failure(pause_seconds=1)
        rests.append(breaker.wait_seconds)
        clock.now += breaker.wait_seconds
    assert rests == [1, 1, 1, 1, 30, 30]


def test_a_service_that_answers_between_its_pauses_never_opens_the_breaker(clock: Clock) -> None:
    breaker = Breaker(2, 30, clock=clock)
    for _ in range(20):
        begun(breaker).report_success()
        begun(breaker).report_failure(pause_seconds=1)
        assert breaker.wait_seconds == 1
        clock.now += 1


def test_calls_that_are_told_to_wait_together_are_one_failure(clock: Clock) -> None:
    breaker = Breaker(5, 30, clock=clock)
    for episode in range(1, 5):
        calls = [begun(breaker) for _ in range(8)]
        for call in calls[:4]:
            call.report_failure(pause_seconds=1)
        assert breaker.read_state_and_counts() == (BreakerState.OPEN, episode, 5, 1.0)
        clock.now += 1
        # These were under way when the pause began, and are slower to say the same.
        for call in calls[4:]:
            call.report_failure(pause_seconds=1)
        clock.now += 1
        assert breaker.read_state_and_counts()[:2] == (BreakerState.CLOSED, episode)


def test_of_several_pauses_the_longest_is_kept(clock: Clock) -> None:
    breaker = Breaker(5, 30, clock=clock)
    first, second, third = begun(breaker), begun(breaker), begun(breaker)
    first.report_failure(pause_seconds=2)
    second.report_failure(pause_seconds=7)
    third.report_failure(pause_seconds=1)
    assert breaker.wait_seconds == 7


def test_an_answer_during_a_pause_does_not_end_it_and_is_an_answer(clock: Clock) -> None:
    breaker = Breaker(5, 30, clock=clock)
    earlier = begun(breaker)
    begun(breaker).report_failure(pause_seconds=10)
    earlier.report_success()
    assert breaker.read_state_and_counts() == (BreakerState.OPEN, 0, 5, 10.0)


def test_failures_that_ask_for_no_pause_count_during_one(clock: Clock) -> None:
    breaker = Breaker(5, 30, clock=clock)
    calls = [begun(breaker) for _ in range(5)]
    calls[0].report_failure(pause_seconds=1)
    for call in calls[1:]:
        call.report_failure()
    assert breaker.wait_seconds == 30


@pytest.mark.parametrize(("pause", "rest"), [(1, 30), (90, 90)])
def test_a_pause_asked_for_at_the_last_failure_shortens_nothing(
    clock: Clock, pause: float, rest: float
) -> None:
    breaker = Breaker(2, 30, clock=clock)
    begun(breaker).report_failure()
    begun(breaker).report_failure(pause_seconds=pause)
    assert breaker.wait_seconds == rest
    clock.now += rest
    probe = begun(breaker)
    assert probe.is_probe
    probe.report_failure(pause_seconds=pause)
    assert breaker.wait_seconds == rest


def test_a_pause_asked_for_late_delays_the_probe(clock: Clock) -> None:
    breaker = Breaker(2, 30, clock=clock)
    earlier = begun(breaker)
    begun(breaker).report_failure()
    begun(breaker).report_failure()
    clock.now += 30
    probe = begun(breaker)
    earlier.report_failure(pause_seconds=5)
    assert breaker.wait_seconds == 5
    probe.report_success()
    assert (breaker.read_state_and_counts()[0], breaker.wait_seconds) == (BreakerState.OPEN, 5)
    clock.now += 5
    assert not begun(breaker).is_probe


@pytest.mark.parametrize("pause", [0.0, -1.0, float("nan")])
def test_what_is_no_pause_is_an_ordinary_failure(clock: Clock, pause: float) -> None:
    breaker = Breaker(2, 30, clock=clock)
    begun(breaker).report_failure(pause_seconds=pause)
    assert breaker.wait_seconds == 0
    begun(breaker).report_failure(pause_seconds=pause)
    assert breaker.wait_seconds == 30


def test_without_a_number_of_failures_nothing_is_ever_left_alone(clock: Clock) -> None:
    breaker = Breaker(0, 30, clock=clock)
    for _ in range(50):
        begun(breaker, clock.now + 1).report_failure(pause_seconds=60)
        begun(breaker, clock.now + 1)
        clock.now += 2
    assert breaker.wait_seconds == 0


def test_of_many_threads_one_tries(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 30
    start = Barrier(16)

    def attempt(_: int) -> bool:
        start.wait()
        return breaker.begin_attempt() is not None

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(attempt, range(16))) == 1


ENDS: dict[str, Callable[[Attempt], None]] = {
    "succeeded": Attempt.report_success,
    "failed": Attempt.report_failure,
    "abandoned": Attempt.report_unknown_result,
}


PAUSES = st.floats(0, 100, allow_subnormal=False)


@given(st.lists(st.tuples(st.floats(0, 40), PAUSES, st.booleans()), max_size=40))
def test_nobody_calls_before_the_pause_is_over_and_everybody_may_after_it(
    events: list[tuple[float, float, bool]],
) -> None:
    clock = Clock()
    breaker = Breaker(1_000, 30, clock=clock)
    until = clock.now
    for seconds, pause, works in events:
        clock.now += seconds
        attempt = breaker.begin_attempt()
        assert (attempt is None) == (clock.now < until)
        if attempt is not None:
            attempt.report_success() if works else attempt.report_failure(pause_seconds=pause)
            until = clock.now if works else clock.now + pause


@given(
    st.lists(st.tuples(st.sampled_from(sorted(ENDS)), st.floats(0, 40)), max_size=40),
    st.integers(1, 4),
)
def test_it_is_shut_for_no_longer_than_the_wait_after_the_last_call(
    events: list[tuple[str, float]], failures: int
) -> None:
    clock = Clock()
    breaker = Breaker(failures, 30, clock=clock)
    row = 0
    for end, pause in events:
        clock.now += pause
        attempt = breaker.begin_attempt(clock.now + 5)
        if attempt is None:
            assert row >= failures
            continue
        ENDS[end](attempt)
        row = row + 1 if end == "failed" else 0 if end == "succeeded" else row
    clock.now += 30
    assert breaker.begin_attempt() is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_does_not_wait_for_a_trial_of_its_parent(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 30
    begun(breaker)
    child = os.fork()
    if not child:
        os._exit(0 if breaker.begin_attempt() is not None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert breaker.begin_attempt() is None


def test_it_tells_how_it_is_and_is_not_changed_by_that(clock: Clock) -> None:
    breaker = Breaker(2, 30.0, clock=clock)
    assert breaker.read_state_and_counts() == (BreakerState.CLOSED, 0, 2, 0.0)
    for _ in range(2):
        begun(breaker).report_failure()
    assert breaker.read_state_and_counts() == (BreakerState.OPEN, 2, 2, 30.0)
    clock.now += 30
    assert (
        breaker.read_state_and_counts()
        == breaker.read_state_and_counts()
        == (BreakerState.HALF_OPEN, 2, 2, 0.0)
    )
    probe = begun(breaker)
    assert breaker.read_state_and_counts()[0] is BreakerState.HALF_OPEN
    probe.report_success()
    assert breaker.read_state_and_counts() == (BreakerState.CLOSED, 0, 2, 0.0)


def test_other_limits_leave_it_open_and_none_close_it(clock: Clock) -> None:
    breaker = opened(clock, failures=2)
    breaker.change_limits(5, 60.0)
    assert breaker.read_state_and_counts()[:3] == (BreakerState.OPEN, 2, 5)
    clock.now += 30
    begun(breaker).report_failure()
    assert breaker.wait_seconds == 60.0
    breaker.change_limits(0, 60.0)
    assert breaker.read_state_and_counts()[0] is BreakerState.CLOSED
    breaker.change_limits(5, 60.0)
    begun(breaker).report_failure(pause_seconds=10)
    assert breaker.wait_seconds == 10.0
    breaker.change_limits(0, 60.0)
    assert breaker.wait_seconds == 0.0
    begun(breaker).report_failure()
    assert breaker.wait_seconds == 0.0
