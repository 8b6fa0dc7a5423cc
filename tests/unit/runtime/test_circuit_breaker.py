"""What fails again and again is left alone for a while, and tried again by one call."""

from __future__ import annotations

import pytest

from qtmiddleware.runtime.circuit_breaker import Attempt, Breaker, BreakerState
from tests.support.clock import Clock

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def begin(breaker: Breaker) -> Attempt:
    attempt = breaker.begin_attempt()
    assert attempt is not None
    return attempt


def play(clock: Clock, breaker: Breaker, script: str) -> None:
    """Play *script*: ``f`` a failure, ``s`` a success, ``?`` an unknown end, ``f9`` with a pause of 9 s, ``+9`` 9 s pass."""
    for step in script.split():
        if step.startswith("+"):
            clock.now += float(step[1:])
            continue
        attempt = begin(breaker)
        if step.startswith("f"):
            attempt.end(has_failed=True, pause_seconds=float(step[1:]) if step[1:] else None)
        elif step == "s":
            attempt.end(has_failed=False)
        else:
            attempt.end(has_failed=None)


# What happened to a breaker of 3 failures and 30 s, and what it reports then.
STORIES = {
    "": (CLOSED, 0, 0),
    "f f f": (OPEN, 3, 30),
    "f f s f f s": (CLOSED, 0, 0),
    "f f f +30": (HALF_OPEN, 3, 0),
    "f f f +30 s": (CLOSED, 0, 0),
    "f f f +30 f": (OPEN, 4, 30),
    "f f f +30 ?": (HALF_OPEN, 3, 0),
    "f f f +30 f90 +30": (OPEN, 4, 60),
    "f120": (OPEN, 1, 120),
    "f1 +1": (CLOSED, 1, 0),
    "f1 +1 f1 +1 f1": (OPEN, 3, 30),
    "f f f90": (OPEN, 3, 90),
    "f0 f-1 fnan": (OPEN, 3, 30),
}


@pytest.mark.parametrize(("script", "report"), STORIES.items())
def test_a_breaker_opens_by_failures_and_pauses_and_closes_by_a_probe(
    script: str, report: tuple[BreakerState, int, float], clock: Clock
) -> None:
    breaker = Breaker(3, 30, clock=clock)
    play(clock, breaker, script)
    state, failures, seconds = report
    # Asking changes nothing.
    for _ in range(2):
        assert breaker.report() == (state, failures, 3, pytest.approx(seconds))
    assert breaker.wait_seconds == pytest.approx(seconds)
    attempt = breaker.begin_attempt()
    assert (attempt is None) == (state is OPEN)
    if attempt is not None:
        assert attempt.is_probe == (state is HALF_OPEN)
        # Beside the probe there is no other call.
        assert (breaker.begin_attempt() is None) == attempt.is_probe


def test_a_call_that_began_before_the_breaker_opened_closes_nothing(clock: Clock) -> None:
    breaker = Breaker(2, 30, clock=clock)
    early = begin(breaker)
    play(clock, breaker, "f f")
    early.end(has_failed=False)
    assert breaker.wait_seconds == 30


def test_without_a_number_of_failures_the_breaker_never_opens(clock: Clock) -> None:
    breaker = Breaker(0, 30, clock=clock)
    for _ in range(50):
        begin(breaker).end(has_failed=True, pause_seconds=60)
        begin(breaker)
        clock.now += 2
    assert breaker.wait_seconds == 0


def test_a_probe_that_never_ends_holds_others_up_no_longer_than_a_failure(clock: Clock) -> None:
    breaker = Breaker(3, 30, clock=clock)
    play(clock, breaker, "f f f +30")
    begin(breaker)
    clock.now += 29
    assert breaker.begin_attempt() is None
    clock.now += 1
    assert begin(breaker).is_probe


def test_calls_that_are_asked_to_pause_together_open_the_breaker_for_the_pause(
    clock: Clock,
) -> None:
    breaker = Breaker(3, 30, clock=clock)
    for attempt in [begin(breaker) for _ in range(8)]:
        attempt.end(has_failed=True, pause_seconds=1)
    assert breaker.wait_seconds == 1
