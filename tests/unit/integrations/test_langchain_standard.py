"""LangChain's own tests of retrievers, around a retriever and around a function."""

from __future__ import annotations

from typing import Any

from langchain_tests.integration_tests import RetrieversIntegrationTests

from qtmiddleware.integrations.langchain import QueryTransformRetriever
from tests.support.langchain_world import QUESTION, CountingStore


class TestAroundARetriever(RetrieversIntegrationTests):
    def make_inner(self) -> Any:
        return CountingStore().as_retriever()

    @property
    def retriever_constructor(self) -> type[QueryTransformRetriever]:
        return QueryTransformRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"retriever": self.make_inner()}

    @property
    def retriever_query_example(self) -> str:
        return QUESTION


class TestAroundAFunction(TestAroundARetriever):
    def make_inner(self) -> Any:
        return lambda query, top_k=4: CountingStore().similarity_search(query, top_k)
