"""Requests to web servers of every kind, as docs/deploy.md runs them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.deploy_world import IDS, QUESTION, Server, running
from tests.support.model_server import ModelServer

pytestmark = pytest.mark.thorough

COMMANDS: Final = {
    "gunicorn preloaded and used before": "used:app --workers 2 --preload",
    "gunicorn with threads": "wsgi:app -k gthread --threads 4",
    "gunicorn with gevent patched first": "wsgi:app -c gunicorn_gevent.conf.py",
}
USED = f"""
from retrieval import retrieve
from wsgi import app

assert retrieve.retrieve({QUESTION!r}).status == "full"
"""
REQUESTS: Final = 16


@pytest.fixture(scope="module")
def servers(recipes: Path, env: dict[str, str]) -> Iterator[dict[str, Server]]:
    """All of them, started side by side."""
    (recipes / "used.py").write_text(USED, encoding="utf-8")
    quiet = ["--bind", "fd://{fd}", "--no-control-socket", "--worker-tmp-dir", str(recipes)]
    started = {
        kind: Server(recipes, "-m", "gunicorn", *command.split(), *quiet, env=env)
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
    assert [it["status"] for it in answers] == ["full"] * REQUESTS, server.complaints
    assert all([passage["id"] for passage in it["passages"]] == IDS for it in answers)
    assert len(house.bodies) - asked_before >= REQUESTS
    assert server.end() == 0, server.complaints
    assert "Traceback" not in server.complaints
