"""Clients the middleware makes itself, with the key and the address of the environment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import qtmiddleware as qtm
from tests.support.fault_world import QUERY, SECRET, search, transforming
from tests.support.model_server import ModelServer

REWRITE = "Which illness does Jaco have?"


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch, service: ModelServer) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("QTM_LLM_BASE_URL", service.url)
    service.reply = {"rewrite": REWRITE}


def plain(query: str, top_k: int = 3) -> Any:
    return search(query, top_k)


async def awaited(query: str, top_k: int = 3) -> Any:
    return search(query, top_k)


def test_one_middleware_serves_three_loops_in_a_row(service: ModelServer) -> None:
    qm = qtm.QueryMiddleware(transforming("rewrite", cache={"enabled": False}))
    wrapped = qm.wrap(awaited)

    async def once() -> qtm.Retrieval:
        retrieval = await wrapped.aretrieve(QUERY)
        await qm.aclose()
        return retrieval

    found = [asyncio.run(once()) for _ in range(3)]
    assert [[variant.text for variant in it.variants] for it in found] == [[QUERY, REWRITE]] * 3
    assert len(service.bodies) == 3


def test_one_middleware_serves_plain_and_awaited_functions(service: ModelServer) -> None:
    async def both() -> tuple[Any, Any]:
        async with qtm.QueryMiddleware(transforming("rewrite")) as qm:
            return await qm.wrap(awaited)(QUERY), qm.wrap(plain)(QUERY)

    one, other = asyncio.run(both())
    assert one == other
    assert len(service.bodies) == 1  # the second was remembered
