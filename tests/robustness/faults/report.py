"""What a run came to, as Markdown."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Final

from tests.robustness.faults.cases import BACKENDS, DIMENSIONS
from tests.robustness.faults.expected import REASONS
from tests.robustness.faults.laws import GRACE_SECONDS, LATE, TIME
from tests.robustness.faults.playing import Limits
from tests.robustness.faults.trying import MOST_REPEATS, Tried

PACKAGES: Final = ("openai", "pinecone", "httpx")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """*rows* as a table in Markdown, padded so that it can be read as it is."""
    lines = [tuple(head), *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    shown = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    return "\n".join(
        [shown[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *shown[1:]]
    )


def told(one: Tried, seed: int, *, whole: bool) -> str:
    """The laws a case broke and the command that plays it alone; the *whole* of what was seen, or only the laws."""
    said = "".join(f"\n  - {law}: {what}" for law, what in one.last) if whole else ""
    laws = ", ".join(dict.fromkeys(law for law, _ in one.last))
    return f"- `python -m tests.robustness.faults --only '{one.case.name}' --seed {seed}` ({one.draw}): {laws}{said}"


def summary(run: Sequence[Tried]) -> str:
    """The cases by each value of each dimension."""
    rows = [
        _row(dimension, value, [it for it in run if getattr(it.case, dimension) == value])
        for dimension, values in DIMENSIONS.items()
        for value in values
    ]
    rows += [
        _row("backend", value, [it for it in run if it.draw.backend == value]) for value in BACKENDS
    ]
    rows += [
        _row("client", value, [it for it in run if it.draw.client == value])
        for value in ("given", "own")
    ]
    rows.append(_row("all", "", run))
    head = (
        "dimension",
        "value",
        "cases",
        "failed",
        "repeated",
        "most beyond its limit",
        "reason told",
    )
    return table(head, [row for row in rows if row[2]])


def _row(dimension: str, value: str, part: Sequence[Tried]) -> tuple[object, ...]:
    worst = max((it.last.overrun for it in part), default=0.0)
    return (
        dimension,
        value,
        len(part),
        sum(bool(it.last) for it in part),
        sum(len(it.verdicts) > 1 for it in part),
        f"{max(worst, 0.0) * 1e3:.0f} ms",
        REASONS.get(value, "") if dimension == "model" else "",
    )


def failures(run: Sequence[Tried], seed: int) -> str:
    """Every case that broke a law; of those that broke the same ones, the first with what was seen."""
    groups: dict[tuple[str, ...], list[Tried]] = {}
    for one in run:
        if one.last:
            groups.setdefault(tuple(dict.fromkeys(law for law, _ in one.last)), []).append(one)
    parts = [
        f"### {', '.join(laws)}: {len(part):,} cases\n\n{told(part[0], seed, whole=True)}\n\n"
        + " ".join(f"`{it.case.name}`" for it in part[1:])
        for laws, part in groups.items()
    ]
    return "\n\n".join(parts) or "None."


def totals(run: Sequence[Tried], limits: Limits) -> list[tuple[str, object]]:
    """The figures of the whole run."""
    over = [it for it in run if any(law == TIME for law, _ in it.first)]
    late = [it for it in run if any(law == LATE for law, _ in it.first)]
    drained = {
        way: max((it.drained for it in run if it.case.way == way), default=0.0)
        for way in ("sync", "async")
    }
    grace = f"{GRACE_SECONDS * 1e3:.0f} ms"
    first = max(it.first.overrun for it in run) * 1e3
    last = max(it.last.overrun for it in run) * 1e3
    return [
        ("cases", f"{len(run):,}"),
        ("cases that broke a law", sum(bool(it.last) for it in run)),
        (
            f"more than {grace} beyond max(own search, {limits.deadline_ms} ms), at the first try",
            len(over),
        ),
        ("the same, after repeating", sum(any(law == TIME for law, _ in it.last) for it in run)),
        ("most beyond it, of all first tries", f"{first:.0f} ms"),
        ("most beyond it, of the tries that count", f"{last:.0f} ms"),
        ("something in time was taken for late, at the first try", len(late)),
        (
            f"the same, after up to {MOST_REPEATS} repeats",
            sum(any(law == LATE for law, _ in it.last) for it in run),
        ),
        (
            "told as circuit_open, or a slow look-up of a name as timeout",
            sum(it.last.excused for it in run),
        ),
        (
            "cancelled in a TLS handshake, its socket left to the garbage collector",
            sum(it.last.unclosed for it in run),
        ),
        *(
            (f"longest that threads went on after a call, {way}", f"{took * 1e3:.0f} ms")
            for way, took in drained.items()
        ),
    ]


def document(
    run: Sequence[Tried], *, command: str, seed: int, seconds: float, limits: Limits, head: str
) -> str:
    """The whole account."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("qtmiddleware", *PACKAGES))
    product = " x ".join(str(len(values)) for values in DIMENSIONS.values())
    about = (
        f"`{command}` (seed {seed}, {product} = {len(run):,} cases in {seconds:.0f} s; "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} processors, "
        f"load at the end {os.getloadavg()[0]:.1f}; "
        f"{versions})"
    )
    whole = table(("what", "figure"), totals(run, limits))
    parts = [
        head.strip(),
        about,
        whole,
        f"## By dimension\n\n{summary(run)}",
        f"## Failures\n\n{failures(run, seed)}",
    ]
    return "\n\n".join(parts) + "\n"
