"""Every shape a retrieval function may return: read, cut and written back."""

from __future__ import annotations

import copy
import json
from collections import OrderedDict, UserDict, deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.pool import ThreadPool
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pinecone import Document as PineconeDocument
from pinecone import QueryResponse, ScoredVector
from pinecone.models.documents.responses import SearchDocumentsResponse
from pinecone.models.vectors.search import Hit, SearchRecordsResponse, SearchResult, SearchUsage
from pydantic import BaseModel, ConfigDict

from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.retrieval.responses import (
    Shape,
    describe_missing_text_and_fix,
    estimate_chars,
    find_shape,
    has_text,
    read_id,
    read_keys_and_scores,
    read_metadata,
    read_response,
    read_score,
    read_text,
    wait_for_response,
)
from qtmiddleware.types import DEFAULT_NAMESPACE as DEFAULT
from qtmiddleware.types import Variant
from tests.support.shapes_world import SHAPES as WORLD
from tests.support.shapes_world import LangChainDocument, NodeWithScore, QdrantPoint, TextNode
from tests.support.shapes_world import Row as WorldRow


@dataclass
class HaystackDocument:
    id: str
    content: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Passage:
    id: int
    body: str
    score: float
    source: str = "s"


class Row(NamedTuple):
    id: str
    text: str
    score: float


@dataclass(frozen=True)
class FrozenResponse:
    matches: tuple[Any, ...]
    took: float = 0.5
    namespace: str | None = "ns"


@dataclass
class InitlessResponse:
    matches: list[Any]
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = 99


class NamedResponse(NamedTuple):
    documents: list[Any]
    total: int


class PydanticResponse(BaseModel):
    model_config = ConfigDict(frozen=True)
    results: list[QdrantPoint]
    time: float = 0.25


class PlainResponse:
    def __init__(self, points: list[Any]) -> None:
        self.points = points
        self.note = {"kept": True}


def vectors() -> list[ScoredVector]:
    return [
        ScoredVector(id="a", score=0.75, metadata={"text": "first"}),
        ScoredVector(id="b", score=0.5, metadata={"text": "second"}),
        ScoredVector(id="c", score=0.25, metadata={"text": "third"}),
    ]


TEXTS = ["first", "second", "third"]
IDS: list[str | None] = ["a", "b", "c"]
SCORES: list[float | None] = [0.75, 0.5, 0.25]
NONE: list[Any] = [None, None, None]
ROWS = list(zip("abc", SCORES, TEXTS, strict=True))

HITS = [Hit(id_=i, score_=s, fields={"chunk_text": t}) for i, s, t in ROWS]
DICTS = [{"id": i, "score": s, "metadata": {"text": t}} for i, s, t in ROWS]
DOCUMENTS = [LangChainDocument(page_content=t, metadata={"n": 1}, id=i) for i, _, t in ROWS]
NODES = [NodeWithScore(node=TextNode(id_=i, text=t), score=s) for i, s, t in ROWS]
PACKED = [
    {"id": i, "score": s, "metadata": {"_node_content": json.dumps({"text": t})}}
    for i, s, t in ROWS
]
RAW_HITS = [{"_id": i, "_score": s, "fields": {"body": t}} for i, s, t in ROWS]
ELASTIC = [{"_id": i, "_score": s, "_source": {"passage": t}} for i, s, t in ROWS]
POINTS = [QdrantPoint(id=i, score=s, payload={"content": t}) for i, s, t in ROWS]

