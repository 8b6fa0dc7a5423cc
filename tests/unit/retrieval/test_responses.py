"""Whatever a retrieval function returns is read, reordered in its own type, and never written to."""

from __future__ import annotations

import re
import time
from collections import UserDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, make_dataclass
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import pytest
from haystack import Document as HaystackDocument
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document as LangChainDocument
from openai.pagination import SyncPage
from openai.types import VectorStoreSearchResponse
from pinecone import Document as PineconeDocument
from pinecone import QueryResponse, ScoredVector
from pinecone.models.assistant.context import ContextResponse
from pinecone.models.documents.responses import SearchDocumentsResponse
from pinecone.models.vectors.search import Hit, SearchRecordsResponse, SearchResult, SearchUsage
from pydantic import BaseModel, ConfigDict

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Match
from tests.support.shapes_world import (
    Chunk,
    NodeWithScore,
    PayloadHit,
    QdrantPoint,
    Row,
    TextNode,
    sqlalchemy_rows,
    sqlite_rows,
)

PAGE = Path(__file__).parents[3] / "docs/wrapping.md"
QUESTION = "Does Jaco have any health concerns?"
TEXTS = ["Cats sleep most of the day", "Jaco has no health concerns", "The fee is due in May"]
IDS, SCORES, RISING = ["a", "b", "c"], [0.75, 0.71875, 0.25], [0.25, 0.28125, 0.75]
NONE: list[Any] = [None] * 3
ROWS = [Row(*row) for row in zip(IDS, TEXTS, SCORES, strict=True)]
ORDER = (1, 0, 2)
"""The second passage holds the answer, so it comes first."""


# --- what people's functions return ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frozen:
    id: str
    body: str
    score: float


class SharedOnCopy:
    """As a model of pydantic's version 1: a shallow copy of it shares its fields."""

    def __init__(self, *values: Any) -> None:
        self.id, self.text, self.score = values

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state


class Named(NamedTuple):
    id: str
    text: str
    distance: float


class OpenApiModel:
    """As Pinecone's SDK before version 9: any name can be read, and a class declares a few."""

    def __init__(self, **values: Any) -> None:
        self.__dict__["_data_store"] = values

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_data_store"].get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)

    def __repr__(self) -> str:
        return repr(self.__dict__["_data_store"])

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__["_data_store"])


class OpenApiResponse(OpenApiModel):
    attribute_map: ClassVar = {"matches": "matches", "namespace": "namespace"}


class OpenApiMatch(OpenApiModel):
    attribute_map: ClassVar = {"id": "id", "score": "score", "metadata": "metadata"}


class DictRow(list[Any]):
    """A row of psycopg2's: a list that also knows its columns."""

    def keys(self) -> list[str]:
        return ["id", "content", "distance"]

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self.keys().index(key) if isinstance(key, str) else key)


class Record:
    """A row of asyncpg's or BigQuery's: no attributes, columns by name."""

    __slots__ = ("_columns",)

    def __init__(self, **columns: Any) -> None:
        self._columns = columns

    def __getitem__(self, key: str) -> Any:
        return self._columns[key]

    def keys(self) -> Any:
        return self._columns.keys()

    def __repr__(self) -> str:
        return repr(self._columns)


class Hits(list[Any]):
    def __init__(self, items: Any = (), total: int = 0) -> None:
        super().__init__(items)
        self.total = total


@dataclass
class Found:
    documents: list[Any]
    scores: Any
    took: float = 0.5


class Model(BaseModel):
    model_config = ConfigDict(frozen=True)
    results: list[QdrantPoint]
    time: float = 0.25


def each(make: Callable[[str, str, float], Any]) -> list[Any]:
    return [make(*row) for row in ROWS]


def dicts() -> list[dict[str, Any]]:
    return each(lambda i, t, s: {"id": i, "text": t, "score": s})


def chroma(*, nested: bool = True, **columns: Any) -> dict[str, Any]:
    lists = {
        "ids": IDS,
        "documents": TEXTS,
        "metadatas": [{"page": n} for n in range(3)],
        **columns,
    }
    filled = {name: [column] if nested else column for name, column in lists.items()}
    return {**filled, "embeddings": None, "data": None, "included": ["documents", "metadatas"]}


