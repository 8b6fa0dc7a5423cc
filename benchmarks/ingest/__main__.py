"""Ingest under load of two kinds: processes killed at random, and what it costs beside embedding alone.

    python -m benchmarks.ingest [--kills N] [--overhead] [--pairs N] [--seed N]

Without either of the two both are done, fifty kills and nine pairs. The result is kept in
results/ingest.md, each of the two in its own part.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import sys
from pathlib import Path

# Read when numpy is first imported; several threads on a busy machine only wait for one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks.ingest import dying, killing, overhead
from benchmarks.ingest.places import ROOT

RESULT = ROOT / "benchmarks" / "results" / "ingest.md"


def keep(title: str, text: str, table: str, command: str) -> None:
    """Put one part into the result file and leave the other as it is."""
    parts = RESULT.read_text(encoding="utf-8").split("\n## ")[1:] if RESULT.exists() else []
    kept = {f"## {part.splitlines()[0]}": f"## {part.strip()}" for part in parts}
    machine = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()} processors"
    kept[title] = f"{title}\n\n`{command}` ({machine})\n\n{text}\n\n{table}"
    order = [one for one in (killing.TITLE, overhead.TITLE) if one in kept]
    RESULT.write_text(
        "\n\n".join(["# Ingest", *(kept[one] for one in order)]) + "\n", encoding="utf-8"
    )


def main() -> int:
    """Measure, print and keep; 0 where everything holds."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ingest", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--kills", type=int, default=0, help="how many processes are killed")
    parser.add_argument("--overhead", action="store_true", help="measure against embedding alone")
    parser.add_argument(
        "--pairs", type=int, default=9, help="readings a figure is the median of (default 9)"
    )
    parser.add_argument("--seed", type=int, default=7, help="what chance begins with (default 7)")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        docs, index, place, number = options.worker
        dying.worker(Path(docs), Path(index), place, float(number))
    both = not (options.kills or options.overhead)
    command = " ".join(["python -m benchmarks.ingest", *sys.argv[1:]])
    holds = True
    if options.kills or both:
        found = killing.kill_rounds(options.kills or 50, options.seed)
        print(killing.kill_report(found))
        keep(killing.TITLE, killing.TEXT, killing.kill_report(found), command)
        holds &= found.holds
    if options.overhead or both:
        rows = overhead.overheads(options.pairs)
        print(overhead.overhead_report(rows))
        keep(overhead.TITLE, overhead.TEXT, overhead.overhead_report(rows), command)
        holds &= all(row.holds for row in rows)
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main())
