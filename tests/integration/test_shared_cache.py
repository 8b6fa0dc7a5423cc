"""The recipe of docs/production.md: a real Redis as the cache that several processes share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.deploy_world import ROOT, write_recipes
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
def recipe(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """The names that the recipe defines."""
    monkeypatch.setenv("REDIS_URL", f"redis://:{PASSWORD}@127.0.0.1:{server.port}/3")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    written = write_recipes(tmp_path, ROOT / "docs" / "production.md") / "shared_cache.py"
    names: dict[str, Any] = {}
    exec(compile(written.read_text("utf-8"), str(written), "exec"), names)
    yield names
    names["shared"].close()


def test_what_one_process_asked_another_one_reads_in_redis(recipe: dict[str, Any]) -> None:
    shared, model = recipe["shared"], ScriptedModel({"rewrite": REWRITE})
    assert recipe["qm"].wrap(search)("") == search("")
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
    recipe: dict[str, Any], server: RedisServer
) -> None:
    import redis.asyncio

    model = ScriptedModel({"rewrite": REWRITE})
    qtm.QueryMiddleware(CONFIG, client=model, cache=recipe["shared"]).wrap(search)(QUERY)

    async def ask() -> qtm.Retrieval:
        async with redis.asyncio.Redis(port=server.port, db=3, password=PASSWORD) as client:
            qm = qtm.QueryMiddleware(CONFIG, client=model, cache=client)
            return await qm.wrap(asearch).aretrieve(QUERY)

    found = asyncio.run(ask())
    assert (found.status, found.trace.cache_hits, len(model.prompts)) == ("full", 1, 1)


def test_without_the_server_the_model_is_asked_and_it_is_told(
    recipe: dict[str, Any], server: RedisServer
) -> None:
    server.kill()
    model = ScriptedModel({"rewrite": REWRITE})
    qm = qtm.QueryMiddleware(CONFIG, client=model, cache=recipe["shared"])
    found = qm.wrap(search).retrieve(QUERY)
    assert [it.text for it in found.variants] == [QUERY, REWRITE]
    assert [it.stage for it in found.degradations] == ["cache"]
    # It is not asked again for a while.
    assert qm.wrap(search).retrieve("What does Jaco eat?").status == "full"