def bedrock(i: str, t: str, s: float) -> dict[str, Any]:
    content, place = {"text": t, "type": "TEXT"}, {"type": "S3", "s3Location": {"uri": f"s3://{i}"}}
    return {"content": content, "location": place, "score": s, "metadata": {"page": 1}}


def vector_store(i: str, t: str, s: float) -> VectorStoreSearchResponse:
    content = [{"type": "text", "text": t}]
    return VectorStoreSearchResponse.model_validate(
        {"file_id": i, "filename": "a.txt", "score": s, "attributes": {}, "content": content}
    )


def assistant_context() -> ContextResponse:
    reference = {"type": "text", "file": {"name": "a.txt", "id": "f"}}
    snippets = each(
        lambda i, t, s: {"type": "text", "content": t, "score": s, "reference": reference}
    )
    usage = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 1)
    values = {"id": "c", "snippets": snippets, "usage": usage}
    return msgspec.convert(values, ContextResponse, strict=False)


def same(response: Any) -> Any:
    return response


def at(*path: str) -> Callable[[Any], Any]:
    def get(response: Any) -> Any:
        for name in path:
            response = response[name] if isinstance(response, Mapping) else getattr(response, name)
        return response

    return get


Case = tuple[Callable[[], Any], Callable[[Any], Any], list[Any], list[Any]]
Make = Callable[[str, str, float], Any]


def a_list(make: Make, ids: list[Any] = IDS, scores: list[Any] = SCORES) -> Case:
    """A function that returns a list of what *make* makes."""
    return lambda: each(make), same, ids, scores


def under(path: str, make: Make, ids: list[Any] = IDS, scores: list[Any] = SCORES) -> Case:
    """A function that returns a dict with such a list at *path*."""
    return lambda: nest(path, each(make)), at(*path.split(".")), ids, scores


def holding(
    path: str, build: Callable[[], Any], ids: list[Any] = IDS, scores: list[Any] = SCORES
) -> Case:
    """A function that returns what *build* builds, with its items at *path*."""
    return build, at(*path.split(".")) if path else same, ids, scores


def nest(name: str, items: Any) -> dict[str, Any]:
    *outer, last = name.split(".")
    response: dict[str, Any] = {last: items, "took": 3}
    for key in reversed(outer):
        response = {key: response, "took": 3}
    return response


