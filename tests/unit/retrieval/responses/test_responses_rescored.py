"""Copies of items with another score, and what holds for every shape whatever is in it."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple
from uuid import NAMESPACE_DNS, UUID, uuid5

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pinecone import Document as PineconeDocument
from pinecone import QueryResponse, ScoredVector
from pinecone.models.vectors.search import Hit, SearchRecordsResponse, SearchResult, SearchUsage
from pydantic import BaseModel, ConfigDict

from qtmiddleware.retrieval.responses import (
    find_shape,
    read_id,
    read_keys_and_scores,
    read_metadata,
    read_score,
    read_text,
    replace_score,
)


class LangChainDocument(BaseModel):
    page_content: str
    metadata: dict[str, Any] = {}
    id: str | None = None


class TextNode(BaseModel):
    id_: str
    text: str


class NodeWithScore(BaseModel):
    node: TextNode
    score: float | None = None


class ScoredPoint(BaseModel):
    """The fields of Qdrant's."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    id: int | str
    version: int
    score: float
    payload: dict[str, Any] | None = None
    vector: list[float] | None = None


class QdrantResponse(BaseModel):
    points: list[ScoredPoint]


@dataclass
class MetadataReturn:
    """The fields of Weaviate's."""

    creation_time: Any = None
    distance: float | None = None
    certainty: float | None = None
    score: float | None = None
    explain_score: str | None = None


@dataclass
class WeaviateObject:
    uuid: UUID
    metadata: MetadataReturn | None
    properties: dict[str, Any]
    references: Any = None
    vector: dict[str, Any] = field(default_factory=dict)
    collection: str = "C"


@dataclass
class QueryReturn:
    objects: list[WeaviateObject]


@dataclass(frozen=True, slots=True)
class Frozen:
    id: str
    text: str
    score: float


class Named(NamedTuple):
    id: str
    text: str
    distance: float


class Struct(msgspec.Struct, frozen=True):
    id: str
    text: str
    score: float


class Slotted:
    __slots__ = ("id", "similarity", "text")

    def __init__(self, id: str, text: str, similarity: float) -> None:  # noqa: A002
        self.id, self.text, self.similarity = id, text, similarity

    def __repr__(self) -> str:
        return f"Slotted{self.id, self.text, self.similarity}"


def uuid_of(name: str) -> UUID:
    return uuid5(NAMESPACE_DNS, name)


def column_items(response: Any) -> Any:
    return find_shape(response).items(response)[0]


Make = Callable[[str, str, float], Any]
KINDS: dict[str, Make] = {
    "dict": lambda i, t, s: {"id": i, "text": t, "score": s},
    "dict with a distance": lambda i, t, s: {"id": i, "text": t, "score": None, "distance": s},
    "dict with two numbers": lambda i, t, s: {"id": i, "text": t, "distance": 7.0, "score": s},
    "raw hit": lambda i, t, s: {"_id": i, "_score": s, "fields": {"chunk_text": t}},
    "ordered dict": lambda i, t, s: OrderedDict(id=i, text=t, score=s),
    "user dict": lambda i, t, s: UserDict(id=i, text=t, score=s),
    "number of numpy": lambda i, t, s: {"id": i, "text": t, "score": np.float64(s)},
    "pair": lambda i, t, s: (i, s),
    "list pair": lambda i, t, s: [i, s],
    "text pair": lambda i, t, s: (t, s),
    "triple": lambda i, t, s: (i, s, {"text": t}),
    "document pair": lambda i, t, s: (LangChainDocument(page_content=t, id=i), s),
    "node pair": lambda i, t, s: (NodeWithScore(node=TextNode(id_=i, text=t), score=7.0), s),
    "document": lambda i, t, s: LangChainDocument(page_content=t, id=i, metadata={"score": s}),
    "string": lambda i, t, s: t,
    "scored vector": lambda i, t, s: ScoredVector(id=i, score=s, metadata={"text": t}),
    "hit": lambda i, t, s: Hit(id_=i, score_=s, fields={"text": t}),
    "pinecone document": lambda i, t, s: PineconeDocument({"_id": i, "_score": s, "text": t}),
    "node": lambda i, t, s: NodeWithScore(node=TextNode(id_=i, text=t), score=s),
    "node without score": lambda i, t, s: NodeWithScore(node=TextNode(id_=i, text=t)),
    "qdrant point": lambda i, t, s: ScoredPoint(id=i, version=3, score=s, payload={"text": t}),
    "weaviate score": lambda i, t, s: WeaviateObject(
        uuid_of(i), MetadataReturn(score=s), {"text": t}
    ),
    "weaviate distance": lambda i, t, s: WeaviateObject(
        uuid_of(i), MetadataReturn(distance=s), {"text": t}
    ),
    "weaviate nothing": lambda i, t, s: WeaviateObject(uuid_of(i), None, {"text": t, "score": s}),
    "frozen dataclass": Frozen,
    "named tuple": Named,
    "struct": Struct,
    "slots": Slotted,
    "namespace": lambda i, t, s: SimpleNamespace(id=i, text=t, relevance_score=s),
    "column": lambda i, t, s: column_items({"ids": [[i]], "documents": [[t]], "distances": [[s]]}),
}
WITHOUT = {"document", "string", "node without score", "weaviate nothing"}

