"""A small vector store of LangChain, whose vectors are the words of its passages, and what listens to its runs."""

from __future__ import annotations

import re
from typing import Any, Final
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore

QUESTION: Final = "Does Jaco have any health concerns?"
TEXTS: Final = {
    "toys": "Does Jaco have any toys? A ball and a rope.",
    "health": "Jaco, says Dr. Wong of Elm Street, who saw him twice in March, has no health concerns.",
    "vet": "Does Jaco have any vet? Dr. Wong, in Elm Street.",
    "food": "Jaco eats twice a day.",
    "cats": "Do any cats have a bed of their own? They sleep wherever they like.",
    "fee": "The fee is due in March.",
    **{f"bark-{n}": f"Dogs bark {n} times a day." for n in range(8)},
}


def split_words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


VOCABULARY: Final = sorted({word for text in TEXTS.values() for word in split_words(text)})


class WordEmbeddings(Embeddings):
    """How often each word of the passages stands in a text."""

    def embed_query(self, text: str) -> list[float]:
        return [split_words(text).count(word) + 0.01 for word in VOCABULARY]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


class CountingStore(InMemoryVectorStore):
    """Writes down which question it is searched with, and for how many documents."""

    def __init__(self) -> None:
        super().__init__(WordEmbeddings())
        self.asked: list[tuple[str, int]] = []
        self.add_documents(
            [Document(id=id_, page_content=text, metadata={"n": 1}) for id_, text in TEXTS.items()]
        )

    def similarity_search_with_score(
        self, query: str, k: int = 4, **more: Any
    ) -> list[tuple[Document, float]]:
        self.asked.append((query, k))
        return super().similarity_search_with_score(query, k, **more)

    def similarity_search(self, query: str, k: int = 4, **more: Any) -> list[Document]:
        return [document for document, _ in self.similarity_search_with_score(query, k, **more)]

    def max_marginal_relevance_search(self, query: str, k: int = 4, **more: Any) -> list[Document]:
        return self.similarity_search(query, k)

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, **more: Any
    ) -> list[tuple[Document, float]]:
        return self.similarity_search_with_score(query, k, **more)

    async def asimilarity_search(self, query: str, k: int = 4, **more: Any) -> list[Document]:
        return self.similarity_search(query, k, **more)


class Listener(BaseCallbackHandler):
    """Keeps the name of each run that started, by what it is part of."""

    def __init__(self) -> None:
        self.runs: dict[UUID, tuple[str, UUID | None]] = {}

    @property
    def tree(self) -> list[tuple[str, str]]:
        """The name of each run beside that of its parent."""
        return [
            (name, self.runs[parent][0] if parent else "") for name, parent in self.runs.values()
        ]

    def on_retriever_start(
        self, serialized: Any, query: str, *, run_id: UUID, parent_run_id: Any = None, **more: Any
    ) -> None:
        self.runs[run_id] = (more.get("name") or "retriever", parent_run_id)

    def on_chat_model_start(
        self,
        serialized: Any,
        messages: Any,
        *,
        run_id: UUID,
        parent_run_id: Any = None,
        **more: Any,
    ) -> None:
        self.runs[run_id] = ("model", parent_run_id)

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: Any = None, **more: Any
    ) -> None:
        self.runs[run_id] = (more.get("name") or "chain", parent_run_id)
