"""Work that several want at the same time is done once."""

from __future__ import annotations

import asyncio
import os
from contextvars import Context, copy_context
from threading import Thread
from time import monotonic
from typing import Any

import pytest

from qtmiddleware.runtime.io import Tasks
from qtmiddleware.runtime.single_flight import Flight, Role, SingleFlight
from qtmiddleware.runtime.threads import Bulkhead
from qtmiddleware.types import Deadline


def soon() -> float:
    return monotonic() + 60


def join(flights: SingleFlight, key: str = "a", until: float | None = None) -> tuple[Role, Flight]:
    """As somebody else joins, who is not called by whoever leads."""
    return Context().run(flights.join_flight, key, soon() if until is None else until)


def test_the_first_leads_and_the_others_get_its_result() -> None:
    flights = SingleFlight()
    role, flight = join(flights)
    assert role is Role.LEADER
    assert [join(flights) for _ in range(3)] == [(Role.FOLLOWER, flight)] * 3
    flights.land_flight("a", flight, "news")
    # One who comes to listen afterwards gets it too.
    assert flight.result.result(0) == "news"


def test_other_keys_fly_alone() -> None:
    flights = SingleFlight()
    assert join(flights)[0] is join(flights, "b")[0] is Role.LEADER


def test_after_the_landing_the_next_one_leads() -> None:
    flights = SingleFlight()
    _, flight = join(flights)
    flights.land_flight("a", flight, "news")
    assert len(flights) == 0
    assert join(flights)[0] is Role.LEADER


def test_a_flight_whose_leader_is_overdue_is_no_longer_joined() -> None:
    flights = SingleFlight()
    _, lost = join(flights, until=monotonic() - 1)
    role, flight = join(flights)
    assert role is Role.LEADER
    # The lost one may still land, and takes nothing from the new one.
    flights.land_flight("a", lost, "late")
    assert join(flights) == (Role.FOLLOWER, flight)


def test_one_who_went_away_takes_nothing_from_the_others() -> None:
    async def follow(flight: Flight, seconds: float) -> Any:
        return await flight.wait(Tasks(Bulkhead()), Deadline.after(seconds))

    flights = SingleFlight()
    _, flight = join(flights)
    assert asyncio.run(follow(flight, 0.01)) is None
    flights.land_flight("a", flight, "news")
    assert asyncio.run(follow(flight, 60)) == "news"


def test_one_called_by_the_leader_does_not_wait_for_it() -> None:
    flights = SingleFlight()

    def lead() -> None:
        role, flight = flights.join_flight("a", soon())
        assert role is Role.LEADER
        assert flights.join_flight("a", soon()) == (Role.NESTED, flight)
        # So is whoever it begins, in a thread or a task.
        assert copy_context().run(flights.join_flight, "a", soon()) == (Role.NESTED, flight)
        flights.land_flight("a", flight, "news")
        assert flights.join_flight("a", soon())[0] is Role.LEADER

    copy_context().run(lead)


def test_nobody_misses_a_landing_in_another_thread() -> None:
    for _ in range(200):
        flights = SingleFlight()
        got: list[Any] = []
        _, flight = join(flights)
        leader = Thread(target=flights.land_flight, args=("a", flight, "news"))
        leader.start()
        flight.result.add_done_callback(lambda result, got=got: got.append(result.result()))
        leader.join()
        assert got == ["news"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_waits_for_nothing_of_its_parent() -> None:
    flights = SingleFlight()
    join(flights)
    with flights._lock:  # as another thread may hold it at that moment
        child = os.fork()
        if not child:
            os._exit(0 if join(flights)[0] is Role.LEADER else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert join(flights)[0] is Role.FOLLOWER
