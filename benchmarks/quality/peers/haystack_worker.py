"""Haystack's QueryExpander and MultiQueryEmbeddingRetriever, in a Pipeline."""

# ruff: noqa: ARG002
# The signatures are the peer's own.

from __future__ import annotations

import json
import os
from importlib.metadata import version
from typing import Any

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from haystack import Document, Pipeline, component
from haystack.components.query import QueryExpander
from haystack.components.retrievers import MultiQueryEmbeddingRetriever
from haystack.dataclasses import ChatMessage

from benchmarks.quality.peers.handed import (
    LONG,
    MODEL,
    MULTI_QUERY,
    RETURNED,
    Handed,
    System,
    serve,
)

MOST_QUERIES = 16  # more than were recorded, as it would leave out the rest


@component
class Replies:
    """Answers what was recorded."""

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
        return {"replies": [ChatMessage.from_assistant(json.dumps({"queries": MODEL.queries}))]}


@component
class Vectors:
    """The vectors that were handed over."""

    def __init__(self, handed: Handed) -> None:
        self.handed = handed

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, Any]:
        return {"embedding": self.handed.vectors[text].tolist()}


@component
class Retriever:
    """Exact search."""

    def __init__(self, handed: Handed, top_k: int) -> None:
        self.handed, self.top_k = handed, top_k

    @component.output_types(documents=list[Document])
    def run(
        self,
        query_embedding: list[float],
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, Any]:
        found = self.handed.search(query_embedding, self.top_k)
        return {
            "documents": [
                Document(id=self.handed.ids[at], content="", score=score) for at, score in found
            ]
        }


def systems(handed: Handed) -> list[System]:
    """All of Haystack's, the plain search first."""
    vectors, plain = Vectors(handed), Retriever(handed, RETURNED)

    def raw(query: str) -> list[str]:
        return [one.id for one in plain.run(vectors.run(query)["embedding"])["documents"]]

    def piped(top_k: int) -> Any:
        pipeline = Pipeline()
        expander = QueryExpander(
            chat_generator=Replies(), n_expansions=MOST_QUERIES, include_original_query=True
        )
        pipeline.add_component("expander", expander)
        retriever = MultiQueryEmbeddingRetriever(
            retriever=Retriever(handed, top_k), query_embedder=Vectors(handed)
        )
        pipeline.add_component("retriever", retriever)
        pipeline.connect("expander.queries", "retriever.queries")

        def retrieve(query: str) -> list[str]:
            found = pipeline.run({"expander": {"query": query}}, include_outputs_from={"expander"})
            # Where a reply cannot be read it goes on with the original alone.
            asked = {one.lower() for one in found["expander"]["queries"]}
            if asked != {one.lower() for one in (query, *MODEL.queries)}:
                raise RuntimeError("the expander did not take the recorded queries")
            return [one.id for one in found["retriever"]["documents"]]

        return retrieve

    found = [System("off", raw)]
    lists = (RETURNED, LONG)
    return found + [
        System("MultiQueryEmbeddingRetriever", piped(k), str(k), MULTI_QUERY) for k in lists
    ]


if __name__ == "__main__":
    used = (QueryExpander, MultiQueryEmbeddingRetriever)
    serve("Haystack", {"haystack-ai": version("haystack-ai")}, used, systems)
