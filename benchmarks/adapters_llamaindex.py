"""LlamaIndex' part of `benchmarks.adapters`: its retriever, QueryFusionRetriever and HyDEQueryTransform beside ours.

All of it is llama-index-core's own, over one vector index; every model replays the same recording.
"""

# ruff: noqa: ARG002
# The signatures are the framework's own.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llama_index.core import VectorStoreIndex
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.indices.query.query_transform.base import HyDEQueryTransform
from llama_index.core.llms import CustomLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from pydantic import PrivateAttr

from benchmarks.quality.sets import Prepared
from qtmiddleware.integrations.llamaindex import (
    KeywordEvidencePostprocessor,
    QueryTransformRetriever,
)

RETURNED: Final = 10
WIDE: Final = 50
MOST_QUERIES: Final = (
    16  # more than were recorded, as QueryFusionRetriever would leave out the rest
)

PACKAGES: Final = ("llama-index-core",)
PAIRS: Final = (
    ("ours, balanced", "QueryFusionRetriever, relative_score"),
    ("ours, balanced", "HyDEQueryTransform, include_original"),
)
HEAD: Final = """# The LlamaIndex retriever beside what people move from

nDCG@10 of the first ten nodes, *gain* over the plain retriever in points and *hurt*, the share of questions that do
worse than with it, both means of sets. All of llama-index-core, over one VectorStoreIndex, with lists of ten; the model
of QueryFusionRetriever replays the recorded rewrite and sub-queries, that of HyDEQueryTransform the passage, ours the
whole recording, in a call. Ours is `QueryTransformRetriever(index, config="rules"` or `"balanced",
similarity_top_k=10)`; the postprocessor gets 50 nodes. In canard_dev ours gets the conversation.
"""


class Replay(CustomLLM):
    """Answers QueryFusionRetriever's prompt with the recorded rewrite and sub-queries, HyDE's with the passage."""

    reply: dict[str, Any] = {}  # noqa: RUF012
    calls: int = 0

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **more: Any) -> CompletionResponse:
        self.calls += 1
        is_hyde = "write a passage" in prompt
        lines = (
            [self.reply["hyde"]] if is_hyde else [self.reply["rewrite"], *self.reply["sub_queries"]]
        )
        return CompletionResponse(text="\n".join(lines))

    def stream_complete(self, prompt: str, formatted: bool = False, **more: Any) -> Any:
        raise NotImplementedError


class Vectors(BaseEmbedding):
    """The vectors that everybody searches with."""

    embed: Any

    def _get_text_embedding(self, text: str) -> list[float]:
        return self.embed([text])[0].tolist()  # type: ignore[no-any-return]

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


class Store(BasePydanticVectorStore):
    """Exact search over one data set; it counts its searches."""

    stores_text: bool = True
    searches: int = 0
    _one: Any = PrivateAttr()
    _vectors: Any = PrivateAttr()

    def __init__(self, one: Prepared) -> None:
        super().__init__()
        self._one, self._vectors = one, one.vectors([it.text for it in one.data.passages])

    @property
    def client(self) -> Any:
        return None

    def add(self, nodes: Any, **more: Any) -> list[str]:
        raise NotImplementedError

    def delete(self, ref_doc_id: str, **more: Any) -> None:
        raise NotImplementedError

    def query(self, query: VectorStoreQuery, **more: Any) -> VectorStoreQueryResult:
        self.searches += 1
        scores = self._vectors @ np.asarray(query.query_embedding, dtype=self._vectors.dtype)
        best = np.argsort(-scores, kind="stable")[: query.similarity_top_k]
        passages = [self._one.data.passages[place] for place in best]
        # Equal texts are one node to the fusion unless their metadata differ.
        nodes = [TextNode(id_=it.id, text=it.text, metadata={"id": it.id}) for it in passages]
        return VectorStoreQueryResult(
            nodes=nodes,
            similarities=[float(scores[place]) for place in best],
            ids=[it.id for it in passages],
        )


def set_up(
    one: Prepared, model: Any
) -> tuple[Any, Any, dict[str, Callable[[str, Any], list[str]]]]:
    """The store and the model that count, and by name what finds the ids for a question and its conversation."""
    store, replay = Store(one), Replay()
    index = VectorStoreIndex.from_vector_store(store, embed_model=Vectors(embed=one.vectors))
    plain, wide = (
        index.as_retriever(similarity_top_k=RETURNED),
        index.as_retriever(similarity_top_k=WIDE),
    )
    hyde, keywords = HyDEQueryTransform(llm=replay), KeywordEvidencePostprocessor(top_n=RETURNED)

    def fusion(mode: str) -> Callable[[str, Any], list[str]]:
        made = QueryFusionRetriever(
            [plain], llm=replay, mode=mode, num_queries=MOST_QUERIES, similarity_top_k=RETURNED, use_async=False
        )  # fmt: skip
        return lambda query, _: _ids(made.retrieve(query))

    def ours(config: str) -> Callable[[str, Any], list[str]]:
        made = QueryTransformRetriever(
            index, config=config, client=model, similarity_top_k=RETURNED
        )
        return lambda query, history: _ids(made.with_history(history).retrieve(query))

    return store, replay, {
        "index.as_retriever(similarity_top_k=10)": lambda query, _: _ids(plain.retrieve(query)),
        "QueryFusionRetriever, reciprocal_rerank": fusion("reciprocal_rerank"),
        "QueryFusionRetriever, relative_score": fusion("relative_score"),
        "HyDEQueryTransform, include_original": lambda query, _: _ids(plain.retrieve(hyde.run(query))),
        "KeywordEvidencePostprocessor of 50": lambda query, _: _ids(
            keywords.postprocess_nodes(wide.retrieve(query), query_str=query)
        ),
        "ours, rules": ours("rules"),
        "ours, balanced": ours("balanced"),
    }  # fmt: skip


def _ids(nodes: list[NodeWithScore]) -> list[str]:
    return [node.node_id for node in nodes]
