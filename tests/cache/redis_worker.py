"""What other processes do with the shared cache."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Event
from time import sleep

import redis

from qtmiddleware.runtime.cache.redis_cache import Claim, RedisCache
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.types import Deadline, Transformation


def opened(url: str) -> RedisCache:
    return RedisCache(url, timeout=20.0, ttl_seconds=600, breaker=Breaker(1, 600.0))


def crowd(url: str, key: str, threads: int, all_threads: int) -> list[tuple[str, Transformation | None]]:
    """What each of *threads* was told, and what it had in the end; the claimant keeps once all have been told."""
    cache = opened(url)

    def one(_: int) -> tuple[str, Transformation | None]:
        answer = cache.claim(key, 60)
        counter.incr("told")
        if isinstance(answer, Transformation):
            return "kept", answer
        if answer is Claim.ELSEWHERE:
            return answer.value, cache.wait(key, Deadline.after(30))
        while int(counter.get("told") or 0) < all_threads:
            sleep(0.002)
        made = Transformation(rewrite=f"by {os.getpid()}")
        cache.keep(key, made)
        return answer.value, made

    with redis.Redis.from_url(url, socket_timeout=20) as counter, ThreadPoolExecutor(threads) as pool:
        told = list(pool.map(one, range(threads)))
    cache.close()
    return told


def claim_and_hang(url: str, key: str, claimed: Event) -> None:
    """Claims and never comes back."""
    cache = opened(url)
    if cache.claim(key, 60) is Claim.MINE:
        claimed.set()
    sleep(60)


def fork(url: str) -> None:
    """Ends with 0 where parent and child speak to Redis at once, each with claims and connections of its own."""
    cache = opened(url)
    mine = cache.claim("parent", 60)
    child = os.fork()
    theirs = [cache.claim("parent", 60), cache.claim(f"of {child == 0}", 60)]
    cache.release("parent" if child == 0 else f"of {child == 0}")
    if child == 0:
        cache.close()
        os._exit(0 if theirs == [Claim.ELSEWHERE, Claim.MINE] else 1)
    _, status = os.waitpid(child, 0)
    still = opened(url).claim("parent", 60)
    sys.exit(
        0 if [mine, *theirs, still, status] == [Claim.MINE, Claim.ELSEWHERE, Claim.MINE, Claim.ELSEWHERE, 0] else 1
    )


if __name__ == "__main__":
    fork(sys.argv[1])
