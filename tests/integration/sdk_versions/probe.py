"""Searches in the Pinecone at argv[1] by one version of its client, and with "keep" keeps passages; reports as JSON.

Run in a process of its own, in which that client is found first.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Any

from pinecone import Pinecone

import qtmiddleware as qtm
from qtmiddleware.config.settings import StoreSettings
from qtmiddleware.kit.stores import open_pinecone
from qtmiddleware.protocols import Passage
from qtmiddleware.providers.rerankers import PineconeReranker
from qtmiddleware.testing import ScriptedModel

QUESTION = "Which one is second?"
TEXTS = {"a": "the first one", "b": "the second one", "c": "a lamp", "d": "a brake"}
PASSAGES = [Passage(id_, text, {"n": n}) for n, (id_, text) in enumerate(TEXTS.items())]
VECTORS = [[1.0, 2.0, 3.0], [1.0, 2.0, 2.9], [3.0, -2.0, 1.0], [2.0, -3.0, 1.0]]


def report(search: Any, *, embed_many: Any = None, **call: Any) -> dict[str, Any]:
    """The passages that *search* returns behind the middleware, and what of its own response is kept."""
    model = ScriptedModel({"rewrite": "Which one comes second?"})
    qm = qtm.QueryMiddleware({"transformationType": "rewrite"}, client=model)
    found = qm.wrap(search, **({"embed_many": embed_many} if embed_many else {})).retrieve(**call)
    own = search(**(call if embed_many is None else {**call, "vector": VECTORS[0]}))
    return {
        "ids": [match.id for match in found.matches],
        "texts": [match.text for match in found.matches],
        "type": type(found.response) is type(own),
        "usage": repr(found.response.usage) == repr(own.usage),
        "degradations": [str(it) for it in found.degradations],
    }


def search(url: str) -> dict[str, Any]:
    client = Pinecone(api_key="k", host=url)
    dense = client.Index(host=f"{url}/i/dense")
    vectors = [
        {"id": one.id, "values": vector, "metadata": {"text": one.text}}
        for one, vector in zip(PASSAGES, VECTORS, strict=True)
    ]
    dense.upsert(vectors=vectors)
    query = {"vector": QUESTION, "top_k": 2, "include_metadata": True}
    records = {"namespace": "docs", "query": {"inputs": {"text": QUESTION}, "top_k": 2}}
    return {
        "version": version("pinecone"),
        "query": report(dense.query, embed_many=lambda texts: [VECTORS[0] for _ in texts], **query),
        "search": report(client.Index(host=f"{url}/i/texts").search, **records),
    }


def keep() -> dict[str, Any]:
    store = open_pinecone(
        StoreSettings(kind="pinecone", index="kept"), embedding_model="a-model", dimension=3
    )
    store.write(zip(PASSAGES, VECTORS, strict=True))
    filtered = [one["id"] for one in store.search(VECTORS[0], 2, filter={"n": 1})]
    store.write((), delete=["b"])
    scores = PineconeReranker("bge-reranker-v2-m3").rerank("lamp", ["a lamp", "b"])
    return {"filter": filtered, "rerank": scores, "count": store.count()}


if __name__ == "__main__":
    print(json.dumps({**search(sys.argv[1]), **(keep() if "keep" in sys.argv else {})}))
