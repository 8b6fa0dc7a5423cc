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
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from tests.robustness.faults.cases import DIMENSIONS, Case, matrix
from tests.robustness.faults.playing import Limits, Player, Servers, served
from tests.robustness.faults.report import document, summary, table, told, totals
from tests.robustness.faults.trying import Tried, tried

HEAD = Path(__file__).with_name("head.md")
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "faults.md"


@contextmanager
def quiet_environment() -> Iterator[None]:
    """Nothing of the machine's own settings, and one certificate authority: all of them take 40 ms a client."""
    for name in (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "OPENAI_BASE_URL",
        "OPENAI_API_KEY",
        "QTM_LLM_BASE_URL",
    ):
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


def run(cases: list[Case], seed: int) -> list[Tried]:
    """Every case, one after the other; each that fails is printed at once."""
    done: list[Tried] = []
    with quiet_environment(), served() as servers:
        warm_up(servers, seed)
        for case in cases:
            done.append(tried(case, seed, servers, Limits()))
            if done[-1].last:
                print(told(done[-1], seed, whole=len(cases) < 20), flush=True)
            if len(done) % 100 == 0:
                print(
                    f"{len(done):,} of {len(cases):,}, {sum(bool(it.last) for it in done)} failed",
                    flush=True,
                )
    return done


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="the cases whose name matches"
    )
    parser.add_argument(
        "--seed", type=int, default=7, help="what the cases leave open is drawn from it (7)"
    )
    options = parser.parse_args()
    cases = matrix(options.only)
    if not cases:
        parser.error(f"no case is named {options.only}")
    # The warnings of degraded retrievals are made and not shown.
    logger = logging.getLogger("qtmiddleware")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    product = " x ".join(f"{len(values)}" for values in DIMENSIONS.values())
    print(
        f"{' x '.join(DIMENSIONS)}: {product} = {len(matrix()):,} cases, of which {len(cases):,} are played"
    )
    began = perf_counter()
    done = run(cases, options.seed)
    seconds = perf_counter() - began
    print(f"\n{summary(done)}\n\n{table(('what', 'figure'), totals(done, Limits()))}")
    if options.only == "*":
        command = " ".join(["python -m tests.robustness.faults", *sys.argv[1:]])
        head = HEAD.read_text(encoding="utf-8")
        text = document(
            done, command=command, seed=options.seed, seconds=seconds, limits=Limits(), head=head
        )
        RESULTS.write_text(text, encoding="utf-8")
        print(f"\nwritten to {RESULTS}")
    return int(any(it.last for it in done))


if __name__ == "__main__":
    sys.exit(main())
