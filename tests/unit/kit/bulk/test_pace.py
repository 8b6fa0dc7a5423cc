"""One pace for all who ask: what passes is waited for, what does not ends the run, and nobody is asked too much."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qtmiddleware.errors import ModelError
from qtmiddleware.kit.bulk.pace import MAX_FIRST_FAILURES, PATIENCE, SEVERAL, TRIES, Pace
from tests.support.clock import Clock

BUSY = ModelError("rate_limited", "slower", retry_after=0.05)
DOWN = ModelError("unavailable", "HTTP 500")


class Waits(threading.Condition):
    """The condition of a pace in one thread: a wait moves *clock* on, after what *meanwhile* does."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.seconds: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None, "it would wait for ever"
        self.seconds.append(timeout)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        self.clock.now += timeout
        return True


def ticking(concurrency: int) -> tuple[Pace, Waits]:
    """A pace whose waits take no time."""
    clock = Clock()
    pace, waits = Pace(concurrency, clock=clock), Waits(clock)
    pace._changed = waits
    return pace, waits


def failing(*errors: ModelError) -> Callable[[], str]:
    """A call that fails with each of *errors* in turn, and is answered then."""
    left = list(errors)

    def call() -> str:
        if left:
            raise left.pop(0)
        return "answered"

    return call


@pytest.mark.parametrize(
    "reason", ["rate_limited", "overloaded", "circuit_open", "timeout", "unavailable"]
)
def test_what_passes_is_asked_again(reason: str) -> None:
    errors = [ModelError(reason, retry_after=0.001) for _ in range(TRIES + 1)]
    pace = Pace(2)
    assert pace.call(failing(*errors)) == "answered"
    assert pace.error is None


@pytest.mark.parametrize(
    "reason", ["refused", "too_long", "empty", "truncated", "unparsable", "unrecorded", "failed"]
)
def test_what_does_not_pass_is_the_questions_own(reason: str) -> None:
    pace = Pace(2)
    with pytest.raises(ModelError, match=reason):
        pace.call(failing(ModelError(reason)))
    assert pace.error is None
    assert pace.call(failing()) == "answered"


def test_many_refusals_at_once_halve_the_calls_once() -> None:
    pace, all_are_there = Pace(8), threading.Barrier(8, timeout=100)
    seen = list[int]()

    def run(_: int) -> str:
        first = True

        def call() -> str:
            nonlocal first
            if first:
                first = False
                all_are_there.wait()
                raise BUSY
            seen.append(pace.limit)
            return "answered"

        return pace.call(call)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(8))) == ["answered"] * 8
    assert min(seen) == 4


def test_as_many_answers_as_calls_add_one() -> None:
    pace = Pace(4)
    pace.call(failing(BUSY))
    assert pace.limit == 2  # 4 was halved, and one answer of two is there
    pace.call(failing())
    assert pace.limit == 3
    for _ in range(20):
        pace.call(failing())
    assert pace.limit == 4


@pytest.mark.parametrize("reason", ["unavailable", "timeout"])
def test_a_lone_failure_slows_nobody_else_down(reason: str) -> None:
    pace, waits = ticking(8)
    seen = list[str]()
    waits.meanwhile = lambda: seen.extend(pace.call(failing()) for _ in range(20))
    assert pace.call(failing(ModelError(reason))) == "answered"
    # The call that failed has waited, and those that came meanwhile have not.
    assert (len(waits.seconds), len(seen), pace.limit) == (1, 20, 8)


@pytest.mark.parametrize("reason", ["unavailable", "timeout"])
def test_several_failures_without_an_answer_between_halve_the_calls_and_pause_all(
    reason: str,
) -> None:
    pace, waits = ticking(8)
    limits, pauses = list[int](), list[float]()

    def call() -> str:
        limits.append(pace.limit)
        if len(limits) > SEVERAL:
            return "answered"
        waits.meanwhile = lambda: pauses.append(pace._resume_at - waits.clock.now)
        raise ModelError(reason)

    assert pace.call(call) == "answered"
    assert limits == [8] * SEVERAL + [4]
    assert [it > 0 for it in pauses] == [False] * (SEVERAL - 1) + [True]


@pytest.mark.parametrize(
    "error",
    [
        ModelError("rate_limited"),
        ModelError("rate_limited", retry_after=0.5),
        ModelError("unavailable", retry_after=0.5),
        ModelError("timeout", retry_after=0.5),
    ],
    ids=lambda error: f"{error.reason}, {error.retry_after}",
)
def test_one_rate_limit_or_pause_that_the_service_names_is_enough(error: ModelError) -> None:
    pace, waits = ticking(8)
    assert pace.call(failing(error)) == "answered"
    assert (pace.limit, waits.seconds) == (4, [0.5])


