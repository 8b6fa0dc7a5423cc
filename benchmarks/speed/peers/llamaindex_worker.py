"""LlamaIndex's QueryFusionRetriever in its default mode, with four generated queries beside the original."""

# ruff: noqa: ARG002
# The signatures are the peer's own.

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.llms import CustomLLM
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from benchmarks.speed.worker import Case, serve
from benchmarks.speed.workload import (
    CANDIDATES,
    LISTS,
    LONG,
    LONG_LISTS,
    TOP_K,
    lines_for_now,
    place_of,
)

Lists = list[list[tuple[TextNode, float]]]
NODES, LONG_NODES = (
    [
        [(TextNode(id_=match["id"], text=match["text"]), match["score"]) for match in found]
        for found in lists
    ]
    for lists in (LISTS, LONG_LISTS)
)


class Model(CustomLLM):
    """Answers at once."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=lines_for_now())

    async def acomplete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponse:
        return CompletionResponse(text=lines_for_now())

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError


class Retriever(BaseRetriever):
    """Finds at once. The scores are written to by the fusion, so every result has its own."""

    def __init__(self, lists: Lists) -> None:
        super().__init__()
        self._lists = lists

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [
            NodeWithScore(node=node, score=score)
            for node, score in self._lists[place_of(query_bundle.query_str)]
        ]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._retrieve(query_bundle)


def cases(lists: Lists, count: int, size: str) -> dict[str, Case]:
    """The retriever over *lists*; use_async runs a blocking call's searches in an event loop."""
    parallel, sequential = (
        QueryFusionRetriever(
            [Retriever(lists)],
            llm=Model(),
            num_queries=4,
            similarity_top_k=count,
            use_async=use_async,
            verbose=False,
        )
        for use_async in (True, False)
    )

    async def awaiting(question: str) -> Any:
        return await parallel.aretrieve(question)

    return {
        f"QueryFusionRetriever sync{size}": parallel.retrieve,
        f"QueryFusionRetriever sync, use_async=False{size}": sequential.retrieve,
        f"QueryFusionRetriever async{size}": awaiting,
    }


if __name__ == "__main__":
    serve(
        cases(NODES, TOP_K, "") | cases(LONG_NODES, CANDIDATES, LONG),
        version("llama-index-core"),
    )
