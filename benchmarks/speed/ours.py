"""The library as it is measured, and beside it what one would write by hand."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
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
from qtmiddleware.protocols import Reply

MULTI_QUERY: dict[str, Any] = {
    "transformationType": "multi_query",
    "keywordEvidence": {"enabled": False},
    "cache": {"enabled": False},
}
"""One model call for three paraphrases, four searches, anchored fusion, trace; nothing remembered between calls."""


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


# By hand: the same model call, the same four searches, the best score of each passage.

Matches = list[dict[str, Any]]
Awaited = Callable[[str], Awaitable[Matches]]


def best(lists: Iterable[Matches]) -> Matches:
    """Every passage once, with its best score, best first."""
    found: dict[str, dict[str, Any]] = {}
    for matches in lists:
        for match in matches:
            other = found.get(match["id"])
            if other is None or match["score"] > other["score"]:
                found[match["id"]] = match
    return sorted(found.values(), key=lambda match: match["score"], reverse=True)[:TOP_K]


def pooled(
    search: Callable[[str], Matches], *, threads: int, seconds: float = 0.0
) -> Callable[[str], Matches]:
    """The model, then the searches in one shared thread pool."""
    model, pool = paraphrasing_model(seconds), ThreadPoolExecutor(threads)

    def retrieve(question: str) -> Matches:
        reply = model.complete(build_prompt(question))
        return best(pool.map(search, [question, *json.loads(reply.text)["paraphrases"]]))

    return retrieve


def gathered(asearch: Awaited, *, seconds: float = 0.0) -> Awaited:
    """The model, then the searches in one `asyncio.gather`."""
    model = paraphrasing_model(seconds)

    async def retrieve(question: str) -> Matches:
        reply = await model.acomplete(build_prompt(question))
        return best(
            await asyncio.gather(*map(asearch, [question, *json.loads(reply.text)["paraphrases"]]))
        )

    return retrieve


def gathered_threads(
    search: Callable[[str], Matches], *, threads: int, seconds: float = 0.0
) -> Awaited:
    """`gathered` for a search that blocks, in a pool of *threads*."""
    pool = ThreadPoolExecutor(threads)

    async def in_pool(query: str) -> Matches:
        return await asyncio.get_running_loop().run_in_executor(pool, search, query)

    return gathered(in_pool, seconds=seconds)
