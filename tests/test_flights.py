"""Work that several want at the same time is done once."""

from __future__ import annotations

import os
from contextvars import Context, copy_context
from threading import Thread
from time import monotonic
from typing import Any

import pytest

from qtmiddleware.runtime.single_flight import Flights, _led


def soon() -> float:
    return monotonic() + 60


def boarded(flights: Flights, key: str = "a", until: float | None = None) -> tuple[Any, bool]:
    """As somebody else boards, who is not at work for whoever leads."""
    return Context().run(flights.board, key, soon() if until is None else until)


def test_the_first_leads_and_the_others_hear_what_it_lands_with() -> None:
    flights, heard = Flights(), []
    flight, leads = boarded(flights)
    others = [boarded(flights) for _ in range(3)]
    assert leads
    assert others == [(flight, False)] * 3
    flight.heard(heard.append)
    flights.landed("a", flight, "news")
    # One who comes to listen afterwards hears it too.
    flight.heard(heard.append)
    assert heard == ["news", "news"]


def test_one_that_landed_early_is_heard_until_its_leader_lets_it_go() -> None:
    flights, heard = Flights(), []
    flight, _ = boarded(flights)
    flight.land("news")
    assert boarded(flights) == (flight, False)
    flight.heard(heard.append)
    flights.landed("a", flight, "other news")
    assert heard == ["news"]
    assert boarded(flights)[1]


def test_other_keys_fly_alone() -> None:
    flights = Flights()
    assert boarded(flights)[1]
    assert boarded(flights, "b")[1]


def test_after_the_landing_the_next_one_leads() -> None:
    flights = Flights()
    flight, _ = boarded(flights)
    flights.landed("a", flight, "news")
    assert len(flights) == 0
    assert boarded(flights)[1]


def test_only_the_first_landing_counts() -> None:
    flights, heard = Flights(), []
    flight, _ = boarded(flights)
    flight.heard(heard.append)
    flights.landed("a", flight, 1)
    flights.landed("a", flight, 2)
    assert heard == [1]


def test_a_flight_whose_leader_is_overdue_is_no_longer_joined() -> None:
    flights = Flights()
    lost, _ = boarded(flights, until=monotonic() - 1)
    flight, leads = boarded(flights)
    assert leads
    # The lost one may still land, and takes nothing from the new one.
    flights.landed("a", lost, "late")
    assert boarded(flights) == (flight, False)


def test_one_who_went_away_hears_nothing() -> None:
    flights, heard = Flights(), []
    flight, _ = boarded(flights)
    flight.heard(heard.append)
    flight.unheard(heard.append)
    flights.landed("a", flight, "news")
    assert heard == []


def test_one_at_work_for_the_leader_does_not_wait_for_it() -> None:
    flights = Flights()

    def lead() -> None:
        flight, leads = flights.board("a", soon())
        assert leads
        assert flight is not None
        assert flights.board("a", soon()) == (None, False)
        # So is whoever it begins, in a thread or a task.
        assert copy_context().run(flights.board, "a", soon()) == (None, False)
        flights.landed("a", flight, "news")
        assert _led.get() == ()
        assert flights.board("a", soon())[1]

    copy_context().run(lead)


def test_nobody_misses_a_landing_in_another_thread() -> None:
    for _ in range(200):
        flights, heard = Flights(), []
        flight, _ = boarded(flights)
        leader = Thread(target=flights.landed, args=("a", flight, "news"))
        leader.start()
        flight.heard(heard.append)
        leader.join()
        assert heard == ["news"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_waits_for_nothing_of_its_parent() -> None:
    flights: Any = Flights()
    boarded(flights)
    with flights._lock:  # as another thread may hold it at that moment
        child = os.fork()
        if not child:
            os._exit(0 if boarded(flights)[1] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not boarded(flights)[1]
