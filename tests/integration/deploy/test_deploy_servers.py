"""Requests to web servers of every kind, as docs/deploy.md runs them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import SIGTERM
from typing import Final

import httpx
import pytest

from tests.support.deploy_world import IDS, QUESTION, Server, running
from tests.support.model_server import ModelServer
from tests.support.redis_world import run_redis

pytestmark = pytest.mark.thorough

GUNICORN: Final = "gunicorn --bind fd://{fd} --no-control-socket --worker-tmp-dir ."
COMMANDS: Final = {
    "gunicorn preloaded and used before": f"{GUNICORN} used:app --workers 2 --preload",
    "gunicorn with threads": f"{GUNICORN} wsgi:app -k gthread --threads 4",
    "gunicorn with gevent patched first": f"{GUNICORN} wsgi:app -c gunicorn_gevent.conf.py",
    "uvicorn with two workers and one Redis": "uvicorn logged:app --fd {fd} --log-level warning",
}
INDEX: Final = """
from retrieval import PASSAGES


def search_index(query: str, top_k: int = 4):
    return PASSAGES[:top_k]
"""
USED = f"""
from retrieval import retrieve
from wsgi import app

assert retrieve.retrieve({QUESTION!r}).status == "full"
"""
LOGGED = """
import logging

logging.basicConfig(level="WARNING")
from service import app
"""
REQUESTS: Final = 16


@pytest.fixture(scope="module")
def servers(recipes: Path, env: dict[str, str], redis_binary: str) -> Iterator[dict[str, Server]]:
    """All of them, started side by side."""
    (recipes / "used.py").write_text(USED, encoding="utf-8")
    (recipes / "logged.py").write_text(LOGGED, encoding="utf-8")
    (recipes / "index.py").write_text(INDEX, encoding="utf-8")
    with run_redis(redis_binary) as redis:
        redis.start()
        env = {**env, "REDIS_URL": redis.url, "WEB_CONCURRENCY": "2"}
        started = {
            kind: Server(recipes, "-m", *command.split(), env=env)
            for kind, command in COMMANDS.items()
        }
        with running(*started.values()):
            yield started


@pytest.mark.parametrize("kind", COMMANDS)
def test_every_request_is_answered_in_full_and_the_server_ends_well(
    kind: str, servers: dict[str, Server], house: ModelServer
) -> None:
    server, asked_before = servers[kind], len(house.bodies)
    questions = [f"{QUESTION[:-1]} about {kind} number {number}?" for number in range(REQUESTS)]
    with ThreadPoolExecutor(8) as pool, httpx.Client(timeout=200, trust_env=False) as client:
        answers = list(pool.map(lambda question: server.search(client, question), questions))
    # On a busy machine the shared cache may be late, which takes nothing from an answer but its status.
    reasons = set(re.findall(r"degraded: (.*)", server.complaints))
    assert reasons <= ({"cache timeout"} if "Redis" in kind else set()), server.complaints
    if not reasons:
        assert [it["status"] for it in answers] == ["full"] * REQUESTS, server.complaints
    assert all([passage["id"] for passage in it["passages"]] == IDS for it in answers)
    assert len(house.bodies) - asked_before >= REQUESTS
    # uvicorn raises the signal again that ended it.
    assert server.end() in (0, -SIGTERM), server.complaints
    assert "Traceback" not in server.complaints
