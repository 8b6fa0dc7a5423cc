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

from benchmarks.speed.worker import Case, serve
from benchmarks.speed.workload import LISTS, LONG, LONG_LISTS, TURNS, VARIANTS, place_of

FOUND, LONG_FOUND = (
    [
        [Document(id=match["id"], content=match["text"], score=match["score"]) for match in found]
        for found in lists
    ]
    for lists in (LISTS, LONG_LISTS)
)

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

    def __init__(self, lists: list[list[Document]]) -> None:
        self.lists = lists

    @component.output_types(documents=list[Document])
    def run(self, query: str) -> dict[str, Any]:
        return {"documents": list(self.lists[place_of(query)])}

    @component.output_types(documents=list[Document])
    async def run_async(self, query: str) -> dict[str, Any]:
        return {"documents": list(self.lists[place_of(query)])}


def make_components(lists: list[list[Document]]) -> tuple[QueryExpander, MultiQueryTextRetriever]:
    """The expander, and the retriever with a thread a search."""
    expander = QueryExpander(chat_generator=Model(), n_expansions=4, include_original_query=True)
    return expander, MultiQueryTextRetriever(retriever=Retriever(lists), max_workers=5)


def cases(lists: list[list[Document]], size: str) -> dict[str, Case]:
    """The two components over *lists*, with a thread a search, by hand and in a pipeline."""
    expander, retriever = make_components(lists)
    pipeline = Pipeline()
    for name, part in zip(("expander", "retriever"), make_components(lists), strict=True):
        pipeline.add_component(name, part)
    pipeline.connect("expander.queries", "retriever.queries")

    def bare(question: str) -> Any:
        return retriever.run(queries=expander.run(query=question)["queries"])

    async def abare(question: str) -> Any:
        expanded = await expander.run_async(query=question)
        return await retriever.run_async(queries=expanded["queries"])

    def piped(question: str) -> Any:
        return pipeline.run({"expander": {"query": question}})

    async def apiped(question: str) -> Any:
        return await pipeline.run_async({"expander": {"query": question}})

    return {
        f"components sync{size}": bare,
        f"components async{size}": abare,
        f"Pipeline sync{size}": piped,
        f"Pipeline async{size}": apiped,
    }


if __name__ == "__main__":
    serve(cases(FOUND, "") | cases(LONG_FOUND, LONG), version("haystack-ai"))
