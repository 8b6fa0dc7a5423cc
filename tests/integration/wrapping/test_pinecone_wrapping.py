"""The real Pinecone client over real HTTP: its methods are wrapped, and what they return stays what they return."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pinecone import AsyncIndex, Pinecone
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

import qtmiddleware as qtm
from tests.support.waiting import PATIENCE
from tests.support.wrapping_world import QUERY, REWRITE, WIDE, middleware

TEXTS = {
    "cats": "Cats sleep most of the day",
    "health": "Jaco has no health concerns",
    "food": "Jaco eats dry food",
    "fees": "The fee is due in March",
}
ROWS = [*zip(TEXTS, (0.9, 0.89, 0.88, 0.2), TEXTS.values(), strict=True)]


class Service:
    """A data plane of four passages, always in the same order."""

    def __init__(self, server: HTTPServer) -> None:
        self.url = server.url_for("").rstrip("/")
        self.bodies: list[dict[str, Any]] = []
        self.status = 200
        for path, answer in (
            ("/query", self._query),
            ("/records/namespaces/dogs/search", self._search),
        ):
            server.expect_request(path, method="POST").respond_with_handler(answer)

    def _query(self, request: Request) -> Response:
        body = self._read(request)
        rows = ROWS[: body["topK"]]
        matches = [{"id": i, "score": s, "metadata": {"text": t}} for i, s, t in rows]
        namespace = body.get("namespace", "")
        return self._answer({"matches": matches, "namespace": namespace, "usage": {"readUnits": 5}})

    def _search(self, request: Request) -> Response:
        rows = ROWS[: self._read(request)["query"]["top_k"]]
        hits = [{"_id": i, "_score": s, "fields": {"chunk_text": t}} for i, s, t in rows]
        usage = {"read_units": 5, "embed_total_tokens": 4}
        return self._answer({"result": {"hits": hits}, "usage": usage})

    def _read(self, request: Request) -> dict[str, Any]:
        self.bodies.append(json.loads(request.data))
        return self.bodies[-1]

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


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [vector(text) for text in texts]


def vector(text: str) -> list[float]:
    return [float(len(text)), float(ord(text[0]))]


qm = middleware()
CALL: dict[str, Any] = {"top_k": 2, "namespace": "dogs", "include_metadata": True}


def test_a_query_takes_text_where_it_took_a_vector(service: Service, index: Any) -> None:
    search = qm.wrap(index.query, embed_many=embed)
    response = search(QUERY, **CALL)
    sent = service.bodies[:]
    assert type(response) is type(index.query(vector=[1.0, 2.0], top_k=1))
    assert [match.id for match in response.matches] == ["health", "food"]
    assert response["matches"][0]["metadata"]["text"] == TEXTS["health"]
    assert (response.namespace, response.usage.read_units) == ("dogs", 5)
    assert sorted(body["vector"] for body in sent) == sorted([vector(QUERY), vector(REWRITE)])
    assert {(body["topK"], body["includeMetadata"]) for body in sent} == {(WIDE, True)}


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
    asked = service.bodies[:]
    assert type(response) is type(index.search(namespace="dogs", inputs={"text": "x"}, top_k=1))
    assert [hit.id for hit in response.result.hits] == ["health", "food"]
    assert sorted(body["query"]["inputs"]["text"] for body in asked) == sorted([QUERY, REWRITE])
    assert {body["query"]["top_k"] for body in asked} == {WIDE}
    assert response.usage.read_units == 5


def test_a_pending_result_is_returned_as_it_is(service: Service, index: Any) -> None:
    search = qm.wrap(index.query, embed_many=embed)
    with pytest.warns(qtm.SetupWarning, match="ApplyResult"):
        pending = search(QUERY, async_req=True, **CALL)
    assert type(pending) is type(index.query(vector=[1.0, 2.0], top_k=1, async_req=True))
    assert [match.id for match in pending.get(PATIENCE).matches] == ["cats", "health"]


async def test_the_async_index_is_wrapped(service: Service) -> None:
    async with AsyncIndex(host=service.url, api_key="k") as index:
        response = await qm.wrap(index.search)(namespace="dogs", inputs={"text": QUERY}, top_k=2)
        retrieval = await qm.wrap(index.query, embed_many=embed).aretrieve(QUERY, **CALL)
    assert [hit.id for hit in response.result.hits] == ["health", "food"]
    assert [match.id for match in retrieval.matches] == ["health", "food"]
    assert len(service.bodies) == 4


@pytest.mark.parametrize(
    ("query", "reason", "sent"),
    [
        ({"vector": [0.5, 0.25]}, "not_text", {"vector": [0.5, 0.25]}),
        ({"id": "cats"}, "missing", {"id": "cats"}),
        ({"query": "   "}, "blank", {"vector": vector("   ")}),
    ],
    ids=["vector", "id", "blank text"],
)
def test_a_vector_an_id_or_a_blank_text_is_searched_as_the_plain_index_would(
    query: dict[str, Any], reason: str, sent: dict[str, Any], service: Service, index: Any
) -> None:
    retrieval = qm.wrap(index.query, embed_many=embed).retrieve(**query, **CALL)
    assert [(it.stage, it.reason) for it in retrieval.degradations] == [("query", reason)]
    assert [match.id for match in retrieval.matches] == ["cats", "health"]
    (body,) = service.bodies
    assert body["topK"] == 2
    assert {name: body[name] for name in ("vector", "id") if body.get(name)} == sent
