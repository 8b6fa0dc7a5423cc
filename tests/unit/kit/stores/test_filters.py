from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.errors import InvalidQuery
from qtmiddleware.kit.stores.filters import build_matcher

NUMBERS = st.integers(-3, 3) | st.sampled_from([-1.5, 0.0, 1.0, 2.5])
SCALARS = st.sampled_from(["", "x", "y", "1"]) | NUMBERS | st.booleans()
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
METADATA = st.dictionaries(
    st.sampled_from("abc"), SCALARS | st.lists(SCALARS, max_size=3) | ANYTHING, max_size=3
)
FILTERS = st.dictionaries(
    st.sampled_from(["a", "$and", "$or", "$gt"]),
    ANYTHING | st.dictionaries(st.sampled_from(["$in", "$lt", "$ne"]), ANYTHING, max_size=1),
    max_size=2,
)


@pytest.mark.parametrize(
    ("condition", "metadata", "met"),
    [
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": True}, {"a": 1}, False),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": {"$ne": "x"}}, {"a": ["y", "x"]}, False),
        ({"a": {"$ne": "x"}}, {"a": None}, True),
        ({"a": {"$in": []}}, {"a": "x"}, False),
        ({"a": {"$nin": ["x"]}}, {"a": ["y", "x"]}, False),
        ({"a": {"$gt": 1}}, {"a": 1}, False),
        ({"a": {"$gte": 1}}, {"a": 1}, True),
        ({"a": {"$lte": 1}}, {"a": "0"}, False),
        ({"a": {"$lt": 5}}, {"a": float("nan")}, False),
        ({"a": {"$gte": 5}}, {"a": [1, 7]}, True),
        ({"a": {"$exists": True}}, {"a": ["x"]}, True),
        ({"a": {"$exists": True}}, {"a": None}, False),
        ({"a": {"$exists": False, "$ne": 1}}, {"b": 1}, True),
        ({"$or": [{"$and": [{"a": "x"}, {"b": 1}]}, {"c": 3}]}, {"a": "x", "b": 1}, True),
        ({"$and": [{"a": "x"}], "b": 1}, {"a": "x", "b": 2}, False),
        ({"a": "x"}, {"a": {"x": 1}}, False),
    ],
)
def test_metadata_meets_a_condition_as_pinecone_has_it(
    condition: Any, metadata: Any, met: bool
) -> None:
    assert build_matcher(condition)(metadata) is met


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ({"a": {"$near": 1}}, r"'\$near' of the field 'a' must be .*\$lte"),
        ({"$not": {"a": 1}}, r"'\$not' must be a field, \$and or \$or"),
        ({"$or": []}, r"\$or must be a list of one or more conditions"),
        ({"$or": [{"a": 1}, {}]}, r"\$or must be a list of one or more conditions"),
        ({"a": {}}, "the condition on 'a' must be an operator and a value"),
        ({"a": {"$exists": 1}}, r"'\$exists' of the field 'a' must be .*a boolean"),
        ({"$or": ["a"]}, "a condition must be a mapping"),
        ({"a": {"$gt": "1"}}, r"'\$gt' of the field 'a' must be .*a number"),
        ({"a": {"$lte": True}}, r"'\$lte' of the field 'a'"),
        ({"a": {"$in": "x"}}, r"'\$in' of the field 'a' must be .*a list"),
        ({"a": {"$nin": [None]}}, r"'\$nin' of the field 'a'"),
        ({"a": None}, r"'\$eq' of the field 'a'"),
    ],
)
def test_an_impossible_filter_is_told_with_its_operator_and_what_is_allowed(
    condition: Any, told: str
) -> None:
    with pytest.raises(InvalidQuery, match=told) as caught:
        build_matcher(condition)
    assert caught.value.argument == "filter"


@given(condition=ANYTHING | FILTERS, metadata=METADATA)
def test_whatever_is_given_as_a_filter_works_or_is_an_invalid_query(
    condition: Any, metadata: Any
) -> None:
    with suppress(InvalidQuery):
        assert build_matcher(condition)(metadata) in (True, False)


@given(value=SCALARS, values=st.lists(SCALARS, max_size=3), metadata=METADATA)
def test_of_an_operator_and_its_negation_exactly_one_is_met(
    value: Any, values: Any, metadata: Any
) -> None:
    for asked, negated in (({"$eq": value}, {"$ne": value}), ({"$in": values}, {"$nin": values})):
        assert build_matcher({"a": asked})(metadata) != build_matcher({"a": negated})(metadata)
