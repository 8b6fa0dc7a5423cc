"""The recipe with everything around it: a model that takes its time, a Redis, and questions as people ask them."""

from __future__ import annotations

import json
import logging
import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_httpserver import HTTPServer

from benchmarks.many_workers.driving import Driver, driving
from tests.support.deploy_world import ROOT, environment, running
from tests.support.many_workers import Service, transform, write_service
from tests.support.model_server import ModelServer
from tests.support.redis_world import RedisServer

DATA = ROOT.parent / "shared" / "data"
KNOWN = DATA / "nq_small"
MODEL_SECONDS = 0.3
SEED = 7
EXPONENT = 1.1
LLM_TIMEOUT_MS = 2_000
BREAKER_SECONDS = 5
SETTINGS = {
    "QTM_LIMITS_LLM_TIMEOUT_MS": str(LLM_TIMEOUT_MS),
    "QTM_LIMITS_DEADLINE_MS": "4000",
    "QTM_BREAKER_SECONDS": str(BREAKER_SECONDS),
}


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@dataclass
class Questions:
    """Questions nobody asked before, each handed out once, and *known* ones, which people repeat.

    Of the 1,655 known ones that of rank r is drawn with a weight of 1 / r^`EXPONENT`.
    """

    new: Iterator[str]
    known: list[str]
    chance: random.Random = field(default_factory=lambda: random.Random(SEED))

    @classmethod
    def load(cls) -> Questions:
        files = [*sorted((DATA / "query_sets").glob("*.jsonl")), DATA / "covidqa" / "queries.jsonl"]
        known = [it["text"] for it in _read(KNOWN / "queries.jsonl")]
        new = dict.fromkeys(it["text"] for file in files for it in _read(file))
        made = cls(iter([it for it in new if it not in known]), known)
        made.chance.shuffle(made.known)
        return made

    def take_new(self, many: int) -> list[str]:
        """So *many* that were not asked before."""
        return [next(self.new) for _ in range(many)]

    def draw(self, many: int) -> list[str]:
        """So *many* of those that are repeated."""
        weights = list(accumulate(1 / rank**EXPONENT for rank in range(1, len(self.known) + 1)))
        return self.chance.choices(self.known, cum_weights=weights, k=many)


def _think(body: Mapping[str, Any]) -> dict[str, Any]:
    time.sleep(MODEL_SECONDS)
    return transform(body)


@dataclass
class World:
    """Everything that runs: the recipe's *service*, the *driver* that asks it, its *model* and its *redis*."""

    service: Service
    driver: Driver
    model: ModelServer
    redis: RedisServer

    @property
    def calls(self) -> int:
        """How often the model was asked."""
        return len(self.model.bodies)

    def heal(self) -> None:
        """Let the model answer again, also those who still wait."""
        self.model.reply = _think
        self.model.released.set()


@contextmanager
def running_service(*, shares: bool) -> Iterator[World]:
    """The recipe with four workers; *shares* says whether they have a Redis."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    passages = [it["text"] for it in _read(KNOWN / "corpus.jsonl")]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="qtm")))
        server = stack.enter_context(HTTPServer(host="127.0.0.1", threaded=True))
        model = ModelServer(server, _think)
        redis = RedisServer(os.environ.get("TEST_REDIS") or "redis-server", folder)
        redis.start()
        stack.callback(redis.kill)
        env = SETTINGS | ({"QTM_CACHE_REDIS_URL": redis.url} if shares else {})
        write_service(folder, passages, maxUsd="1_000_000", maxLlmCallsPerMinute="1_000_000")
        service = Service(folder, environment(model.url, **env))
        stack.enter_context(running(service))
        world = World(service, stack.enter_context(driving(service.port)), model, redis)
        stack.callback(world.heal)
        yield world
