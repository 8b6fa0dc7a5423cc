"""Haystack's QueryExpander and MultiQueryTextRetriever, in a Pipeline and as bare components."""

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
from haystack.components.retrievers import MultiQueryTextRetriever
from haystack.dataclasses import ChatMessage

from benchmarks.speed.worker import serve
from benchmarks.speed.workload import LISTS, TURNS, VARIANTS, place_of

FOUND = [
    [Document(id=match["id"], content=match["text"], score=match["score"]) for match in found]
    for found in LISTS
]

REPLIES = {question: json.dumps({"queries": variants}) for question, variants in VARIANTS.items()}


def reply() -> dict[str, Any]:
    """What the expander asks for: JSON."""
    return {"replies": [ChatMessage.from_assistant(REPLIES[TURNS.now])]}


@component
class Model:
    """Answers at once."""

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
        return reply()

    @component.output_types(replies=list[ChatMessage])
    async def run_async(self, messages: list[ChatMessage]) -> dict[str, Any]:
        return reply()


@component
class Retriever:
    """Finds at once."""

    @component.output_types(documents=list[Document])
    def run(self, query: str) -> dict[str, Any]:
        return {"documents": list(FOUND[place_of(query)])}

    @component.output_types(documents=list[Document])
    async def run_async(self, query: str) -> dict[str, Any]:
        return {"documents": list(FOUND[place_of(query)])}


def components() -> tuple[QueryExpander, MultiQueryTextRetriever]:
    """The two components, with a thread a search."""
    expander = QueryExpander(chat_generator=Model(), n_expansions=4, include_original_query=True)
    return expander, MultiQueryTextRetriever(retriever=Retriever(), max_workers=5)


expander, retriever = components()
pipeline = Pipeline()
for name, part in zip(("expander", "retriever"), components(), strict=True):
    pipeline.add_component(name, part)
pipeline.connect("expander.queries", "retriever.queries")


def bare(question: str) -> Any:
    """The components by hand, blocking."""
    return retriever.run(queries=expander.run(query=question)["queries"])


async def abare(question: str) -> Any:
    """The components by hand, awaiting."""
    return await retriever.run_async(queries=(await expander.run_async(query=question))["queries"])


def piped(question: str) -> Any:
    """The pipeline, blocking."""
    return pipeline.run({"expander": {"query": question}})


async def apiped(question: str) -> Any:
    """The pipeline, awaiting."""
    return await pipeline.run_async({"expander": {"query": question}})


if __name__ == "__main__":
    serve(
        {
            "components sync": bare,
            "components async": abare,
            "Pipeline sync": piped,
            "Pipeline async": apiped,
        },
        version("haystack-ai"),
    )
