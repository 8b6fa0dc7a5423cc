"""What the first question of a fresh process takes, beside a model that answers after 150 ms.

    python -m benchmarks.speed.first_question [--rounds N] [--beside CHECKOUT ...] [--busy N]

Each reading is a process of its own, which makes a middleware, waits as a server does before its
first request, and asks two different questions. Other checkouts are measured in turn with this one,
and --busy runs that many processes beside it that do nothing but keep a core busy.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

from tests.support.completions import completion

HERE = Path(__file__).resolve().parents[2]
MODEL_SECONDS = 0.15
WAITS = (0.0, 2.0)
ASKING = """
import json, sys, time
from time import perf_counter
address, wait, warms = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "warm"
import qtmiddleware as qtm

def retrieve(query, top_k=4):
    return [{"id": str(n), "score": 1 / (n + 1), "text": f"passage {n} about {query}"} for n in range(top_k)]

began = perf_counter()
qm = qtm.QueryMiddleware({"transformationType": "combined", "llm": {"baseUrl": address}})
search = qm.wrap(retrieve)
made = perf_counter() - began
if warms and hasattr(qm, "warm_up"):
    qm.warm_up()
time.sleep(wait)
found = {"made": made}
for name, question in (("first", "What is Nike's strategy in Europe?"), ("second", "Which sectors emit methane?")):
    began = perf_counter()
    retrieval = search.retrieve(question)
    found[name] = perf_counter() - began
    asked = [stage.ms / 1e3 for stage in retrieval.trace.stages if stage.name.startswith("transform")]
    found[f"{name} model"] = max(asked, default=0)
    found[f"{name} status"] = retrieval.status
print(json.dumps(found))
"""
REPLY = {
    "rewrite": "The strategy of Nike in Europe",
    "hyde": "Nike sells shoes.",
    "sub_queries": ["What is Nike?"],
}


class _Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet an answer, so that none waits for the other's acknowledgement

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(MODEL_SECONDS)
        body = json.dumps(completion(json.dumps(REPLY)))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def model() -> Iterator[str]:
    """The address of a model's server in this process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()


@contextmanager
def counting(processes: int) -> Iterator[None]:
    """That many processes that keep a core busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def reading(checkout: Path, address: str, wait: float, warms: str) -> dict[str, Any]:
    """One fresh process of *checkout*."""
    environ = {**os.environ, "PYTHONPATH": str(checkout), "OPENAI_API_KEY": "none"}
    command = [sys.executable, "-c", ASKING, address, str(wait), warms]
    done = subprocess.run(
        command, env=environ, cwd=checkout, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.first_question", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--beside", type=Path, nargs="*", default=[], help="other checkouts, measured in turn"
    )
    parser.add_argument(
        "--busy", type=int, default=0, help="processes beside it that keep a core busy"
    )
    options = parser.parse_args()
    cases = [(wait, "cold") for wait in WAITS] + [(0.0, "warm")]
    taken: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    with model() as address, counting(options.busy):
        for turn in range(options.rounds + 1):
            for checkout in (HERE, *options.beside):
                for wait, warms in cases:
                    found = reading(checkout.resolve(), address, wait, warms)
                    if turn:  # the first round writes what Python compiles
                        taken.setdefault((checkout.name, wait, warms), []).append(found)
    print(
        "| checkout | before the question | made | first question | its model | second | degraded |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for (name, wait, warms), all_found in taken.items():
        ms = {
            key: median(it[key] for it in all_found) * 1e3
            for key in ("made", "first", "first model", "second")
        }
        degraded = sum(it["first status"] != "full" for it in all_found)
        before = "qm.warm_up()" if warms == "warm" else f"{wait:g} s"
        figures = " | ".join(f"{value:.0f} ms" for value in ms.values())
        print(f"| {name} | {before} | {figures} | {degraded} of {len(all_found)} |")


if __name__ == "__main__":
    main()
