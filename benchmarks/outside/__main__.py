"""How well the defaults do on public data sets beside those they were chosen by.

    python -m benchmarks.outside

Every repository is fetched at its pinned commit and converted; sources, data sets, indexes and
vectors are kept under `.tmp/outside`. The recorded replies of a language model stand in
`benchmarks/outside/recordings`. The results are written to `benchmarks/results`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter

from benchmarks.outside.measuring import measured, report
from benchmarks.outside.sets import SETS
from benchmarks.outside.sources import Sources


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sources",
        type=Path,
        help="folder with bare git directories named owner+name; what it lacks is fetched",
    )
    parser.add_argument(
        "--sets", default="", help="names with commas, only printed; all by default"
    )
    options = parser.parse_args()
    names = options.sets.split(",") if options.sets else list(SETS)
    if unknown := [name for name in names if name not in SETS]:
        parser.error(f"no set is called {', '.join(unknown)}; there are: {', '.join(SETS)}")
    sources = Sources(options.sources)
    found = {}
    for one in (SETS[name] for name in names):
        began = perf_counter()
        one.convert(sources).write(one.folder)
        found[one] = measured(one)
        print(f"{one.name}: {perf_counter() - began:.0f} s", flush=True)
    report(found, is_whole=not options.sets)


if __name__ == "__main__":
    main()
