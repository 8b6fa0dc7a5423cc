"""The page's address: all that is asked stands in it, and nothing in it can break the page."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.kit.playground.asked import KNOBS, MOST_TURNS, PageState
from qtmiddleware.types import Message

KNOWN = ("raw", "rules", "rewrite", "combined")
SHOWN = ("raw", "rules", "combined")


def read(address: str) -> PageState:
    return PageState.from_parameters(
        parse_qsl(address.removeprefix("?"), keep_blank_values=True), KNOWN, SHOWN
    )


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
numbers = {
    key: st.integers(int(knob.low), int(knob.high))
    if knob.step == 1
    else st.integers(0, 20).map(lambda it: it / 20)
    for key, knob in KNOBS.items()
    if not knob.choices
}


@settings(deadline=None)
@given(
    question=texts,
    turns=st.lists(st.builds(Message, st.sampled_from(["user", "assistant"]), texts), max_size=4),
    tiers=st.sets(st.sampled_from(KNOWN[1:])),
    chosen_settings=st.fixed_dictionaries({}, optional=numbers),
)
def test_a_link_means_what_was_asked(
    question: str, turns: list[Message], tiers: set[str], chosen_settings: dict
) -> None:
    chosen = tuple(name for name in KNOWN if name == "raw" or name in (tiers or SHOWN))
    asked = PageState(
        question=question, history=tuple(turns), tiers=chosen, settings=chosen_settings
    )
    again = read(asked.format_query_string(SHOWN))
    assert (again.question, again.history, again.tiers) == (question, tuple(turns), chosen)
    assert dict(again.settings) == chosen_settings
    assert again.problems == ()


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["q", "tier", "user", "then", "x", *KNOBS]), st.text())))
def test_whatever_stands_in_an_address_something_can_be_asked(
    parameters: list[tuple[str, str]],
) -> None:
    asked = PageState.from_parameters(parameters, KNOWN, SHOWN)
    assert asked.tiers[0] == "raw"
    assert len(asked.history) <= MOST_TURNS
    again = read(asked.format_query_string(SHOWN))
    assert again.list_parameters(SHOWN) == asked.list_parameters(SHOWN)


def test_a_link_says_nothing_that_goes_without_saying() -> None:
    assert read("?q=why").format_query_string(SHOWN) == "?q=why"
    assert read("?q=why&tier=rules&tier=combined").format_query_string(SHOWN) == "?q=why"
    assert (
        read("?q=why&tier=rewrite&topK=7").format_query_string(SHOWN)
        == "?q=why&tier=rewrite&topK=7"
    )


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("?topK=0", "topK must be a whole number from 1 to 50; it was ignored."),
        ("?topK=2.5", "topK must be a whole number from 1 to 50; it was ignored."),
        (
            "?keywordEvidence.weight=nan",
            "keywordEvidence.weight must be a number from 0 to 1; it was ignored.",
        ),
        (
            "?fusion.weights.rewrite=-1",
            "fusion.weights.rewrite must be a number from 0 to 5; it was ignored.",
        ),
        (
            "?fusion.method=none",
            "fusion.method must be one of anchored, rrf, weighted_rrf, max; it was ignored.",
        ),
        ("?tier=best", "There is no tier 'best' here."),
    ],
)
def test_what_cannot_be_used_is_said(address: str, said: str) -> None:
    assert read(address).problems == (said,)


def test_a_follow_up_has_the_question_among_the_turns_before_it() -> None:
    asked = read("?user=Who+is+Jaco%3F&assistant=A+dog.&q=Is+he+ill%3F&topK=3")
    assert (
        asked.build_follow_up().format_query_string(SHOWN)
        == "?user=Who+is+Jaco%3F&assistant=A+dog.&user=Is+he+ill%3F&topK=3"
    )


def test_of_a_long_conversation_the_end_is_taken() -> None:
    asked = PageState.from_parameters(
        [("user", str(at)) for at in range(MOST_TURNS + 5)], KNOWN, SHOWN
    )
    assert [turn.content for turn in asked.history] == [str(at) for at in range(5, MOST_TURNS + 5)]
    assert asked.problems
