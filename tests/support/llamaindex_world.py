"""A small index of LlamaIndex, whose vectors are the words of its passages, and what listens to its searches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.span import SimpleSpan
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.schema import BaseNode, NodeWithScore, TextNode
from llama_index.core.vector_stores import (
    SimpleVectorStore,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from pydantic import Field, PrivateAttr

from tests.support.langchain_world import TEXTS, WordEmbeddings

embed = WordEmbeddings().embed_query


class WordEmbedding(BaseEmbedding):
    """How often each word of the passages stands in a text."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return embed(text)

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return embed(query)


class CountingStore(SimpleVectorStore):
    """Writes down every query it is searched with."""

    _asked: list[VectorStoreQuery] = PrivateAttr(default_factory=list)

    def query(self, query: VectorStoreQuery, **more: Any) -> VectorStoreQueryResult:
        self._asked.append(query)
        return super().query(query, **more)

    @property
    def asked(self) -> list[tuple[str | None, int]]:
        """The text of each query, and for how many nodes it asked."""
        return [(it.query_str, it.similarity_top_k) for it in self._asked]

    @property
    def vectors(self) -> list[list[float] | None]:
        """The vector of each query."""
        return [it.query_embedding for it in self._asked]


class Replies(CustomLLM):
    """A model that says the same whatever it is asked."""

    reply: str
    prompts: list[str] = Field(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="tiny")

    def complete(self, prompt: str, formatted: bool = False, **more: Any) -> CompletionResponse:
        self.prompts.append(prompt)
        return CompletionResponse(text=self.reply)

    def stream_complete(self, prompt: str, formatted: bool = False, **more: Any) -> Any:
        raise NotImplementedError


def make_nodes() -> list[BaseNode]:
    return [TextNode(id_=id_, text=text, metadata={"n": 1}) for id_, text in TEXTS.items()]


def make_index(store: SimpleVectorStore | None = None, **more: Any) -> VectorStoreIndex:
    """The passages, in *store*."""
    context = StorageContext.from_defaults(vector_store=store or SimpleVectorStore())
    return VectorStoreIndex(
        make_nodes(), storage_context=context, embed_model=WordEmbedding(), **more
    )


def scored(count: int = len(TEXTS)) -> list[NodeWithScore]:
    """The passages as they are told, each a bit worse than the one before."""
    return [
        NodeWithScore(node=node, score=0.9 - n / 50) for n, node in enumerate(make_nodes()[:count])
    ]


class Spans(BaseSpanHandler[SimpleSpan]):
    """Keeps each span that began, and which one it is part of, by class and method."""

    names: dict[str, str] = Field(default_factory=dict)
    tree: list[tuple[str, str]] = Field(default_factory=list)

    def new_span(
        self, id_: str, bound_args: Any, instance: Any = None, parent_span_id: Any = None, **_: Any
    ) -> Any:
        # Older versions name a span by the class that defines the method.
        method = id_.partition("-")[0].rpartition(".")[2]
        self.names[id_] = f"{type(instance).__name__}.{method}"
        self.tree.append((self.names[id_], self.names.get(parent_span_id, "")))
        return SimpleSpan(id_=id_, parent_id=parent_span_id)

    def prepare_to_exit_span(self, id_: str, bound_args: Any, **_: Any) -> Any:
        return self.open_spans.get(id_)

    def prepare_to_drop_span(self, id_: str, bound_args: Any, **_: Any) -> Any:
        return self.open_spans.get(id_)


@contextmanager
def listening() -> Iterator[Spans]:
    """What hears of all spans inside."""
    root, spans = get_dispatcher(), Spans()
    before = list(root.span_handlers)
    root.add_span_handler(spans)
    try:
        yield spans
    finally:
        root.span_handlers = before
