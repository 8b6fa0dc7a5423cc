"""The server the Pinecone stores are tested with, tried itself: by requests made up from the official description."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi
from werkzeug.test import Client

from tests.support.pinecone_server import described
from tests.support.pinecone_server.app import LINES, App
from tests.support.pinecone_server.documents import DocumentIndex, Field
from tests.support.pinecone_server.state import Index, Stored
from tests.support.pinecone_world import API_KEY, pinecone_world
from tests.support.shared_data import needs_shared_data

pytestmark = pytest.mark.thorough

HEADERS = {"Api-Key": API_KEY, "X-Pinecone-Api-Version": "2026-04"}
# What is served, and of which index; those with texts need one that embeds.
SERVED = [
    ("db_data", "passages", "POST", "/query"),
    ("db_data", "passages", "POST", "/vectors/upsert"),
    ("db_data", "passages", "POST", "/vectors/delete"),
    ("db_data", "passages", "GET", "/vectors/fetch"),
    ("db_data", "passages", "GET", "/vectors/list"),
    ("db_data", "passages", "POST", "/describe_index_stats"),
    ("db_data", "texts", "POST", "/records/namespaces/{namespace}/upsert"),
    ("db_data", "texts", "POST", "/records/namespaces/{namespace}/search"),
    ("documents", "docs", "POST", "/namespaces/{namespace}/documents/upsert"),
    ("documents", "docs", "POST", "/namespaces/{namespace}/documents/search"),
    ("inference", "", "POST", "/embed"),
    ("inference", "", "POST", "/rerank"),
]
each_operation = pytest.mark.parametrize(
    ("spec", "index", "method", "path"), SERVED, ids=[it[3] for it in SERVED]
)
POSTED = [it for it in SERVED if it[2] == "POST"]
bounded = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
AS_DESCRIBED = [
    checks.not_a_server_error,
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_schema_conformance,
]
REJECTED = [*AS_DESCRIBED, openapi.negative_data_rejection]


@schemathesis.serializer(LINES)
def lines(ctx: schemathesis.SerializationContext, value: Any) -> bytes:
    return b"".join(
        json.dumps(one).encode() + b"\n" for one in (value if isinstance(value, list) else [value])
    )


def served() -> App:
    """A server with some records; a request that it fails over raises here."""
    app = App(API_KEY)
    one = Stored((1.0, 0.0), metadata={"page": 3.0, "tags": ["a", "b"], "text": "apple"})
    app.indexes["passages"] = Index("passages", 2, namespaces={"__default__": {"one": one}})
    app.indexes["texts"] = Index("texts", 16, model="test-embed")
    documents = {"one": {"_id": "one", "body": "apple", "page": 3.0}}
    app.indexes["docs"] = DocumentIndex("docs", {"body": Field(full_text=True)}, {"n": documents})
    return app


NAME = {"type": "string", "pattern": "^[a-z]{1,9}$"}
FILTER = {
    "type": "object",
    "properties": {"page": {"type": "number"}, "tags": NAME},
    "additionalProperties": False,
}
TEXT = {"type": "object", "properties": {"text": NAME}, "required": ["text"]}
TEXTS = {"type": "array", "minItems": 1, "maxItems": 5, "items": TEXT}
NUMBERS = {
    "type": "array",
    "minItems": 2,
    "maxItems": 2,
    "items": {"type": "number", "minimum": 1, "maximum": 9},
}
# Requests that can be served as things stand: what the description allows is mostly refused for
# what it holds.
SERVABLE: dict[str, dict[str, Any]] = {
    "QueryRequest": {
        "namespace": {"enum": ["", "__default__", "n"]},
        "topK": {"type": "integer", "minimum": 1, "maximum": 10_000},
        "vector": NUMBERS,
        "filter": FILTER,
        "includeValues": {"type": "boolean"},
        "includeMetadata": {"type": "boolean"},
    },
    "UpsertRequest": {
        "namespace": NAME,
        "vectors": {
            "type": "array",
            "minItems": 1,
            "maxItems": 5,
            "items": {"$ref": "#/components/schemas/Vector"},
        },
    },
    "Vector": {
        "id": NAME,
        "values": NUMBERS,
        "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "DeleteRequest": {
        "ids": {"type": "array", "minItems": 1, "items": NAME},
        "namespace": {"enum": ["__default__"]},
    },
    "DescribeIndexStatsRequest": {},
    "UpsertRecord": {"_id": NAME, "text": {"type": "string"}, "page": {"type": "number"}},
    "SearchRecordsRequest": {
        "query": {
            "type": "object",
            "properties": {
                "top_k": {"type": "integer", "minimum": 1, "maximum": 10_000},
                "inputs": {"type": "object", "properties": {"text": NAME}, "required": ["text"]},
                "filter": FILTER,
            },
            "required": ["top_k", "inputs"],
            "additionalProperties": False,
        },
        "fields": {"type": "array", "items": {"enum": ["text", "page"]}},
    },
    "UpsertDocumentsRequest": {
        "documents": {
            "type": "array",
            "minItems": 1,
            "maxItems": 5,
            "items": {"$ref": "#/components/schemas/DocumentRecord"},
        }
    },
    "DocumentRecord": {"_id": NAME, "body": NAME, "page": {"type": "number"}},
    "SearchDocumentsRequest": {
        "score_by": {
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "type": {"enum": ["text"]},
                    "query": NAME,
                    "fields": {"enum": [["body"]]},
                },
                "required": ["type", "query", "fields"],
                "additionalProperties": False,
            },
        },
        "top_k": {"type": "integer", "minimum": 1, "maximum": 10_000},
        "filter": FILTER,
        "include_fields": {"type": "array", "items": {"enum": ["body", "page", "*"]}},
    },
    "EmbedRequest": {
        "model": {"enum": ["test-embed", "pinecone-sparse-english-v0"]},
        "inputs": TEXTS,
        "parameters": {
            "type": "object",
            "properties": {"input_type": {"enum": ["passage", "query"]}},
            "required": ["input_type"],
        },
    },
    "RerankRequest": {
        "model": {"enum": ["bge-reranker-v2-m3", "cohere-rerank-3.5"]},
        "query": NAME,
        "documents": TEXTS,
        "top_n": {"type": "integer", "minimum": 1},
        "return_documents": {"type": "boolean"},
    },
}
REQUIRED: dict[str, list[str]] = {
    "Vector": ["id", "values"],
    "UpsertRecord": ["_id", "text"],
    "DocumentRecord": ["_id", "body"],
    "DeleteRequest": ["ids"],
    "QueryRequest": ["topK", "vector"],
    "EmbedRequest": ["model", "inputs", "parameters"],
}


def servable(spec: str) -> dict[str, Any]:
    """The description *spec* with the requests that can be served alone."""
    narrowed = copy.deepcopy(described.description(spec))
    schemas = narrowed["components"]["schemas"]
    for name, properties in SERVABLE.items():
        if name in schemas:
            required = REQUIRED.get(name, schemas[name].get("required", []))
            schemas[name] = {
                "type": "object",
                "properties": properties,
                "additionalProperties": False,
            }
            schemas[name] |= {"required": required} if required else {}
    for path in narrowed["paths"].values():
        for parameter in path.get("get", {}).get("parameters", ()):
            if parameter["in"] == "query":
                items = {"type": "array", "minItems": 1, "items": NAME}
                narrow = {"ids": items, "limit": {"type": "integer", "minimum": 1, "maximum": 100}}
                parameter["schema"] = narrow.get(parameter["name"], NAME)
        if body := path.get("post", {}).get("requestBody"):
            body["required"] = True
            for content in body["content"].values():
                content["schema"] |= (
                    {"minItems": 1} if content["schema"].get("type") == "array" else {}
                )
        for parameter in path.get("post", {}).get("parameters", ()):
            if parameter["in"] == "path":
                parameter["schema"] = NAME
    return narrowed


def operation(description: dict[str, Any], index: str, method: str, path: str) -> Any:
    """One operation of the *description*, served at the root as schemathesis wants it."""
    app = served()

    def mounted(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/openapi.json":
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps({**description, "servers": [], "security": []}).encode()]
        prefix = f"/i/{index}" if index else ""
        # The gateway's plain answer to a missing key is not in the description, so that none is
        # ever missing here.
        keyed = {**environ, "PATH_INFO": prefix + environ["PATH_INFO"], "HTTP_API_KEY": API_KEY}
        return app(keyed, start_response)

    return schemathesis.openapi.from_wsgi("/openapi.json", mounted)[path][method]


@needs_shared_data
@each_operation
def test_what_the_description_allows_is_answered_as_described(
    spec: str, index: str, method: str, path: str
) -> None:
    @bounded
    @given(case=operation(described.description(spec), index, method, path).as_strategy())
    def tried(case: Any) -> None:
        case.validate_response(case.call(), checks=AS_DESCRIBED)

    tried()


@needs_shared_data
@each_operation
def test_what_can_be_served_is_served_as_described(
    spec: str, index: str, method: str, path: str
) -> None:
    @bounded
    @given(case=operation(servable(spec), index, method, path).as_strategy())
    def tried(case: Any) -> None:
        answer = case.call()
        case.validate_response(answer, checks=AS_DESCRIBED)
        assert answer.status_code in {200, 201, 202}, answer.text

    tried()


@needs_shared_data
@each_operation
def test_what_the_description_forbids_is_rejected_as_described(
    spec: str, index: str, method: str, path: str
) -> None:
    described_so = operation(described.description(spec), index, method, path)
    strategy = described_so.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)

    @bounded
    @given(case=strategy)
    def tried(case: Any) -> None:
        case.validate_response(case.call(), checks=REJECTED)

    tried()


def is_json_object(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


@pytest.mark.parametrize(("spec", "index", "method", "path"), POSTED, ids=[it[3] for it in POSTED])
@bounded
@given(
    body=st.binary(max_size=60).filter(lambda body: not is_json_object(body))
    | st.sampled_from([b"", b"{", b"[]", b"null", b"NaN", b'{"topK": Infinity}', b"[" * 5_000])
)
def test_a_body_that_is_no_json_object_is_refused(
    spec: str, index: str, method: str, path: str, body: bytes
) -> None:
    client, url = (
        Client(served()),
        (f"/i/{index}" if index else "") + path.replace("{namespace}", "n"),
    )
    kind = "application/x-ndjson" if url.endswith("s/n/upsert") else "application/json"
    answer = client.open(url, method=method, data=body, headers=HEADERS, content_type=kind)
    assert answer.status_code in {400, 413}
    assert answer.json is not None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/query", {"topK": 1, "vector": []}),
        ("/query", {"topK": 1, "vector": [1.0, 0.0], "id": "one"}),
        ("/query", {"topK": 10_001, "vector": [1.0, 0.0]}),
        ("/query", {"topK": 1, "vector": [1.0, 0.0], "include_metadata": True}),
        ("/query", {"topK": 1}),
        ("/vectors/upsert", {"vectors": []}),
        ("/vectors/upsert", {"vectors": [{"id": "a", "values": [1.0, 0.0]}] * 1_001}),
        ("/vectors/upsert", {"vectors": [{"id": "ä", "values": [1.0, 0.0]}]}),
        ("/vectors/upsert", {"vectors": [{"id": "a" * 513, "values": [1.0, 0.0]}]}),
        (
            "/vectors/upsert",
            {"vectors": [{"id": "a", "values": [1.0, 0.0], "metadata": {"a": {"b": 1}}}]},
        ),
        (
            "/vectors/upsert",
            {"vectors": [{"id": "a", "values": [1.0, 0.0], "metadata": {"a": [1]}}]},
        ),
        (
            "/vectors/upsert",
            {"vectors": [{"id": "a", "sparseValues": {"indices": [1, 1], "values": [1, 2]}}]},
        ),
        (
            "/vectors/upsert",
            {"vectors": [{"id": "a", "sparseValues": {"indices": [1], "values": [1, 2]}}]},
        ),
        ("/vectors/delete", {"ids": []}),
        ("/vectors/delete", {"ids": ["a"], "filter": {"a": 1}}),
        ("/vectors/delete", {"filter": {}}),
    ],
)
def test_what_only_the_newer_description_forbids_is_told_as_a_defect_of_the_client(
    path: str, body: Any
) -> None:
    told = []
    app = served()
    app.watch = lambda exchange: told.append(exchange.broken)
    assert Client(app).post(f"/i/passages{path}", json=body, headers=HEADERS).status_code == 400
    assert told != [""]


def test_a_request_that_breaks_the_rules_fails_the_test_that_sent_it() -> None:
    import httpx

    def sent() -> None:
        with pinecone_world() as world:
            world.add_index("passages", dimension=2)
            httpx.post(
                f"{world.host('passages')}/query",
                json={"topK": 0, "vector": [1, 0]},
                headers=HEADERS,
            )

    with pytest.raises(AssertionError, match="topK"):
        sent()


def test_a_wrong_key_is_answered_in_plain_text() -> None:
    answer = Client(served()).post(
        "/i/passages/query", json={}, headers={**HEADERS, "Api-Key": "another"}
    )
    assert (answer.status_code, answer.mimetype) == (401, "text/plain")


@pytest.mark.parametrize(
    "url", ["/nothing", "/i/nobody/query", "/i/passages/nothing", "/indexes/nobody"]
)
def test_what_is_not_there_is_not_found(url: str) -> None:
    assert Client(served()).post(url, json={}, headers=HEADERS).status_code in {404, 405}