UUIDS = [str(UUID(int=ord(i))) for i in IDS]
SHAPES: dict[str, Case] = {
    # Pinecone
    "document search": holding(
        "matches",
        lambda: SearchDocumentsResponse(
            matches=each(lambda i, t, s: PineconeDocument({"_id": i, "_score": s, "text": t})),
            namespace="ns",
        ),
    ),
    "query": holding(
        "matches",
        lambda: QueryResponse(
            matches=each(lambda i, t, s: ScoredVector(id=i, score=s, metadata={"text": t})),
            namespace="ns",
        ),
    ),
    "search": holding(
        "result.hits",
        lambda: SearchRecordsResponse(
            result=SearchResult(
                hits=each(lambda i, t, s: Hit(id_=i, score_=s, fields={"chunk_text": t}))
            ),
            usage=SearchUsage(read_units=6),
        ),
    ),
    "query, of older SDKs": holding(
        "matches",
        lambda: OpenApiResponse(
            matches=each(lambda i, t, s: OpenApiMatch(id=i, score=s, metadata={"text": t})),
            namespace="ns",
        ),
    ),
    "an assistant's context": holding("snippets", assistant_context, NONE),
    # other services
    "OpenAI's vector stores": holding(
        "data", lambda: SyncPage[VectorStoreSearchResponse](data=each(vector_store), object="list")
    ),
    "Bedrock": under("retrievalResults", bedrock, NONE),
    "a reranker's results": under(
        "results", lambda i, t, s: {"relevance_score": s, "document": {"text": t}}, NONE
    ),
    "Qdrant": holding(
        "results",
        lambda: Model(
            results=each(lambda i, t, s: QdrantPoint(id=i, score=s, payload={"text": t}))
        ),
    ),
    "Chroma's query": (
        lambda: chroma(distances=RISING),
        lambda found: found["documents"][0],
        IDS,
        RISING,
    ),
    # frameworks
    "LangChain": a_list(lambda i, t, s: LangChainDocument(page_content=t, id=i), IDS, NONE),
    "LangChain, with scores": a_list(lambda i, t, s: (LangChainDocument(page_content=t, id=i), s)),
    "LlamaIndex": a_list(lambda i, t, s: NodeWithScore(node=TextNode(id_=i, text=t), score=s)),
    "Haystack": under("documents", lambda i, t, s: HaystackDocument(id=i, content=t, score=s)),
    # databases
    "sqlite3": holding("", lambda: sqlite_rows(ROWS)),
    "SQLAlchemy, an object and a number": holding("", lambda: sqlalchemy_rows(ROWS, Chunk)),
    "psycopg2": a_list(lambda i, t, s: DictRow([i, t, s])),
    "asyncpg": a_list(lambda i, t, s: Record(id=i, content=t, distance=s)),
    # one's own items
    "frozen dataclass": a_list(Frozen),
    "pydantic 1, whose copies share their fields": a_list(SharedOnCopy),
    # containers
    "a list with attributes": holding("", lambda: Hits(dicts(), total=97)),
    # a list of passages and a list of scores
    "scores beside": holding("documents", lambda: Found(dicts(), SCORES)),
    # plain tuples
    "(id, score, metadata)": a_list(lambda i, t, s: (i, s, {"text": t})),
    "(text, score)": a_list(lambda i, t, s: (t, s), NONE),
    "(id, text, score)": a_list(lambda i, t, s: (i, t, s)),
    "(uuid, text, distance)": a_list(lambda i, t, s: (UUID(int=ord(i)), t, 1 - s), UUIDS, RISING),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_response_is_read_and_comes_back_in_its_own_type_with_the_answer_first(name: str) -> None:
    build, get_items, ids, scores = SHAPES[name]
    response = build()
    before, items = repr_deeply(response), list(get_items(response))
    found = qtm.middleware(lambda query: response).retrieve(QUESTION)
    assert (found.status, found.degradations) == ("full", ())
    assert [match.id for match in found.matches] == [ids[place] for place in ORDER]
    assert [match.score for match in found.matches] == [scores[place] for place in ORDER]
    assert [match.text for match in found.matches] == [TEXTS[place] for place in ORDER]
    assert type(found.response) is type(response)
    assert type(get_items(found.response)) is type(get_items(response))
    moved = list(get_items(found.response))
    assert [id(item) for item in moved] == [id(items[place]) for place in ORDER]
    assert repr_deeply(response) == before
    again = qtm.middleware(lambda query: found.response).retrieve(QUESTION)
    assert [match.text for match in again.matches] == [match.text for match in found.matches]


@pytest.mark.parametrize("name", SHAPES)
def test_fused_scores_are_written_into_copies_of_items_that_can_be_copied(name: str) -> None:
    build, get_items, _, scores = SHAPES[name]
    response = build()
    before = repr_deeply(response)
    found = qtm.middleware(lambda query: response, config={"scores": "fused"}).retrieve(QUESTION)
    again = qtm.middleware(lambda query: found.response, config="off").retrieve(QUESTION)
    shown = [match.score for match in again.matches]
    is_kept = name.startswith(("sqlite", "SQLAlchemy", "psycopg2", "asyncpg", "pydantic 1"))
    if scores == NONE or is_kept:
        assert shown == [scores[place] for place in ORDER]
    else:
        assert sorted(shown, reverse=True) == shown != sorted(scores, reverse=True)
    assert [match.text for match in again.matches] == [TEXTS[place] for place in ORDER]
    kinds = {type(item) for item in get_items(response)}
    assert {type(item) for item in get_items(found.response)} == kinds
    assert repr_deeply(response) == before


def repr_deeply(value: Any) -> str:
    """Everything that *value* holds, to compare."""
    if isinstance(value, Mapping):
        return f"{type(value)}{ {repr(key): repr_deeply(inner) for key, inner in value.items()} }"
    if isinstance(value, list | tuple | deque):
        return f"{type(value)}{[repr_deeply(inner) for inner in value]}{getattr(value, '__dict__', '')}"
    if isinstance(value, PineconeDocument):
        return repr(value.to_dict())
    held = getattr(value, "__dict__", None)
    if held and not isinstance(value, OpenApiModel | Chunk):
        return f"{type(value)}{ {name: repr_deeply(inner) for name, inner in held.items()} }"
    return repr(value)


# --- where the passages are in a response ---------------------------------------------------------

ENVELOPES = re.findall(
    r"`([\w.]+)`", re.search(r"a list under (.*?) \|", PAGE.read_text(encoding="utf-8")).group(1)
)


@pytest.mark.parametrize("name", ENVELOPES)
def test_a_list_under_every_name_in_the_docs_is_read_and_all_else_is_kept(name: str) -> None:
    rows = dicts()
    found = qtm.middleware(lambda query: nest(name, rows)).retrieve(QUESTION)
    assert found.status == "full"
    assert found.response == nest(name, [rows[place] for place in ORDER])
    if "." not in name:
        plain = make_dataclass("Hits", [("total", int), (name, Any)], frozen=True)(3, rows)
        response = qtm.middleware(lambda query: plain)(QUESTION)
        assert (type(response), response.total) == (type(plain), 3)
        assert getattr(response, name) == [rows[place] for place in ORDER]


FACETS = [{"value": 2023, "count": 7}, {"value": 2024, "count": 5}]


def test_a_list_of_something_else_gives_way_to_the_passages() -> None:
    for beside, name in (({"data": {"page": 1}}, "result"), ({"matches": None}, "passages")):
        response: dict[str, Any] = {**beside, name: dicts()}
        found = qtm.middleware(lambda query, response=response: response)(QUESTION)
        assert found == {**beside, name: [dicts()[place] for place in ORDER]}


@pytest.mark.parametrize(
    "response",
    [
        None,
        deque(),
        {"matches": None},
        {"documents": [], "chunks": dicts()},
        QueryResponse(matches=[]),
        chroma(ids=[], documents=[], metadatas=[]),
    ],
)
def test_an_empty_response_is_no_problem(response: Any) -> None:
    found = qtm.middleware(lambda query: response).retrieve(QUESTION)
    assert (found.response is response, found.matches, found.status) == (True, (), "full")


EMPTY: dict[str, Any] = {
    "query": QueryResponse(matches=[], namespace="ns"),
    "Chroma's query": chroma(ids=[], documents=[], metadatas=[], distances=[]),
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_response_takes_what_a_variant_found(name: str) -> None:
    build, get_items, *_ = SHAPES[name]
    empty = EMPTY[name]
    model = ScriptedModel({"rewrite": "Is the dog Jaco ill?"})
    qm = qtm.QueryMiddleware({"transformationType": "rewrite"}, client=model)
    search = qm.wrap(lambda query: empty if query == QUESTION else build())
    found = search.retrieve(QUESTION)
    assert (type(found.response), found.status) == (type(empty), "full")
    assert {match.text for match in found.matches} == set(TEXTS)
    items = list(get_items(found.response))
    assert len(items) == 3


def test_a_title_beside_the_text_counts_whether_there_is_metadata_or_not() -> None:
    for more in ({}, {"metadata": {"lang": "en"}}):
        rows = [
            {"id": str(place), "score": 0.9 - place / 100, "title": "Fees", "text": "Pay.", **more}
            for place in range(60)
        ]
        rows[9]["title"] = "Termination"
        search = qtm.middleware(lambda query, top_k=2, rows=rows: rows[:top_k])
        assert search("Rules on termination?")[0]["id"] == "9"


# --- what comes back as it is, with a warning that says why ---------------------------------------


class Parallel(list[Any]):
    """Keeps the ids of its items, as a list of Milvus' hits does."""

    def __init__(self) -> None:
        super().__init__(dicts())
        self.ids = IDS


class Single:
    def __init__(self) -> None:
        self.matches = dicts()

    def __copy__(self) -> Single:
        return self


class View:
    """A copy of it shares the list that its property writes to."""

    def __init__(self) -> None:
        self.raw = {"matches": dicts()}

    @property
    def matches(self) -> list[Any]:
        return self.raw["matches"]

    @matches.setter
    def matches(self, value: list[Any]) -> None:
        self.raw["matches"] = value


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: 5, "no list of passages"),
        (lambda: {"value": FACETS}, "no list of passages"),
        (lambda: Named("a", "Jaco is well", 0.5), "no list of passages"),
        (lambda: "one text", "type str; return the list of passages"),
        (lambda: [1, 2, 3], "an id nor a text"),
        (lambda: [[0.1, 0.2, 0.3]], "an item must be"),
        (lambda: (dicts(), SCORES), "an item must be"),
        (lambda: {"ids": [["a"], ["b"]], "documents": [["x"], ["y"]]}, "no list of passages"),
        (
            lambda: {"documents": TEXTS, "sources": list("xyz"), "scores": SCORES},
            "another list may run parallel",
        ),
        (Parallel, "no other passages fit in a copy"),
        (lambda: [{"hits": dicts(), "query": "a b"}] * 2, "groups of passages"),
        (Single, "no other passages fit in a copy"),
        (View, "no other passages fit in a copy"),
    ],
)
def test_what_cannot_be_read_or_rebuilt_comes_back_as_it_is_and_is_said(
    build: Callable[[], Any], reason: str
) -> None:
    response = build()
    before = repr_deeply(response)
    search = qtm.middleware(lambda query: response)
    with pytest.warns(qtm.SetupWarning, match=reason) as told:
        found = search.retrieve(QUESTION)
    assert found.response is response
    assert repr_deeply(response) == before
    assert [(it.stage, it.reason) for it in found.degradations] == [("response", "unreadable")]
    assert "read=" in str(told[0].message)
    assert "Jaco" not in str(told[0].message)
    assert len(told) == 1


