"""LangChain's MultiQueryRetriever with the original included, and its HypotheticalDocumentEmbedder.

The union of the lists is the order the first returns; it says of itself that it does not rank.
"""

# ruff: noqa: ARG002
# The signatures are the peer's own.

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from langchain_classic.chains.hyde.base import HypotheticalDocumentEmbedder
from langchain_classic.retrievers.multi_query import MultiQueryRetriever
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models.llms import LLM
from langchain_core.retrievers import BaseRetriever

from benchmarks.quality.peers.handed import (
    HYDE,
    MODEL,
    MULTI_QUERY,
    RETURNED,
    Handed,
    System,
    serve,
)

DEFAULT = 4  # what a vector store of LangChain returns


class Replies(LLM):
    """Answers what was recorded."""

    @property
    def _llm_type(self) -> str:
        return "recorded"

    def _call(self, prompt: str, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> str:
        return MODEL.text


class Vectors(Embeddings):
    """The vectors that were handed over."""

    def __init__(self, handed: Handed) -> None:
        self.handed = handed

    def embed_query(self, text: str) -> list[float]:
        return self.handed.vectors[text].tolist()  # type: ignore[no-any-return]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


class Retriever(BaseRetriever):
    """Exact search with any embeddings."""

    handed: Any
    documents: Any
    embeddings: Any
    k: int

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [
            self.documents[at]
            for at, _ in self.handed.search(self.embeddings.embed_query(query), self.k)
        ]


def systems(handed: Handed) -> list[System]:
    """All of LangChain's, the plain search first."""
    documents = [
        Document(id=id_, page_content=text)
        for id_, text in zip(handed.ids, handed.texts, strict=True)
    ]
    vectors = Vectors(handed)

    def retriever(embeddings: Embeddings, k: int) -> Retriever:
        return Retriever(handed=handed, documents=documents, embeddings=embeddings, k=k)

    def ids(inner: BaseRetriever) -> Any:
        return lambda query: [document.id for document in inner.invoke(query)]

    hyde = HypotheticalDocumentEmbedder.from_llm(Replies(), vectors, prompt_key="web_search")
    found = [
        System("off", ids(retriever(vectors, RETURNED))),
        System("HypotheticalDocumentEmbedder", ids(retriever(hyde, RETURNED)), replies=HYDE),
    ]
    # Of lists of ten or more, the ten of the first query fill all places: longer ones cannot change
    # anything.
    for k in (DEFAULT, RETURNED):
        union = MultiQueryRetriever.from_llm(
            retriever(vectors, k), Replies(), include_original=True
        )
        found.append(System("MultiQueryRetriever", ids(union), str(k), MULTI_QUERY))
    return found


if __name__ == "__main__":
    packages = ("langchain-classic", "langchain-core")
    used = (MultiQueryRetriever, HypotheticalDocumentEmbedder)
    serve("LangChain", {name: version(name) for name in packages}, used, systems)
