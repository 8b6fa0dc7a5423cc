"""A real Redis as the cache that several processes share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.redis_world import RedisServer

pytestmark = pytest.mark.thorough

QUERY: Final = "Does Jaco have any health concerns?"
REWRITE: Final = "Which illness does Jaco have?"
CONFIG: Final = {
    "transformationType": "rewrite",
    "limits": {"llmTimeoutMs": 60_000, "deadlineMs": 90_000},
}
PASSWORD: Final = "secret"


def search(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    return [{"id": query, "score": 0.5, "metadata": {"text": "Jaco is well"}}]


async def asearch(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    return search(query, top_k)


@pytest.fixture
def server(stopped_server: RedisServer) -> RedisServer:
    stopped_server.start("--requirepass", PASSWORD)
    return stopped_server


@pytest.fixture
def shared(server: RedisServer) -> Iterator[Any]:
    """The cache of docs/production.md."""
    redis = pytest.importorskip("redis")
    with redis.Redis.from_url(f"redis://:{PASSWORD}@127.0.0.1:{server.port}/3") as client:
        yield client


def test_what_one_process_asked_another_one_reads_in_redis(shared: Any) -> None:
    model = ScriptedModel({"rewrite": REWRITE})
    first, second = (
        qtm.QueryMiddleware(CONFIG, client=model, cache=shared).wrap(search).retrieve(QUERY)
        for _ in range(2)
    )
    assert (first.status, second.status, len(model.prompts)) == ("full", "full", 1)
    assert (second.transformation, second.trace.cache_hits) == (first.transformation, 1)
    (name,) = shared.keys("*")
    assert name.startswith(b"qtm:")
    assert b"Jaco" not in name
    assert 0 < shared.ttl(name) <= 3_600


def test_the_asynchronous_client_reads_what_the_blocking_one_wrote(
    shared: Any, server: RedisServer
) -> None:
    import redis.asyncio

    model = ScriptedModel({"rewrite": REWRITE})
    qtm.QueryMiddleware(CONFIG, client=model, cache=shared).wrap(search)(QUERY)

    async def ask() -> qtm.Retrieval:
        async with redis.asyncio.Redis(port=server.port, db=3, password=PASSWORD) as client:
            qm = qtm.QueryMiddleware(CONFIG, client=model, cache=client)
            return await qm.wrap(asearch).aretrieve(QUERY)

    found = asyncio.run(ask())
    assert (found.status, found.trace.cache_hits, len(model.prompts)) == ("full", 1, 1)
