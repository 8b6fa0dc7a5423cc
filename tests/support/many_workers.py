"""The service of docs/deploy.md as files and as a running server, with a look at its workers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.deploy_world import Server, write_recipes

WORKERS: Final = 4
WORKER_HEADER: Final = "x-worker"
"""Which process answered."""

# The team's own search: it takes 20 ms and finds other passages first for another query.
INDEX: Final = """
import json
import time
from pathlib import Path
from zlib import crc32

PASSAGES = json.loads(Path("passages.json").read_text("utf-8"))


def search_index(query: str, top_k: int = 4):
    time.sleep(0.02)
    first = crc32(query.encode()) % len(PASSAGES)
    texts = (PASSAGES[first:] + PASSAGES)[:top_k]
    return [
        {"id": str((first + n) % len(PASSAGES)), "score": 0.9 - n / 1000, "metadata": {"text": text}}
        for n, text in enumerate(texts)
    ]
"""

# Each reply says which worker wrote it.
NAMING: Final = f"""
import os

PID = str(os.getpid()).encode()


def name_worker(served):
    async def app(scope, receive, send):
        async def send_named(message):
            if message["type"] == "http.response.start":
                message["headers"].append((b"{WORKER_HEADER}", PID))
            await send(message)

        await served(scope, receive, send_named)

    return app
"""

# Beside the recipe's own address the bare function.
OBSERVED: Final = """
from index import search_index
from naming import name_worker
from service import app as served

@served.get("/plain")
def plain(q: str):
    return {"passages": search_index(q), "status": "full"}


app = name_worker(served)
"""

_FILES: Final = {"index.py": INDEX, "naming.py": NAMING, "observed.py": OBSERVED}


def write_service(folder: Path, passages: Sequence[str]) -> Path:
    """The recipe around a search of *passages* in *folder*."""
    write_recipes(folder)
    for name, code in _FILES.items():
        (folder / name).write_text(code, encoding="utf-8")
    (folder / "passages.json").write_text(json.dumps(list(passages)), encoding="utf-8")
    return folder


def transform(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a model makes of any question."""
    query = json.loads(body["messages"][-1]["content"])["query"]
    return {
        "rewrite": f"{query.rstrip('? ')} in every detail",
        "step_back": "What is known of it?",
        "sub_queries": [],
        "hyde": f"{query.rstrip('? ')}: this is answered at length.",
    }


class Worker:
    """One worker process, by a connection of its own that is kept open."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=200, trust_env=False)
        self.pid = self._ask("/healthz")[1]

    def search(self, question: str, path: str = "/search") -> Any:
        """What this worker answers; raises `httpx.TransportError` where it died meanwhile."""
        found, pid = self._ask(path, q=question)
        assert pid == self.pid, "the connection was taken over by another worker"
        return found

    def close(self) -> None:
        self._client.close()

    def _ask(self, path: str, **params: str) -> tuple[Any, int]:
        answered = self._client.get(path, params=params)
        answered.raise_for_status()
        return answered.json(), int(answered.headers[WORKER_HEADER])


class Service(Server):
    """What `write_service` wrote into *folder* under uvicorn with `WORKERS` processes."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        patient = (
            "--timeout-worker-healthcheck",
            "120",
            "--timeout-keep-alive",
            "600",
            "--log-level",
            "warning",
        )
        command = ("-m", "uvicorn", "observed:app", "--fd", "{fd}", *patient)
        super().__init__(folder, *command, env={**env, "WEB_CONCURRENCY": str(WORKERS)})
        self.address = self.url.removesuffix("/search")

    def connect(self, seconds: float = 200.0) -> list[Worker]:
        """A connection to each of the workers, once all of them answer; raises `TimeoutError` otherwise."""
        end, found = time.monotonic() + seconds, dict[int, Worker]()
        with ThreadPoolExecutor(WORKERS) as pool:
            while len(found) < WORKERS:
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"{len(found)} of {WORKERS} workers answered\n{self.complaints}"
                    )
                # Whoever is free takes the next connection: several at once reach several.
                for worker in pool.map(lambda _: Worker(self.address), range(WORKERS)):
                    if worker.pid in found:
                        worker.close()
                    found.setdefault(worker.pid, worker)
        return list(found.values())
