"""The page's address: all that is asked stands in it, and nothing in it can break the page."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.kit.playground.state import KNOBS, MOST_TURNS, PageState
from qtmiddleware.types import Message

KNOWN = ("raw", "rules", "rewrite", "combined")
SHOWN = ("raw", "rules", "combined")


def read(address: str) -> PageState:
    parameters = parse_qsl(address.removeprefix("?"), keep_blank_values=True)
    return PageState.from_parameters(parameters, KNOWN, SHOWN)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
numbers = {
    key: st.integers(int(knob.low), int(knob.high))
    if knob.step == 1
    else st.integers(0, 20).map(lambda number: number / 20)
    for key, knob in KNOBS.items()
    if not knob.choices
}


@settings(deadline=None)
@given(
    question=texts,
    turns=st.lists(st.builds(Message, st.sampled_from(["user", "assistant"]), texts), max_size=4),
    tiers=st.sets(st.sampled_from(KNOWN[1:])),
    values=st.fixed_dictionaries({}, optional=numbers),
)
def test_a_link_means_what_was_asked(
    question: str, turns: list[Message], tiers: set[str], values: dict[str, float]
) -> None:
    chosen = tuple(name for name in KNOWN if name == "raw" or name in (tiers or SHOWN))
    state = PageState(question=question, history=tuple(turns), tiers=chosen, settings=values)
    assert read(state.format_link(SHOWN)) == state


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["q", "tier", "user", "x", *KNOBS]), st.text())))
def test_every_address_is_a_state_whose_link_leads_to_the_same_state(
    parameters: list[tuple[str, str]],
) -> None:
    state = PageState.from_parameters(parameters, KNOWN, SHOWN)
    assert state.tiers[0] == "raw"
    assert len(state.history) <= MOST_TURNS
    again = read(state.format_link(SHOWN))
    assert again.list_parameters(SHOWN) == state.list_parameters(SHOWN)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("?q=+", "The question must not be blank."),
        ("?tier=best", "There is no tier 'best' here."),
        (
            "?" + "&".join(f"user={number}" for number in range(MOST_TURNS + 1)),
            f"Only the last {MOST_TURNS} earlier turns are used.",
        ),
    ],
)
def test_a_parameter_that_cannot_be_used_is_reported(address: str, problem: str) -> None:
    assert read(address).problems == (problem,)
