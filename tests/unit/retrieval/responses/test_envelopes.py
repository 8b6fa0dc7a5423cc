"""Which list of a response holds its passages."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass, field, make_dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, create_model

import qtmiddleware as qtm
from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.retrieval.responses import _ENVELOPES as ENVELOPES
from qtmiddleware.retrieval.responses import find_shape, read_response
from qtmiddleware.types import Variant
from tests.support.shapes_world import Row, sqlite_rows

QUESTION = "Does Jaco have any health concerns?"
TEXTS = ["Cats sleep most of the day", "Jaco has no health concerns", "The fee is due in May"]
HITS = [
    {"id": id_, "text": text, "score": score}
    for id_, text, score in zip("abc", TEXTS, (0.75, 0.71875, 0.25), strict=True)
]
FACETS = [{"value": 2023, "count": 7}, {"value": 2024, "count": 5}]


class Hit(BaseModel):
    id: str
    text: str
    score: float


def nest(name: str, items: Any) -> dict[str, Any]:
    *outer, last = name.split(".")
    response: dict[str, Any] = {last: items, "took": 3}
    for key in reversed(outer):
        response = {key: response, "took": 3}
    return response


def name_list(response: Any) -> str:
    """The name of the shape of *response*."""
    return find_shape(response).name


@pytest.mark.parametrize("name", ENVELOPES)
def test_a_list_under_a_usual_name_is_read_and_all_else_is_kept(name: str) -> None:
    response = nest(name, HITS)
    found = qtm.middleware(lambda query: response).retrieve(QUESTION)
    assert found.status == "full"
    assert found.response == nest(name, [HITS[1], HITS[0], HITS[2]])
    assert [id(match.raw) for match in found.matches] == [id(HITS[place]) for place in (1, 0, 2)]
    assert response == nest(name, HITS)


@pytest.mark.parametrize("name", [name for name in ENVELOPES if "." not in name])
@pytest.mark.parametrize(
    "kind", ["model", "dataclass", "frozen dataclass", "named tuple", "object", "user dict"]
)
def test_a_list_is_found_in_objects_of_every_kind(name: str, kind: str) -> None:
    hits = [Hit(**hit) for hit in HITS]
    fields: dict[str, Any] = {"total": 3, name: hits}
    make: Any = {
        "model": lambda: create_model("Found", total=(int, ...), **{name: (list[Hit], ...)})(
            **fields
        ),
        "dataclass": lambda: make_dataclass("Found", list(fields))(**fields),
        "frozen dataclass": lambda: make_dataclass("Found", list(fields), frozen=True)(**fields),
        "named tuple": lambda: NamedTuple("Found", [("total", int), (name, Any)])(**fields),  # type: ignore[misc]
        "object": lambda: SimpleNamespace(**fields),
        "user dict": lambda: UserDict(fields),
    }[kind]
    plain = make()
    before = plain[name] if kind == "user dict" else getattr(plain, name)
    response = qtm.middleware(lambda query: plain)(QUESTION)
    after = response[name] if kind == "user dict" else getattr(response, name)
    assert type(response) is type(plain)
    assert [id(hit) for hit in after] == [id(before[place]) for place in (1, 0, 2)]


@dataclass
class LazyResponse:
    """What raises at whatever else is read of it."""

    rows: list[Any]

    @property
    def docs(self) -> Any:
        raise RuntimeError("not loaded")


def test_rows_of_a_database_are_read_inside_an_envelope_too() -> None:
    rows = sqlite_rows([Row(hit["id"], hit["text"], hit["score"]) for hit in HITS])  # type: ignore[arg-type]
    for plain in (
        {"rows": rows},
        LazyResponse(rows),
        {"columns": ["id", "text"], "rows": [list(row) for row in rows]},
    ):
        found = qtm.middleware(lambda query, response=plain: response).retrieve(QUESTION)
        assert found.status == "full"
        assert found.matches[0].text == TEXTS[1]
        assert type(found.response) is type(plain)


# --- more than one list ---------------------------------------------------------------------------


@given(
    st.permutations([name for name in ENVELOPES if "." not in name]).map(lambda names: names[:3])
)
def test_of_several_lists_of_passages_the_first_by_name_is_read(names: list[str]) -> None:
    response = dict.fromkeys(names, HITS)
    assert name_list(response) == f"the list in {min(names, key=ENVELOPES.index)!r}"


@pytest.mark.parametrize(
    ("response", "name"),
    [
        ({"documents": ["a.pdf", "b.pdf"], "chunks": HITS}, "chunks"),
        ({"results": FACETS, "items": HITS}, "items"),
        ({"nodes": [1, 2], "records": HITS}, "records"),
        ({"data": {"page": 1}, "result": HITS}, "result"),
        ({"matches": None, "passages": HITS}, "passages"),
        ({"result": {"hits": None}, "docs": HITS}, "docs"),
        ({"items": [], "value": HITS}, "items"),
        ({"documents": [], "chunks": HITS}, "documents"),
        ({"matches": None, "data": None}, "matches"),
        ({"documents": ["a.pdf", "b.pdf"]}, "documents"),
        ({"data": TEXTS, "rows": [[0.5, 0.25], [0.5, 0.125]]}, "data"),
        ({"result": "the answer", "source_documents": HITS}, "source_documents"),
        ({"response": {"docs": HITS, "numFound": 3}, "data": FACETS}, "response.docs"),
    ],
)
def test_a_list_of_something_else_gives_way_to_the_passages_and_an_empty_one_does_not(
    response: Any, name: str
) -> None:
    assert name_list(response) == f"the list in {name!r}"


@given(st.sampled_from(["docs", "items", "rows", "data", "value", "result"]), st.data())
def test_two_responses_of_a_function_are_read_from_the_same_list_however_many_hits_they_hold(
    name: str, data: st.DataObject
) -> None:
    first, second = (data.draw(st.lists(st.sampled_from(HITS))) for _ in range(2))
    assert name_list({name: first, "facets": FACETS}) == name_list({name: second, "facets": FACETS})


# --- what merely has such a name ------------------------------------------------------------------


class Model(BaseModel):
    data: dict[str, Any]
    items: int = 3


@dataclass
class Report:
    value: float
    rows: Any = field(default_factory=lambda: iter(HITS))

    def items(self) -> list[Any]:
        return HITS

    @property
    def nodes(self) -> list[Any]:
        raise RuntimeError("a property that raises")


@pytest.mark.parametrize(
    "response",
    [
        {"answer": "it is well"},
        Model(data={"docs": HITS}),
        Report(0.5),
        {"items": 3, "data": "a text", "value": None, "result": b"bytes"},
        {"rows": [[0.5, 0.25], [0.5, 0.125]], "columns": ["x", "y"]},
        {"data": [0.25, 0.5]},
        {"items": ["red", "green"]},
        {"value": FACETS},
        {"nodes": [object()]},
        {"items": {"a": HITS}},
        np.array([0.5, 0.25]),
        np.ma.array(TEXTS),
    ],
)
def test_a_method_a_number_or_a_list_of_something_else_is_no_list_of_passages(
    response: Any,
) -> None:
    with pytest.raises(ResponseShapeError):
        read_response(Variant("original", "q"), response)
    assert qtm.middleware(lambda query: response)(QUESTION) is response


def test_what_holds_passages_without_a_name_is_read_as_before() -> None:
    chroma = {
        "ids": [["a", "b", "c"]],
        "documents": [TEXTS],
        "data": None,
        "uris": None,
        "metadatas": [[{"page": 1}] * 3],
    }
    assert name_list(chroma).startswith("columns")
    assert name_list({"ids": ["a"], "documents": ["x y"], "data": ["an image"]}).startswith(
        "columns"
    )
    assert name_list(np.array(TEXTS, dtype=object)) == "a list"


@pytest.mark.parametrize(
    "response",
    [
        {"documents": TEXTS, "sources": ["a.pdf", "b.pdf", "c.pdf"]},
        {"chunks": TEXTS, "labels": [1, 2, 3], "took": 0.5},
        {"items": HITS, "rankings": [0.75, 0.5, 0.25]},
        SimpleNamespace(passages=TEXTS, pages=[4, 5, 6]),
    ],
)
def test_passages_are_left_as_they_are_if_another_list_may_belong_to_them_place_by_place(
    response: Any,
) -> None:
    with pytest.raises(ResponseShapeError, match="another list may run parallel to"):
        read_response(Variant("original", "q"), response)
    with pytest.warns(qtm.SetupWarning, match="another list may run parallel to"):
        assert qtm.middleware(lambda query: response)(QUESTION) is response


def test_scores_beside_the_passages_go_with_them() -> None:
    response = qtm.middleware(lambda query: {"docs": TEXTS, "scores": [0.75, 0.71875, 0.25]})(
        QUESTION
    )
    assert response == {"docs": [TEXTS[1], TEXTS[0], TEXTS[2]], "scores": [0.71875, 0.75, 0.25]}
