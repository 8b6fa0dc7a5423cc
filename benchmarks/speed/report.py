"""The rows of the list, and how they are shown and kept."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed.workload import SEED

RESULTS = Path(__file__).resolve().parents[1] / "results"
HEADS = ("what", "ours", "floor", "ratio", "bar", "holds")


@dataclass(frozen=True)
class Row:
    """One line: *ours* beside a *floor* (or a peer), what that makes and what is promised.

    *holds* is ``None`` where nothing is promised and the figures stand for themselves.
    """

    group: str
    what: str
    ours: float
    floor: float
    ratio: float
    unit: str
    bar: str = ""
    holds: bool | None = None
    ratio_unit: str = "x"

    def cells(self) -> tuple[str, ...]:
        """The line as it is printed."""
        verdict = "" if self.holds is None else "yes" if self.holds else "NO"
        return (
            self.what,
            f"{_number(self.ours)} {self.unit}",
            f"{_number(self.floor)} {self.unit}",
            f"{_number(self.ratio)} {self.ratio_unit}",
            self.bar,
            verdict,
        )


def at_least(group: str, what: str, ours: float, floor: float, times: float, unit: str) -> Row:
    """Ours must reach *times* the floor."""
    ratio = ours / floor
    return Row(group, what, ours, floor, ratio, unit, f">= {times:g} x", ratio >= times)


def at_most(group: str, what: str, ours: float, floor: float, times: float, unit: str) -> Row:
    """Ours may be at most *times* the floor."""
    ratio = ours / floor
    return Row(group, what, ours, floor, ratio, unit, f"<= {times:g} x", ratio <= times)


def below_peer(group: str, what: str, ours: float, peer: float, times: float) -> Row:
    """The peer must take at least *times* what ours does."""
    ratio = peer / ours
    return Row(group, what, ours, peer, ratio, "us", f"peer >= {times:g} x ours", ratio >= times)


def within(group: str, what: str, ours: float, floor: float, apart: float, unit: str) -> Row:
    """Ours may be at most *apart* above the floor."""
    over = ours - floor
    return Row(
        group, what, ours, floor, over, unit, f"<= +{apart:g} {unit}", over <= apart, f"{unit} over"
    )


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(rows: Sequence[Row]) -> str:
    """*rows* as a table in Markdown, padded so that it can be read as it is."""
    lines = [HEADS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]

    def shown(cells: Sequence[str]) -> str:
        return (
            "| "
            + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
            + " |"
        )

    return "\n".join(
        [
            shown(HEADS),
            "|" + "|".join("-" * (width + 2) for width in widths) + "|",
            *map(shown, lines[1:]),
        ]
    )


def circumstances(
    command: str, versions: Mapping[str, str], load: Callable[[], tuple[float, ...]]
) -> dict[str, Any]:
    """What one must know to repeat the run."""
    return {
        "command": command,
        "seed": SEED,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "load at the end": round(load()[0], 1),
        "versions": dict(versions),
    }


def write(rows: Sequence[Row], about: Mapping[str, Any], file: Path) -> None:
    """Keep the run as Markdown in *file*."""
    file.parent.mkdir(parents=True, exist_ok=True)
    held = [row.holds for row in rows if row.holds is not None]
    known = "\n".join(f"- {name}: {_told(value)}" for name, value in about.items())
    sections = "\n\n".join(
        f"## {group}\n\n{table([row for row in rows if row.group == group])}"
        for group in dict.fromkeys(row.group for row in rows)
    )
    file.write_text(
        f"# Speed\n\n{sum(held)} of {len(held)} bars hold. How each figure comes about: `benchmarks/README.md`. Every "
        f"ratio is of one run, every figure a median.\n\n{known}\n\n{sections}\n",
        encoding="utf-8",
    )


def _told(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return f"`{value}`" if isinstance(value, str) and value.startswith("python") else str(value)
