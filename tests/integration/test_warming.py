"""What the first question needs is there before it is asked, and never in its way."""

from __future__ import annotations

import os
import subprocess
import sys
from threading import Event
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.providers import openai_client
from tests.support.model_server import ModelServer
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.thorough

BEGIN = """
import os, sys
import qtmiddleware as qtm

address = sys.argv[1]

def search(query, top_k=4):
    return [{"id": "a", "score": 0.5, "text": query}]

def vendors():
    return sorted({"openai", "httpx", "httpx2", "genai_prices"} & set(sys.modules))

def transforming(**options):
    limits = {"llmTimeoutMs": 60_000, "deadlineMs": 90_000}
    config = {"transformationType": "rewrite", "llm": {"baseUrl": address}, "limits": limits}
    return qtm.QueryMiddleware(config, **options)
"""


@pytest.fixture
def address(model_server: ModelServer) -> str:
    model_server.reply = {"rewrite": "health of Jaco"}
    return model_server.url


def fresh(code: str, address: str = "", **environ: str) -> str:
    """What a fresh process writes that makes nothing but a clean end."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "QTM_"))
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BEGIN + code, address],
        capture_output=True, text=True, timeout=200, env={**kept, **environ}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_first_question_imports_nothing_after_warming_up(
    model_server: ModelServer, address: str
) -> None:
    written = fresh(
        "qm = transforming()\n"
        "retrieve = qm.wrap(search)\n"
        "print(vendors())\n"
        "qm.warm_up()\n"
        "before = set(sys.modules)\n"
        "print(retrieve.retrieve('Is Jaco ill?').status)\n"
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith(('encodings', 'stringprep'))))",
        address,
    )
    assert written == "[]\nfull\n[]\n"
    assert len(model_server.bodies) == 1


@pytest.mark.parametrize(
    "client",
    ["None", "openai.OpenAI(api_key='x', base_url=address)", "openai.AsyncOpenAI(api_key='x')"],
)
def test_nothing_is_sent_by_warming_up(
    model_server: ModelServer, address: str, client: str
) -> None:
    written = fresh(
        "import openai\n"
        f"qm = qtm.QueryMiddleware({{'transformationType': 'all', 'llm': {{'baseUrl': address}}}}, client={client})\n"
        "print(qm.warm_up(), 'openai.resources.chat.completions' in sys.modules)",
        address,
    )
    assert written == "None True\n"
    assert model_server.bodies == []


@pytest.mark.parametrize(
    "made",
    [
        "qtm.QueryMiddleware()",
        "qtm.QueryMiddleware({'transformationType': 'rewrite', 'escalation': 'never'})",
        "qtm.QueryMiddleware({'transformationType': 'rewrite'}, client=lambda messages: 'x')",
        "qtm.middleware(search)",
    ],
)
def test_a_middleware_that_asks_no_model_of_ours_loads_no_client(made: str) -> None:
    assert fresh(f"made = {made}\nprint(vendors())", OPENAI_API_KEY="x") == "[]\n"


async def test_making_the_client_is_not_waited_for_beyond_the_deadline(
    model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, make_client = Event(), openai_client.make_client
    model_server.reply = {"rewrite": "health of Jaco"}

    def make_slowly(**options: Any) -> Any:
        release.wait(PATIENCE)
        return make_client(**options)

    async def search(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        return [{"id": "a", "score": 0.5, "text": query}]

    def wrap(ms: int) -> Any:
        limits = {"llmTimeoutMs": ms, "deadlineMs": 2 * ms}
        config = {"transformationType": "rewrite", "llm": {"baseUrl": model_server.url}}
        return qtm.QueryMiddleware({**config, "limits": limits}).wrap(search)

    monkeypatch.setattr(openai_client, "make_client", make_slowly)
    found = await wrap(100).aretrieve("Is Jaco ill?")
    assert [it["id"] for it in found.response] == ["a"]
    assert [it.reason for it in found.degradations] == ["timeout"]
    release.set()
    assert (await wrap(60_000).aretrieve("Is Jaco ill?")).status == "full"