# --- what an item holds ---------------------------------------------------------------------------


def read(item: Any, **fields: str) -> Match:
    config = {"keywordEvidence": {"enabled": False, "fields": fields}}
    (match,) = qtm.middleware(lambda query: [item], config=config).retrieve(QUESTION).matches
    return match


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (0.5, 0.5),
        (0, 0.0),
        (-3, -3.0),
        (np.float32(0.5), 0.5),
        (Decimal("0.5"), 0.5),
        (None, None),
        (float("nan"), None),
        (float("inf"), None),
        (10**400, None),
        (True, None),
        ("0.5", None),
        ([0.5], None),
    ],
)
def test_a_score_is_a_finite_number_or_none(score: Any, expected: float | None) -> None:
    assert read({"id": "a", "score": score}).score == expected
    assert read(SimpleNamespace(id="a", score=score)).score == expected


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"id": "a", "text": " ", "content": "t"}, "t"),
        ({"id": "a", "metadata": {"description": "d", "text": "t"}}, "t"),
        ({"id": "a", "content": [{"type": "text", "text": "t"}, {"type": "image"}, "u"]}, "t\nu"),
        ({"id": "a", "text": [0.5, 0.25]}, None),
        (("没有健康问题。", 0.5), "没有健康问题。"),
        (("an-id", 0.5), None),
        ("   ", None),
    ],
)
def test_the_text_is_the_first_of_the_usual_names_in_the_item_then_in_its_metadata(
    item: Any, text: str | None
) -> None:
    assert read(item).text == text


