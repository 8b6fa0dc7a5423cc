"""A real redis-server of its own for each test, and servers that only look like one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.redis_cache import RedisCache
from tests.support.redis_world import Impostor, RedisServer


@pytest.fixture(scope="session")
def redis_binary() -> str:
    """It is not of the project, so that its absence is told and no failure."""
    path = shutil.which(os.environ.get("TEST_REDIS") or "redis-server")
    if path is None:
        (pytest.fail if os.environ.get("NEEDS_REDIS") else pytest.skip)(
            "no redis-server was found; install one (scripts/redis) or set TEST_REDIS to its path"
        )
    return path


@pytest.fixture
def stopped_server(redis_binary: str) -> Iterator[RedisServer]:
    # Not below pytest's folders: the path of a socket has room for a hundred characters.
    with TemporaryDirectory(prefix="qtm") as folder:
        server = RedisServer(redis_binary, Path(folder))
        yield server
        server.kill()
        server.admin.close()


@pytest.fixture
def server(stopped_server: RedisServer) -> RedisServer:
    stopped_server.start()
    return stopped_server


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_USERNAME", raising=False)
    monkeypatch.delenv("REDIS_PASSWORD", raising=False)


Open = Callable[..., RedisCache]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Makes caches as each process has one, and closes them."""
    made: list[RedisCache] = []

    def open_(url: str, *, timeout: float = 5.0, ttl_seconds: int = 600, breaker: Breaker | None = None) -> RedisCache:
        breaker = breaker or Breaker(1, 60.0)
        made.append(RedisCache(url, timeout=timeout, ttl_seconds=ttl_seconds, breaker=breaker))
        return made[-1]

    yield open_
    for cache in made:
        cache.close()


@pytest.fixture
def impostor() -> Iterator[Callable[[bytes | None], Impostor]]:
    made: list[Impostor] = []

    def make(answer: bytes | None) -> Impostor:
        made.append(Impostor(answer))
        return made[-1]

    yield make
    for one in made:
        one.close()
