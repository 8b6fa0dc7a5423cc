"""Greenlets in place of threads, put there before anything of ours is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.model_server import ModelServer

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
]

EARLY = """
import warnings
warnings.simplefilter("ignore")
from gevent import monkey
monkey.patch_all()
"""
MAKE = """
import os, sys, warnings
warnings.simplefilter("ignore")
import openai
import qtmiddleware as qtm
from qtmiddleware.runtime import concurrency as threads

threads.IDLE_SECONDS = 3_600
QUERY = "Does Jaco have any health concerns?"
CONFIG = {
    "transformationType": "rewrite",
    "cache": {"enabled": False},
    "limits": {"llmTimeoutMs": 10_000, "deadlineMs": 12_000},
}

def search(query, top_k=3):
    return [{"id": query, "score": 0.9, "metadata": {"text": query}}]

clients = {"own": None, "sync": openai.OpenAI(), "async": openai.AsyncOpenAI()}
wrapped = [qtm.QueryMiddleware(CONFIG, client=client).wrap(search) for client in clients.values()]
"""
USE = """
assert [it.retrieve(QUERY).status for it in wrapped] == ['full'] * 3
"""
FORK = """
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
SERVE = """
import gevent

for one in wrapped:
    jobs = [gevent.spawn(one.retrieve, QUERY) for _ in range(8)]
    gevent.joinall(jobs)
    print([it.value.status for it in jobs])
# Idle threads wait for an hour now: where they stopped the others, this would take as long.
gevent.sleep(0.01)
print("alive", flush=True)
os._exit(0)
"""


def test_all_questions_are_answered_in_full_and_idle_threads_stop_nobody(
    house: ModelServer,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{EARLY}{MAKE}{USE}{FORK}{SERVE}"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={
            **os.environ,
            "OPENAI_API_KEY": "sk-x",
            "QTM_LLM_BASE_URL": house.url,
            "OPENAI_BASE_URL": house.url,
        },
    )
    assert done.stdout == f"{['full'] * 8}\n" * 3 + "alive\n", done.stderr
    assert done.returncode == 0
