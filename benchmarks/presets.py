"""What the presets `words`, `balanced` and `thorough` add to a search, and what they ask of it when many ask at once.

    python -m benchmarks.presets [--rounds 15] > benchmarks/results/presets.md

The wrapped function sleeps as a search does and returns up to 50 passages of 800 characters; the
model is asked over HTTP by the real client and takes 600 ms for a rewrite, a broader question, a
hypothetical passage and two sub-queries, six searches with the question's own, as in the mean of
the recorded sets. No question comes twice. First one question after the other, then eight at a time
around a function that has four connections: whoever finds none free waits. Who waits is not served
in turn (some callers of the plain function go first every time), so that there questions a second
say more than the median.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import openai
from pytest_httpserver import HTTPServer

import qtmiddleware as qtm
from benchmarks.speed.workload import LISTS, QUESTIONS, VARIANTS
from qtmiddleware.kit.evaluation import Percentiles
from tests.support.model_server import ModelServer

MODEL_SECONDS: Final = 0.6
SEARCH_MS: Final = (20, 50, 200)
CANDIDATES: Final = 50
AT_A_TIME: Final = 8
CONNECTIONS: Final = 4
PRESETS: Final = ("rules", "words", "balanced", "thorough")
SYSTEMS: Final = ("plain", *PRESETS)

_TEXTS = [row["text"] for rows in LISTS for row in rows]
PASSAGES: Final = [
    {"id": f"p{n}", "score": 0.9 - n / 1_000, "text": f"{n} {_TEXTS[n % len(_TEXTS)]}"}
    for n in range(CANDIDATES)
]


class Backend:
    """A search that takes *ms* and lets *connections* callers in at a time; it counts its calls and their wait."""

    def __init__(self, ms: float, connections: int) -> None:
        self.calls, self.waited = 0, 0.0
        self._seconds = ms / 1e3
        self._free = threading.Semaphore(connections)
        self._lock = threading.Lock()

    def search(self, query: str, top_k: int = 4) -> list[dict[str, Any]]:
        """The best *top_k* passages, other ones first for another *query*."""
        began = time.perf_counter()
        with self._free:
            waited = time.perf_counter() - began
            time.sleep(self._seconds)
        with self._lock:
            self.calls, self.waited = self.calls + 1, self.waited + waited
        first = len(query) % 10
        return [
            {**it, "score": PASSAGES[at]["score"]}
            for at, it in enumerate(PASSAGES[first:] + PASSAGES[:first])
        ][:top_k]


def _reply(body: dict[str, Any]) -> str:
    """What the model makes of the question, after `MODEL_SECONDS`; no two texts of it say the same."""
    time.sleep(MODEL_SECONDS)
    asked = body["messages"][-1]["content"]
    rewrite, first, second, passage = VARIANTS[next(it for it in QUESTIONS if it in asked)]
    return json.dumps(
        {
            "rewrite": rewrite,
            "step_back": "What is international climate policy about?",
            "sub_queries": [first, second],
            "hyde": f"{passage}: they are set as quotas and fall from year to year.",
        }
    )


@contextmanager
def served() -> Iterator[openai.OpenAI]:
    """The client of a model that is served over HTTP."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with HTTPServer(threaded=True) as server:
        yield openai.OpenAI(base_url=ModelServer(server, _reply).url, api_key="none", max_retries=0)


@dataclass(frozen=True)
class Load:
    """What was seen of one system: milliseconds a call, questions a second, and the function's own account."""

    took: Percentiles
    rate: float
    searches: float
    waited_ms: float


def wrap(name: str, backend: Backend, client: openai.OpenAI) -> Callable[[str], Any]:
    """The search of *backend* with the preset *name* around it, or as it is; a result of which less came is refused."""
    if name == "plain":
        return backend.search
    wrapped: Any = qtm.QueryMiddleware(name, client=client).wrap(backend.search)

    def ask(question: str) -> Any:
        found = wrapped.retrieve(question)
        if found.status != "full":
            raise SystemExit(f"{name}: {found.degradations}")
        return found

    return ask


def measure(
    ask: Callable[[str], Any], backend: Backend, questions: list[str], at_a_time: int
) -> Load:
    """Ask all *questions*, so many at a time; the first ones, which load modules and open connections, do not count."""
    warm_up, asked = questions[:at_a_time], questions[at_a_time:]

    def time_one(question: str) -> float:
        began = time.perf_counter()
        ask(question)
        return (time.perf_counter() - began) * 1e3

    with ThreadPoolExecutor(at_a_time) as pool:
        list(pool.map(time_one, warm_up))
        backend.calls, backend.waited = 0, 0.0
        began = time.perf_counter()
        took = list(pool.map(time_one, asked))
        seconds = time.perf_counter() - began
    waited = backend.waited / backend.calls * 1e3
    return Load(Percentiles.of(took), len(asked) / seconds, backend.calls / len(asked), waited)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.presets", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--rounds", type=int, default=15, help="questions of each system one after the other"
    )
    options = parser.parse_args()
    alone: dict[str, list[str]] = {name: [name] for name in SYSTEMS}
    crowded: dict[str, list[list[str]]] = {}
    with served() as client:
        for ms in SEARCH_MS:
            plain = 0.0
            for name in SYSTEMS:
                backend = Backend(ms, CANDIDATES)
                load = measure(
                    wrap(name, backend, client), backend, QUESTIONS[: options.rounds + 1], 1
                )
                if name == "plain":
                    plain = load.took.p50
                if len(alone[name]) == 1:
                    alone[name].append(f"{load.searches:.1f}")
                alone[name].append(
                    f"{load.took.p50 - plain:+,.0f}" if name != "plain" else f"({plain:,.0f})"
                )
        for ms in SEARCH_MS:
            for name in SYSTEMS:
                backend = Backend(ms, CONNECTIONS)
                asked = QUESTIONS[: AT_A_TIME * (1 + max(3, options.rounds // 3))]
                load = measure(wrap(name, backend, client), backend, asked, AT_A_TIME)
                crowded.setdefault(f"{ms} ms", []).append(
                    [
                        name,
                        f"{load.took.p50:,.0f}",
                        f"{load.took.p95:,.0f}",
                        f"{load.rate:.1f}",
                        f"{load.rate * load.searches:.0f}",
                        f"{load.waited_ms:,.0f}",
                    ]
                )
    print("# What the presets add to a search\n")
    print(
        f"`python -m benchmarks.presets` (Python {platform.python_version()}, {os.cpu_count()} processors)\n"
    )
    print(" ".join((__doc__ or "").split("\n\n")[2].split()) + "\n")
    print(
        "## One question after the other\n\nMilliseconds added to the plain call, whose own stand in brackets.\n"
    )
    heads = [f"search of {ms} ms" for ms in SEARCH_MS]
    print(table(["", "searches a question", *heads], list(alone.values())))
    print(f"\n## {AT_A_TIME} questions at a time, {CONNECTIONS} connections")
    for ms, rows in crowded.items():
        print(f"\nA search of {ms}:\n")
        head = [
            "",
            "ms a call",
            "p95",
            "questions a second",
            "searches a second",
            "ms waited for a connection",
        ]
        print(table(head, rows))


if __name__ == "__main__":
    main()
