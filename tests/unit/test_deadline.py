"""One time budget for one query."""

from __future__ import annotations

from threading import Thread

import pytest

from qtmiddleware.types import Deadline


@pytest.mark.parametrize("seconds", [0, -1, -1e9])
def test_a_moment_in_the_past_has_passed(seconds: float) -> None:
    deadline = Deadline.after(seconds)
    assert (deadline.passed, deadline.remaining()) == (True, 0.0)


def test_cancelling_makes_it_pass_for_every_thread_but_not_what_it_was_made_of() -> None:
    whole = Deadline.after(1_000)
    part = whole.sooner(500)
    for _ in range(2):
        canceller = Thread(target=part.cancel)
        canceller.start()
        canceller.join()
        assert (part.passed, part.remaining(), whole.passed) == (True, 0.0, False)