SHAPES: list[Any] = [
    (QueryResponse(matches=vectors(), namespace="ns"), "ns", IDS, SCORES, TEXTS),
    (
        SearchRecordsResponse(result=SearchResult(hits=HITS), usage=SearchUsage(read_units=6)),
        DEFAULT,
        IDS,
        SCORES,
        TEXTS,
    ),
    (
        SearchDocumentsResponse(
            matches=[PineconeDocument({"_id": i, "_score": s, "text": t}) for i, s, t in ROWS],
            namespace="ns",
        ),
        "ns",
        IDS,
        SCORES,
        TEXTS,
    ),
    (
        {"matches": DICTS, "namespace": "", "usage": {"readUnits": 6}},
        DEFAULT,
        IDS,
        SCORES,
        TEXTS,
    ),
    ({"matches": vectors(), "namespace": "ns"}, "ns", IDS, SCORES, TEXTS),
    ({"result": {"hits": RAW_HITS, "more": 1}, "usage": {}}, DEFAULT, IDS, SCORES, TEXTS),
    ({"hits": {"hits": ELASTIC, "total": 3}, "took": 1}, DEFAULT, IDS, SCORES, TEXTS),
    ({"documents": DOCUMENTS, "other": 1}, DEFAULT, IDS, NONE, TEXTS),
    ({"documents": TEXTS}, DEFAULT, NONE, NONE, TEXTS),
    ({"results": tuple(DICTS)}, DEFAULT, IDS, SCORES, TEXTS),
    (OrderedDict(matches=DICTS, namespace="ns"), "ns", IDS, SCORES, TEXTS),
    (UserDict(matches=DICTS, namespace="ns"), "ns", IDS, SCORES, TEXTS),
    (FrozenResponse(matches=tuple(vectors())), "ns", IDS, SCORES, TEXTS),
    (InitlessResponse(matches=vectors()), DEFAULT, IDS, SCORES, TEXTS),
    (NamedResponse(documents=DOCUMENTS, total=3), DEFAULT, IDS, NONE, TEXTS),
    (PydanticResponse(results=POINTS), DEFAULT, IDS, SCORES, TEXTS),
    (PlainResponse(POINTS), DEFAULT, IDS, SCORES, TEXTS),
    (SimpleNamespace(matches=DICTS, namespace=None), DEFAULT, IDS, SCORES, TEXTS),
    (vectors(), DEFAULT, IDS, SCORES, TEXTS),
    (tuple(vectors()), DEFAULT, IDS, SCORES, TEXTS),
    (HITS, DEFAULT, IDS, SCORES, TEXTS),
    (DICTS, DEFAULT, IDS, SCORES, TEXTS),
    (PACKED, DEFAULT, IDS, SCORES, TEXTS),
    (
        [{"id_": i, "score_": s, "content": t} for i, s, t in ROWS],
        DEFAULT,
        IDS,
        SCORES,
        TEXTS,
    ),
    (
        [{"document_id": i, "similarity": s, "chunk": t} for i, s, t in ROWS],
        DEFAULT,
        IDS,
        SCORES,
        TEXTS,
    ),
    ([(i, s) for i, s, _ in ROWS], DEFAULT, IDS, SCORES, NONE),
    ([[i, s] for i, s, _ in ROWS], DEFAULT, IDS, SCORES, NONE),
    ([(i, s, {"text": t}) for i, s, t in ROWS], DEFAULT, IDS, SCORES, TEXTS),
    (list(zip(DOCUMENTS, SCORES, strict=True)), DEFAULT, IDS, SCORES, TEXTS),
    (DOCUMENTS, DEFAULT, IDS, NONE, TEXTS),
    ([LangChainDocument(page_content=t) for t in TEXTS], DEFAULT, NONE, NONE, TEXTS),
    (NODES, DEFAULT, IDS, SCORES, TEXTS),
    ([HaystackDocument(i, t, {}, s) for i, s, t in ROWS], DEFAULT, IDS, SCORES, TEXTS),
    (
        [Passage(n, t, 0.5) for n, t in enumerate(TEXTS)],
        DEFAULT,
        [*"012"],
        [0.5] * 3,
        TEXTS,
    ),
    ([Row(i, t, s) for i, s, t in ROWS], DEFAULT, IDS, SCORES, TEXTS),
    ([(f"the {t}", s) for _, s, t in ROWS], DEFAULT, NONE, SCORES, [f"the {t}" for t in TEXTS]),
    ({"objects": DICTS, "took": 1}, DEFAULT, IDS, SCORES, TEXTS),
    (TEXTS, DEFAULT, NONE, NONE, TEXTS),
    (deque(TEXTS), DEFAULT, NONE, NONE, TEXTS),
    (
        [DICTS[0], *vectors()[1:2], (*ROWS[2][:2], {"text": "third"})],
        DEFAULT,
        IDS,
        SCORES,
        TEXTS,
    ),
]


