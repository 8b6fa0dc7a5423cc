"""The server, as a WSGI application: the indexes are under ``/i/NAME``, the hosted models and the control at ``/``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from werkzeug import Request, Response

from tests.support.pinecone_server import operations, rules
from tests.support.pinecone_server.documents import DocumentIndex
from tests.support.pinecone_server.rules import Refused, RuleBroken
from tests.support.pinecone_server.state import Index

JSON = "application/json"
BY_PATH: dict[str, Callable[[Index, Any], dict[str, Any]]] = {
    "/query": operations.query,
    "/vectors/upsert": operations.upsert,
    "/vectors/delete": operations.delete,
    "/describe_index_stats": operations.stats,
}


@dataclass
class Canned:
    """An answer that is given instead of the server's own to requests whose path ends in *path*."""

    path: str
    status: int
    body: str
    content_type: str


@dataclass(frozen=True)
class Exchange:
    """A request and what it was answered; *index* is the one it was for."""

    request: Request
    body: bytes
    index: str
    path: str
    response: Response
    broken: str

    @property
    def json(self) -> Any:
        return rules.parse(self.body)


@dataclass
class App:
    """*watch* is told of every exchange after it was made up and before it is sent."""

    api_key: str
    base_url: str = ""
    indexes: dict[str, Index | DocumentIndex] = field(default_factory=dict)
    canned: list[Canned] = field(default_factory=list)
    watch: Callable[[Exchange], None] = field(default=lambda exchange: None)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = Request(environ)
        body, path, index, broken = request.get_data(), request.path, "", ""
        if path.startswith("/i/"):
            index, _, path = path.removeprefix("/i/").partition("/")
            path = f"/{path}"
        canned = next((it for it in self.canned if path.endswith(it.path)), None)
        if canned is not None:
            response = Response(canned.body, canned.status, content_type=canned.content_type)
        elif request.headers.get("Api-Key") != self.api_key:
            response = Response("Unauthorized", 401, content_type="text/plain")
        else:
            try:
                has_version = "X-Pinecone-Api-Version" in request.headers
                rules.rule(has_version, "X-Pinecone-Api-Version is missing")
                response = self._serve(request, body, index, path)
            except Refused as refused:
                broken = str(refused) if isinstance(refused, RuleBroken) else ""
                code = "NOT_FOUND" if refused.status == 404 else "INVALID_ARGUMENT"
                error = {"code": code, "message": str(refused)}
                response = _answer({"error": error, "status": refused.status}, refused.status)
        self.watch(Exchange(request, body, index, path, response, broken))
        return response(environ, start_response)

    def _serve(self, request: Request, body: bytes, name: str, path: str) -> Response:
        if not name and path.startswith("/indexes/"):
            return self._describe(path.removeprefix("/indexes/"))
        rules.rule(request.method == "POST", "only POST is served here")
        match path.split("/"):
            case _, "records", "namespaces", namespace, "upsert" if name:
                rules.rule(request.mimetype == "application/x-ndjson", "records must be lines")
                lines = [rules.parse(line) for line in body.splitlines() if line.strip()]
                return _answer(operations.upsert_records(self._get(name), namespace, lines), 201)
            case parts:
                rules.rule(request.mimetype == JSON, "the content type must be JSON")
                asked = rules.parse(body)
        match parts:
            case _, "rerank" if not name:
                return _answer(operations.rerank(asked))
            # The path is decoded by the server: a namespace of documents holds no slash here.
            case _, "namespaces", namespace, "documents", "upsert":
                return _answer(self._get(name, DocumentIndex).upsert(namespace, asked), 202)
            case _, "namespaces", namespace, "documents", "search":
                return _answer(self._get(name, DocumentIndex).search(namespace, asked))
            case _, "records", "namespaces", namespace, "search":
                return _answer(operations.search_records(self._get(name), namespace, asked))
        if path in BY_PATH:
            return _answer(BY_PATH[path](self._get(name), asked))
        raise Refused("there is no such path", 404)

    def _get(self, name: str, kind: Any = Index) -> Any:
        if name not in self.indexes:
            raise Refused(f"Resource {name} not found", 404)
        if not isinstance(self.indexes[name], kind):
            raise Refused(f"the index {name} does not support this operation")
        return self.indexes[name]

    def _describe(self, name: str) -> Response:
        """The control's account of an index, as far as a client needs it to find the host."""
        index = self._get(name)
        dense = {"type": "dense_vector", "dimension": index.dimension, "metric": index.metric}
        values = dense if index.kind == "dense" else {"type": "sparse_vector"}
        place = {"cloud": "aws", "region": "us-east-1"}
        return _answer(
            {
                "name": name,
                "host": f"{self.base_url}/i/{name}",
                "status": {"ready": True, "state": "Ready"},
                "schema": {"fields": {"_values": values}},
                "deployment": {"deployment_type": "managed", **place},
                "deletion_protection": "disabled",
                # As clients before 10 read it.
                "metric": index.metric,
                "vector_type": index.kind,
                "dimension": index.dimension or None,
                "spec": {"serverless": place},
            }
        )


def _answer(body: Any, status: int = 200) -> Response:
    return Response(json.dumps(body), status, content_type=JSON)