@pytest.mark.parametrize("reason", ["circuit_open", "overloaded", "over_budget"])
def test_a_service_that_was_not_asked_is_not_overloaded(reason: str) -> None:
    pace, waits = ticking(8)
    assert pace.call(failing(ModelError(reason, retry_after=2.0))) == "answered"
    assert (pace.limit, waits.seconds) == (8, [2.0])


@pytest.mark.parametrize("concurrency", [1, 8, 32])
def test_a_dead_service_is_asked_ever_less_and_given_up_in_the_end(concurrency: int) -> None:
    pace, waits = ticking(concurrency)
    times = list[float]()

    def call() -> str:
        times.append(waits.clock.now)
        raise DOWN

    with pytest.raises(ModelError, match="stopped"):
        pace.call(call)
    assert pace.error is DOWN
    assert waits.clock.now - times[0] >= PATIENCE
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(times) < 40
    assert min(gaps[SEVERAL:]) >= 0.5
    assert gaps[-10:] == pytest.approx([30.0] * 10)


@given(st.floats(0.1, 500), st.integers(1, 32))
@example(499.0, 1)
def test_a_service_that_recovers_is_asked_within_half_a_minute(
    outage: float, concurrency: int
) -> None:
    pace, waits = ticking(concurrency)
    back = waits.clock.now + outage

    def call() -> str:
        if waits.clock.now < back:
            raise DOWN
        return "answered"

    assert pace.call(call) == "answered"
    assert waits.clock.now <= back + 30.0
    asked = 0
    while pace.limit < concurrency:
        pace.call(call)
        asked += 1
    assert asked <= concurrency**2


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_calls_than_allowed_are_under_way(concurrency: int) -> None:
    pace, lock = Pace(concurrency), threading.Lock()
    under_way, most = 0, 0

    def call() -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        threading.Event().wait(0.002)
        with lock:
            under_way -= 1

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda _: pace.call(call), range(60)))
    assert most <= concurrency


def test_a_question_that_always_fails_is_given_up_if_the_others_are_answered_between_its_tries() -> (
    None
):
    pace, waits = ticking(1)
    calls = 0

    def poisonous() -> str:
        nonlocal calls
        calls += 1
        # One call at a time: the others are answered while this one waits.
        waits.meanwhile = lambda: pace.call(failing())
        raise ModelError("timeout")

    with pytest.raises(ModelError, match="timeout"):
        pace.call(poisonous)
    assert calls == TRIES + 1
    assert pace.error is None


def test_a_refused_key_stops_all_at_once_and_tells_who_waits() -> None:
    pace, refused, waits = Pace(1), threading.Event(), threading.Event()
    reasons = list[str]()

    def call() -> str:
        waits.set()
        refused.wait(100)
        raise ModelError("unauthorized", "the key")

    def run(_: int) -> None:
        try:
            pace.call(call)
        except ModelError as error:
            reasons.append(error.reason)

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(run, number) for number in range(3)]
        assert waits.wait(100)
        refused.set()
        for one in running:
            one.result(100)
    assert sorted(reasons) == ["cancelled", "cancelled", "unauthorized"]
    assert str(pace.error) == "the key"


def test_a_service_that_never_answers_anything_stops_all() -> None:
    pace = Pace(2)
    for _ in range(MAX_FIRST_FAILURES):
        with pytest.raises(ModelError, match="no such model"):
            pace.call(failing(ModelError("rejected", "no such model")))
    assert str(pace.error) == "no such model"


def test_rejected_questions_among_answered_ones_stop_nothing() -> None:
    pace = Pace(2)
    pace.call(failing())
    for _ in range(3 * MAX_FIRST_FAILURES):
        with pytest.raises(ModelError):
            pace.call(failing(ModelError("rejected", "that question")))
    assert pace.error is None


def test_a_spent_budget_stops_all_when_nothing_is_under_way() -> None:
    pace = Pace(2)
    with pytest.raises(ModelError, match="stopped"):
        pace.call(
            failing(ModelError("over_budget", "budget.maxUsd allows 1 US dollars in 24 hours"))
        )
    assert str(pace.error).startswith("budget.maxUsd")


def test_a_budget_that_others_may_leave_room_in_is_waited_for() -> None:
    pace = Pace(2)
    is_refused, is_under_way = threading.Event(), threading.Event()
    refusals = [ModelError("over_budget", "no room")]

    def slow() -> str:
        is_under_way.set()
        assert is_refused.wait(100)
        return "slow"

    def other() -> str:
        if refusals:
            is_refused.set()
            raise refusals.pop()
        return "other"

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(pace.call, slow)
        assert is_under_way.wait(100)
        second = pool.submit(pace.call, other)
        assert (first.result(100), second.result(100)) == ("slow", "other")
    assert pace.error is None


def test_a_bug_in_a_model_ends_its_own_call_alone() -> None:
    pace = Pace(1)

    def broken() -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pace.call(broken)
    assert pace.call(failing()) == "answered"
