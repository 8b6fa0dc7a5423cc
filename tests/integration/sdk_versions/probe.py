"""Wraps the searches of one version of the Pinecone client around the server at argv[1], and reports as JSON what came.

Run in a process of its own, in which that client is found first.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Any

from pinecone import Pinecone

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel

QUESTION = "Which one is second?"


def report(search: Any, call: dict[str, Any], embed: Any = None) -> dict[str, Any]:
    """The passages that *search* returns behind the middleware, and what of its own response is kept."""
    model = ScriptedModel({"rewrite": "new words"})
    qm = qtm.QueryMiddleware({"transformationType": "rewrite", "cache": False}, client=model)
    vectors = {} if embed is None else {"embed": embed}
    found = qm.wrap(search, **vectors).retrieve(**call)
    own = search(**(call if embed is None else {**call, "vector": embed([QUESTION])[0]}))
    return {
        "ids": [match.id for match in found.matches],
        "texts": [match.text for match in found.matches],
        "metadata": [dict(match.metadata or {}) for match in found.matches],
        "scores": [match.score for match in found.matches],
        "type": type(found.response) is type(own),
        "usage": repr(found.response.usage) == repr(own.usage),
        "degradations": [str(it) for it in found.degradations],
    }


def main(host: str) -> dict[str, Any]:
    index = Pinecone(api_key="k", host=host).Index(host=host)
    query = {"vector": QUESTION, "top_k": 3, "include_metadata": True}

    def embed(texts: list[str]) -> list[list[float]]:
        return [[float(len(text)), 0.25] for text in texts]

    records = {"namespace": "ns", "query": {"inputs": {"text": QUESTION}, "top_k": 3}}
    return {
        "version": version("pinecone"),
        "query": report(index.query, {**query, "namespace": "ns"}, embed),
        "empty": report(index.query, {**query, "namespace": "empty"}, embed),
        "search": report(index.search, records),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