@pytest.mark.parametrize(
    ("item", "metadata"),
    [
        (
            {"id": "a", "text": "t", "year": 2024, "source": None},
            {"text": "t", "year": 2024, "source": None},
        ),
        ({"id": "a", "metadata": None, "payload": {"year": 2024}}, {"year": 2024}),
        ({"id": "a", "metadata": {}, "payload": {"year": 2024}}, {"year": 2024}),
        ({"id": "a", "metadata": {}, "year": 2024}, {}),
        ({"id": "a", "metadata": None, "text": "t"}, {}),
        ({"id": "a", "metadata": UserDict(year=2024)}, {"year": 2024}),
        (SimpleNamespace(id="a", text="t", values=[1], year=2024), {"text": "t", "year": 2024}),
        (("a", 0.5, {"year": 2024}), {"year": 2024}),
    ],
)
def test_metadata_is_what_the_item_has_under_a_usual_name_or_else_its_other_fields(
    item: Any, metadata: Any
) -> None:
    assert read(item).metadata == metadata


def test_the_namespace_is_the_items_own_or_the_responses() -> None:
    matches = [{"id": "a", "namespace": "x"}, {"id": "a", "namespace": "y"}, {"id": "a"}]
    for namespace, default in (("z", "z"), ("", "__default__"), (None, "__default__")):
        response = {"matches": matches, "namespace": namespace}
        found = qtm.middleware(lambda query, response=response: response, config="off").retrieve(
            "q"
        )
        assert [match.namespace for match in found.matches] == ["x", "y", default]