@pytest.mark.parametrize(("response", "namespace", "ids", "scores", "texts"), SHAPES)
def test_every_known_shape_is_read(
    response: Any, namespace: str, ids: list[Any], scores: list[Any], texts: list[Any]
) -> None:
    shape = find_shape(response)
    items = shape.items(response)
    assert {space for space, _ in read_keys_and_scores(response, items)[0]} == {namespace}
    assert [read_id(item) for item in items] == ids
    assert [read_score(item) for item in items] == scores
    assert [read_text(item, None) for item in items] == texts


@pytest.mark.parametrize("response", [row[0] for row in SHAPES])
def test_every_known_shape_is_rebuilt_in_its_own_type_and_left_untouched(response: Any) -> None:
    before = copy.deepcopy(response)
    shape = find_shape(response)
    items = list(shape.items(response))
    rebuilt = shape.rebuild(response, items[:2][::-1])
    assert type(rebuilt) is (list if isinstance(response, deque) else type(response))
    assert [id(item) for item in shape.items(rebuilt)] == [id(items[1]), id(items[0])]
    assert type(shape.items(rebuilt)) is (tuple if type(shape.items(response)) is tuple else list)
    assert format_json_message(response) == format_json_message(before)
    whole = shape.rebuild(response, items)
    assert format_json_message(whole) == format_json_message(
        list(response) if isinstance(response, deque) else response
    )
    assert whole is not response


@pytest.mark.parametrize("name", [name for name, shape in WORLD.items() if shape.has_text])
def test_how_long_a_passage_is_can_be_told_in_every_shape(name: str) -> None:
    response = WORLD[name].build([WorldRow("a", "x" * 5_000, 0.9), WorldRow("b", "x", 0.8)])
    long, short = map(
        estimate_chars, read_response(Variant("original", "q"), response).ranking.items
    )
    assert 5_000 <= long <= 5_100
    assert long - short == 4_999


def test_the_vectors_that_come_with_a_passage_count_as_much_as_they_take() -> None:
    numbers = [0.0123456, -0.0654321] * 100
    for values in (numbers, tuple(numbers), np.array(numbers, dtype=np.float32)):
        counted = estimate_chars({"id": "a", "score": 0.9, "values": values})
        assert counted == pytest.approx(len(json.dumps(numbers)), rel=0.1)
    assert estimate_chars(ScoredVector(id="a", score=0.9, values=numbers)) > 2_000


NESTED = st.recursive(
    st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.binary(), st.builds(object)),
    lambda inner: st.one_of(
        st.lists(inner), st.dictionaries(st.text(), inner), st.tuples(inner, inner)
    ),
)


@given(st.dictionaries(st.text(), NESTED))
def test_whatever_a_passage_holds_has_a_length(item: dict[str, Any]) -> None:
    alone = estimate_chars(item)
    assert alone >= sum(len(value) for value in item.values() if isinstance(value, str))
    # What holds itself is counted once.
    item["itself"] = [item] * 10
    assert estimate_chars(item) <= alone


def format_json_message(value: Any) -> Any:
    """*value* in a form that compares by what it holds."""
    return vars(value) if isinstance(value, (PlainResponse, SimpleNamespace)) else value


def test_all_else_in_a_response_is_kept() -> None:
    usage = SearchUsage(read_units=6, embed_total_tokens=4)
    search = SearchRecordsResponse(result=SearchResult(hits=HITS), usage=usage)
    assert find_shape(search).rebuild(search, HITS[:1]).usage is usage
    raw = {"result": {"hits": RAW_HITS, "more": 1}, "usage": {"read_units": 6}}
    assert find_shape(raw).rebuild(raw, []) == {
        "result": {"hits": [], "more": 1},
        "usage": {"read_units": 6},
    }
    plain = PlainResponse(list(POINTS))
    assert find_shape(plain).rebuild(plain, []).note is plain.note
    counted = InitlessResponse(matches=vectors())
    counted.count = 7
    assert find_shape(counted).rebuild(counted, []).count == 7


