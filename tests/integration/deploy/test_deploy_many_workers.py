"""Four uvicorn workers and a shared Redis, as docs/deploy.md runs them, on good days and bad ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from pytest_httpserver import HTTPServer

from tests.support.deploy_world import environment, running
from tests.support.many_workers import WORKERS, Service, Worker, transform, write_service
from tests.support.model_server import ModelServer
from tests.support.redis_world import RedisServer

pytestmark = pytest.mark.thorough

PASSAGES: Final = [
    f"Passage {n} says what the vet found when Jaco was {n} years old." for n in range(80)
]
PATIENCE: Final = 60.0

_numbers = count()


def new_questions(many: int) -> list[str]:
    """Nobody asked them before."""
    return [
        f"What did the vet say about the health of dog number {next(_numbers)}?"
        for _ in range(many)
    ]


@pytest.fixture
def model(httpserver: HTTPServer) -> Iterator[ModelServer]:
    made = ModelServer(httpserver, transform)
    yield made
    made.released.set()


@pytest.fixture
def redis_server(stopped_server: RedisServer) -> RedisServer:
    stopped_server.start()
    return stopped_server


@pytest.fixture
def service(
    tmp_path: Path, model: ModelServer, redis_server: RedisServer, one_authority: str | None
) -> Iterator[Service]:
    """The recipe, with time enough for the model on a busy machine."""
    env = {
        "REDIS_URL": redis_server.url,
        "QTM_BREAKER_SECONDS": "1",
        "QTM_LIMITS_LLM_TIMEOUT_MS": "60000",
        "QTM_LIMITS_DEADLINE_MS": "90000",
    }
    if one_authority:
        env["SSL_CERT_FILE"] = one_authority
    started = Service(write_service(tmp_path, PASSAGES), environment(model.url, **env))
    with running(started):
        yield started


@pytest.fixture
def workers(service: Service) -> Iterator[list[Worker]]:
    connected = service.connect()
    yield connected
    for worker in connected:
        worker.close()


def check_shape(worker: Worker, question: str, answer: dict[str, Any]) -> None:
    """The wrapped function's answer is at least what the function gives by itself."""
    plain, passages = worker.search(question, "/plain")["passages"], answer["passages"]
    assert len(passages) == len(plain) == len({it["id"] for it in passages})
    assert all(set(it) == set(plain[0]) for it in passages)
    assert all(it["metadata"]["text"] == PASSAGES[int(it["id"])] for it in passages)


def test_what_one_worker_asked_the_others_read_in_redis(
    service: Service, workers: list[Worker], model: ModelServer
) -> None:
    questions = new_questions(6)
    answers = [worker.search(question) for question in questions for worker in workers]
    assert [it["status"] for it in answers] == ["full"] * len(questions) * WORKERS, (
        service.complaints
    )
    assert len(model.bodies) == len(questions)
    for question, answer in zip(questions, answers[::WORKERS], strict=True):
        check_shape(workers[-1], question, answer)
        # Whichever worker answers, it is the same answer.
        assert all(worker.search(question) == answer for worker in workers)
