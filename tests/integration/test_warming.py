"""What the first question needs is there before it is asked, and never in its way."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from threading import Event, Timer
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.runtime import warming
from qtmiddleware.testing import ScriptedModel
from tests.support.model_server import ModelServer
from tests.support.waiting import PATIENCE, with_enough_time

pytestmark = pytest.mark.thorough

BEGIN = """
import os, sys
import qtmiddleware as qtm
from qtmiddleware.runtime.warming import wait_for_loading_threads, is_loading

address = sys.argv[1]

def search(query, top_k=4):
    return [{"id": "a", "score": 0.5, "text": query}]

def vendors():
    return sorted({"openai", "httpx", "httpx2", "genai_prices"} & set(sys.modules))

def transforming(**options):
    return qtm.QueryMiddleware({"transformationType": "rewrite", "llm": {"baseUrl": address}, **options})
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


def test_the_first_question_imports_nothing_once_the_background_has(
    model_server: ModelServer, address: str
) -> None:
    written = fresh(
        "qm = transforming()\n"
        "retrieve = qm.wrap(search)\n"
        "wait_for_loading_threads()\n"
        "print(vendors())\n"
        "before = set(sys.modules)\n"
        "print(retrieve.retrieve('Is Jaco ill?').status)\n"
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith(('encodings', 'stringprep'))))",
        address,
    )
    loaded, status, more = written.splitlines()
    assert "'openai'" in loaded
    assert (status, more) == ("full", "[]")
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
    assert (
        fresh(f"made = {made}\nprint(is_loading(), vendors())", OPENAI_API_KEY="x") == "False []\n"
    )


def test_without_a_key_nothing_is_loaded_and_warming_up_raises_nothing() -> None:
    written = fresh(
        "qm = qtm.QueryMiddleware({'transformationType': 'rewrite'})\nprint(vendors(), qm.warm_up())"
    )
    assert written == "[] None\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("wait", [0.0, 0.1, 0.2, 0.3])
def test_a_process_forked_while_packages_are_imported_can_ask(address: str, wait: float) -> None:
    written = fresh(
        "import time\n"
        "retrieve = transforming().wrap(search)\n"
        f"time.sleep({wait})\n"
        "child = os.fork()\n"
        "print(retrieve.retrieve('Is Jaco ill?').status, flush=True)\n"
        "if child:\n"
        "    assert os.waitpid(child, 0)[1] == 0",
        address,
    )
    assert written == "full\nfull\n"


def test_a_process_that_ends_at_once_ends_well(address: str) -> None:
    assert fresh("transforming()", address) == ""


def test_a_middleware_that_is_closed_while_it_loads_leaves_nothing_open(address: str) -> None:
    code = """
import time
with transforming() as qm: pass
end = time.monotonic() + 60
while is_loading() and time.monotonic() < end: time.sleep(0.01)
print(is_loading())
"""
    assert fresh(code, address) == "False\n"


@pytest.fixture
def loading() -> Iterator[Event]:
    """Something is being loaded until this is set."""
    loaded = Event()
    warming.load_in_background(lambda: loaded.wait(PATIENCE) and None, lambda: None)
    yield loaded
    loaded.set()
    warming.wait_for_loading_threads()


def first_question(kind: str, **limits: int) -> qtm.Retrieval:
    async def asearch(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        return [{"id": "a", "score": 0.5, "text": query}]

    def search(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        return [{"id": "a", "score": 0.5, "text": query}]

    qm = qtm.QueryMiddleware(
        {"transformationType": "rewrite", "limits": limits},
        client=ScriptedModel({"rewrite": "health of Jaco"}),
    )
    if kind == "async":
        return asyncio.run(qm.wrap(asearch).aretrieve("Is Jaco ill?"))
    return qm.wrap(search).retrieve("Is Jaco ill?")


both = pytest.mark.parametrize("kind", ["sync", "async"])


@both
def test_what_is_loaded_meanwhile_is_not_taken_off_the_models_time(kind: str) -> None:
    def ask(seconds: float) -> qtm.Retrieval:
        loaded = Event()
        warming.load_in_background(lambda: loaded.wait(PATIENCE) and None, lambda: None)
        # Four times as long as the model may take.
        Timer(4 * seconds, loaded.set).start()
        try:
            return first_question(kind, llmTimeoutMs=int(1e3 * seconds), deadlineMs=600_000)
        finally:
            loaded.set()
            warming.wait_for_loading_threads()

    retrieval = with_enough_time(ask, lambda found: found.status == "full")
    assert (retrieval.status, retrieval.transformation.rewrite) == ("full", "health of Jaco")


@both
def test_what_is_never_loaded_costs_no_more_than_the_whole_time_of_a_question(
    kind: str, loading: Event
) -> None:
    retrieval = first_question(kind, llmTimeoutMs=100, deadlineMs=300)
    assert [it["id"] for it in retrieval.response] == ["a"]
    assert [it.reason for it in retrieval.degradations] == ["timeout"]
    assert not loading.is_set()
