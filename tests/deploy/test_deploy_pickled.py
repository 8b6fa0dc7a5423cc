"""Functions and classes that Ray and Dask send to their workers, as docs/deploy.md writes them."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Final

import cloudpickle
from deploy_world import QUESTION

WORKER: Final = f"""
import pickle, sys

search, searcher, retrieve = pickle.load(sys.stdin.buffer)
kept = searcher()
found = [search({QUESTION!r}), search("Who is Jaco?"), kept.search({QUESTION!r})]
print([it["status"] for it in found], retrieve({QUESTION!r})[0]["id"], sys.modules["retrieval"].retrieve is retrieve)
"""


def test_what_makes_the_middleware_in_the_worker_can_be_sent_there(
    recipes: Path, env: dict[str, str], monkeypatch: object
) -> None:
    jobs = runpy.run_path(str(recipes / "jobs.py"), run_name="__main__")
    sys.path.insert(0, str(recipes))
    try:
        from retrieval import retrieve

        sent = cloudpickle.dumps((jobs["search"], jobs["Searcher"], retrieve))
    finally:
        sys.path.remove(str(recipes))
        sys.modules.pop("retrieval", None)
    done = subprocess.run(
        [sys.executable, "-c", WORKER], input=sent, cwd=recipes, env=env, capture_output=True, timeout=50, check=False
    )
    assert (done.stdout.decode(), done.stderr) == ("['full', 'full', 'full'] a True\n", b"")
