"""Processes that share a Redis ask the model once for equal questions, and do without where it is down."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.runtime.cache import hash_key
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.redis_cache import RedisCache
from qtmiddleware.types import Transformation
from qtmiddleware.wrapping.health import RedisState
from tests.support.model_server import ModelServer
from tests.support.redis_world import Impostor, RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.thorough

QUERY = "Does Jaco have any health concerns?"
REWRITE = "Which illness does Jaco have?"
LIMITS = {"llmTimeoutMs": 20_000, "deadlineMs": 30_000}


def search(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    return [{"id": query, "score": 0.5, "metadata": {"text": "Jaco is well"}}]


class Model:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer = json.dumps({"rewrite": REWRITE})

    def __call__(self, _: Any) -> str:
        self.asked += 1
        return self.answer


def wrapped(url: str, model: Any, **more: Any) -> Any:
    """A middleware as another process would have it: nothing is shared with others but the Redis."""
    cache = {"redisUrl": url, "redisTimeoutMs": 10_000, **more.pop("cache", {})}
    config = {"transformationType": "rewrite", "cache": cache, "limits": LIMITS, **more}
    return qtm.QueryMiddleware(config, client=model).wrap(search)


def key_of(middleware: Any, model: Any) -> str:
    from qtmiddleware.retrieval.question import Question

    name = middleware._context.model.name
    return hash_key(Question(QUERY, (), middleware._context.settings).build_cache_key(name))


def test_what_one_process_asked_another_one_knows(server: RedisServer) -> None:
    model = Model()
    first, second = (
        wrapped(server.url, model).retrieve(QUERY),
        wrapped(server.url, model).retrieve(QUERY),
    )
    assert model.asked == 1
    assert second.transformation == first.transformation
    assert [it.text for it in second.variants] == [QUERY, REWRITE]
    assert (second.trace.cache_hits, second.trace.decision.reason, second.status) == (
        1,
        "cached",
        "full",
    )


def test_tenants_are_kept_apart(server: RedisServer) -> None:
    model = Model()
    for tenant in ("one", "two", "one"):
        wrapped(server.url, model, cache={"tenant": tenant}).retrieve(QUERY)
    assert model.asked == 2


def test_failures_are_not_shared(server: RedisServer) -> None:
    model = Model()
    model.answer = ""
    assert wrapped(server.url, model).retrieve(QUERY).status == "degraded"
    model.answer = json.dumps({"rewrite": REWRITE})
    assert wrapped(server.url, model).retrieve(QUERY).status == "full"
    assert model.asked == 2


TAMPERED = [
    Transformation(rewrite="x" * 40_000),
    Transformation(rewrite=" "),
    Transformation(rewrite=REWRITE, sub_queries=tuple(map(str, range(1_000)))),
    Transformation(rewrite=REWRITE, hyde="a field that was not asked for"),
    Transformation(rewrite=REWRITE, notes=(("rewrite", "x" * 40_000),)),
]


@pytest.mark.parametrize("made", TAMPERED, ids=["long", "blank", "many", "not asked for", "notes"])
def test_what_no_reply_could_have_given_is_not_taken_from_redis(
    server: RedisServer, made: Transformation
) -> None:
    model = Model()
    ours = wrapped(server.url, model)
    theirs = RedisCache(server.url, timeout=10.0, ttl_seconds=60, breaker=Breaker(1, 30))
    key = key_of(ours, model)
    theirs.put(key, made)
    retrieval = ours.retrieve(QUERY)
    assert [it.text for it in retrieval.variants] == [QUERY, REWRITE]
    assert (model.asked, retrieval.status) == (1, "full")
    # The next process has what the model said.
    assert theirs.get(key, lambda _: True) == retrieval.transformation
    theirs.close()


def test_no_text_can_be_read_out_of_the_names_of_what_is_kept(server: RedisServer) -> None:
    wrapped(server.url, Model()).retrieve(QUERY)
    (name,) = server.admin.keys("*")
    assert name.startswith(b"qtm:")
    assert b"Jaco" not in name
    assert 0 < server.admin.ttl(name) <= 3_600


PROCESS = """
import itertools, json, sys
from concurrent.futures import ThreadPoolExecutor
import openai
import qtmiddleware as qtm

