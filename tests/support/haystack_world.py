"""A small store of Haystack, and components that search it and write down what they are asked."""

from __future__ import annotations

import json
from typing import Any, Final
from uuid import uuid4

import haystack
from haystack import Document, Pipeline, component
from haystack.components.retrievers.in_memory import (
    InMemoryBM25Retriever,
    InMemoryEmbeddingRetriever,
)
from haystack.dataclasses import ChatMessage
from haystack.document_stores.in_memory import InMemoryDocumentStore

from tests.support.langchain_world import QUESTION, TEXTS, VOCABULARY, split_words

__all__ = ["QUESTION", "TEXTS"]

AsyncPipeline: Final = getattr(haystack, "AsyncPipeline", Pipeline)
"""Before version 3 a pipeline that runs asynchronously was a class of its own."""

asked: list[tuple[str, int | None]] = []
"""What every `CountingRetriever` was asked since the test began, those that were loaded from a file included."""


def embed(text: str) -> list[float]:
    """How often each word of the passages stands in *text*."""
    return [split_words(text).count(word) + 0.01 for word in VOCABULARY]


def make_store() -> InMemoryDocumentStore:
    """A store of its own, which one that is loaded from a file shares."""
    store = InMemoryDocumentStore(index=uuid4().hex)
    texts = TEXTS.items()
    store.write_documents(
        [
            Document(id=id_, content=it, embedding=embed(it), meta={"n": len(it)})
            for id_, it in texts
        ]
    )
    return store


def by_words(top_k: int = 4) -> InMemoryBM25Retriever:
    """Haystack's own retriever by words."""
    return InMemoryBM25Retriever(make_store(), top_k=top_k)


def by_vectors(top_k: int = 4) -> InMemoryEmbeddingRetriever:
    """Haystack's own retriever by vectors."""
    return InMemoryEmbeddingRetriever(make_store(), top_k=top_k)


def find(query: str, top_k: int = 4) -> list[Document]:
    """The passages by how many words of *query* stand in them, question words too."""
    asked.append((query, top_k))
    wanted = set(split_words(query))
    scores = {id_: float(len(wanted & set(split_words(text)))) for id_, text in TEXTS.items()}
    ids = sorted(scores, key=scores.__getitem__, reverse=True)[:top_k]
    return [Document(id=id_, content=TEXTS[id_], score=scores[id_]) for id_ in ids]


@component
class CountingRetriever:
    """Finds what `find` does, blocking alone."""

    def __init__(self, top_k: int = 4) -> None:
        self.top_k, self.warmed = top_k, 0

    def warm_up(self) -> None:
        self.warmed += 1

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        only: str = "",
    ) -> dict[str, Any]:
        found = find(query, self.top_k if top_k is None else top_k)
        ids = [it for it in (only, (filters or {}).get("id")) if it]
        return {"documents": [it for it in found if it.id in ids] if ids else found}


@component
class WordEmbedder:
    """Embeds by words, as `embed` does, and counts how often it was warmed up."""

    def __init__(self) -> None:
        self.warmed = 0

    def warm_up(self) -> None:
        self.warmed += 1

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    def run(self, text: str) -> dict[str, Any]:
        return {"embedding": embed(text), "meta": {}}


@component
class Replies:
    """A chat generator that says the *fields* as JSON, and keeps the messages it got."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.got: list[list[ChatMessage]] = []

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
        self.got.append(messages)
        meta = {
            "model": "replies-1",
            "usage": {"prompt_tokens": 7, "completion_tokens": 5},
            "finish_reason": "stop",
        }
        return {"replies": [ChatMessage.from_assistant(json.dumps(self.fields), meta=meta)]}
