"""LangChain's own tests of retrievers, around each kind of thing that is searched."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_tests.integration_tests import RetrieversIntegrationTests

from qtmiddleware.integrations.langchain import QueryTransformRetriever
from tests.support.langchain_world import QUESTION, CountingStore


class Standard(RetrieversIntegrationTests):
    inner: Any

    @property
    def retriever_constructor(self) -> type[QueryTransformRetriever]:
        return QueryTransformRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"retriever": type(self).inner()}

    @property
    def retriever_query_example(self) -> str:
        return QUESTION


class TestAroundARetriever(Standard):
    @staticmethod
    def inner() -> Any:
        return CountingStore().as_retriever()


class TestAroundAStore(Standard):
    inner = CountingStore


class TestAroundAFunction(Standard):
    @staticmethod
    def inner() -> Any:
        store = CountingStore()

        def search(query: str, top_k: int = 4) -> list[Document]:
            return store.similarity_search(query, top_k)

        return search


class TestAroundWhatTakesNoNumber(Standard):
    @staticmethod
    def inner() -> Any:
        return lambda query: CountingStore().similarity_search(query, 6)
