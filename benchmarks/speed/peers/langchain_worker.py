"""LangChain's MultiQueryRetriever; the original is searched too, as it is by the others."""

# ruff: noqa: ARG002
# The signatures are the peer's own.

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from langchain_classic.retrievers.multi_query import MultiQueryRetriever
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.language_models.llms import LLM
from langchain_core.retrievers import BaseRetriever

from benchmarks.speed.worker import Case, serve
from benchmarks.speed.workload import LISTS, LONG, LONG_LISTS, lines_for_now, place_of

# Documents have no score here; equal ones are told apart by their metadata, which must not differ
# then.
FOUND, LONG_FOUND = (
    [[Document(id=match["id"], page_content=match["text"]) for match in found] for found in lists]
    for lists in (LISTS, LONG_LISTS)
)


class Model(LLM):
    """Answers at once."""

    @property
    def _llm_type(self) -> str:
        return "stub"

    def _call(self, prompt: str, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> str:
        return lines_for_now()

    async def _acall(
        self, prompt: str, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> str:
        return lines_for_now()


class Retriever(BaseRetriever):
    """Finds at once."""

    lists: list[list[Document]]

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return list(self.lists[place_of(query)])

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        return list(self.lists[place_of(query)])


def cases(lists: list[list[Document]], size: str) -> dict[str, Case]:
    """The retriever over *lists*, blocking and awaiting."""
    retriever = MultiQueryRetriever.from_llm(
        retriever=Retriever(lists=lists), llm=Model(), include_original=True
    )
    return {
        f"MultiQueryRetriever sync{size}": retriever.invoke,
        f"MultiQueryRetriever async{size}": retriever.ainvoke,
    }


if __name__ == "__main__":
    serve(cases(FOUND, "") | cases(LONG_FOUND, LONG), version("langchain-classic"))
