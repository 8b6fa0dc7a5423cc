"""The library as it is measured: wrapped functions and the model they ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from benchmarks.speed.workload import (
    CANDIDATES,
    COMBINED,
    QUESTIONS,
    REPLIES,
    TOP_K,
    find_candidates,
)
from qtmiddleware import QueryMiddleware

try:
    from qtmiddleware.protocols import Reply
except ImportError:  # where earlier versions have it, which are measured beside this one
    from qtmiddleware.ports import Reply

MULTI_QUERY: dict[str, Any] = {
    "transformationType": "multi_query",
    "llm": {"paraphrases": 4},
    "keywordEvidence": {"enabled": False},
    "cache": {"enabled": False},
}
"""One model call for four paraphrases, five searches, anchored fusion, trace; nothing remembered between calls."""


RULES: dict[str, Any] = {"transformationType": "none"}
"""The free default."""
ALL_IN_ONE: dict[str, Any] = {"transformationType": "combined", "cache": {"enabled": False}}
"""One model call for everything; nothing remembered between calls."""
BALANCED: dict[str, Any] = {**ALL_IN_ONE, "limits": {"maxSearches": 2}}
"""The preset `balanced`; nothing remembered between calls."""


class Model:
    """A model that takes *seconds* and nothing else: it has a reply to each question."""

    name = "stub"
    can_sync = can_async = True

    def __init__(self, replies: Mapping[str, str], seconds: float = 0.0) -> None:
        self._replies = {question: Reply(reply) for question, reply in replies.items()}
        self._seconds = seconds

    def complete(self, prompt: Any, _deadline: Any = None) -> Reply:
        if self._seconds:
            time.sleep(self._seconds)
        return self._replies[prompt.query]

    async def acomplete(self, prompt: Any, _deadline: Any = None) -> Reply:
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return self._replies[prompt.query]


def paraphrasing_model(seconds: float = 0.0) -> Model:
    """Answers each question with its paraphrases, after *seconds*."""
    return Model(REPLIES, seconds)


def combining_model() -> Model:
    """Answers each question with all that `combined` asks for."""
    return Model(COMBINED)


def build_prompt(question: str) -> Any:
    """As much of a prompt as the model reads."""
    return SimpleNamespace(query=question)


class HangingModel:
    """A model that minds no deadline."""

    name = "hanging"
    can_sync = can_async = True

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def complete(self, _prompt: Any, _deadline: Any) -> Reply:
        time.sleep(self._seconds)
        return Reply("")

    async def acomplete(self, _prompt: Any, _deadline: Any) -> Reply:
        await asyncio.sleep(self._seconds)
        return Reply("")


def wrapped(fn: Callable[..., Any], config: dict[str, Any], model: Any) -> Any:
    """*fn* with the middleware around it."""
    return QueryMiddleware(config, client=model).wrap(fn)


def in_langchain(config: dict[str, Any], model: Any) -> Callable[[str], Any]:
    """LangChain's retriever around one that finds the candidates as documents at once."""
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever

    from qtmiddleware.integrations.langchain import QueryTransformRetriever

    found = {
        match["id"]: Document(
            id=match["id"],
            page_content=match["metadata"]["text"],
            metadata={"page": match["metadata"]["page"]},
        )
        for match in find_candidates("", 2 * CANDIDATES)["matches"]
        + find_candidates(QUESTIONS[0], 2 * CANDIDATES)["matches"]
    }

    class Retriever(BaseRetriever):
        def _get_relevant_documents(
            self, query: str, *, k: int = TOP_K, **_: Any
        ) -> list[Document]:
            return [found[match["id"]] for match in find_candidates(query, k)["matches"]]

    return QueryTransformRetriever(retriever=Retriever(), config=config, client=model).invoke


def check(wrapped_search: Any, *, searches: int | None = None) -> None:
    """Make sure that what is measured does all of its work: every variant searched, nothing degraded."""
    for question in QUESTIONS[:3]:
        came = wrapped_search.retrieve(question)
        if (
            came.status != "full"
            or not came.trace.llm_calls
            or came.trace.searches != (searches or came.trace.searches)
        ):
            raise RuntimeError(
                f"{came.trace.searches} searches instead of {searches}, {came.degradations}"
            )


def with_options(**options: Any) -> dict[str, Any]:
    """`MULTI_QUERY` with *options* over it."""
    return {**MULTI_QUERY, **options}
