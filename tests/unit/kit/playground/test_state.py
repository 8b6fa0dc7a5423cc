"""The page's address: all that is asked stands in it, and nothing in it can break the page."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.kit.playground.state import MOST_TURNS, PageState

KNOWN = ("raw", "rules", "rewrite", "combined")
SHOWN = ("raw", "rules", "combined")


def read(address: str) -> PageState:
    parameters = parse_qsl(address.removeprefix("?"), keep_blank_values=True)
    return PageState.from_parameters(parameters, KNOWN, SHOWN)


NAMES = st.sampled_from(["q", "tier", "user", "assistant", "x"])
VALUES = st.text() | st.sampled_from(KNOWN)


@settings(deadline=None)
@given(st.lists(st.tuples(NAMES, VALUES)))
def test_every_address_is_a_state_whose_link_leads_to_the_same_state(
    parameters: list[tuple[str, str]],
) -> None:
    state = PageState.from_parameters(parameters, KNOWN, SHOWN)
    assert state.tiers[0] == "raw"
    assert len(state.history) <= MOST_TURNS
    again = read(state.format_link(SHOWN))
    assert again.list_parameters(SHOWN) == state.list_parameters(SHOWN)
    # Lone surrogates cannot stand in an address, and blank questions are not asked.
    if again.question == state.question and again.history == state.history:
        assert again.tiers == state.tiers


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("?q=+", "The question must not be blank."),
        ("?tier=best", "There is no tier 'best' here."),
        ("?" + "user=1&" * (MOST_TURNS + 1), f"Only the last {MOST_TURNS} earlier turns are used."),
    ],
)
def test_a_parameter_that_cannot_be_used_is_reported(address: str, problem: str) -> None:
    assert read(address).problems == (problem,)
