"""Which passages the model is shown, and how."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.answering.prompts import select_passages
from qtmiddleware.types import Match


def match(text: str | None, name: str = "m", **metadata: Any) -> Match:
    return Match(name, "", 1.0, text=text, metadata=metadata)


def test_passages_are_numbered_in_their_order_with_what_is_known_about_them() -> None:
    made = select_passages(
        [
            match(
                "Jaco is fit.",
                title="Report",
                source="a.pdf",
                page=3.0,
                context="From the chapter on dogs.",
                x="no",
            ),
            match("He eats.", url="https://x"),
        ],
        1000,
    )
    assert made.entries == (
        {
            "passage": 1,
            "title": "Report",
            "source": "a.pdf",
            "page": 3,
            "context": "From the chapter on dogs.",
            "text": "Jaco is fit.",
        },
        {"passage": 2, "url": "https://x", "text": "He eats."},
    )


def test_what_is_known_about_a_passage_is_bounded() -> None:
    (entry,) = select_passages([match("Fit.", title="t" * 999, context="c" * 9999)], 10_000).entries
    assert (len(entry["title"]), len(entry["context"])) == (200, 1000)


def test_passages_are_shown_whole_while_they_fit() -> None:
    made = select_passages([match("a" * 60), match("b" * 30), match("c" * 30), match("d")], 100)
    assert [entry["text"][0] for entry in made.entries] == ["a", "b"]


def test_the_first_is_cut_where_it_is_too_long_by_itself() -> None:
    made = select_passages([match("a" * 500, title="Report"), match("b")], 100)
    assert len(made.entries) == 1
    assert made.entries[0]["title"] == "Report"
    assert made.entries[0]["text"].endswith("a…")
    assert made.matches[0].text == "a" * 500


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, None, [], {}, "", b"x"])
def test_odd_metadata_is_left_out(value: Any) -> None:
    made = select_passages([match("Fit.", title=value, page=value, context=value)], 1000)
    assert made.entries == ({"passage": 1, "text": "Fit."},)


VALUES = st.one_of(
    st.none(), st.text(max_size=300), st.floats(), st.integers(), st.lists(st.text(), max_size=2)
)
MATCHES = st.lists(
    st.builds(
        lambda text, metadata: Match("m", "", None, text=text, metadata=metadata),
        st.one_of(st.none(), st.text(max_size=400)),
        st.dictionaries(
            st.sampled_from(["title", "source", "url", "page", "context", "else"]),
            VALUES,
            max_size=4,
        ),
    ),
    max_size=8,
)


@given(MATCHES, st.integers(100, 1500))
def test_never_more_than_the_budget_is_shown(matches: list[Match], most: int) -> None:
    made = select_passages(matches, most)
    size = sum(
        len(str(value))
        for entry in made.entries
        for name, value in entry.items()
        if name != "passage"
    )
    assert size <= most
    assert len(made.matches) == len(made.entries)
    assert [entry["passage"] for entry in made.entries] == list(range(1, len(made.matches) + 1))
    assert json.loads(json.dumps(made.entries, allow_nan=False)) == list(made.entries)
    assert bool(made.matches) == any((it.text or "").strip() for it in matches)
