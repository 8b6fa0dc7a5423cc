"""Many requests at once for a long time, with faults.

    python -m tests.robustness.soak [--seconds N] [--seed N] [--breaker off|on|both] [--result FILE]

500 coroutines and 64 threads ask one question after the other in one process; the model and part of
the searches are over HTTP in another, and fail as `server` says. The time is shared by a run
without a circuit breaker and one with it. Ends with 1 where a law was broken.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from tests.robustness.soak.report import RESULT, report

ROOT = Path(__file__).parents[3]


def main() -> int:
    """Run both modes, each in a process of its own, print and keep what came of them."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.robustness.soak", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--seconds", type=float, default=600, help="for how long, both runs together (default 600)"
    )
    parser.add_argument("--seed", type=int, default=7, help="what chance begins with (default 7)")
    parser.add_argument(
        "--breaker", choices=("off", "on", "both"), default="both", help="which runs (default both)"
    )
    parser.add_argument(
        "--result", type=Path, default=RESULT, help="the file to write (default results/soak.md)"
    )
    options = parser.parse_args()
    modes = ("off", "on") if options.breaker == "both" else (options.breaker,)
    found = []
    for mode in modes:
        arguments = [str(options.seconds / len(modes)), str(options.seed), mode]
        command = [sys.executable, "-m", "tests.robustness.soak.run", *arguments]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            print(
                f"the run with the breaker {mode} broke down (exit {done.returncode})",
                file=sys.stderr,
            )
            return 1
        found.append(json.loads(done.stdout))
    text = report(found, " ".join(["python -m tests.robustness.soak", *sys.argv[1:]]), options.seed)
    print(text)
    options.result.write_text(text, encoding="utf-8")
    return int(any(run["breaches"] or run["grown"] for run in found))


if __name__ == "__main__":
    sys.exit(main())
