"""How fast and how large the local stores are.

    python -m benchmarks.stores [--sizes 5000,100000] [--rounds 100]

Passages of a hundred words with random unit vectors of 384 numbers (seed 7) are written, then a
fresh process opens the store and searches it for the best ten; the store in memory is filled and
searched by one process. The result goes to stdout and to ``benchmarks/results/stores.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

from qtmiddleware.kit.stores import LanceDBStore, MemoryStore, SQLiteStore
from qtmiddleware.protocols import Passage

RESULT = Path(__file__).resolve().parent / "results" / "stores.md"
KEPT = Path(".tmp/stores")
SEED = 7
DIMENSION = 384
TOP_K = 10
WORDS = 100
VOCABULARY = 20_000
BATCH = 1_000
KINDS = ("SQLite", "LanceDB", "memory")
HALF: Mapping[str, Any] = {"page": {"$gte": 25}}
FEW: Mapping[str, Any] = {"source": "docs/file7.txt"}


def passages(count: int) -> Iterator[tuple[Passage, Any]]:
    """*count* passages with their vectors; words are as unevenly common as those of a language (Zipf, exponent 1.2)."""
    import numpy as np

    random = np.random.default_rng(SEED)
    for start in range(0, count, BATCH):
        vectors = random.standard_normal((BATCH, DIMENSION), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        words = random.zipf(1.2, (BATCH, WORDS)) % VOCABULARY
        for at in range(BATCH):
            number = start + at
            metadata = {
                "source": f"docs/file{number // 20}.txt",
                "chunk": number % 20,
                "page": number % 50,
            }
            text = " ".join(f"w{word}" for word in words[at])
            yield Passage(f"{number // 20}:{number % 20}", text, metadata), vectors[at]


def opened(kind: str, path: Path) -> Any:
    """The store of this *kind*."""
    if kind == "memory":
        return MemoryStore(embedding_model="random", dimension=DIMENSION)
    store = SQLiteStore if kind == "SQLite" else LanceDBStore
    return store(path, embedding_model="random", dimension=DIMENSION)


def seconds(task: Callable[[], Any]) -> float:
    start = perf_counter()
    task()
    return perf_counter() - start


def resident() -> float:
    """Memory of this process, in MB."""
    status = Path("/proc/self/status").read_text(encoding="ascii").split()
    return int(status[status.index("VmRSS:") + 1]) / 1024


def filled(kind: str, path: Path, count: int) -> tuple[Any, dict[str, float]]:
    """A store with *count* passages, written as one change, and how fast that was."""
    # Made beforehand, as it is the store that is measured.
    made = list(passages(count))
    store = opened(kind, path)
    return store, {"written a second": count / seconds(lambda: store.write(iter(made)))}


def searched(store: Any, rounds: int) -> dict[str, float]:
    """How long each way of searching takes, the first time and every other."""
    import numpy as np

    random = np.random.default_rng(SEED + 1)
    vectors = random.standard_normal((rounds, DIMENSION), dtype=np.float32)
    # Three words of middling frequency, as the keywords of a question are.
    texts = [" ".join(f"w{word}" for word in random.integers(20, 2_000, 3)) for _ in range(rounds)]
    ways: dict[str, Callable[[int], Any]] = {
        "search": lambda at: store.search(vectors[at], TOP_K),
        "search, half pass the filter": lambda at: store.search(vectors[at], TOP_K, filter=HALF),
        "search, 20 pass the filter": lambda at: store.search(vectors[at], TOP_K, filter=FEW),
        "keywords": lambda at: store.keyword_search(texts[at], TOP_K),
        "keywords, half pass the filter": lambda at: store.keyword_search(
            texts[at], TOP_K, filter=HALF
        ),
    }
    found: dict[str, float] = {}
    for name, way in ways.items():
        found[f"{name}: first"] = 1e3 * seconds(lambda way=way: way(0))
        taken = sorted(seconds(lambda way=way, at=at: way(at)) for at in range(rounds))
        found[f"{name}: p50"] = 1e3 * taken[rounds // 2]
        found[f"{name}: p95"] = 1e3 * taken[int(rounds * 0.95)]
        found.setdefault("memory", resident())
    found["memory with filters"] = resident()
    return found


def worker(task: str, kind: str, path: Path, count: int, rounds: int) -> dict[str, float]:
    """One part of the measurement, in a process of its own."""
    if task == "fill":
        store, found = filled(kind, path, count)
        if kind == "memory":
            found |= searched(store, rounds)
        store.close()
        return found
    start = perf_counter()
    store = opened(kind, path)
    taken = 1e3 * (perf_counter() - start)
    return {"opening": taken, **searched(store, rounds)}


def measured(kind: str, count: int, rounds: int) -> dict[str, float]:
    """All figures of one store at one size."""
    path = KEPT / f"{kind}-{count}"
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True)
    found: dict[str, float] = {}
    for task in ("fill",) if kind == "memory" else ("fill", "search"):
        command = [
            sys.executable,
            "-m",
            "benchmarks.stores",
            "--worker",
            task,
            kind,
            str(path),
            str(count),
        ]
        done = subprocess.run(
            [*command, "--rounds", str(rounds)], check=True, capture_output=True, text=True
        )
        found |= json.loads(done.stdout)
    if kind != "memory":
        found["on disk"] = (
            sum(file.stat().st_size for file in KEPT.rglob("*") if file.is_file()) / 2**20
        )
    shutil.rmtree(KEPT)
    return found


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def table(count: int, figures: Mapping[str, Mapping[str, float]]) -> str:
    """The figures of all stores at one size."""
    ways = [
        key.removesuffix(": p50") for key in next(iter(figures.values())) if key.endswith(": p50")
    ]
    lines = [f"| {count:,} passages | {' | '.join(figures)} |", "|---|" + "---:|" * len(figures)]

    def row(name: str, cell: Callable[[Mapping[str, float]], str]) -> None:
        lines.append(f"| {name} | " + " | ".join(cell(found) for found in figures.values()) + " |")

    row("written a second", lambda found: f"{found['written a second']:,.0f}")
    row("on disk, MB", lambda found: _ms(found.get("on disk")))
    row("opening, ms", lambda found: _ms(found.get("opening")))
    for way in ways:
        row(f"{way}: first, ms", lambda found, way=way: _ms(found[f"{way}: first"]))
        row(
            f"{way}: p50 / p95, ms",
            lambda found, way=way: f"{_ms(found[f'{way}: p50'])} / {_ms(found[f'{way}: p95'])}",
        )
    row("memory of the process that searched, MB", lambda found: f"{found['memory']:,.0f}")
    row(
        "the same after searches with filters, MB",
        lambda found: f"{found['memory with filters']:,.0f}",
    )
    return "\n".join(lines)


def report(tables: list[str], command: str) -> str:
    """The result as it is published."""
    versions = {
        "numpy": version("numpy"),
        "lancedb": version("lancedb"),
        "SQLite": sqlite3.sqlite_version,
    }
    facts = {
        "command": f"`{command}`",
        "seed": str(SEED),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": str(os.cpu_count()),
        "load at the end": f"{os.getloadavg()[0]:.1f}",
        "versions": ", ".join(f"{name} {found}" for name, found in versions.items()),
    }
    lines = [
        "# Stores",
        "",
        f"Random unit vectors of {DIMENSION} numbers, passages of {WORDS} words, the best {TOP_K} asked for.",
        "All passages are written as one change. A fresh process opens and searches; opening includes loading the",
        "store's library, and the first search of each kind reads what it needs. The store in memory is filled and",
        "searched by one process, which holds what it was given as well.",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        *(line for one in tables for line in ("", one)),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes", default="5000,100000", help="numbers of passages, with commas between them"
    )
    parser.add_argument("--rounds", type=int, default=100, help="searches a figure is taken from")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        task, kind, path, count = options.worker
        print(json.dumps(worker(task, kind, Path(path), int(count), options.rounds)))
        return
    # Read when the linear algebra library is loaded, by the processes that are started from here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    tables = []
    for count in map(int, options.sizes.split(",")):
        tables.append(table(count, {kind: measured(kind, count, options.rounds) for kind in KINDS}))
        print(f"{tables[-1]}\n", flush=True)
    RESULT.write_text(
        report(tables, " ".join(["python -m benchmarks.stores", *sys.argv[1:]])), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
