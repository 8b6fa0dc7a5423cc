"""The speed list: what a user would feel of a whole call, measured in one run.

    python -m benchmarks.speed [--rounds N] [--only GROUP,...] [--peers] [--beside CHECKOUT ...]
    [--report FILE]

The groups are overhead, latency, load and import.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import qtmiddleware
from benchmarks.speed import imports, overhead, waiting
from benchmarks.speed.report import RESULTS, Row, circumstances, table, write

Measured = tuple[list[Row], Mapping[str, str]]


def groups(
    rounds: int, *, peers: bool, beside: Sequence[Path]
) -> dict[str, Callable[[], Measured]]:
    """What can be measured, by the name `--only` knows it by."""
    return {
        "overhead": lambda: overhead.rows(rounds, peers=peers, beside=beside),
        "latency": lambda: (waiting.latency_rows(max(3, rounds // 2)), {}),
        "load": lambda: (waiting.load_rows(max(3, rounds // 3)), {}),
        "import": lambda: (imports.rows(rounds), {}),
    }


def main() -> int:
    """Measure, print, and keep the result; 0 where every bar holds."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--rounds", type=int, default=15, help="readings a figure is the median of (default 15)"
    )
    parser.add_argument(
        "--only", default="", help="groups to measure, with commas between them (default all)"
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="measure the peers too (see benchmarks/speed/setup-peers)",
    )
    parser.add_argument(
        "--beside",
        type=Path,
        nargs="*",
        default=[],
        help="other checkouts, measured in the same run",
    )
    parser.add_argument(
        "--report",
        type=Path,
        help=f"where to keep the run (default {RESULTS.name}/speed.md if whole)",
    )
    options = parser.parse_args()
    available = groups(options.rounds, peers=options.peers, beside=options.beside)
    chosen = options.only.split(",") if options.only else list(available)
    if unknown := set(chosen) - set(available):
        parser.error(f"--only knows {', '.join(available)}; not {', '.join(sorted(unknown))}")
    # A model that hangs is warned of, as it should be; here it is part of the list.
    logging.getLogger("qtmiddleware").setLevel(logging.ERROR)
    rows: list[Row] = []
    versions = {"qtmiddleware": qtmiddleware.__version__}
    for name in chosen:
        measured, found = available[name]()
        for group in dict.fromkeys(row.group for row in measured):
            print(
                f"\n{group}\n\n{table([row for row in measured if row.group == group])}", flush=True
            )
        rows += measured
        versions |= found
    target = options.report or (RESULTS / "speed.md" if not options.only else None)
    if target is not None:
        command = " ".join(["python -m benchmarks.speed", *sys.argv[1:]])
        write(rows, circumstances(command, versions, os.getloadavg), target)
        print(f"\nkept in {target}")
    return int(any(row.holds is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
