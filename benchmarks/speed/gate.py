"""Whether a call still costs what it may, in units of a calibration: `python -m benchmarks.speed.gate`.

    python -m benchmarks.speed.gate [--rounds N]

The unit is what the same machine takes at the same moment to tokenise and count 50 candidates once.
The limits stand in `limits.json`. The commit that changes a limit says why. Ends with 1 if a call
costs more.
"""

from __future__ import annotations

import argparse
import sys
from statistics import median

from benchmarks.speed.overhead import open_own_worker, read_limits
from benchmarks.speed.own_worker import CALIBRATION
from benchmarks.speed.workload import LONG

CALLS = 20
WARM_UP_CALLS = 60
TRIES = 3
"""A machine with other jobs makes a call look dearer than it is, and never cheaper."""


def measure(rounds: int) -> dict[str, float]:
    """The median of each ratio to the calibration, by the name it has in the limits.

    Time on the clock: of calls that need one thread it is processor time, and what sleeps shows
    too.
    """
    worker, ratios = open_own_worker(), dict[str, list[float]]()
    try:
        for name in (CALIBRATION, *(f"{limit}{LONG}" for limit in read_limits())):
            worker.measure(name, WARM_UP_CALLS)
        for _ in range(rounds):
            for name in read_limits():
                unit = worker.measure(CALIBRATION, CALLS)["wall"]
                ratios.setdefault(name, []).append(
                    worker.measure(f"{name}{LONG}", CALLS)["wall"] / unit
                )
    finally:
        worker.close()
    return {name: median(found) for name, found in ratios.items()}


def main() -> int:
    """Measure and print; 0 where every limit holds."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.gate", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--rounds", type=int, default=9, help="readings a ratio is the median of (default 9)"
    )
    options = parser.parse_args()
    limits = read_limits()
    for _ in range(TRIES):
        ratios = measure(options.rounds)
        for name, limit in limits.items():
            verdict = "holds" if ratios[name] <= limit else "EXCEEDED"
            print(
                f"cost of a call, {name}: {ratios[name]:.2f} units of the calibration, limit {limit:g}: {verdict}"
            )
        if all(ratios[name] <= limit for name, limit in limits.items()):
            return 0
    print(
        "A call costs more than it may. Find what was added (python -m benchmarks.speed --only overhead --beside OLD),"
        " or change benchmarks/speed/limits.json and say why in the commit.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
