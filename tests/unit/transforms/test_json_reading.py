"""JSON out of anything: exact where it is well formed, as much as possible where it is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.transforms.json_reading import Cut, Members, find_json, read_json_string

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)


def plain(value: Any) -> Any:
    if isinstance(value, Members):
        return {key: plain(member) for key, member in value}
    return [plain(item) for item in value] if isinstance(value, list) else value


@given(st.lists(JSON) | st.dictionaries(TEXTS, JSON), st.booleans(), st.sampled_from([None, 2]))
def test_well_formed_json_is_read_as_the_standard_says(
    value: Any, ascii_only: bool, indent: int | None
) -> None:
    (found,) = find_json(json.dumps(value, ensure_ascii=ascii_only, indent=indent))
    assert plain(found.value) == value
    assert not found.is_cut


@given(st.text())
def test_no_text_makes_the_reader_fail(text: str) -> None:
    for found in find_json(text):
        assert text[found.start] in "{["
        assert found.start < found.end <= len(text)


@given(st.text(alphabet="{}[]\"\\:,' a1\n“”"))
def test_no_heap_of_json_marks_makes_the_reader_fail(text: str) -> None:
    find_json(text)
    read_json_string(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": "say "hi" now"}', [{"a": 'say "hi" now'}]),
        ("{'a': 'it's', 'b': ['x',],}", [{"a": "it's", "b": ["x"]}]),
        ("{a: “x”, “b”: 'y'}", [{"a": "x", "b": "y"}]),
        ('{"a": "x"\n "b": "y"}', [{"a": "x", "b": "y"}]),
        ('{"a": None, "b": True}', [{"a": None, "b": True}]),
        ('one {"a": "x"} two ["y"]', [{"a": "x"}, ["y"]]),
        ('{set} {"a": "x"}', [{"a": "x"}]),
        ('{"a": "\\ud83d\\ude00 \\ud800!"}', [{"a": "😀 !"}]),
        ('{"a": "x", "a": "y"}', [{"a": "y"}]),
        ('{"a": ["x", "y', [{"a": ["x", Cut("y")]}]),
    ],
)
def test_broken_json_is_read_as_it_was_meant(text: str, expected: list[Any]) -> None:
    assert [plain(found.value) for found in find_json(text)] == expected


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 50_000, '["a",' * 50_000, '{"' * 50_000, "{//" * 50_000]
)
def test_no_depth_of_nesting_exhausts_the_stack(text: str) -> None:
    find_json(text)
