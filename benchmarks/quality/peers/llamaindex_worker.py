"""LlamaIndex's QueryFusionRetriever in all its modes, and its HyDEQueryTransform with the original included."""

# ruff: noqa: ARG002
# The signatures are the peer's own.

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.indices.query.query_transform.base import HyDEQueryTransform
from llama_index.core.llms import CustomLLM
from llama_index.core.retrievers import BaseRetriever, QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from benchmarks.quality.peers.handed import (
    HYDE,
    LONG,
    MODEL,
    MULTI_QUERY,
    RETURNED,
    Handed,
    System,
    serve,
)

MODES = ("reciprocal_rerank", "relative_score", "dist_based_score", "simple")
MOST_QUERIES = 16  # more than were recorded, as it would leave out the rest


class Replies(CustomLLM):
    """Answers what was recorded."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=MODEL.text)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError


class Vectors(BaseEmbedding):
    """The vectors that were handed over."""

    handed: Any

    def _get_query_embedding(self, query: str) -> list[float]:
        return self.handed.vectors[query].tolist()  # type: ignore[no-any-return]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_query_embedding(text)


class Retriever(BaseRetriever):
    """Exact search; several texts are embedded as the library's own vector retriever embeds them."""

    def __init__(self, handed: Handed, nodes: list[TextNode], top_k: int) -> None:
        self.handed, self.nodes, self.top_k = handed, nodes, top_k
        self.vectors = Vectors(handed=handed)
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        vector = self.vectors.get_agg_embedding_from_queries(query_bundle.embedding_strs)
        # The fusion writes to the scores, so every result has its own.
        return [
            NodeWithScore(node=self.nodes[at], score=score)
            for at, score in self.handed.search(vector, self.top_k)
        ]


def systems(handed: Handed) -> list[System]:
    """All of LlamaIndex's, the plain search first."""
    # Equal texts are one node to the fusion unless their metadata differ.
    nodes = [
        TextNode(id_=id_, text=text, metadata={"id": id_})
        for id_, text in zip(handed.ids, handed.texts, strict=True)
    ]
    plain = Retriever(handed, nodes, RETURNED)
    transform = HyDEQueryTransform(llm=Replies(), include_original=True)

    def ids(found: list[NodeWithScore]) -> list[str]:
        return [one.node.node_id for one in found]

    def fused(mode: str, top_k: int) -> Any:
        fusion = QueryFusionRetriever(
            [Retriever(handed, nodes, top_k)],
            llm=Replies(),
            mode=mode,
            num_queries=MOST_QUERIES,
            similarity_top_k=RETURNED,
            use_async=False,
        )
        return lambda query: ids(fusion.retrieve(query))

    found = [
        System("off", lambda query: ids(plain.retrieve(query))),
        System(
            "HyDEQueryTransform",
            lambda query: ids(plain.retrieve(transform.run(query))),
            replies=HYDE,
        ),
    ]
    return found + [
        System(f"QueryFusionRetriever {mode}", fused(mode, top_k), str(top_k), MULTI_QUERY)
        for mode in MODES
        for top_k in (RETURNED, LONG)
    ]


if __name__ == "__main__":
    used = (QueryFusionRetriever, HyDEQueryTransform)
    serve("LlamaIndex", {"llama-index-core": version("llama-index-core")}, used, systems)
