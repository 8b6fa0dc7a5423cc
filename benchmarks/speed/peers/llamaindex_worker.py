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

from benchmarks.speed.worker import serve
from benchmarks.speed.workload import LISTS, TOP_K, lines_for_now, place_of

NODES = [
    [(TextNode(id_=match["id"], text=match["text"]), match["score"]) for match in found]
    for found in LISTS
]


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

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [
            NodeWithScore(node=node, score=score)
            for node, score in NODES[place_of(query_bundle.query_str)]
        ]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._retrieve(query_bundle)


def fusion(*, use_async: bool) -> QueryFusionRetriever:
    """The retriever; *use_async* runs the searches of a blocking call in an event loop of their own."""
    return QueryFusionRetriever(
        [Retriever()],
        llm=Model(),
        num_queries=5,
        similarity_top_k=TOP_K,
        use_async=use_async,
        verbose=False,
    )


parallel, sequential = fusion(use_async=True), fusion(use_async=False)


def sync(question: str) -> Any:
    """Blocking, with the default use_async=True."""
    return parallel.retrieve(question)


def sync_sequential(question: str) -> Any:
    """Blocking, one search after the other."""
    return sequential.retrieve(question)


async def asynchronous(question: str) -> Any:
    """Awaiting."""
    return await parallel.aretrieve(question)


if __name__ == "__main__":
    serve(
        {
            "QueryFusionRetriever sync": sync,
            "QueryFusionRetriever sync, use_async=False": sync_sequential,
            "QueryFusionRetriever async": asynchronous,
        },
        version("llama-index-core"),
    )