def test_a_read_only_mapping_comes_back_as_a_dict() -> None:
    response = MappingProxyType({"matches": DICTS, "namespace": "ns"})
    assert find_shape(response).rebuild(response, DICTS[:1]) == {
        "matches": DICTS[:1],
        "namespace": "ns",
    }


@pytest.mark.parametrize(
    "response",
    [[], (), {"matches": []}, {"matches": None}, {"documents": []}, QueryResponse(matches=[])],
)
def test_an_empty_response_is_no_error_and_stays_what_it_was(response: Any) -> None:
    shape = find_shape(response)
    assert len(shape.items(response)) == 0
    assert read_keys_and_scores(response, shape.items(response))[0] == []
    assert type(shape.rebuild(response, [])) is type(response)


def test_a_function_that_returns_none_for_nothing_gets_none_back() -> None:
    shape = find_shape(None)
    assert shape.items(None) == ()
    assert shape.rebuild(None, ()) is None
    assert shape.rebuild(None, DICTS) == DICTS


@pytest.mark.parametrize(
    ("response", "named"),
    [
        (5, "int"),
        ("text", "str"),
        (b"text", "bytes"),
        ({}, "dict"),
        ({"matches": "text"}, "dict"),
        (object(), "object"),
        (iter(DICTS), "list_iterator"),
        ([1, 2, 3], "int"),
        ([0.5], "float"),
        ([None], "NoneType"),
        ([object()], "object"),
        ([[0.1, 0.2]], "float"),
        ([[0.1, 0.2, 0.3]], "list"),
        ([[0.1, 0.2], [0.3, 0.4]], "float"),
        (([0.5, 0.25], [1, 2]), "float"),
        ([("id", 0.5, 7, "text"), ("id", 0.5)], "tuple"),
        ([(0.5, 7, {"text": "t"}, None)], "tuple"),
        (([DOCUMENTS[0]], 7), "list"),
        ({"matches": [1]}, "int"),
    ],
)
def test_an_unknown_response_is_refused_by_its_type_with_the_way_out(
    response: Any, named: str
) -> None:
    with pytest.raises(ResponseShapeError) as caught:
        read_response(Variant("original", "q"), response)
    assert caught.value.shape.rpartition(".")[2] == named
    assert "read=" in str(caught.value)
    assert "write=" in str(caught.value)


def test_an_error_never_holds_what_was_found() -> None:
    with pytest.raises(ResponseShapeError) as caught:
        find_shape({"secret passage": "x"})
    assert "secret" not in str(caught.value)


def test_a_response_that_cannot_be_copied_is_refused_and_not_changed() -> None:
    class Single:
        def __init__(self) -> None:
            self.matches = vectors()

        def __copy__(self) -> Single:
            return self

    response = Single()
    with pytest.raises(ResponseShapeError):
        find_shape(response).rebuild(response, [])
    assert len(response.matches) == 3


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (0.5, 0.5),
        (0, 0.0),
        (-3, -3.0),
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
    item = {"id": "a", "score": score}
    assert read_score(item) == expected


def test_the_first_number_there_is_is_the_score() -> None:
    for item in (
        {"id": "a", "score": None, "distance": 0.5},
        SimpleNamespace(id="a", score=None, distance=0.5),
    ):
        assert read_score(item) == 0.5


def test_a_number_of_another_library_is_a_score() -> None:
    numpy = pytest.importorskip("numpy")
    item = {"id": "a", "score": numpy.float32(0.5)}
    assert read_score(item) == 0.5
    assert read_score(("a", numpy.float32(0.5))) == 0.5


@pytest.mark.parametrize(("namespace", "expected"), [("", DEFAULT), (None, DEFAULT), ("n", "n")])
def test_the_default_namespace_has_one_name(namespace: Any, expected: str) -> None:
    response = {"matches": [{"id": "a", "score": 1.0}], "namespace": namespace}
    assert read_keys_and_scores(response, response["matches"])[0] == [(expected, "a")]
    own = [{"id": "a", "namespace": namespace}]
    assert read_keys_and_scores(own, own)[0] == [(expected, "a")]


