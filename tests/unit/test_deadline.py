"""One time budget for one query."""

from __future__ import annotations

from threading import Thread
from time import monotonic

from qtmiddleware.types import NEVER, Deadline


def test_without_a_moment_it_never_passes() -> None:
    deadline = Deadline()
    assert deadline.at == deadline.remaining() == NEVER
    assert not deadline.passed


def test_what_is_left_shrinks_to_nothing_and_not_below() -> None:
    before = monotonic()
    deadline = Deadline.after(100)
    after = monotonic()
    assert before + 100 <= deadline.at <= after + 100
    assert 0 < deadline.remaining() <= 100
    assert Deadline(monotonic() - 5).remaining() == 0.0


def test_a_moment_in_the_past_has_passed() -> None:
    assert Deadline(monotonic()).passed
    assert Deadline.after(0).passed
    assert Deadline.after(-1).passed
    assert not Deadline.after(100).passed


def test_after_for_ever_is_never() -> None:
    assert Deadline.after(NEVER).remaining() == NEVER


def test_the_sooner_one_counts() -> None:
    near, far = Deadline.after(10), Deadline.after(1_000)
    assert near.sooner(500).at == near.at
    assert far.sooner(10).at < far.at
    assert Deadline().sooner(10).remaining() <= 10
    assert Deadline().sooner(NEVER).at == NEVER


def test_a_sooner_deadline_is_one_of_its_own() -> None:
    whole = Deadline.after(1_000)
    part = whole.sooner(500)
    part.cancel()
    assert part.passed
    assert not whole.passed


def test_cancelling_makes_it_pass_for_every_thread() -> None:
    deadline = Deadline()
    canceller = Thread(target=deadline.cancel)
    canceller.start()
    canceller.join()
    assert deadline.passed
    assert deadline.remaining() == 0.0


def test_cancelling_twice_is_cancelling() -> None:
    deadline = Deadline.after(100)
    deadline.cancel()
    deadline.cancel()
    assert deadline.passed
