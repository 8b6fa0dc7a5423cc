"""One pace for all who ask: what passes is waited for, what does not ends the run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from qtmiddleware.errors import ModelError
from qtmiddleware.kit.bulk.pace import MAX_FIRST_FAILURES, PATIENCE, TRIES, Pace
from tests.support.clock import Clock

BUSY = ModelError("rate_limited", "slower", retry_after=0.01)


class Waits(threading.Condition):
    """The condition of a pace in one thread: a wait only moves *clock* on."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None, "it would wait for ever"
        self.seconds.append(timeout)
        self.clock.now += timeout
        return True


def ticking(concurrency: int = 1) -> tuple[Pace, Waits]:
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


@pytest.mark.parametrize("reason", ["rate_limited", "unavailable", "timeout", "circuit_open"])
def test_what_passes_is_asked_again_after_the_pause_that_the_service_names(reason: str) -> None:
    pace, waits = ticking()
    assert pace.call(failing(ModelError(reason, retry_after=7))) == "answered"
    assert waits.seconds == pytest.approx([7])


@pytest.mark.parametrize("reason", ["refused", "too_long", "rejected", "unparsable"])
def test_what_does_not_pass_is_the_questions_own(reason: str) -> None:
    pace, waits = ticking()
    with pytest.raises(ModelError, match=reason):
        pace.call(failing(ModelError(reason)))
    assert pace.error is None
    assert waits.seconds == []


def test_a_dead_service_is_asked_ever_less_and_given_up_in_the_end() -> None:
    pace, waits = ticking()
    with pytest.raises(ModelError):
        pace.call(failing(*[ModelError("unavailable", "HTTP 500")] * 1_000))
    assert pace.error is not None
    assert waits.seconds[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert max(waits.seconds) == pytest.approx(30)
    assert PATIENCE <= sum(waits.seconds) <= PATIENCE + 30


def test_an_answer_ends_the_growth_of_the_pauses() -> None:
    pace, waits = ticking()
    for _ in range(2):
        pace.call(failing(*[ModelError("unavailable")] * 3))
    assert waits.seconds == pytest.approx([0.1, 0.2, 0.4] * 2)


def test_no_more_calls_than_allowed_are_under_way() -> None:
    pace, lock, now, most = Pace(3), threading.Lock(), 0, 0

    def work() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.002)
        with lock:
            now -= 1

    with ThreadPoolExecutor(12) as pool:
        for done in [pool.submit(pace.call, work) for _ in range(60)]:
            done.result()
    assert most <= 3


def test_a_question_that_always_fails_is_given_up_if_others_are_answered_between() -> None:
    pace, _ = ticking(2)
    tries = 0

    def fail() -> str:
        nonlocal tries
        tries += 1
        pace.call(lambda: "answered")
        raise ModelError("timeout")

    with pytest.raises(ModelError, match="timeout"):
        pace.call(fail)
    assert tries == TRIES
    assert pace.error is None


def test_a_refused_key_stops_all_at_once() -> None:
    pace, _ = ticking()
    with pytest.raises(ModelError, match="unauthorized"):
        pace.call(failing(ModelError("unauthorized")))
    with pytest.raises(ModelError, match="all calls were stopped"):
        pace.call(lambda: "answered")


def test_a_service_that_never_answers_anything_stops_all_and_one_that_does_not() -> None:
    for answers in (0, 1):
        pace, _ = ticking()
        for _ in range(answers):
            pace.call(lambda: "answered")
        for _ in range(MAX_FIRST_FAILURES):
            with pytest.raises(ModelError, match="rejected"):
                pace.call(failing(ModelError("rejected")))
        assert (pace.error is None) == bool(answers)


def test_a_spent_budget_is_waited_for_while_others_may_leave_room_in_it() -> None:
    pace = Pace(2)
    spent = ModelError("over_budget", "the budget is spent")
    other_ends = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(pace.call, lambda: other_ends.wait(20))
        errors = [spent]

        def call() -> str:
            if errors:
                other_ends.set()
                raise errors.pop()
            return "answered"

        while not pace._running:
            pass
        assert pace.call(call) == "answered"
        other.result()
    with pytest.raises(ModelError):
        pace.call(failing(spent, spent))
    assert pace.error is spent


def test_a_bug_in_a_model_ends_its_own_call_alone() -> None:
    pace, _ = ticking()

    def broken() -> str:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        pace.call(broken)
    assert pace.call(failing(BUSY)) == "answered"
