"""Four uvicorn workers and a shared Redis, as docs/deploy.md runs them, on good days and bad ones."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from pytest_httpserver import HTTPServer

from tests.support.deploy_world import environment, running
from tests.support.many_workers import WORKERS, Service, Worker, transform, write_service
from tests.support.model_server import ModelServer
from tests.support.redis_world import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.thorough

PASSAGES: Final = [
    f"Passage {n} says what the vet found when Jaco was {n} years old." for n in range(80)
]
PATIENCE: Final = 60.0

Start = Callable[..., tuple[Service, list[Worker]]]

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
def start(tmp_path: Path, model: ModelServer, one_authority: str | None) -> Iterator[Start]:
    """Starts the recipe with settings of the environment."""
    with ExitStack() as stack:

        def begin(env: dict[str, str]) -> tuple[Service, list[Worker]]:
            trusted = {"SSL_CERT_FILE": one_authority} if one_authority else {}
            given = trusted | env
            service = Service(
                write_service(tmp_path, PASSAGES),
                environment(model.url, **given),
            )
            stack.enter_context(running(service))
            workers = service.connect()
            for worker in workers:
                stack.callback(worker.close)
            return service, workers

        yield begin


def shared(redis: RedisServer) -> dict[str, str]:
    """Settings with *redis* and with time enough for the model on a busy machine."""
    return {
        "REDIS_URL": redis.url,
        "QTM_BREAKER_SECONDS": "1",
        "QTM_LIMITS_LLM_TIMEOUT_MS": "60000",
        "QTM_LIMITS_DEADLINE_MS": "90000",
    }


@pytest.fixture
def redis_server(stopped_server: RedisServer) -> RedisServer:
    stopped_server.start()
    return stopped_server


def ask_all(workers: list[Worker], questions: list[str]) -> list[dict[str, Any]]:
    """What every worker answers to each question, one question after the other and the workers in turn."""
    return [worker.search(question) for question in questions for worker in workers]


def check_shape(worker: Worker, question: str, answer: dict[str, Any]) -> None:
    """The wrapped function's answer is at least what the function gives by itself."""
    plain, passages = worker.search(question, "/plain")["passages"], answer["passages"]
    assert len(passages) == len(plain) == len({it["id"] for it in passages})
    assert all(set(it) == set(plain[0]) for it in passages)
    assert all(it["metadata"]["text"] == PASSAGES[int(it["id"])] for it in passages)


def test_what_one_worker_asked_the_others_read_in_redis(
    start: Start, model: ModelServer, redis_server: RedisServer
) -> None:
    service, workers = start(shared(redis_server))
    questions = new_questions(6)
    answers = ask_all(workers, questions)
    assert [it["status"] for it in answers] == ["full"] * len(questions) * WORKERS, (
        service.complaints
    )
    assert len(model.bodies) == len(questions)
    for question, answer in zip(questions, answers[::WORKERS], strict=True):
        check_shape(workers[-1], question, answer)
        # Whichever worker answers, it is the same answer.
        assert all(worker.search(question) == answer for worker in workers)


def test_only_the_requests_of_a_killed_worker_fail_and_another_takes_its_place(
    start: Start, model: ModelServer, redis_server: RedisServer
) -> None:
    service, workers = start(shared(redis_server))
    (known,) = new_questions(1)
    answer = workers[0].search(known)
    calls, model.holds = len(model.bodies), True
    with ThreadPoolExecutor(WORKERS) as pool:
        waiting = [
            pool.submit(it.search, question)
            for it, question in zip(workers, new_questions(4), strict=True)
        ]
        wait_until(lambda: len(model.bodies) == calls + WORKERS)
        os.kill(workers[0].pid, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            waiting[0].result(PATIENCE)
        model.released.set()
        assert [it.result(PATIENCE)["status"] for it in waiting[1:]] == ["full"] * (WORKERS - 1)
    model.holds = False
    asked = len(model.bodies)
    others = service.connect()
    assert workers[0].pid not in {it.pid for it in others}
    (fresh,) = [it for it in others if it.pid not in {worker.pid for worker in workers}]
    # It remembers nothing, and reads what its predecessor asked.
    assert fresh.search(known) == answer
    assert len(model.bodies) == asked
    for worker in others:
        worker.close()