def test_rows_of_a_database_are_told_apart_by_their_values() -> None:
    rows = [("a", TEXTS[0], 0.9), ("b", TEXTS[1], 0.8)]
    model = ScriptedModel({"rewrite": "Is the dog Jaco ill?"})
    qm = qtm.QueryMiddleware({"transformationType": "rewrite"}, client=model)
    search = qm.wrap(lambda query, top_k=2: rows[:1] if query == QUESTION else rows[1:])
    assert {match.text for match in search.retrieve(QUESTION).matches} == set(TEXTS[:2])


def test_rows_that_begin_with_the_id_of_their_document_are_told_apart_by_their_texts() -> None:
    rows = [(1, TEXTS[0], 0.9), (2, TEXTS[1], 0.8), (1, TEXTS[2], 0.7)]
    model = ScriptedModel({"rewrite": "Is the dog Jaco ill?"})
    qm = qtm.QueryMiddleware({"transformationType": "rewrite"}, client=model)
    search = qm.wrap(lambda query, top_k=3: rows[:2] if query == QUESTION else rows[1:])
    assert {match.text for match in search.retrieve(QUESTION).matches} == set(TEXTS[:3])


@pytest.mark.parametrize("row", [{}, {"document_id": "d"}], ids=["no id", "a document's id"])
def test_passages_without_an_id_of_their_own_are_told_apart_by_their_texts(row: Any) -> None:
    rows = [{**row, "text": text} for text in TEXTS]
    model = ScriptedModel({"rewrite": "Is the dog Jaco ill?"})
    qm = qtm.QueryMiddleware({"transformationType": "rewrite"}, client=model)
    search = qm.wrap(lambda query, top_k=3: rows[:2] if query == QUESTION else rows[1:])
    found = search.retrieve(QUESTION)
    assert {match.text: match.found_by for match in found.matches} == {
        TEXTS[0]: ("original",),
        TEXTS[1]: ("original", "rewrite"),
        TEXTS[2]: ("rewrite",),
    }
    assert {match.id for match in found.matches} == {row.get("document_id")}


NAMED: dict[str, Any] = {
    "objects": each(lambda i, t, s: SimpleNamespace(key=i, blurb=t, near=s)),
    "documents and a number": each(lambda i, t, s: ({"key": i, "blurb": t, "near": s}, 0.5)),
}


@pytest.mark.parametrize("response", NAMED.values(), ids=NAMED)
def test_the_fields_that_the_settings_name_hold_the_id_the_text_and_the_score(
    response: Any,
) -> None:
    config: Any = {"keywordEvidence": {"fields": {"id": "key", "text": "blurb", "score": "near"}}}
    found = qtm.middleware(lambda query: response, config=config).retrieve(QUESTION)
    assert found.status == "full"
    assert [match.id for match in found.matches] == [IDS[place] for place in ORDER]
    assert [match.text for match in found.matches] == [TEXTS[place] for place in ORDER]
    assert [match.score for match in found.matches] == [SCORES[place] for place in ORDER]


# --- laws -----------------------------------------------------------------------------------------

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.sampled_from(TEXTS),
    st.decimals(),
    st.uuids(),
)
FIELDS = ["id", "text", "score", "dist", "metadata", "node", "title", "content", "blurb", "chunks"]
leaves = scalars | st.dictionaries(st.sampled_from(FIELDS), scalars, max_size=4)
fields = st.dictionaries(st.sampled_from(FIELDS), leaves | st.lists(leaves, max_size=2), max_size=6)
anything = st.one_of(
    scalars,
    st.lists(leaves, max_size=5),
    st.lists(leaves, max_size=5).map(tuple),
    *(fields.map(make) for make in (dict, UserDict, lambda it: Record(**it))),
    st.builds(PayloadHit, scalars, fields),
    st.sampled_from([*sqlite_rows(ROWS), *sqlalchemy_rows(ROWS, Chunk), *ROWS]),
    st.builds(object),
)
same_length = st.integers(1, 5).flatmap(
    lambda size: st.lists(st.tuples(*[scalars] * size), max_size=9)
)
CONTAINERS: list[Callable[[list[Any]], Any]] = [
    list,
    tuple,
    deque,
    Hits,
    lambda rows: {"matches": rows, "took": 3},
    lambda rows: SimpleNamespace(results=rows, total=9),
]