def test_an_items_own_namespace_goes_before_the_responses() -> None:
    response = {
        "matches": [{"id": "a", "namespace": "x"}, {"id": "a", "namespace": "y"}, {"id": "a"}],
        "namespace": "z",
    }
    assert read_keys_and_scores(response, response["matches"])[0] == [
        ("x", "a"),
        ("y", "a"),
        ("z", "a"),
    ]


def test_the_same_text_under_two_ids_is_two_passages() -> None:
    response = [{"id": "a", "text": "same"}, {"id": "b", "text": "same"}]
    assert read_keys_and_scores(response, response)[0] == [(DEFAULT, "a"), (DEFAULT, "b")]


def test_the_text_stands_in_only_where_there_is_no_id() -> None:
    response = [
        LangChainDocument(page_content="t"),
        LangChainDocument(page_content="t", id="a"),
        "t",
    ]
    assert read_keys_and_scores(response, response)[0] == [
        (DEFAULT, "\0t"),
        (DEFAULT, "a"),
        (DEFAULT, "\0t"),
    ]


def test_items_without_id_and_text_are_one_passage_only_where_they_are_equal() -> None:
    response = [{"title": "x"}, {"title": "y"}, {"title": "x"}, {"id": "", "title": "x"}]
    first, second, third, fourth = read_keys_and_scores(response, response)[0]
    assert first == third
    assert len({first, second, fourth}) == 3


def test_a_passage_without_id_and_text_is_the_same_whatever_its_score() -> None:
    response = [
        {"title": "x", "score": 0.5},
        {"title": "x", "score": 0.25},
        {"title": "y", "score": 0.5},
    ]
    first, second, third = read_keys_and_scores(response, response)[0]
    assert first == second != third


@pytest.mark.parametrize("make", [dict, SimpleNamespace])
def test_chunks_that_share_their_documents_id_stay_apart(make: Any) -> None:
    response = [
        make(document_id="d", text="one"),
        make(document_id="d", text="two"),
        make(document_id="e", text="one"),
    ]
    assert read_id(response[0]) == "d"
    assert [key for _, key in read_keys_and_scores(response, response)[0]] == [
        "d\0one",
        "d\0two",
        "e\0one",
    ]


def test_objects_of_one_class_with_different_attributes_are_each_read_by_their_own() -> None:
    response = [
        SimpleNamespace(_id="a", _score=0.5, fields={"text": "one"}),
        SimpleNamespace(id="b", score=0.25, text="two"),
        SimpleNamespace(page_content="three", metadata={"n": 1}),
    ]
    assert [read_id(item) for item in response] == ["a", "b", None]
    assert [read_score(item) for item in response] == [0.5, 0.25, None]
    assert [read_text(item, None) for item in response] == ["one", "two", "three"]


def test_an_id_that_is_a_number_is_an_id() -> None:
    response = [{"id": 0}, {"id": 7}, (7, 0.5)]
    assert [key for _, key in read_keys_and_scores(response, response)[0]] == ["0", "7", "7"]


def test_metadata_with_our_own_words_in_it_comes_back_as_it_is() -> None:
    metadata = {"score": "x", "query": "y", "id": 3, "namespace": "z", "metadata": {"deep": [1]}}
    for item in (
        ScoredVector(id="a", score=0.5, metadata=metadata),
        {"id": "a", "score": 0.5, "metadata": metadata},
    ):
        assert read_metadata(item) is metadata
        assert (read_id(item), read_score(item)) == ("a", 0.5)
        assert read_keys_and_scores([item], [item])[0] == [(DEFAULT, "a")]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"id": "a", "score": 0.5, "text": "t", "year": 1999}, {"text": "t", "year": 1999}),
        ({"id": "a", "metadata": None, "year": 1999}, {}),
        (ScoredVector(id="a", score=0.5), {}),
        (PineconeDocument({"_id": "a", "_score": 0.5, "title": "t"}), {"title": "t"}),
        (Passage(1, "b", 0.5, "web"), {"body": "b", "source": "web"}),
        (Row("a", "t", 0.5), {"text": "t"}),
        (("a", 0.5), {}),
        ("t", {}),
        (SimpleNamespace(id="a", metadata="no mapping"), {"metadata": "no mapping"}),
    ],
)
def test_metadata_is_what_the_item_keeps_or_its_own_other_fields(
    item: Any, expected: dict[str, Any]
) -> None:
    assert dict(read_metadata(item)) == expected


