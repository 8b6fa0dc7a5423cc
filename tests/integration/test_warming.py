"""What the first question needs is there before it is asked, and never in its way."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.conversing import read_plain_environment
from tests.support.model_server import ModelServer
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.thorough

BEGIN = """
import sys
import qtmiddleware as qtm

limits = {"llmTimeoutMs": 60_000, "deadlineMs": 90_000}
config = {"transformationType": "rewrite", "llm": {"baseUrl": sys.argv[1]}, "limits": limits}
search = lambda query, top_k=4: [{"id": "a", "score": 0.5, "text": query}]

def list_vendors():
    return sorted({"openai", "httpx", "httpx2", "genai_prices"} & set(sys.modules))
"""
WARM = """
qm = qtm.QueryMiddleware(config)
retrieve = qm.wrap(search)
print(list_vendors(), qm.warm_up(), flush=True)
before = set(sys.modules)
input()
print(retrieve.retrieve('Is Jaco ill?').status)
new = set(sys.modules) - before
# The event loop's own parts, which are loaded with its first connection.
loop = ('encodings', 'stringprep', 'anyio', 'concurrent')
print([name for name in sorted(new) if not name.startswith(loop)])
"""
UNUSED = """
made = [qtm.QueryMiddleware(), qtm.QueryMiddleware({**config, "escalation": "never"})]
made += [qtm.QueryMiddleware(config, client=lambda messages: "x"), qtm.middleware(search)]
print(list_vendors())
"""


def start(code: str, address: str = "http://127.0.0.1:9/v1") -> subprocess.Popen[str]:
    """A fresh process that runs *code* and has a key."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", BEGIN + code, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**read_plain_environment(), "OPENAI_API_KEY": "x"},
    )


def test_warming_up_sends_nothing_and_the_first_question_imports_nothing(
    model_server: ModelServer,
) -> None:
    model_server.reply = {"rewrite": "health of Jaco"}
    with start(WARM, model_server.url) as process:
        assert process.stdout
        assert process.stdout.readline() == "[] None\n"
        assert model_server.bodies == []
        assert process.communicate("\n", PATIENCE) == ("full\n[]\n", "")
    assert len(model_server.bodies) == 1


def test_a_middleware_that_asks_no_model_of_ours_loads_no_client() -> None:
    with start(UNUSED) as process:
        assert process.communicate("", PATIENCE) == ("[]\n", "")