@given(
    rows=st.one_of(
        st.lists(anything, max_size=9),
        st.lists(fields, max_size=9),
        st.lists(
            st.fixed_dictionaries({"id": scalars, "score": scalars, "text": scalars}), max_size=9
        ),
        same_length,
    ),
    build=st.sampled_from(CONTAINERS),
    config=st.sampled_from(
        [{}, {"scores": "fused"}, {"keywordEvidence": {"fields": {"score": "dist", "id": "blurb"}}}]
    ),
)
@pytest.mark.filterwarnings("ignore::qtmiddleware.SetupWarning")
def test_whatever_stands_in_a_container_nothing_is_lost_and_nothing_written_to(
    rows: list[Any], build: Callable[[list[Any]], Any], config: dict[str, Any]
) -> None:
    response = build(rows)
    before = repr_deeply(response)
    found = qtm.middleware(lambda query: response, config=config).retrieve(QUESTION)
    assert repr_deeply(response) == before
    assert type(found.response) is type(response)
    assert all(it.stage == "response" for it in found.degradations)
    kept = found.response
    if isinstance(kept, dict | SimpleNamespace):
        held = vars(kept) if isinstance(kept, SimpleNamespace) else kept
        kept = held.get("matches", held.get("results"))
    assert sorted(type(row).__name__ for row in kept) == sorted(type(row).__name__ for row in rows)
    if not config.get("scores"):
        assert sorted(map(id, kept)) == sorted(map(id, rows))


@given(
    st.lists(
        st.fixed_dictionaries(
            {"id": st.text() | scalars, "score": st.floats() | scalars},
            optional={
                "text": st.text(),
                "title": st.text(),
                "metadata": st.none() | st.dictionaries(st.sampled_from(FIELDS), scalars),
            },
        ),
        max_size=4,
    )
)
@pytest.mark.filterwarnings("ignore::qtmiddleware.SetupWarning")
def test_a_dict_is_read_as_every_other_mapping_with_its_fields(rows: list[dict[str, Any]]) -> None:
    def read_all(rows: list[Any]) -> list[str]:
        matches = qtm.middleware(lambda query: rows, config="off").retrieve("q").matches
        return [repr((it.id, it.score, it.text, dict(it.metadata), it.key)) for it in matches]

    assert read_all(rows) == read_all(list(map(UserDict, rows)))


class SlowMapping(Mapping[str, Any]):
    """Metadata whose fields take 5 ms each."""

    reads = 0

    def __getitem__(self, name: str) -> Any:
        SlowMapping.reads += 1
        time.sleep(0.005)
        return 2024

    def __iter__(self) -> Iterator[str]:
        return (f"f{number}" for number in range(60))

    def __len__(self) -> int:
        return 60


def test_slow_metadata_are_read_for_a_limited_time() -> None:
    rows = [{"id": str(n), "text": "leave is days", "metadata": SlowMapping()} for n in range(50)]
    assert qtm.QueryMiddleware().wrap(lambda query: rows)("How much leave in 2024?") == rows
    # Of 3,000 fields, no more than half a second's.
    assert 0 < SlowMapping.reads < 300


def test_a_field_without_a_name_is_none_and_the_exact_name_comes_first() -> None:
    rows = [{"": "0", "ID": "x", "id": "a", "Text": "no", "text": "a passage", "score": 0.5}]
    (match,) = qtm.QueryMiddleware().wrap(lambda query: rows).retrieve("a question").matches
    assert (match.id, match.text) == ("a", "a passage")
    nameless = [{"": "0", "score": 0.5}]
    result = qtm.QueryMiddleware().wrap(lambda query: nameless).retrieve("a question")
    assert [match.id for match in result.matches] == [None]
