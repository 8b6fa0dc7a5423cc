"""What holds for both drivers; every scenario is performed blocking, awaiting, and awaiting plain functions."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from threading import Event, Lock, Thread, current_thread
from typing import Any

import pytest
from driver_worlds import MODES, Signal, ask, one, own_and, performed, searches

from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.single_flight import Flight
from qtmiddleware.runtime.steps import Ask, Beside, Embed, Flow, Join, Outcome, Search, Together
from qtmiddleware.types import NEVER, Deadline
from tests.support.waiting import wait_until, with_enough_time

Perform = Callable[..., Any]
Waits = Generator[Signal, None, Any]
visible: ContextVar[str] = ContextVar("visible", default="unset")


@pytest.fixture(params=MODES)
def perform(request: pytest.FixtureRequest) -> Perform:
    def with_driver(flow: Flow[Any], **behaviours: Any) -> Any:
        return performed(request.param, flow, **behaviours)

    with_driver.mode = request.param  # type: ignore[attr-defined]
    return with_driver


@pytest.fixture
def never() -> Any:
    """A signal nobody sets while the flow runs; set afterwards, so that what waits for it can end."""
    signal = Signal()
    yield signal
    signal.set()


# --- answers --------------------------------------------------------------------------------------


def test_a_flow_is_sent_the_answer_of_each_step(perform: Perform) -> None:
    def flow() -> Flow[list[Any]]:
        return [(yield Search("a")), (yield Embed(["b", "c"])), (yield ask("d"))]

    def embed(texts: list[str]) -> Waits:
        return [[float(len(text))] for text in texts]
        yield

    def model(asked: Any) -> Waits:
        return f"reply to {asked[0].query}"
        yield

    assert perform(flow(), embed=embed, model=model) == ["found a", [[1.0], [1.0]], "reply to d"]


def test_a_flow_without_steps_has_its_result(perform: Perform) -> None:
    def flow() -> Flow[int]:
        return 7
        yield

    assert perform(flow()) == 7


def test_nothing_together_is_no_outcome(perform: Perform) -> None:
    assert perform(one(Together([], Deadline(), 8))) == []


def test_outcomes_stand_in_the_order_of_their_steps_whatever_ends_first(perform: Perform) -> None:
    ended = [Signal() for _ in range(5)]
    ended[4].set()

    def search(text: str) -> Waits:
        position = int(text)
        if position < 4:
            yield ended[position + 1]
        ended[position].set()
        return position

    outcomes = perform(one(Together(searches(*"01234"), Deadline(), 5)), search=search)
    assert [it.value for it in outcomes] == [0, 1, 2, 3, 4]
    assert all(it.has_succeeded and it.seconds >= 0 for it in outcomes)


def test_the_model_is_told_its_deadline(perform: Perform) -> None:
    deadline = Deadline.after(1_000)

    def model(asked: Any) -> Waits:
        return asked[1]
        yield

    assert perform(one(ask(deadline=deadline)), model=model) is deadline


def test_asking_without_a_model_is_a_model_error(perform: Perform) -> None:
    with pytest.raises(ModelError) as caught:
        perform(one(ask()))
    assert caught.value.reason == "unavailable"
    (outcome,) = perform(one(Together([ask()], Deadline(), 1)))
    assert isinstance(outcome.error, ModelError)


# --- errors ---------------------------------------------------------------------------------------


class Refused(Exception):
    pass


class OddEnd(BaseException):
    """Not an `Exception`, as some libraries' cancellations are."""


def refusing(error: BaseException) -> Callable[[str], Waits]:
    def search(text: str) -> Waits:
        if text == "bad":
            raise error
        return text
        yield

    return search


def test_an_error_passes_through_as_the_very_object(perform: Perform) -> None:
    error = Refused("no")
    with pytest.raises(Refused) as caught:
        perform(one(Search("bad")), search=refusing(error))
    assert caught.value is error


