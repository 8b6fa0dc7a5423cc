"""A real redis-server of its own for each test, and a loop for what leaves one open."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
from collections.abc import Iterator

import pytest

from tests.support.redis_world import RedisServer, run_redis


@pytest.fixture(scope="session")
def redis_binary() -> str:
    """It is not of the project, so that its absence is told and no failure."""
    path = shutil.which(os.environ.get("TEST_REDIS") or "redis-server")
    if path is None:
        (pytest.fail if os.environ.get("NEEDS_REDIS") else pytest.skip)(
            "no redis-server was found; install one, or set TEST_REDIS to its path"
        )
    return path


@pytest.fixture
def stopped_server(redis_binary: str) -> Iterator[RedisServer]:
    with run_redis(redis_binary) as server:
        yield server


@pytest.fixture
def closed_loop() -> Iterator[None]:
    """The blocking calls of the frameworks run on the thread's loop, and leave it open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()
    gc.collect()
