"""What came of the runs, as Markdown."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from tests.robustness.soak.load import AGAIN, CAPS, IN_THREADS, OVER_HTTP
from tests.robustness.soak.server import FAULTS, OUTAGE

RESULT: Final = Path(__file__).parents[3] / "benchmarks" / "results" / "soak.md"

_HEAD: Final = """# Soak

`{command}` (seed {seed}, Python {python}, qtmiddleware {ours}, openai {openai}, {processors} processors)

500 coroutines and 64 threads ask one question after the other in one process, {threads:.0%} of the coroutines' \
questions to a synchronous function. The model and {http:.0%} of the searches are over HTTP in another process. \
{again:.0%} of the questions are repeated. Calls in flight a question at most: {caps}.

Faults of the model: {faults}, and {outage} of each 1,000 calls in a row answered with 503. Of the variants' searches \
3 % fail, 2 % take 300 ms, 0.2 % hang; of the original's 0.5 % fail.

Every question has a token of its own, which the model's replies and the ids of what is found carry. Checked of each: \
all variants, matches and ids are of its token; every search sees the token in its caller's context variable; its \
searches and calls of the model in flight are counted where they arrive (the search function, the transport of the \
real client) and never more than allowed, and as many where there was enough to do (coroutines: always); a call that \
was given up counts no more. Checked of the process: everything that was asked came back; nothing was logged as an \
error and no exception went unretrieved; no task, thread or socket was left at the end; the median of the last fifth \
of the samples is no greater than that of the second fifth and the tolerance (from 60 seconds on).
"""


def report(runs: Sequence[Mapping[str, Any]], command: str, seed: int) -> str:
    """All *runs* as one text."""
    head = _HEAD.format(
        command=command,
        seed=seed,
        python=platform.python_version(),
        ours=version("qtmiddleware"),
        openai=version("openai"),
        processors=os.cpu_count(),
        threads=IN_THREADS,
        http=OVER_HTTP,
        again=AGAIN,
        caps=", ".join(f"{kind} {cap}" for kind, cap in CAPS.items()),
        faults=", ".join(f"{name} {share:.1%}" for name, share in FAULTS.items()),
        outage=OUTAGE,
    )
    return "\n".join([head, *map(_section, runs)])


def _section(run: Mapping[str, Any]) -> str:
    percentiles = ", ".join(
        f"p{share} {seconds:.2f} s" for share, seconds in run["percentiles"].items()
    )
    rows = [
        ("ran for", f"{run['seconds']:.0f} s"),
        ("questions asked, all of which came back", f"{run['asked']:,}"),
        ("searches", f"{run['searches']:,}"),
        ("calls a thread made while its question came to its end", str(run["late"])),
        ("questions a second", f"{run['asked'] / run['seconds']:.0f}"),
        ("time to the result", percentiles),
        ("patience", ", ".join(f"{name} {ms:,}" for name, ms in run["limits"].items())),
        *(
            (f"the cap was reached ({way})", f"{hit:,} of {able:,}")
            for way, (hit, able) in run["reached"].items()
        ),
        ("left at the end", ", ".join(f"{name} {many:.0f}" for name, many in run["left"].items())),
        ("laws broken", str(run["broken"] + len(run["grown"]))),
    ]
    breaches = [f"- {what}" for what in run["breaches"]]
    return "\n".join(
        [
            f"## Circuit breaker {'on' if run['breaker'] else 'off'}",
            "",
            *_table(("what", "figure"), rows),
            "",
            *_table(
                ("outcome", "questions"),
                [(name, f"{many:,}") for name, many in run["outcomes"].items()],
            ),
            "",
            *_table(
                ("held by the process (median)", "second fifth", "last fifth", "tolerance", "flat"),
                [
                    (name, f"{early:.0f}", f"{late:.0f}", bound, _flat(run, name))
                    for name, (early, late, bound) in run["trends"].items()
                ],
            ),
            "",
            *(["Broken:", "", *breaches, ""] if breaches else []),
        ]
    )


def _flat(run: Mapping[str, Any], name: str) -> str:
    if not run["judged"]:
        return "too brief to tell"
    return "no" if name in run["grown"] else "yes"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
