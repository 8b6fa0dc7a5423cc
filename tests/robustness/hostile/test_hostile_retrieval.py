"""Whatever the user, the model or a passage says: the search is asked what the caller asked, for whom he asked it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.config.settings import Settings
from qtmiddleware.testing import ScriptedModel
from tests.support.hostile_corpus import LONG, SHORT
from tests.support.hostile_world import replies, smuggling

pytestmark = pytest.mark.thorough

WIDE = Settings().keyword_evidence.candidates
FILTER = {"source": {"$eq": "vet.pdf"}, "$or": [{"page": 1}, {"page": {"$gt": 3}}]}
NAMESPACE = "tenant-7"
SCOPE: dict[str, Any] = {"namespace": NAMESPACE, "filter": FILTER}
KINDS = ("rewrite", "stepback", "decompose", "multi_query", "hyde", "keywords", "all", "combined")
PLAIN = [
    {"id": f"p{number}", "score": 1.0 - number / 10, "metadata": {"text": f"passage {number}"}}
    for number in range(6)
]


class Backend:
    """A search that takes what Pinecone's does, and remembers every call."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def query(
        self,
        text: str,
        *,
        top_k: int,
        namespace: str,
        filter: Any,  # noqa: A002
        include_metadata: bool = True,
    ) -> Any:
        self.calls.append({"text": text, "top_k": top_k, "namespace": namespace, "filter": filter})
        return {"matches": PLAIN[:top_k], "namespace": namespace}


def config(kind: str) -> Mapping[str, Any]:
    limits = {"llmTimeoutMs": 20_000, "deadlineMs": 25_000}
    return {"transformationType": kind, "limits": limits}


def check(backend: Backend, query: str, response: Any) -> None:
    condition = json.dumps(FILTER)
    # A variant's search may arrive first: the model is asked beside the question's own search.
    searched = [call["text"].encode("utf-8", "surrogatepass") for call in backend.calls]
    assert query.encode("utf-8", "surrogatepass") in searched
    assert len(backend.calls) <= 2 + 20
    for call in backend.calls:
        assert 3 <= call["top_k"] <= WIDE
        assert call["namespace"] == NAMESPACE
        assert call["filter"] == FILTER
        assert len(call["text"]) <= max(len(query), 4_000)
    assert json.dumps(FILTER) == condition
    assert response["namespace"] == NAMESPACE
    assert len(response["matches"]) == 3
    assert all(any(match is row for row in PLAIN) for match in response["matches"])


def ask(backend: Backend, kind: str, reply: str, query: str, **options: Any) -> Any:
    middleware = qtm.QueryMiddleware(config(kind), client=ScriptedModel(reply))
    with middleware:
        wrapped = middleware.wrap(backend.query)
        return wrapped.retrieve(query, top_k=3, **SCOPE, **options).response


def test_whatever_the_user_asks_and_said_before_the_search_is_asked_that_and_no_more() -> None:
    for number, hostile in enumerate((*SHORT[::2], *LONG[::8])):
        query = hostile.text
        backend = Backend()
        said = [{"role": "user", "content": query}, {"role": "assistant", "content": query}]
        response = ask(backend, KINDS[number % len(KINDS)], smuggling("vet"), query, history=said)
        check(backend, query, response)


def test_whatever_the_model_says_only_the_texts_of_variants_change() -> None:
    query = "Where is the vet of the dog?"
    for number, hostile in enumerate((*SHORT, *LONG[::8])):
        kinds = replies(hostile.text)
        backend = Backend()
        reply = kinds[number // 3 % len(kinds)]
        check(backend, query, ask(backend, KINDS[number % len(KINDS)], reply, query))