names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=8)
texts = st.text(max_size=20).map(lambda text: f"a passage {text}.")
numbers = st.floats(allow_nan=False, allow_infinity=False)


def data(item: Any) -> Any:
    """Everything *item* holds."""
    if isinstance(item, Slotted):
        return repr(item)
    return item.to_dict() if isinstance(item, PineconeDocument) else item


@given(st.sampled_from(sorted(KINDS)), names, texts, numbers, numbers)
def test_a_rescored_item_is_a_copy_of_its_own_type_with_that_score_and_all_else(
    kind: str, name: str, text: str, old: float, new: float
) -> None:
    item, wanted = KINDS[kind](name, text, old), KINDS[kind](name, text, new)
    before = copy.deepcopy(data(item))
    made = replace_score(item, new)
    assert type(made) is type(item)
    assert data(item) == before
    if kind in WITHOUT:
        assert read_score(item) is None
        assert made is item
    else:
        assert read_score(item) == old
        assert read_score(made) == new
        assert data(made) == data(wanted)
        assert read_keys_and_scores([made], [made])[0] == read_keys_and_scores([item], [item])[0]


def test_a_number_that_is_not_finite_is_replaced() -> None:
    for item in (
        {"id": "a", "score": float("nan")},
        ("a", float("inf")),
        ScoredVector(id="a", score=float("nan")),
    ):
        assert read_score(item) is None
        assert read_score(replace_score(item, 0.5)) == 0.5


@pytest.mark.parametrize(
    "item",
    [
        {"id": "a", "score": "0.5"},
        {"id": "a", "score": None},
        ("a", None),
        MappingProxyType({"id": "a", "score": 0.5}),
    ],
)
def test_an_item_without_a_number_or_without_copies_stays_the_very_same(item: Any) -> None:
    assert replace_score(item, 0.25) is item


def test_what_a_class_shares_between_its_copies_is_never_written_to() -> None:
    class Shared:
        def __init__(self) -> None:
            self.id = "a"
            self.inner = {"score": 0.5}

        @property
        def score(self) -> float:
            return self.inner["score"]

        @score.setter
        def score(self, value: float) -> None:
            self.inner["score"] = value

    class Computed:
        id = "a"
        distance = 0.5

        @property
        def score(self) -> float:
            return 1.0 - self.distance

    for item in (Shared(), Computed()):
        assert replace_score(item, 0.25) is item
        assert read_score(item) == 0.5


def test_the_numbers_of_weaviate_lie_in_its_metadata_and_the_fields_beside_it() -> None:
    response = QueryReturn([KINDS["weaviate score"]("a", "the text", 0.5)])
    shape = find_shape(response)
    item = shape.items(response)[0]
    assert (read_id(item), read_score(item)) == (str(uuid_of("a")), 0.5)
    assert read_metadata(item) == {"text": "the text"}
    nothing = KINDS["weaviate nothing"]("a", "t", 0.5)
    assert read_score(nothing) is None
    assert read_metadata(nothing) == {"text": "t", "score": 0.5}


# What every shape promises

Rows = list[tuple[str, str, float]]


def listed(kind: str) -> Callable[[Rows], Any]:
    return lambda rows: [KINDS[kind](*row) for row in rows]


