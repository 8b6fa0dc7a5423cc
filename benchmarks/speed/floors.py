"""What one would write by hand: the same model call, the same five searches, the best score of each passage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.speed.ours import build_prompt, paraphrasing_model
from benchmarks.speed.workload import TOP_K

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
