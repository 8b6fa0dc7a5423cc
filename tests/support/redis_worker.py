"""A process that forks while it has a connection to the shared cache."""

from __future__ import annotations

import os
import sys

from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.redis_cache import RedisCache
from qtmiddleware.types import Transformation


def fork(url: str) -> None:
    """Ends with 0 where parent and child speak to Redis at once, each over connections of its own."""
    cache = RedisCache(url, timeout=20.0, ttl_seconds=600, breaker=Breaker(1, 600.0))
    cache.put("before", Transformation(rewrite="before"))
    child = os.fork()
    name = "child" if child == 0 else "parent"
    cache.put(name, Transformation(rewrite=name))
    texts = []
    for key in (name, "before") * 100:
        made = cache.get(key, lambda _: True)
        texts.append(made and made.rewrite)
    is_right = texts == [name, "before"] * 100
    if child == 0:
        cache.close()
        os._exit(0 if is_right else 1)
    _, status = os.waitpid(child, 0)
    made = cache.get("child", lambda _: True)
    sys.exit(0 if is_right and status == 0 and made is not None and made.rewrite == "child" else 1)


if __name__ == "__main__":
    fork(sys.argv[1])