@pytest.mark.parametrize(
    ("item", "text_field", "expected"),
    [
        ({"id": "a", "metadata": {"text": "t", "body": "b"}}, "body", "b"),
        ({"id": "a", "metadata": {"doc": {"parts": {"main": "m"}}}}, "doc.parts.main", "m"),
        ({"id": "a", "metadata": {"doc.main": "dotted"}}, "doc.main", "dotted"),
        ({"id": "a", "metadata": {"doc": {"main": "m"}}}, "metadata.doc.main", "m"),
        ({"id": "a", "body": "outside", "metadata": {}}, "body", "outside"),
        ({"id": "a", "metadata": {"text": "t"}}, "absent", None),
        ({"id": "a", "metadata": {"text": "t"}}, "text.deeper", None),
        ({"id": "a", "metadata": {"body": "  "}}, "body", None),
        ({"id": "a", "metadata": {"body": 5}}, "body", None),
        (DOCUMENTS[0], "page_content", "first"),
        ((DOCUMENTS[0], 0.5), "page_content", "first"),
        (NODES[0], "text", "first"),
        (ScoredVector(id="a", score=1.0, metadata={"body": "b"}), "body", "b"),
        (HITS[0], "chunk_text", "first"),
        ({"id": "a", "text": " ", "metadata": {"content": "c"}}, None, "c"),
        ({"id": "a", "metadata": {"_node_content": "{broken"}}, None, None),
        ({"id": "a", "metadata": {"_node_content": "[1]"}}, None, None),
        ({"id": "a", "metadata": {"description": "d", "text": "t"}}, None, "t"),
        ({"id": "a", "metadata": {"raw_text": "t"}}, None, "t"),
        ({"id": "a", "metadata": {"answer": "a", "contents": "t"}}, None, "t"),
        (("two words", 0.5), None, "two words"),
        (("没有健康问题。", 0.5), None, "没有健康问题。"),
        (("an-id", 0.5), None, None),
        ({"id": "a"}, None, None),
        ("   ", None, None),
    ],
)
def test_the_text_is_found_under_the_named_field_or_the_usual_names(
    item: Any, text_field: Any, expected: Any
) -> None:
    assert read_text(item, text_field) == expected


def test_a_custom_shape_needs_two_small_functions() -> None:
    shape: Shape = Shape(
        lambda r: r["deep"]["found"], lambda r, items: {**r, "deep": {"found": list(items)}}
    )
    response = {"deep": {"found": [("a", 0.5), ("b", 0.25)]}, "namespace": "ns", "kept": 1}
    items = shape.items(response)
    assert read_keys_and_scores(response, items)[0] == [("ns", "a"), ("ns", "b")]
    assert [read_score(item) for item in items] == [0.5, 0.25]
    assert shape.rebuild(response, items[1:]) == {
        "deep": {"found": [("b", 0.25)]},
        "namespace": "ns",
        "kept": 1,
    }


def test_a_custom_read_that_gives_no_list_is_named() -> None:
    with pytest.raises(ResponseShapeError, match="read= must return a list"):
        read_response(Variant("original", "q"), [], Shape(iter, lambda r, items: items))


def test_what_a_thread_pool_or_a_future_holds_is_waited_for() -> None:
    response = QueryResponse(matches=vectors())
    future: Future[Any] = Future()
    future.set_result(response)
    assert wait_for_response(future) is response
    with ThreadPool(1) as pool:
        assert wait_for_response(pool.apply_async(lambda: response)) is response


def test_an_exception_in_a_future_is_raised_as_it_is() -> None:
    future: Future[Any] = Future()
    error = KeyError("theirs")
    future.set_exception(error)
    with pytest.raises(KeyError) as caught:
        wait_for_response(future)
    assert caught.value is error


async def test_an_awaitable_is_left_to_those_who_can_await_it() -> None:
    async def later() -> int:
        return 1

    coroutine = later()
    assert wait_for_response(coroutine) is coroutine
    assert await coroutine == 1


