"""Searches the documents of the index at argv[1] by one version of the Pinecone client and reports as JSON what came.

Run in a process of its own, with that client in front of the installed one. argv[2] is the API key.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[3]))

from pinecone import AsyncIndex, Pinecone
from pinecone.models.documents.score_by import DenseVectorQuery, QueryStringQuery, TextQuery

import qtmiddleware as qtm

QUERY = "Does Jaco have any health concerns?"
CONFIG = {"keywordEvidence": {"textField": "body"}, "hybrid": {"textFields": ["body"]}}
CALLS: dict[str, list[Any]] = {
    "text": [TextQuery(query=QUERY, fields=["body"])],
    "query_string": [QueryStringQuery(query=QUERY)],
    "mapping": [{"type": "text", "query": QUERY, "fields": ["title", "body"]}],
    "dense_vector": [DenseVectorQuery(field="vec", values=QUERY)],  # type: ignore[arg-type]
}


def embed(text: str) -> list[float]:
    return [float(len(text)), float(ord(text[0]))]


def report(retrieval: Any) -> dict[str, Any]:
    return {
        "type": type(retrieval.response).__name__,
        "ids": [document.id for document in retrieval.response.matches],
        "fields": sorted(
            {name for document in retrieval.response.matches for name in document.to_dict()}
        ),
        "status": retrieval.status,
        "searches": retrieval.trace.searches,
        "reads": retrieval.trace.read_units,
    }


async def search_awaiting(host: str, key: str) -> dict[str, Any]:
    async with AsyncIndex(host=host, api_key=key) as index:
        search = qtm.QueryMiddleware(CONFIG).wrap(index.documents.search, embed=embed)
        call = {"namespace": "docs", "top_k": 2, "include_fields": ["title"]}
        return {
            name: report(await search.aretrieve(**call, score_by=clauses))
            for name, clauses in CALLS.items()
        }


def main(host: str, key: str) -> dict[str, Any]:
    index = Pinecone(api_key=key, host=host).Index(host=host)
    search = qtm.QueryMiddleware(CONFIG).wrap(index.documents.search, embed=embed)
    call = {"namespace": "docs", "top_k": 2, "include_fields": ["title"]}
    found = {
        name: report(search.retrieve(**call, score_by=clauses)) for name, clauses in CALLS.items()
    }
    return {
        "version": version("pinecone"),
        "found": found,
        "awaited": asyncio.run(search_awaiting(host, key)),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:3])))
