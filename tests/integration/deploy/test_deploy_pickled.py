"""Functions and classes that Ray and Dask send to their workers."""

from __future__ import annotations

import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from tests.support.deploy_world import QUESTION

pytestmark = pytest.mark.thorough

JOBS: Final = """
def search(query):
    from retrieval import retrieve

    r = retrieve.retrieve(query)
    return {"passages": r.response, "status": r.status}


class Searcher:
    def __init__(self):
        from retrieval import qm, retrieve

        qm.warm_up()
        self.retrieve = retrieve

    def search(self, query):
        r = self.retrieve.retrieve(query)
        return {"passages": r.response, "status": r.status}
"""
WORKER: Final = f"""
import pickle, sys

search, searcher, retrieve = pickle.load(sys.stdin.buffer)
kept = searcher()
found = [search({QUESTION!r}), search("Who is Jaco?"), kept.search({QUESTION!r})]
print([it["status"] for it in found], retrieve({QUESTION!r})[0]["id"], sys.modules["retrieval"].retrieve is retrieve)
"""


def test_what_makes_the_middleware_in_the_worker_can_be_sent_there(
    recipes: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import cloudpickle

    (recipes / "jobs.py").write_text(JOBS, encoding="utf-8")
    jobs = runpy.run_path(str(recipes / "jobs.py"), run_name="__main__")
    monkeypatch.syspath_prepend(recipes)
    monkeypatch.delitem(sys.modules, "retrieval", raising=False)
    sent = cloudpickle.dumps(
        (jobs["search"], jobs["Searcher"], import_module("retrieval").retrieve)
    )
    monkeypatch.delitem(sys.modules, "retrieval")
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=sent,
        cwd=recipes,
        env=env,
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert (done.stdout.decode(), done.stderr) == ("['full', 'full', 'full'] a True\n", b"")
