"""What was found, as Markdown that is kept."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.robustness.fuzz.growth import MOST, Growth
from tests.robustness.fuzz.running import Run
from tests.robustness.fuzz.targets import TARGETS

RESULT: Final = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "fuzz.md"
_PARTS: Final = ("Coverage-guided fuzzing", "Time by length")
_HEAD: Final = (
    "# Hostile text\n\nEach part is written by its own command and leaves the other as it was.\n"
)


def write_runs(runs: Sequence[Run], seconds: int) -> None:
    """Keep what fuzzing found; what is known of other targets stays."""
    rows = {
        name: row
        for row in _parts()[_PARTS[0]].splitlines()
        if (name := row[2:].partition(" ")[0]) in TARGETS
    }
    for run in runs:
        finding = run.finding.replace("|", "/") or "none"
        rows[run.target] = (
            f"| {run.target} | {run.executions:,} | {run.rate:,} | {run.coverage_before:,} | {run.coverage:,} "
            f"| {run.inputs:,} | {finding} |"
        )
    total = sum(int(row.split("|")[2].replace(",", "")) for row in rows.values())
    _write(
        _PARTS[0],
        f"- command: `python -m tests.robustness.fuzz --seconds {seconds}`\n{_about('atheris')}\n"
        f"- executions: {total:,}; targets with findings: {sum('| none |' not in row for row in rows.values())}\n\n"
        "*covered before* are the places of the code that the corpus and what earlier runs kept reach, *covered* those "
        "reached at the end, *inputs* the texts that each reach something of their own.\n\n"
        "| target | executions | a second | covered before | covered | inputs | findings |\n"
        "|---|---:|---:|---:|---:|---:|---|\n"
        + "\n".join(rows[name] for name in TARGETS if name in rows),
    )


def write_growth(lengths: Sequence[int], found: Sequence[Growth]) -> None:
    """Keep how time grew up to the last of the *lengths*."""
    patterns = [it for it in found if it.kind == "pattern"]
    rows = [
        f"| `{it.name.replace('|', '¦').replace('`', '´')}` | {it.worst_ms:,.1f} | {it.ratio:.1f} | `{it.attack}` |"
        for it in sorted(found, key=lambda it: -it.ratio)
        if it.kind == "function" or it.ratio >= 4.4
    ]
    _write(
        _PARTS[1],
        f"- command: `python -m tests.robustness.fuzz --regex --lengths {','.join(map(str, lengths))}`\n"
        f"{_about('regex')}\n"
        f"- patterns: {len(patterns)}; functions: {len(found) - len(patterns)}; texts: "
        f"{sum(it.attacks for it in found):,}; the bar: below {MOST:g} for four times the length\n\n"
        "*ratio* is the worst one of all texts that take longer than 2 ms, for four times the length (4 is linear). Of "
        "patterns only those above 4.4 are listed.\n\n"
        "| what | ms at full length | ratio | text |\n|---|---:|---:|---|\n" + "\n".join(rows),
    )


def _about(library: str) -> str:
    return f"- python: {sys.version.split()[0]}, {library} {version(library)}, {platform.system()} {platform.machine()}"


def _parts() -> dict[str, str]:
    """What is kept by now, by part."""
    parts = dict.fromkeys(_PARTS, "")
    kept = RESULT.read_text(encoding="utf-8") if RESULT.exists() else ""
    for part in re.split(r"(?m)^## ", kept)[1:]:
        name, _, body = part.partition("\n")
        parts[name] = body.strip()
    return parts


def _write(title: str, text: str) -> None:
    parts = _parts() | {title: text}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    body = "\n".join(f"## {name}\n\n{body}\n" for name, body in parts.items() if body)
    RESULT.write_text(f"{_HEAD}\n{body}", encoding="utf-8")