@pytest.mark.parametrize(
    "response", [None, DICTS, QueryResponse(matches=[]), SHAPES[1][0], {"result": {"hits": []}}]
)
def test_a_response_is_settled_already(response: Any) -> None:
    assert wait_for_response(response) is response


ids = st.text(min_size=1) | st.integers() | st.none()
items = st.fixed_dictionaries(
    {},
    optional={
        "id": ids,
        "_id": ids,
        "score": st.floats(allow_nan=False) | st.none() | st.text(),
        "text": st.text(),
        "namespace": st.text() | st.none(),
        "metadata": st.none() | st.dictionaries(st.text(), st.text() | st.integers()),
        "_node_content": st.text(),
    },
)


@given(st.lists(items), st.sampled_from(["list", "tuple", "matches", "hits"]))
def test_any_list_of_dicts_is_read_without_error_and_rebuilt_as_it_was(
    found: list[Any], form: str
) -> None:
    forms: dict[str, Any] = {
        "list": found,
        "tuple": tuple(found),
        "matches": {"matches": found, "namespace": "ns"},
        "hits": {"result": {"hits": found}},
    }
    response = forms[form]
    before = copy.deepcopy(response)
    shape = find_shape(response)
    read = shape.items(response)
    keys = read_keys_and_scores(response, read)[0]
    assert len(keys) == len(found)
    assert all(isinstance(part, str) and part for key in keys for part in key)
    for item in read:
        read_score(item)
        read_text(item, None)
        read_text(item, "metadata.text")
    assert shape.rebuild(response, read) == before == response


@given(
    st.lists(st.from_regex(r"[a-z]\w{0,9}_x", fullmatch=True), min_size=1, max_size=2),
    st.lists(st.from_regex(r"\w{1,9}", fullmatch=True), min_size=2).map(" ".join),
    st.booleans(),
)
def test_the_field_that_is_named_where_texts_are_missing_is_the_one_that_holds_them(
    path: list[str], text: str, in_metadata: bool
) -> None:
    kept: Any = text
    for name in reversed(path):
        kept = {name: kept}
    item = (
        {"id": "a", "score": 0.5, "metadata": kept}
        if in_metadata
        else {"id": "a", "score": 0.5, **kept}
    )
    assert not has_text(item, None)
    what, mend = describe_missing_text_and_fix([item, {"id": "b"}], None)
    assert text not in what + mend
    assert json.loads(mend.partition("=")[2]) == {
        "keywordEvidence": {"fields": {"text": ".".join(path)}}
    }
    assert read_text(item, ".".join(path)) == text
    assert has_text(item, ".".join(path))


class OpenApiModel:
    """As Pinecone's SDK before version 8 has responses: any name can be read, and a class declares a few of them."""

    def __init__(self, **values: Any) -> None:
        self.__dict__["_data_store"] = values

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_data_store"].get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__["_data_store"])


class OpenApiResponse(OpenApiModel):
    attribute_map: ClassVar = {"matches": "matches", "namespace": "namespace"}


class OpenApiMatch(OpenApiModel):
    attribute_map: ClassVar = {"id": "id", "score": "score", "metadata": "metadata"}


def test_a_model_in_which_every_name_can_be_read_is_read_by_the_names_it_declares() -> None:
    matches = [
        OpenApiMatch(id=name, score=score, metadata={"text": name.upper()})
        for name, score in (("a", 0.5), ("b", 0.25))
    ]
    response = OpenApiResponse(matches=matches, namespace="ns")
    shape = find_shape(response)
    assert shape.items(response) == matches
    keys, scores = read_keys_and_scores(response, matches)
    assert ([tuple(key) for key in keys], list(scores)) == ([("ns", "a"), ("ns", "b")], [0.5, 0.25])
    assert [read_text(match, None) for match in matches] == ["A", "B"]
    rebuilt = shape.rebuild(response, matches[::-1])
    assert type(rebuilt) is OpenApiResponse
    assert (rebuilt.matches, rebuilt.namespace) == (matches[::-1], "ns")
    assert response.matches == matches
