"""A real redis-server that runs, caches in it, and servers that only look like one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.redis_cache import RedisCache
from tests.support.redis_world import Impostor, RedisServer


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

    def open_(
        url: str, *, timeout: float = 5.0, ttl_seconds: int = 600, breaker: Breaker | None = None
    ) -> RedisCache:
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
