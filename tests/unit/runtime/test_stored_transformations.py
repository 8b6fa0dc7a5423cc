from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qtmiddleware.runtime.redis_cache import (
    MAX_BYTES,
    MAX_ITEMS,
    decode_transformation,
    encode_transformation,
)
from qtmiddleware.types import Transformation

# Surrogates that stand alone and those that do not, beside everything else.
texts = st.text(
    st.one_of(
        st.characters(), st.characters(categories=["Cs"]), st.sampled_from('\0"\\\u2028\ufeff')
    )
)
lists = st.lists(texts, max_size=6).map(tuple)
transformations = st.builds(
    Transformation,
    standalone=st.none() | texts,
    rewrite=st.none() | texts,
    step_back=st.none() | texts,
    sub_queries=lists,
    paraphrases=lists,
    hyde=st.none() | texts,
    keywords=lists,
    notes=st.lists(st.tuples(texts, texts), max_size=4).map(tuple),
)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
FULL = Transformation("a", "b", "c", ("d", "e"), ("f",), "g", ("h",), (("rewrite", "dropped"),))


def written(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


@given(transformations)
@example(Transformation())
@example(Transformation(rewrite=""))
@example(Transformation(rewrite="\ud83d", sub_queries=("\ud83d\ude00", "😀")))
def test_what_was_written_is_read_back_as_it_was(made: Transformation) -> None:
    held = encode_transformation(made)
    assert held is not None
    assert decode_transformation(held) == made


def test_every_field_is_written() -> None:
    held = encode_transformation(FULL)
    assert held is not None
    assert decode_transformation(held) == FULL
    assert all(
        getattr(FULL, field.name) != getattr(Transformation(), field.name)
        for field in fields(Transformation)
    )


@given(st.binary(max_size=60))
@example(b"[" * 100_000)
@example(b'{"v":' + b"1" * 5_000 + b"}")
@example(b'{"v":1e999}')
@example(b"\xef\xbb\xbf{}")
@example(b"")
def test_no_bytes_break_the_reading(held: bytes) -> None:
    assert decode_transformation(held) is None


@given(
    jsons.map(written)
    | st.dictionaries(st.sampled_from([f.name for f in fields(Transformation)]), jsons).map(
        lambda inner: written({"v": 1, **inner})
    )
)
def test_no_json_breaks_the_reading_and_what_is_read_is_what_would_be_written(held: bytes) -> None:
    made = decode_transformation(held)
    assert made is None or encode_transformation(made) == held


@pytest.mark.parametrize(
    "odd",
    [
        {"v": 1, "rewrite": "a"},
        {"v": 3, "rewrite": "a"},
        {"v": True, "rewrite": "a"},
        {"v": 2.0, "rewrite": "a"},
        {"rewrite": "a"},
        {"v": 2, "rewrite": None},
        {"v": 2, "rewrite": 5},
        {"v": 2, "rewrite": ["a"]},
        {"v": 2, "sub_queries": "ab"},
        {"v": 2, "sub_queries": ["a", None]},
        {"v": 2, "sub_queries": {"a": "b"}},
        {"v": 2, "sub_queries": []},
        {"v": 2, "notes": [["a"]]},
        {"v": 2, "notes": ["ab"]},
        {"v": 2, "notes": [["a", 1]]},
        {"v": 2, "answer": "a"},
        {"v": 2, "is_empty": True},
        [1, "a"],
        "a",
        None,
    ],
)
def test_what_is_odd_is_not_read(odd: Any) -> None:
    assert decode_transformation(written(odd)) is None


@pytest.mark.parametrize(
    "held", [b'{"v":1,"rewrite":"a","rewrite":"a"}', b'{"v":1, "rewrite":"a"}', b'{"v":1}\n']
)
def test_what_is_written_otherwise_is_not_read(held: bytes) -> None:
    assert decode_transformation(held) is None


def test_what_is_too_large_is_neither_written_nor_read() -> None:
    most = Transformation(rewrite="a" * (MAX_BYTES - len('{"v":1,"rewrite":""}')))
    held = encode_transformation(most)
    assert held is not None
    assert decode_transformation(held) == most
    assert encode_transformation(Transformation(rewrite="a" * MAX_BYTES)) is None
    assert decode_transformation(held[:-2] + b'a"}') is None
    many = ("a",) * (MAX_ITEMS + 1)
    for made in (
        Transformation(sub_queries=many),
        Transformation(notes=(("a", "b"),) * (MAX_ITEMS + 1)),
    ):
        assert encode_transformation(made) is None
    assert decode_transformation(written({"v": 2, "keywords": many})) is None
