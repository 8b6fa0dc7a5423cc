"""What the model is shown for an answer: instructions, and passages within the budget."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.answering.prompts import ANSWER, SUB_ANSWER, SYNTHESIS, Task, select_passages
from qtmiddleware.config.settings import LlmSettings, Settings
from qtmiddleware.types import Match


@pytest.mark.parametrize(
    "task",
    [ANSWER, SUB_ANSWER, SYNTHESIS],
    ids=lambda it: it.mode,
)
def test_own_instructions_take_the_place_of_ours_but_not_of_the_rules(task: Task) -> None:
    own = replace(
        Settings(),
        llm=LlmSettings(prompts={task.mode: "Answer in rhymes."}),
    )
    prompt = task.build_prompt(own, "Is Jaco fit?", (), {})
    assert prompt.system.startswith("Answer in rhymes.")
    assert task.instruction not in prompt.system
    assert "NO_ANSWER" in prompt.system
    assert prompt.version.startswith(f"{task.mode}/1#")


def match(text: str | None, **metadata: Any) -> Match:
    return Match("m", "", 1.0, text=text, metadata=metadata)


def test_passages_are_numbered_in_their_order_with_what_is_known_about_them() -> None:
    known = {
        "title": "Report",
        "source": "a.pdf",
        "page": 3.0,
        "context": "From dogs.",
        "x": "no",
    }
    shown = select_passages(
        [match("Jaco is fit.", **known), match("He eats.", url="x")],
        1000,
    )
    assert shown.entries == (
        {
            "passage": 1,
            "title": "Report",
            "source": "a.pdf",
            "page": 3,
            "context": "From dogs.",
            "text": "Jaco is fit.",
        },
        {"passage": 2, "url": "x", "text": "He eats."},
    )


def test_what_is_shown_is_bounded_and_the_first_passage_is_cut_if_it_alone_is_too_long() -> None:
    (entry,) = select_passages(
        [match("Fit.", title="t" * 999, context="c" * 9999)],
        10_000,
    ).entries
    assert (len(entry["title"]), len(entry["context"])) == (200, 1000)
    texts = [match(letter * count) for letter, count in (("a", 60), ("b", 30), ("c", 30), ("d", 1))]
    assert [entry["text"][0] for entry in select_passages(texts, 100).entries] == ["a", "b"]
    shown = select_passages([match("a" * 500, title="Report"), match("b")], 100)
    (entry,) = shown.entries
    assert (entry["title"], len(entry["text"]), entry["text"][-1]) == ("Report", 94, "…")
    assert shown.matches[0].text == "a" * 500
    # The text matters more than long labels.
    (entry,) = select_passages([match("a" * 500, title="t" * 60)], 100).entries
    assert "title" not in entry


NUMBERS = st.floats() | st.integers() | st.booleans()
VALUES = st.none() | st.text(max_size=300) | NUMBERS | st.lists(st.text(), max_size=2)
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
    assert not any(isinstance(value, bool) for row in held for value in row.values())
    assert [row["passage"] for row in shown.entries] == list(range(1, len(shown.matches) + 1))
    assert json.loads(json.dumps(held, allow_nan=False)) == held
    assert bool(shown.matches) == any((it.text or "").strip() for it in matches)
