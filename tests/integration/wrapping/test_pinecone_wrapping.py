"""The real Pinecone client over real HTTP: its methods are wrapped, and what they return stays what they return."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pinecone import AsyncIndex, Pinecone
from pinecone.exceptions import PineconeException
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.wrapping_world import CONFIG, QUERY, REWRITE, WIDE, middleware

TEXTS = {
    "cats": "Cats sleep most of the day",
    "health": "Jaco has no health concerns",
    "food": "Jaco eats dry food",
    "fees": "The fee is due in March",
}
SCORES = (0.9, 0.89, 0.88, 0.2)


class Service:
    """A data plane of four passages, always in the same order."""

    def __init__(self, server: HTTPServer) -> None:
        self.url = server.url_for("").rstrip("/")
        self.bodies: list[dict[str, Any]] = []
        self.status = 200
        server.expect_request("/query", method="POST").respond_with_handler(self._query)
        server.expect_request(
            "/records/namespaces/dogs/search", method="POST"
        ).respond_with_handler(self._search)

    def _rows(self, top_k: int) -> list[tuple[str, float, str]]:
        return [
            (name, score, text) for (name, text), score in zip(TEXTS.items(), SCORES, strict=True)
        ][:top_k]

    def _query(self, request: Request) -> Response:
        body = json.loads(request.data)
        self.bodies.append(body)
        matches = [
            {"id": i, "score": s, "metadata": {"text": t}} for i, s, t in self._rows(body["topK"])
        ]
        return self._answer(
            {"matches": matches, "namespace": body.get("namespace", ""), "usage": {"readUnits": 5}}
        )

    def _search(self, request: Request) -> Response:
        body = json.loads(request.data)
        self.bodies.append(body)
        hits = [
            {"_id": i, "_score": s, "fields": {"chunk_text": t}}
            for i, s, t in self._rows(body["query"]["top_k"])
        ]
        return self._answer(
            {"result": {"hits": hits}, "usage": {"read_units": 5, "embed_total_tokens": 4}}
        )

    def _answer(self, body: dict[str, Any]) -> Response:
        if self.status != 200:
            body = {"code": 3, "message": "no luck", "details": []}
        return Response(json.dumps(body), status=self.status, content_type="application/json")


@pytest.fixture
def service(httpserver: HTTPServer) -> Service:
    return Service(httpserver)


@pytest.fixture
def index(service: Service) -> Iterator[Any]:
    client = Pinecone(api_key="k", host=service.url)
    with client.Index(host=service.url) as opened:
        yield opened
    client.close()


class Embedding:
    """Counts its batches; a text's vector is its length and its first character."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        self.batches.append(list(texts))
        return [[float(len(text)), float(ord(text[0]))] for text in texts]


def vector(text: str) -> list[float]:
    return [float(len(text)), float(ord(text[0]))]


qm = middleware()


def test_a_query_takes_text_where_it_took_a_vector(service: Service, index: Any) -> None:
    embed = Embedding()
    search = qm.wrap(index.query, embed=embed)
    response = search(QUERY, top_k=2, namespace="dogs", include_metadata=True)
    assert type(response) is type(index.query(vector=[1.0, 2.0], top_k=1))
    assert [match.id for match in response.matches] == ["health", "food"]
    assert response["matches"][0]["metadata"]["text"] == TEXTS["health"]
    assert response.namespace == "dogs"
    assert response.usage.read_units == 5
    vectors = [body["vector"] for body in service.bodies[:2]]
    assert sorted(vectors) == sorted([vector(QUERY), vector(REWRITE)])
    assert {body["topK"] for body in service.bodies[:2]} == {WIDE}
    assert all(body["includeMetadata"] for body in service.bodies[:2])
    assert sorted(embed.batches) == sorted([[QUERY], [REWRITE]])


def test_a_query_asked_for_later_comes_back_as_the_sdk_gives_it(
    service: Service, index: Any
) -> None:
    search = qm.wrap(index.query, embed=Embedding())
    pending = search(QUERY, top_k=2, namespace="dogs", include_metadata=True, async_req=True)
    assert len(pending.get().matches) == 2


async def first(made: Any) -> Any:
    return (await made).data[0].embedding


@pytest.mark.parametrize(
    "arguments",
    [
        {"inputs": {"text": QUERY}, "top_k": 2},
        {"query": {"inputs": {"text": QUERY}, "top_k": 2}},
    ],
    ids=["inputs", "query"],
)
def test_a_search_with_integrated_embedding_is_wrapped(
    arguments: dict[str, Any], service: Service, index: Any
) -> None:
    response = qm.wrap(index.search)(namespace="dogs", **arguments)
    assert type(response) is type(index.search(namespace="dogs", inputs={"text": "x"}, top_k=1))
    assert [hit.id for hit in response.result.hits] == ["health", "food"]
    asked = service.bodies[:2]
    assert sorted(body["query"]["inputs"]["text"] for body in asked) == sorted([QUERY, REWRITE])
    assert {body["query"]["top_k"] for body in asked} == {WIDE}
    assert response.usage.read_units == 5


async def test_the_async_index_is_wrapped(service: Service) -> None:
    async with AsyncIndex(host=service.url, api_key="k") as index:
        search = qm.wrap(index.search)
        response = await search(namespace="dogs", inputs={"text": QUERY}, top_k=2)
        assert [hit.id for hit in response.result.hits] == ["health", "food"]
        embed = Embedding()
        retrieval = await qm.wrap(index.query, embed=embed).aretrieve(
            QUERY, top_k=2, namespace="dogs", include_metadata=True
        )
    assert [match.id for match in retrieval.matches] == ["health", "food"]
    assert sorted(embed.batches) == sorted([[QUERY], [REWRITE]])
    assert len(service.bodies) == 4


@pytest.mark.parametrize("status", [401, 404])
def test_the_clients_own_error_reaches_the_caller(
    status: int, service: Service, index: Any
) -> None:
    service.status = status
    with pytest.raises(PineconeException) as plain:
        index.search(namespace="dogs", inputs={"text": QUERY}, top_k=2)
    # Without a variant, whose request might be under way still when the next test begins.
    alone = qtm.QueryMiddleware(CONFIG, client=ScriptedModel(qtm.ModelError("unavailable")))
    with pytest.raises(PineconeException) as wrapped:
        alone.wrap(index.search)(namespace="dogs", inputs={"text": QUERY}, top_k=2)
    assert type(wrapped.value) is type(plain.value)
    assert str(wrapped.value) == str(plain.value)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"vector": [0.5, 0.25]}, "not_text"),
        ({"id": "cats"}, "missing"),
        ({"query": "   "}, "blank"),
    ],
    ids=["vector", "id", "blank text"],
)
def test_a_vector_an_id_or_a_blank_text_is_searched_as_the_plain_index_would(
    query: dict[str, Any], reason: str, service: Service, index: Any
) -> None:
    search = qm.wrap(index.query, embed=Embedding())
    response = search(**query, top_k=2, namespace="dogs", include_metadata=True)
    assert [match.id for match in response.matches] == ["cats", "health"]
    (body,) = service.bodies
    assert body["topK"] == 2
    expected = {"vector": vector("   ")} if "query" in query else query
    assert {name: body.get(name) for name in ("vector", "id")} == {
        "vector": None,
        "id": None,
        **expected,
    }
    retrieval = search.retrieve(**query, top_k=2, namespace="dogs", include_metadata=True)
    assert [(it.stage, it.reason) for it in retrieval.degradations] == [("query", reason)]
    assert [match.id for match in retrieval.matches] == ["cats", "health"]
