"""Every fault of the model with every fault of the search, on both ways and all kinds: is it never worse than without?

    python -m tests.robustness.faults [--only PATTERN] [--seed N]

A case is named MODEL+SEARCH+WAY+KIND; PATTERN is one such name, or with * and ? many
(`'slow+*+async+*'`). A whole run is written to `benchmarks/results/faults.md`. The program ends
with 1 where a law is broken.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import platform
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from tests.robustness.faults.cases import DIMENSIONS, Case, matrix
from tests.robustness.faults.laws import Tried, try_case
from tests.robustness.faults.playing import Limits, Player, Servers, served

HEAD = Path(__file__).with_name("head.md")
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "faults.md"


@contextmanager
def quiet_environment() -> Iterator[None]:
    """Nothing of the machine's own settings, and one certificate authority: all of them take 40 ms a client."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "OPENAI_BASE_URL", "OPENAI_API_KEY"):
        os.environ.pop(name, None)
        os.environ.pop(name.lower(), None)
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    with tempfile.TemporaryDirectory() as folder:
        if found:
            path = Path(folder) / "one.pem"
            path.write_text(ssl.DER_cert_to_PEM_cert(found[0]), encoding="ascii")
            os.environ["SSL_CERT_FILE"] = str(path)
        yield


def warm_up(servers: Servers, seed: int) -> None:
    """Load and open what is loaded and opened once."""
    for way in DIMENSIONS["way"]:
        for search in ("ok", "scores"):
            case = Case("ok", search, way, "all")
            Player(case, case.drawn(seed), servers, Limits(20_000, 20_000)).play()
    gc.collect()
    gc.freeze()


def describe(case: Case, tried: Tried, seed: int) -> str:
    """The laws that *case* broke, and the command that plays it alone."""
    broken = "".join(f"\n  - {law}: {seen}" for law, seen in tried.last)
    command = f"python -m tests.robustness.faults --only '{case.name}' --seed {seed}"
    return f"- `{command}` ({case.drawn(seed)}){broken}"


def run(cases: list[Case], seed: int) -> dict[Case, Tried]:
    """Every case, one after the other; each that fails is printed at once."""
    done: dict[Case, Tried] = {}
    with quiet_environment(), served() as servers:
        warm_up(servers, seed)
        for case in cases:
            done[case] = try_case(case, seed, servers, Limits())
            if done[case].last:
                print(describe(case, done[case], seed), flush=True)
            if len(done) % 100 == 0:
                print(f"{len(done):,} of {len(cases):,}", flush=True)
    return done


def report(done: dict[Case, Tried], seed: int, seconds: float) -> str:
    """The figures of a run, as Markdown."""
    failed = [describe(case, tried, seed) for case, tried in done.items() if tried.last]
    drained = {
        way: max((tried.drained for case, tried in done.items() if case.way == way), default=0)
        for way in DIMENSIONS["way"]
    }
    overrun = max(tried.last.overrun for tried in done.values())
    rows = {
        "cases": f"{len(done):,}",
        "cases that broke a law": len(failed),
        "cases that were repeated, as nothing but time was wrong": sum(
            tried.count > 1 for tried in done.values()
        ),
        "most beyond the limit": f"{max(overrun, 0) * 1e3:.0f} ms",
        **{
            f"longest that threads went on after a call, {way}": f"{took * 1e3:.0f} ms"
            for way, took in drained.items()
        },
    }
    table = "\n".join(f"| {name} | {figure} |" for name, figure in rows.items())
    about = (
        f"Seed {seed}, {len(done):,} cases in {seconds:.0f} s; Python {platform.python_version()},"
        f" {platform.system()} {platform.machine()}, {os.cpu_count()} processors."
    )
    failures = "\n".join(failed) or "None."
    return f"{about}\n\n| what | figure |\n|---|---|\n{table}\n\n## Failures\n\n{failures}\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cases of this name")
    parser.add_argument("--seed", type=int, default=7, help="draws what a case leaves open (7)")
    options = parser.parse_args()
    cases = matrix(options.only)
    if not cases:
        parser.error(f"no case is named {options.only}")
    # The warnings of degraded retrievals are made and not shown.
    logger = logging.getLogger("qtmiddleware")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    began = perf_counter()
    done = run(cases, options.seed)
    text = report(done, options.seed, perf_counter() - began)
    print(text)
    if options.only == "*":
        RESULTS.write_text(
            f"{HEAD.read_text(encoding='utf-8').strip()}\n\n{text}", encoding="utf-8"
        )
    return int(any(tried.last for tried in done.values()))


if __name__ == "__main__":
    sys.exit(main())
