"""JSON out of anything: exact where it is well formed, without a guess where it is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.transforms.json_reading import read_json

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)
OBJECTS = st.lists(JSON) | st.dictionaries(TEXTS, JSON)


@given(OBJECTS, st.booleans(), st.sampled_from([None, 2]))
def test_well_formed_json_is_read_as_the_standard_says(
    value: Any, ascii_only: bool, indent: int | None
) -> None:
    assert read_json(json.dumps(value, ensure_ascii=ascii_only, indent=indent)) == ([value], None)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": "x\ny"}', [{"a": "x y"}]),
        ('one {"a": "x"} two ["y"]', [{"a": "x"}, ["y"]]),
        ('{set} {"a": "x"}', [{"a": "x"}]),
        ('{"a": "x" "b": {"c": "y"}}', []),
        ('{"a": "say "hi", he said"}', []),
        ("{'a': 'x'}", []),
    ],
)
def test_json_is_found_in_other_text_and_broken_json_is_not_guessed_at(
    text: str, values: list[Any]
) -> None:
    assert read_json(text) == (values, None)


@pytest.mark.parametrize(
    ("text", "value", "cut_value"),
    [
        ('{"a": ["x", "y', {"a": ["x"]}, {"a": ["x", "y"]}),
        ('{"a": {"b": "x"}, "c": "y', {"a": {"b": "x"}}, {"a": {"b": "x"}, "c": "y"}),
        ('Here: {"a": "x"', {"a": "x"}, {"a": "x"}),
        ("{", {}, {}),
    ],
)
def test_what_is_complete_of_cut_json_is_read(text: str, value: Any, cut_value: Any) -> None:
    assert read_json(text) == ([value], cut_value)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 50_000, '["a",' * 50_000, '{"' * 50_000, "{//" * 50_000]
)
def test_no_depth_of_nesting_exhausts_the_stack(text: str) -> None:
    assert read_json(text)[0] == []
