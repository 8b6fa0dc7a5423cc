"""What the flow may ask of the world, and what comes of it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from qtmiddleware.protocols import Prompt
from qtmiddleware.runtime.steps import Ask, Embed, Outcome, Search, Together
from qtmiddleware.types import Deadline

SECRET = "what the user asked"


def test_an_outcome_is_fine_exactly_where_there_is_a_value() -> None:
    assert Outcome(5).has_succeeded
    assert Outcome(None).has_succeeded
    assert not Outcome(error=ValueError()).has_succeeded
    assert not Outcome(late=True).has_succeeded


def test_a_search_asks_for_what_the_caller_asks_for_unless_told() -> None:
    assert (Search("x").top_k, Search("x").vector) == (None, None)
    assert Search("x", 50).top_k == 50


def test_steps_do_not_print_the_texts_they_hold() -> None:
    prompt = Prompt("rewrite", "1", "system", SECRET, (), SECRET)
    steps = [Search(SECRET), Embed([SECRET]), Ask(prompt, Deadline())]
    printed = [*map(repr, steps), repr(Together(steps, Deadline(), 8)), repr(Outcome(SECRET))]
    assert not any(SECRET in it for it in printed)


def test_steps_done_together_are_fixed() -> None:
    with pytest.raises(FrozenInstanceError):
        Together((), Deadline(), 1).limit = 5  # type: ignore[misc]