@pytest.mark.parametrize("error", [Refused("no"), OddEnd()], ids=["exception", "base_exception"])
def test_an_error_of_the_callers_own_search_or_a_direct_one_keeps_its_identity(
    perform: Perform, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught:
        perform(one(Search("bad")), search=refusing(error))
    assert caught.value is error


def test_an_error_can_be_caught_in_the_flow_which_goes_on(perform: Perform) -> None:
    error = Refused("no")

    def flow() -> Flow[list[Any]]:
        try:
            yield Search("bad")
        except Refused as caught:
            return [caught, (yield Search("good"))]
        return []

    assert perform(flow(), search=refusing(error)) == [error, "good"]


def test_one_error_among_several_leaves_the_others_alone(perform: Perform) -> None:
    error = Refused("no")
    steps = searches("a", "bad", "b")
    outcomes = perform(one(Together(steps, Deadline(), 3)), search=refusing(error))
    assert [it.value for it in outcomes] == ["a", None, "b"]
    assert outcomes[1].error is error
    assert not outcomes[1].has_succeeded
    assert not outcomes[1].late


def test_a_step_that_ends_oddly_is_an_error_and_nobody_waits_for_it(perform: Perform) -> None:
    odd = OddEnd()
    outcomes = perform(
        one(Together(searches("a", "bad"), Deadline.after(60), 2)), search=refusing(odd)
    )
    assert outcomes[0].value == "a"
    assert outcomes[1].error is odd
    assert not outcomes[1].late


def test_the_flow_is_closed_when_the_world_fails(perform: Perform) -> None:
    closed = []

    def flow() -> Flow[None]:
        try:
            yield Search("bad")
        finally:
            closed.append(True)

    with pytest.raises(OddEnd):
        perform(flow(), search=refusing(OddEnd()))
    assert closed == [True]


def test_what_the_flow_itself_raises_passes_through_and_closes_it(perform: Perform) -> None:
    error, closed = Refused("flow"), []

    def flow() -> Flow[None]:
        try:
            yield Search("a")
            raise error
        finally:
            closed.append(True)

    with pytest.raises(Refused) as caught:
        perform(flow())
    assert caught.value is error
    assert closed == [True]


# --- deadlines ------------------------------------------------------------------------------------


def test_the_callers_own_search_is_waited_for_although_the_deadline_has_passed(
    perform: Perform,
) -> None:
    def within(seconds: float) -> list[Outcome]:
        deadline, ready = Deadline.after(seconds), Signal(is_set=True)

        def search(text: str) -> Waits:
            while text == "own" and not deadline.passed:
                yield ready
            return text

        outcomes: list[Outcome] = perform(
            own_and(searches("own", "beside"), deadline, 2), search=search
        )
        assert outcomes[0].value == "own"
        return outcomes

    outcomes = with_enough_time(within, lambda outcomes: not outcomes[1].late)
    # What the others brought while it ran is there too.
    assert [it.value for it in outcomes] == ["own", "beside"]


def test_a_single_step_knows_no_deadline(perform: Perform) -> None:
    assert perform(own_and(searches("own"), Deadline(0.0), 1))[0].value == "found own"


def test_the_others_are_given_up_at_the_deadline_and_come_back_late(
    perform: Perform, never: Signal
) -> None:
    def search(text: str) -> Waits:
        if text == "slow":
            yield never
        return text

    def within(seconds: float) -> list[Outcome]:
        steps = searches("own", "slow", "quick")
        outcomes: list[Outcome] = perform(own_and(steps, Deadline.after(seconds), 3), search=search)
        assert outcomes[1].late
        return outcomes

    outcomes = with_enough_time(within, lambda outcomes: not outcomes[2].late)
    assert [(it.value, it.late, it.error) for it in outcomes] == [
        ("own", False, None),
        (None, True, None),
        ("quick", False, None),
    ]
    assert not outcomes[1].has_succeeded


def test_without_a_search_of_the_callers_own_everything_may_be_late(
    perform: Perform, never: Signal
) -> None:
    def search(text: str) -> Waits:
        yield never

    outcomes = perform(one(Together(searches("a", "b"), Deadline.after(0.05), 2)), search=search)
    assert [it.late for it in outcomes] == [True, True]


def test_a_failure_of_the_callers_own_search_returns_without_waiting_for_the_others(
    perform: Perform, never: Signal
) -> None:
    error = Refused("no")

    def search(text: str) -> Waits:
        if text == "bad":
            raise error
        yield never

    outcomes = perform(own_and(searches("bad", "slow"), Deadline(), 2), search=search)
    assert outcomes[0].error is error
    assert outcomes[1].late


def test_the_deadline_of_a_question_that_is_given_up_is_cancelled(
    perform: Perform, never: Signal
) -> None:
    def model(asked: Any) -> Waits:
        if asked[0].query == "slow":
            yield never
        return asked[0].query

    def within(seconds: float) -> tuple[list[Outcome], Ask, Ask]:
        given_up, answered = ask("slow"), ask("quick")
        outcomes = perform(
            one(Together([given_up, answered], Deadline.after(seconds), 2)), model=model
        )
        return outcomes, given_up, answered

    outcomes, given_up, answered = with_enough_time(within, lambda it: not it[0][1].late)
    assert [it.late for it in outcomes] == [True, False]
    assert given_up.deadline.passed
    assert not answered.deadline.passed


def test_no_step_is_begun_after_the_deadline(perform: Perform) -> None:
    deadline, begun = Deadline.after(0.05), []
    ready = Signal(is_set=True)

    def search(text: str) -> Waits:
        begun.append(text)
        while not deadline.passed:
            yield ready
        return text

    outcomes = perform(own_and(searches("own", "b", "c", "d"), deadline, 1), search=search)
    assert [it.late for it in outcomes] == [False, True, True, True]
    assert begun == ["own"]


# --- how much at once -----------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3, 8])
@pytest.mark.parametrize("has_own", [False, True])
def test_as_many_steps_as_allowed_are_in_flight_and_never_more(
    perform: Perform, limit: int, has_own: bool
) -> None:
    lock, full = Lock(), Signal()
    now = peak = 0

    def search(text: str) -> Waits:
        nonlocal now, peak
        with lock:
            now += 1
            peak = max(peak, now)
            if now == limit:
                full.set()
        # Nobody goes on before as many as are allowed have been there at once.
        yield full
        with lock:
            now -= 1
        return text

    texts = [str(number) for number in range(20)]
    flow = (
        own_and(searches(*texts), Deadline(), limit)
        if has_own
        else one(Together(searches(*texts), Deadline(), limit))
    )
    outcomes = perform(flow, search=search)
    assert [it.value for it in outcomes] == texts
    assert (peak, now) == (limit, 0)


def test_free_places_are_used_while_the_callers_own_search_runs(perform: Perform) -> None:
    others, lock, left = Signal(), Lock(), 4

    def search(text: str) -> Waits:
        nonlocal left
        if text == "own":
            yield others
            return text
        with lock:
            left -= 1
            if not left:
                others.set()
        return text

    steps = searches("own", "a", "b", "c", "d")
    outcomes = perform(own_and(steps, Deadline(), 3), search=search)
    assert [it.value for it in outcomes] == ["own", "a", "b", "c", "d"]


# --- a flow beside the caller's own search --------------------------------------------------------


def rounds(*texts: str, deadline: Deadline | None = None) -> Flow[list[Outcome]]:
    """The flow of one search after the other."""
    outcomes: list[Outcome] = []
    for text in texts:
        outcomes += yield Together(searches(text), deadline or Deadline(), 8)
    return outcomes


def test_the_flow_beside_goes_on_while_the_callers_own_search_runs(perform: Perform) -> None:
    last = Signal()

    def search(text: str) -> Waits:
        if text == "own":
            yield last
        if text == "c":
            last.set()
        return text

    own, beside = perform(one(Beside(Search("own"), rounds("a", "b", "c"), 2)), search=search)
    assert (own.value, [it.value for it in beside.value]) == ("own", ["a", "b", "c"])
    # Each began after the one before it had ended, and the caller's own search ended last.
    began = [it.began for it in beside.value]
    assert began == sorted(began)
    assert own.began + own.seconds > began[-1]


def test_the_flow_beside_goes_on_after_the_callers_own_search(perform: Perform) -> None:
    own_is_back = Signal()

    def search(text: str) -> Waits:
        if text == "own":
            own_is_back.set()
        else:
            yield own_is_back
        return text

    own, beside = perform(one(Beside(Search("own"), rounds("a", "b"), 3)), search=search)
    assert (own.value, [it.value for it in beside.value]) == ("own", ["a", "b"])


def test_with_one_place_the_flow_beside_waits_for_the_callers_own_search(perform: Perform) -> None:
    order: list[str] = []

    def search(text: str) -> Waits:
        order.append(text)
        return text
        yield

    perform(one(Beside(Search("own"), rounds("a", "b"), 1)), search=search)
    assert order == ["own", "a", "b"]


def test_a_flow_beside_that_asks_for_nothing_has_its_result(perform: Perform) -> None:
    own, beside = perform(one(Beside(Search("own"), rounds(), 2)))
    assert (own.value, beside.value) == ("found own", [])


def test_an_error_of_the_flow_beside_is_its_outcome(perform: Perform) -> None:
    error = Refused("no")

    def failing(after: Sequence[str]) -> Flow[None]:
        yield from rounds(*after)
        raise error

    for after in ((), ("a",), ("a", "b")):
        own, beside = perform(one(Beside(Search("own"), failing(after), 2)))
        assert (own.value, beside.error) == ("found own", error)


def test_a_flow_beside_is_closed_where_the_callers_own_search_fails(
    perform: Perform, never: Signal
) -> None:
    error, closed, has_begun = Refused("no"), [], Signal()

    def waiting() -> Flow[None]:
        try:
            yield Together(searches("slow"), Deadline(), 1)
        finally:
            closed.append(True)

    def search(text: str) -> Waits:
        if text == "own":
            yield has_begun
            raise error
        has_begun.set()
        yield never

    own, beside = perform(one(Beside(Search("own"), waiting(), 2)), search=search)
    assert (own.error, beside.late, closed) == (error, True, [True])


def test_what_is_late_beside_the_callers_own_search_is_given_up(
    perform: Perform, never: Signal
) -> None:
    def within(seconds: float) -> list[Outcome]:
        deadline, ready = Deadline.after(seconds), Signal(is_set=True)

        def search(text: str) -> Waits:
            if text == "slow":
                yield never
            while text == "own" and not deadline.passed:
                yield ready
            return text

        own, beside = perform(
            one(Beside(Search("own"), rounds("a", "slow", deadline=deadline), 2)), search=search
        )
        assert own.value == "own"
        outcomes: list[Outcome] = beside.value
        return outcomes

    outcomes = with_enough_time(within, lambda outcomes: not outcomes[0].late)
    assert [(it.value, it.late) for it in outcomes] == [("a", False), (None, True)]


def test_a_flow_beside_joins_the_flight_of_another_and_goes_on_in_no_thread_of_its_leader(
    perform: Perform,
) -> None:
    flight, last = Flight(NEVER), Signal()
    leader = Thread(target=lambda: (joined.wait(), flight.result.set_result("shared")))
    joined = Event()
    threads: list[Any] = []

    def following() -> Flow[list[Outcome]]:
        (shared,) = yield Together([Join(flight)], Deadline(), 1)
        (found,) = yield Together(searches("variant"), Deadline(), 1)
        return [shared, found]

    def search(text: str) -> Waits:
        if text == "own":
            joined.set()
            yield last
        else:
            threads.append(current_thread())
            last.set()
        return text

    leader.start()
    own, beside = perform(one(Beside(Search("own"), following(), 2)), search=search)
    leader.join()
    assert (own.value, [it.value for it in beside.value]) == ("own", ["shared", "variant"])
    assert leader not in threads


def test_what_the_flow_beside_sets_stays_out_of_its_callers_context(perform: Perform) -> None:
    def setting() -> Flow[list[Any]]:
        visible.set("beside")
        outcomes = yield Together(searches("a"), Deadline(), 1)
        return [visible.get(), *(it.value for it in outcomes)]

    def seen(text: str) -> Waits:
        return visible.get()
        yield

    own, beside = perform(one(Beside(Search("own"), setting(), 2)), search=seen)
    assert (own.value, beside.value, visible.get()) == ("unset", ["beside", "beside"], "unset")


# --- context --------------------------------------------------------------------------------------


def test_context_variables_are_seen_by_every_step(perform: Perform) -> None:
    def seen(_: Any) -> Waits:
        return visible.get()
        yield

    def flow() -> Flow[list[Any]]:
        steps = [*searches(*"abcdef"), Embed(["x"]), ask()]
        outcomes = yield from own_and(steps, Deadline(), 2)
        return [
            *(it.value for it in outcomes),
            (yield Search("g")),
            (yield Embed(["y"])),
            (yield ask()),
        ]

    token = visible.set("callers")
    try:
        assert perform(flow(), search=seen, embed=seen, model=seen) == ["callers"] * 11
    finally:
        visible.reset(token)


def test_a_step_beside_the_callers_own_search_changes_no_variable_of_the_caller(
    perform: Perform,
) -> None:
    def search(text: str) -> Waits:
        if text != "own":
            visible.set(text)
        return text
        yield

    perform(own_and(searches("own", "a", "b"), Deadline(), 3), search=search)
    assert visible.get() == "unset"


# --- nothing is kept ------------------------------------------------------------------------------


def test_what_was_found_is_not_kept_alive(perform: Perform) -> None:
    class Found:
        pass

    def alive() -> int:
        gc.collect()
        # By its real type: some objects of other libraries warn when they are asked what they are
        # an instance of.
        return sum(type(it) is Found for it in gc.get_objects())

    def search(text: str) -> Waits:
        return Found()
        yield

    def flow() -> Flow[int]:
        outcomes: list[Outcome] = yield from own_and(searches(*"abcd"), Deadline(), 2)
        return len(outcomes)

    assert perform(flow(), search=search) == 4
    # A thread lets go of what it found a moment after it has handed it over.
    wait_until(lambda: alive() == 0)
