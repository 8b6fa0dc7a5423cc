"""The server, as a WSGI application: the indexes are under ``/i/NAME``, the hosted models and the control at ``/``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from werkzeug import Request, Response

from tests.support.pinecone_server import operations, rules
from tests.support.pinecone_server.documents import DocumentIndex
from tests.support.pinecone_server.errors import Refused, RuleBroken
from tests.support.pinecone_server.state import Index

JSON = "application/json"
LINES = "application/x-ndjson"
BY_BODY: dict[str, Callable[[Index, dict[str, Any]], dict[str, Any]]] = {
    "/query": operations.query,
    "/vectors/upsert": operations.upsert,
    "/vectors/delete": operations.delete,
    "/describe_index_stats": operations.stats,
}
HOSTED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "/embed": operations.embed,
    "/rerank": operations.rerank,
}


@dataclass
class Canned:
    """An answer that is given instead of the server's own, to the next *times* requests whose path ends in *path*.

    Only those count whose body holds *text*.
    """

    path: str
    status: int
    body: str
    headers: dict[str, str]
    content_type: str
    times: int
    waits_for: Event | None
    text: str = ""


@dataclass(frozen=True)
class Exchange:
    """A request and what it was answered; *index* is the one it was for."""

    request: Request
    body: bytes
    index: str
    path: str
    response: Response
    canned: bool
    broken: str

    @property
    def json(self) -> Any:
        return rules.parsed(self.body)


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
        body = request.get_data()
        index, path = _parted(request.path)
        canned, broken = self._next_canned(request.path, body), ""
        if canned is not None:
            if canned.waits_for is not None:
                canned.waits_for.wait(30)
            response = Response(
                canned.body, canned.status, canned.headers, content_type=canned.content_type
            )
        else:
            response, broken = self._answered(request, body, index, path)
        self.watch(Exchange(request, body, index, path, response, canned is not None, broken))
        return response(environ, start_response)

    def _next_canned(self, path: str, body: bytes) -> Canned | None:
        for one in self.canned:
            if path.endswith(one.path) and one.times > 0 and one.text.encode() in body:
                one.times -= 1
                return one
        return None

    def _answered(
        self, request: Request, body: bytes, index: str, path: str
    ) -> tuple[Response, str]:
        if request.headers.get("Api-Key") != self.api_key:
            return Response("Unauthorized", 401, content_type="text/plain"), ""
        try:
            rules.rule(
                "X-Pinecone-Api-Version" in request.headers, "X-Pinecone-Api-Version is missing"
            )
            return self._served(request, body, index, path), ""
        except Refused as refused:
            broken = str(refused) if isinstance(refused, RuleBroken) else ""
            return _error(
                refused, rpc=bool(index) and not path.startswith(("/records", "/namespaces"))
            ), broken

    def _served(self, request: Request, body: bytes, name: str, path: str) -> Response:
        if not name:
            return self._hosted(request, body, path)
        if name not in self.indexes:
            raise Refused(f"Resource {name} not found", 404)
        index = self.indexes[name]
        parts = path.split("/")
        is_documents = len(parts) == 5 and parts[1] == "namespaces" and parts[3] == "documents"
        if isinstance(index, DocumentIndex) != is_documents:
            held = "documents" if isinstance(index, DocumentIndex) else "vectors"
            raise Refused(f"the index {name} holds {held}; this operation is not supported")
        if isinstance(index, DocumentIndex):
            _only(request, "POST", JSON)
            verbs = {"upsert": (index.upsert, 202), "search": (index.search, 200)}
            if parts[4] not in verbs:
                raise Refused("there is no such path", 404)
            operation, status = verbs[parts[4]]
            # The path is decoded by the server: a namespace holds no slash here.
            return _json(
                operation(parts[2], rules.mapping(rules.parsed(body), "the request")), status
            )
        if path in BY_BODY:
            _only(request, "POST", JSON)
            return _json(BY_BODY[path](index, rules.mapping(rules.parsed(body), "the request")))
        if len(parts) == 5 and parts[:3] == ["", "records", "namespaces"]:
            return _records(request, body, index, parts[3], parts[4])
        raise Refused("there is no such path", 404)

    def _hosted(self, request: Request, body: bytes, path: str) -> Response:
        if path in HOSTED:
            _only(request, "POST", JSON)
            return _json(HOSTED[path](rules.mapping(rules.parsed(body), "the request")))
        if path.startswith("/indexes/"):
            _only(request, "GET")
            return self._described(path.removeprefix("/indexes/"))
        raise Refused("there is no such path", 404)

    def _described(self, name: str) -> Response:
        """The control's account of an index, as far as a client needs it to find the host."""
        if name not in self.indexes:
            raise Refused(f"Resource {name} not found", 404)
        index = self.indexes[name]
        if isinstance(index, DocumentIndex):
            raise Refused("document indexes are not described here", 404)
        dense = {"type": "dense_vector", "dimension": index.dimension, "metric": index.metric}
        return _json(
            {
                "name": name,
                "host": f"{self.base_url}/i/{name}",
                "status": {"ready": True, "state": "Ready"},
                "schema": {
                    "fields": {
                        "_values": dense if index.kind == "dense" else {"type": "sparse_vector"}
                    }
                },
                "deployment": {"deployment_type": "managed", "cloud": "aws", "region": "us-east-1"},
                "deletion_protection": "disabled",
                # As clients before 10 read it.
                "metric": index.metric,
                "vector_type": index.kind,
                "dimension": index.dimension or None,
                "spec": {"serverless": {"cloud": "aws", "region": "us-east-1"}},
            }
        )


def _parted(path: str) -> tuple[str, str]:
    """The index a path is for, "" for none, and the rest of the path."""
    if not path.startswith("/i/"):
        return "", path
    name, _, rest = path.removeprefix("/i/").partition("/")
    return name, f"/{rest}"


def _records(request: Request, body: bytes, index: Index, namespace: str, verb: str) -> Response:
    if verb == "upsert":
        _only(request, "POST", LINES)
        operations.upsert_records(index, namespace, rules.parsed(body, lines=True))
        return Response(status=201)
    _only(request, "POST", JSON)
    asked = rules.mapping(rules.parsed(body), "the request")
    return _json(operations.search_records(index, namespace, asked))


def _only(request: Request, method: str, mimetype: str = "") -> None:
    if request.method != method:
        raise Refused(f"only {method} is served here", 405)
    if mimetype:
        rules.rule(request.mimetype == mimetype, f"the content type must be {mimetype}")


def _json(body: Any, status: int = 200) -> Response:
    return Response(json.dumps(body), status, content_type=JSON)


def _error(refused: Refused, *, rpc: bool) -> Response:
    if rpc:
        made: dict[str, Any] = {
            "code": 5 if refused.status == 404 else 3,
            "message": str(refused),
            "details": [],
        }
    else:
        code = "NOT_FOUND" if refused.status == 404 else "INVALID_ARGUMENT"
        made = {"error": {"code": code, "message": str(refused)}, "status": refused.status}
    response = _json(made, refused.status)
    if refused.status == 405:
        response.headers["Allow"] = "GET, POST"
    return response