def columns(rows: Rows) -> tuple[list[str], list[str], list[float]]:
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def search_response(rows: Rows) -> Any:
    return SearchRecordsResponse(
        result=SearchResult(hits=listed("hit")(rows)), usage=SearchUsage(read_units=6)
    )


RESPONSES: dict[str, Callable[[Rows], Any]] = {
    **{f"list of {kind}": listed(kind) for kind in KINDS if kind != "column"},
    "tuple": lambda rows: tuple(listed("dict")(rows)),
    "array of texts": lambda rows: np.array([text for _, text, _ in rows], dtype=object),
    "query response": lambda rows: QueryResponse(
        matches=listed("scored vector")(rows), namespace="ns"
    ),
    "search response": search_response,
    "matches": lambda rows: {"matches": listed("dict")(rows), "namespace": "ns"},
    "qdrant": lambda rows: QdrantResponse(points=listed("qdrant point")(rows)),
    "weaviate": lambda rows: QueryReturn(objects=listed("weaviate score")(rows)),
    "documents and scores": lambda rows: (columns(rows)[1], columns(rows)[2]),
    "documents and array": lambda rows: (
        listed("document")(rows),
        np.array(columns(rows)[2], dtype="float64"),
    ),
    "fields of documents and scores": lambda rows: {
        "documents": columns(rows)[1],
        "scores": columns(rows)[2],
    },
    "chroma query": lambda rows: {
        "ids": [columns(rows)[0]],
        "documents": [columns(rows)[1]],
        "distances": [columns(rows)[2]],
        "embeddings": None,
        "included": ["documents", "distances"],
    },
    "chroma get": lambda rows: {
        "ids": columns(rows)[0],
        "documents": columns(rows)[1],
        "metadatas": None,
    },
}


def plain(response: Any) -> str:
    items = response if isinstance(response, list) else []
    return repr((response, [data(item) for item in items]))


def read(shape: Any, response: Any) -> list[Any]:
    """Each item's key, score and text."""
    items = shape.items(response)
    scores = [read_score(item) for item in items]
    return list(
        zip(
            read_keys_and_scores(response, items)[0],
            scores,
            [read_text(it, None) for it in items],
            strict=True,
        )
    )


@given(
    st.data(),
    st.sampled_from(sorted(RESPONSES)),
    st.lists(st.tuples(names, texts, numbers), max_size=6),
)
def test_any_response_reads_back_and_takes_its_items_in_any_order(
    given_: Any, form: str, rows: Rows
) -> None:
    response = RESPONSES[form](rows)
    before = plain(copy.deepcopy(response))
    shape = find_shape(response)
    known = read(shape, response)
    assert len(known) == len(rows)
    for (key, score, text), (name, passage, number) in zip(known, rows, strict=True):
        assert key[1] in (name, str(uuid_of(name)), f"\0{passage}")
        assert score in (number, None)
        assert text in (passage, None)
    order = given_.draw(st.permutations(range(len(rows))))[: given_.draw(st.integers(0, len(rows)))]
    items = list(shape.items(response))
    made = shape.rebuild(response, [items[place] for place in order])
    assert type(made) is type(response)
    assert read(find_shape(made), made) == read(shape, made) == [known[place] for place in order]
    assert plain(response) == before


@given(
    st.sampled_from(sorted(RESPONSES)),
    *[st.lists(st.tuples(names, texts, numbers), max_size=4)] * 2,
    numbers,
)
def test_any_response_takes_the_items_of_another_and_new_scores(
    form: str, rows: Rows, others: Rows, new: float
) -> None:
    response, other = RESPONSES[form](rows), RESPONSES[form](others)
    before = plain(copy.deepcopy(other))
    shape = find_shape(response)
    theirs = list(find_shape(other).items(other))
    mixed = [*theirs, *shape.items(response)]
    known = [*read(find_shape(other), other), *read(shape, response)]
    made = shape.rebuild(response, mixed)
    assert type(made) is type(response)
    assert read(find_shape(made), made) == known
    anew = shape.rebuild(response, [replace_score(item, new) for item in mixed])
    assert read(find_shape(anew), anew) == [
        (key, None if score is None else new, text) for key, score, text in known
    ]
    assert plain(other) == before