redis, model, query = sys.argv[1:]
config = {
    "transformationType": "rewrite",
    "cache": {"redisUrl": redis, "redisTimeoutMs": 10_000},
    "limits": {"llmTimeoutMs": 20_000, "deadlineMs": 30_000},
}
client = openai.OpenAI(base_url=model, api_key="none")
asked = itertools.count(1)

def search(query, top_k=3):
    # Each question searches for itself, while one of them asks the model.
    if next(asked) == 25:
        print("all have asked", flush=True)
    return [{"id": query, "score": 0.5}]

wrapped = qtm.QueryMiddleware(config, client=client).wrap(search)
print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(25) as pool:
    seen = list(pool.map(lambda _: wrapped.retrieve(query), range(25)))
print(json.dumps([[[it.text for it in one.variants], one.status] for one in seen]))
"""


def test_each_of_four_processes_asks_once_at_most_and_later_ones_not_at_all(
    server: RedisServer, model_server: ModelServer
) -> None:
    model_server.reply = {"rewrite": REWRITE}
    model_server.holds = True
    command = [sys.executable, "-c", PROCESS, server.url, model_server.url, QUERY]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for it in processes:
        assert it.stdout is not None
        assert it.stdout.readline() == "ready\n"
    for it in processes:
        assert it.stdin is not None
        it.stdin.write("go\n")
        it.stdin.flush()
    for it in processes:
        assert it.stdout is not None
        assert it.stdout.readline() == "all have asked\n"
    model_server.released.set()
    told = [it.communicate(timeout=200)[0] for it in processes]
    assert [json.loads(it) for it in told] == [[[[QUERY, REWRITE], "full"]] * 25] * 4
    assert 1 <= len(model_server.bodies) <= 4
    model_server.bodies.clear()
    later = subprocess.run(
        command, input="go\n", capture_output=True, text=True, timeout=200, check=True
    )
    assert json.loads(later.stdout.splitlines()[-1]) == [[[QUERY, REWRITE], "full"]] * 25
    assert not model_server.bodies


def test_a_question_that_is_not_asked_leaves_nothing_in_redis(server: RedisServer) -> None:
    retrieval = wrapped(server.url, Model(), budget={"maxLlmCallsPerMinute": 0}).retrieve(QUERY)
    assert [it.reason for it in retrieval.degradations] == ["over_budget"]
    assert server.admin.keys("*") == []


def test_without_redis_questions_are_answered_as_if_alone(stopped_server: RedisServer) -> None:
    model = Model()
    alone = wrapped(stopped_server.url, model)
    seen = [alone.retrieve(f"{QUERY} ({place})") for place in range(5)]
    assert {it.status for it in seen} == {"full"}
    assert model.asked == 5


def test_a_redis_that_hangs_is_tried_once_and_then_left_alone(
    impostor: Callable[..., Impostor],
) -> None:
    silent = impostor(None)
    model = Model()
    alone = wrapped(silent.url, model, cache={"redisTimeoutMs": 50}, breaker={"seconds": 600})
    seen = [alone.retrieve(f"{QUERY} ({place})") for place in range(20)]
    assert {it.status for it in seen} == {"full"}
    # A client that times out while it connects does so once more.
    assert 1 <= silent.counted(1) <= 2


def test_a_redis_that_dies_in_between_is_no_loss(server: RedisServer) -> None:
    model = Model()
    ours = wrapped(server.url, model)
    ours.retrieve(QUERY)
    server.kill()
    assert ours.retrieve("What does Jaco eat?").status == "full"
    assert ours.retrieve(QUERY).trace.cache_hits == 1


def test_what_redis_knows_is_used_while_the_model_is_left_alone(server: RedisServer) -> None:
    wrapped(server.url, Model()).retrieve(QUERY)

    def down(_: Any) -> str:
        raise OSError("down")

    down.__qualname__ = "Model"
    ours = wrapped(server.url, down, breaker={"failures": 1})
    assert [it.reason for it in ours.retrieve("What does Jaco eat?").degradations] == [
        "unavailable"
    ]
    found = ours.retrieve(QUERY)
    assert (found.status, found.trace.cache_hits) == ("full", 1)


def test_awaited_questions_share_too_without_blocking_the_loop(server: RedisServer) -> None:
    async def ask() -> Any:
        async def asearch(query: str, top_k: int = 3) -> Any:
            return search(query, top_k)

        model = Model()
        config = {
            "transformationType": "rewrite",
            "cache": {"redisUrl": server.url, "redisTimeoutMs": 10_000},
            "limits": LIMITS,
        }
        first, second = (qtm.QueryMiddleware(config, client=model).wrap(asearch) for _ in range(2))
        seen = [await first.aretrieve(QUERY)]
        server.signal(signal.SIGSTOP)
        asking = asyncio.ensure_future(second.aretrieve(QUERY))
        # Only a loop that goes on while Redis is silent comes to let it speak again before its time
        # is over.
        for _ in range(1_000):
            await asyncio.sleep(0)
        server.signal(signal.SIGCONT)
        seen.append(await asking)
        return model.asked, [it.status for it in seen]

    assert asyncio.run(ask()) == (1, ["full", "full"])


@pytest.mark.parametrize(
    "address", ["redis://user:secret@host/0", "redis://:secret@host", "http://host", "host"]
)
def test_an_address_that_will_not_do_is_refused_at_once(address: str) -> None:
    with pytest.raises(qtm.ConfigError) as caught:
        qtm.QueryMiddleware({"cache": {"redisUrl": address}})
    assert caught.value.path == "cache.redisUrl"
    assert "secret" not in f"{caught.value} {caught.value.value}"


def test_a_question_takes_two_trips_to_redis(server: RedisServer) -> None:
    server.admin.config_resetstat()
    wrapped(server.url, Model()).retrieve(QUERY)
    commands = server.admin.info("commandstats")
    assert {name: commands[f"cmdstat_{name}"]["calls"] for name in ("getrange", "set")} == {
        "getrange": 1,
        "set": 1,
    }


# --- health and reload ----------------------------------------------------------------------------


def test_health_tells_what_was_last_seen_of_redis_and_asks_it_nothing(
    stopped_server: RedisServer, impostor: Callable[[bytes | None], Impostor]
) -> None:
    stopped_server.start()
    silent = impostor(None)
    ours = wrapped(stopped_server.url, Model())
    assert ours.middleware.health().redis.state is RedisState.NOT_ASKED_YET
    ours.retrieve(QUERY)
    health = ours.middleware.health().redis
    assert (health.state, health.where, health.rest) == (
        RedisState.REACHED,
        str(stopped_server.socket),
        0.0,
    )
    stopped_server.kill()
    assert ours.middleware.health().redis.state is RedisState.REACHED
    ours.retrieve(f"{QUERY} (2)")
    health = ours.middleware.health().redis
    assert health.state is RedisState.NOT_REACHED
    assert health.rest > 0
    assert ours.middleware.ready()
    ours = wrapped(silent.url, Model())
    ours.middleware.health()
    assert silent.connections == 0


def test_a_reload_keeps_the_redis_it_names_and_leaves_another(
    server: RedisServer, impostor: Callable[[bytes | None], Impostor]
) -> None:
    model = Model()
    ours = wrapped(server.url, model)
    ours.retrieve(QUERY)
    qm = ours.middleware
    kept = qm._cache.shared
    config: dict[str, Any] = {"transformationType": "rewrite", "limits": LIMITS, "topK": 9}
    cache = {"redisUrl": server.url, "redisTimeoutMs": 10_000}
    qm.reload({**config, "cache": cache})
    assert qm._cache.shared is kept
    assert server.admin.info("clients")["connected_clients"] == 2  # ours and the test's
    qm.reload(config)
    assert qm.health().redis.state is RedisState.NOT_USED
    wait_until(lambda: server.admin.info("clients")["connected_clients"] == 1)
    assert ours.retrieve(QUERY).trace.cache_hits == 1
    qm.reload({**config, "cache": {**cache, "tenant": "other"}})
    ours.retrieve(QUERY)
    assert (model.asked, qm.health().redis.state) == (2, RedisState.REACHED)


def test_questions_under_way_end_with_the_redis_they_began_with(server: RedisServer) -> None:
    begun, release = threading.Event(), threading.Event()

    def model(_: Any) -> str:
        begun.set()
        release.wait(20)
        return json.dumps({"rewrite": REWRITE})

    ours = wrapped(server.url, model)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ours.retrieve, QUERY)
        begun.wait(20)
        ours.middleware.reload({"transformationType": "rewrite", "limits": LIMITS})
        release.set()
        assert asked.result().status == "full"
    # What it asked is there for others, and its connection is closed.
    assert len(server.admin.keys("qtm:*")) == 1
    wait_until(lambda: server.admin.info("clients")["connected_clients"] == 1)
    release.set()
