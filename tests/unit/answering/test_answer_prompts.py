"""What the model is shown for an answer: instructions, and passages within the budget."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.answering.flow import PromptMode, build_prompt, select_passages
from qtmiddleware.config.settings import LlmSettings, Settings
from qtmiddleware.types import Match


@pytest.mark.parametrize("mode", ["answer", "sub_answer", "synthesis"])
def test_own_instructions_take_the_place_of_ours_but_not_of_the_rules(mode: PromptMode) -> None:
    own = replace(Settings(), llm=LlmSettings(prompts={mode: "Answer in rhymes."}))
    ours, theirs = (build_prompt(mode, it, "Is Jaco fit?", (), []) for it in (Settings(), own))
    assert theirs.system.startswith("Answer in rhymes.")
    assert theirs.system.partition("\n\n")[2] == ours.system.partition("\n\n")[2]
    assert "NO_ANSWER" in theirs.system
    assert theirs.version.startswith(f"{ours.version}#")


def match(text: str | None, **metadata: Any) -> Match:
    return Match("m", "", 1.0, text=text, metadata=metadata)


def test_passages_are_numbered_in_their_order_with_what_is_known_about_them() -> None:
    known = {"title": "Report", "source": "a.pdf", "page": 3.0, "context": "From dogs."}
    passages = [
        match("Jaco is fit.", **{**known, "title": " Report\n"}, x="no"),
        match("He eats.", url="x"),
    ]
    assert select_passages(passages, 1000).entries == (
        {"passage": 1, **known, "page": 3, "text": "Jaco is fit."},
        {"passage": 2, "url": "x", "text": "He eats."},
    )


def test_the_first_passage_is_cut_if_it_alone_is_too_long() -> None:
    shown = select_passages([match("a" * 500, title="Report"), match("b")], 100)
    assert shown.entries == ({"passage": 1, "text": "a" * 99 + "…"},)
    assert shown.matches[0].text == "a" * 500


VALUES = st.none() | st.text(max_size=300) | st.floats() | st.lists(st.text(), max_size=2)
LABELS = st.sampled_from(["title", "source", "url", "page", "context", "else"])
MATCHES = st.builds(
    lambda text, metadata: match(text, **metadata),
    st.none() | st.text(max_size=400),
    st.dictionaries(LABELS, VALUES, max_size=4),
)


@given(st.lists(MATCHES, max_size=8), st.integers(100, 1500))
def test_never_more_than_the_budget_is_shown(matches: list[Match], most: int) -> None:
    shown = select_passages(matches, most)
    held = [{name: it for name, it in row.items() if name != "passage"} for row in shown.entries]
    assert sum(len(str(value)) for row in held for value in row.values()) <= most
    assert [row["passage"] for row in shown.entries] == list(range(1, len(shown.matches) + 1))
    assert json.loads(json.dumps(held, allow_nan=False)) == held
    assert bool(shown.matches) == any((it.text or "").strip() for it in matches)
