"""Feed hostile text to what reads it, and report what was found.

    python -m tests.robustness.fuzz [--seconds 120] [--target NAME]     coverage-guided, each target for so long
    python -m tests.robustness.fuzz --regex [--lengths 65536,262144,1048576]

The first needs the extra ``fuzz`` (atheris). Inputs that led somewhere new are kept in
``.tmp/fuzz`` and used again the next time; an input that breaks a promise lies there too and is
named. Both leave with 1 where something was found, and write ``benchmarks/results/fuzz.md``.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from importlib.util import find_spec

from tests.robustness.fuzz import growth, report, running
from tests.robustness.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.robustness.fuzz", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seconds", type=int, default=120, help="for each target")
    parser.add_argument(
        "--target", choices=sorted(TARGETS), action="append", help="only this one; may be repeated"
    )
    parser.add_argument("--regex", action="store_true", help="how time grows with length, instead")
    parser.add_argument(
        "--lengths", default="65536,262144,1048576", help="in characters, with commas"
    )
    given = parser.parse_args()
    if given.regex:
        lengths = [int(length) for length in given.lengths.split(",")]
        measured = growth.measured(lengths, partial(report.write_growth, lengths))
        return int(any(it.ratio >= growth.MOST for it in measured))
    if find_spec("atheris") is None:
        parser.error(
            'atheris is not installed here; run: pip install "qtmiddleware[fuzz]" -c constraints.txt'
        )
    found = [running.fuzz(name, given.seconds) for name in given.target or TARGETS]
    report.write_runs(found, given.seconds)
    return int(any(it.finding for it in found))


if __name__ == "__main__":
    sys.exit(main())
