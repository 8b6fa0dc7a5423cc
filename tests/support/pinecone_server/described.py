"""Requests and answers held against Pinecone's own description of its interface."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from tests.support.pinecone_server import rules
from tests.support.pinecone_server.app import LINES, Exchange
from tests.support.pinecone_server.errors import RuleBroken
from tests.support.shared_data import SHARED

SPECS = SHARED / "specs"
HOST = "http://127.0.0.1"
SHOWN = 8
"""Of a long list of numbers only so many are shown to the validator, which takes its time over each."""


def available() -> bool:
    return (SPECS / "db_data_2026-04.oas.yaml").is_file()


@lru_cache
def description(name: str) -> dict[str, Any]:
    """*name* is ``db_data``, ``inference`` or ``documents``. Its lists have the bounds that were meant."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    version = "2026-07" if name == "documents" else "2026-04"
    loaded = yaml.load((SPECS / f"{name}_{version}.oas.yaml").read_bytes(), loader)
    loaded["servers"] = [{"url": HOST}]
    loaded["info"]["version"] = str(loaded["info"]["version"])
    _bound(loaded)
    for path in ("/embed", "/rerank"):
        if path in loaded["paths"]:
            # For a model that is not known, as the official client says; here it was forgotten.
            answers = loaded["paths"][path]["post"]["responses"]
            answers["404"] = answers["400"]
    return loaded  # type: ignore[no-any-return]


def _bound(node: Any) -> None:
    """Bounds of a list are written as those of a string, which no validator looks at."""
    if isinstance(node, list):
        for one in node:
            _bound(one)
    elif isinstance(node, dict):
        if node.get("type") == "array":
            for ours, theirs in (("minItems", "minLength"), ("maxItems", "maxLength")):
                if theirs in node:
                    node[ours] = node.pop(theirs)
        if set(node.get("properties", ())) == {"indices", "values"}:
            # 2026-07 allows so many.
            for one in node["properties"].values():
                one["maxLength"] = rules.MOST_SPARSE
        if "default" in node and hasattr(node["default"], "isoformat"):
            node["default"] = str(node["default"])
        for one in node.values():
            _bound(one)


@lru_cache
def validator(name: str) -> Any:
    from openapi_core import Config, OpenAPI

    def lines(body: bytes | str) -> list[Any]:
        return [
            json.loads(line)
            for line in (body if isinstance(body, str) else body.decode()).split("\n")
            if line
        ]

    config = Config(extra_media_type_deserializers={LINES: lines}, spec_validator_cls=None)
    return OpenAPI.from_dict(description(name), config=config)


def complaint(exchange: Exchange) -> str:
    """What the description has against an exchange; "" where nothing."""
    from openapi_core.exceptions import OpenAPIError
    from openapi_core.testing import MockRequest, MockResponse

    if exchange.request.path.startswith("/indexes/"):
        return ""
    api = validator(_find_description(exchange))
    request = MockRequest(
        HOST,
        exchange.request.method,
        exchange.path,
        args=exchange.request.args,  # type: ignore[arg-type]
        headers=dict(exchange.request.headers),
        data=_shortened(exchange),
        content_type=exchange.request.content_type or "",
    )
    try:
        api.validate_request(request)
    except OpenAPIError as error:
        return f"the request is not as described: {_said(error)}"
    status = exchange.response.status_code
    if exchange.canned or status == 401:
        # The gateway's own answers are plain text, which the description of 2026-07 says and that
        # of 2026-04 does not.
        return ""
    response = MockResponse(
        exchange.response.get_data(),
        status,
        content_type=exchange.response.content_type or "application/json",
    )
    try:
        api.validate_response(request, response)
    except OpenAPIError as error:
        return f"the answer {status} is not as described: {_said(error)}"
    return ""


def _find_description(exchange: Exchange) -> str:
    if not exchange.index:
        return "inference"
    return "documents" if exchange.path.startswith("/namespaces/") else "db_data"


def _said(error: Exception) -> str:
    cause = error.__cause__
    details = "; ".join(
        str(getattr(one, "message", one)) for one in getattr(cause, "schema_errors", ())
    )
    return f"{error} {details or cause or ''}"[:500]


def _shortened(exchange: Exchange) -> bytes:
    """The body with its long lists of numbers cut short; those are checked here."""
    if exchange.path.endswith("/documents/search"):
        return _without_embed(exchange)
    if exchange.path != "/vectors/upsert":
        return exchange.body
    try:
        body = exchange.json
        return json.dumps(_cut(body)).encode()
    except RuleBroken:
        return exchange.body


def _without_embed(exchange: Exchange) -> bytes:
    """The body with each clause whose text Pinecone embeds as one of words, which has the same fields.

    The SDK knows ``embed`` and ``sparse_embed``; the description of 2026-07 does not name them yet.
    """
    try:
        body = exchange.json
    except RuleBroken:
        return exchange.body
    for clause in (
        body["score_by"]
        if isinstance(body, dict) and isinstance(body.get("score_by"), list)
        else ()
    ):
        if isinstance(clause, dict) and clause.get("type") in ("embed", "sparse_embed"):
            clause["type"] = "text"
    return json.dumps(body).encode()


def _cut(node: Any) -> Any:
    if isinstance(node, dict):
        # The official client sends an empty list of dense values beside sparse ones, which the
        # description forbids.
        left_out = {"values"} if node.get("values") == [] and node.get("sparseValues") else set()
        return {key: _cut(value) for key, value in node.items() if key not in left_out}
    if isinstance(node, list):
        if (
            len(node) > SHOWN
            and len(node) <= rules.MOST_DIMENSION
            and all(type(one) in (int, float) for one in node)
        ):
            return node[:SHOWN]
        return [_cut(one) for one in node]
    return node
