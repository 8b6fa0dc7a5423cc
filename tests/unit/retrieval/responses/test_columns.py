"""A list of items gives what its items give one by one, whatever stands beside what."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.config.settings import KeywordEvidenceSettings
from qtmiddleware.retrieval.responses.columns import read_columns, read_texts
from qtmiddleware.retrieval.responses.items import (
    check_item,
    read_namespace,
    read_passage_id,
    read_score,
    read_text,
)

NAMES = (
    *(
        "id",
        "_id",
        "chunk_id",
        "document_id",
        "score",
        "distance",
        "similarity",
        "namespace",
        "text",
        "content",
    ),
    *("metadata", "payload", "fields", "_node_content", "node", "body", "source"),
)


class Raising:
    """Has an id and a score, and a text that cannot be had."""

    id, score = "r", 0.5

    @property
    def text(self) -> str:
        raise ValueError("no text today")


class RaisingScore(Raising):
    text = "a text of its own"  # type: ignore[assignment]

    @property
    def score(self) -> float:  # type: ignore[override]
        raise KeyError("score")


@dataclass
class Document:
    id: Any = "d"
    score: Any = 0.25
    text: Any = ""
    metadata: Any = field(default_factory=dict)


@dataclass
class Wrapper:
    node: Any
    score: Any = 0.75


class Named(NamedTuple):
    id: str
    score: float
    content: str


PLAIN = st.sampled_from(
    [None, "", " ", "a", "two words", 0, 1, 1.5, -2.0, float("nan"), float("inf"), True, [], b"x"]
)
PACKED = st.sampled_from(['{"text": "packed words"}', '{"text": ""}', "[1]", "no JSON", None])
METADATA = st.dictionaries(st.sampled_from(NAMES), st.one_of(PLAIN, PACKED), max_size=4)
VALUES = st.one_of(PLAIN, PACKED, METADATA)
DICTS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5)
ALIKE = st.fixed_dictionaries({"id": PLAIN, "score": PLAIN, "metadata": st.one_of(METADATA, PLAIN)})
ITEMS = st.one_of(
    DICTS,
    ALIKE,
    DICTS.map(UserDict),
    DICTS.map(lambda fields: SimpleNamespace(**fields)),
    st.builds(Document, PLAIN, PLAIN, PLAIN, st.one_of(METADATA, PLAIN)),
    st.builds(Wrapper, st.builds(Document, PLAIN, PLAIN, PLAIN, METADATA), PLAIN),
    st.builds(Named, st.text(max_size=3), st.floats(), st.text(max_size=9)),
    st.tuples(st.text(max_size=9), st.floats(0, 1)),
    st.text(max_size=9),
    st.builds(Raising),
    st.builds(RaisingScore),
)
LISTS = st.one_of(
    st.lists(ITEMS, max_size=6), st.lists(ALIKE, max_size=6), st.lists(DICTS, max_size=6)
)
FIELDS = st.sampled_from([None, None, None, "id", "body", "metadata.text"])


def outcome(read: Callable[[], Any]) -> Any:
    """What *read* returns, printed, since NaN is unlike itself; or what it raises."""
    try:
        return repr(read())
    except Exception as error:
        return type(error)


def read_one_by_one(items: Sequence[Any], options: KeywordEvidenceSettings) -> Any:
    for item in items:
        check_item(item, options.text_field, options.id_field)
    scores = [read_score(item, options.score_field) for item in items]
    ids = [read_passage_id(item, options.id_field) for item in items]
    return ids, [read_namespace(item, "outer") for item in items], scores


@given(LISTS, FIELDS, FIELDS, FIELDS)
def test_a_list_of_any_items_has_the_ids_namespaces_and_scores_of_each_read_alone(
    items: list[Any], id_field: str | None, score_field: str | None, text_field: str | None
) -> None:
    named = {"id": id_field, "score": score_field, "text": text_field}
    options = KeywordEvidenceSettings(
        fields={name: field for name, field in named.items() if field is not None}
    )
    expected = outcome(lambda: read_one_by_one(items, options))
    assert outcome(lambda: read_columns(items, options, "outer")) == expected


@given(LISTS, FIELDS)
def test_a_list_of_any_items_has_the_texts_of_each_read_alone(
    items: list[Any], text_field: str | None
) -> None:
    expected = outcome(lambda: [read_text(item, text_field) for item in items])
    assert outcome(lambda: read_texts(items, text_field)) == expected


@pytest.mark.parametrize(
    "other", [{"score": 0.4, "id": "b"}, {"id": "b", "score": 0.4, "text": "b", "namespace": "n"}]
)
def test_an_item_with_other_keys_than_the_first_is_read_by_its_own(other: dict[str, Any]) -> None:
    items = [{"id": "a", "score": 0.5, "text": "one"}, other]
    ids, namespaces, scores = read_columns(items, KeywordEvidenceSettings(), "outer")
    assert (ids, scores) == (["a", "b"], [0.5, 0.4])
    assert namespaces == ["outer", other.get("namespace", "outer")]
    assert read_texts(items, None) == ["one", other.get("text")]
