"""The figures that the words about the results speak of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.outside.measuring import Measured
from benchmarks.outside.sets import OutsideSet
from benchmarks.quality.report import mean, points
from qtmiddleware.kit.evaluation import BASELINE, Comparison, SystemScore

FULL: Final = "combined"
GATED: Final = "combined, auto"
RULES: Final = "rules"
RESTLESS: Final = ("stackfaq", "stackfaq_answers", "cranfield")
"""Where the rules hurt many questions."""
Found = Mapping[OutsideSet, Measured]


def figures(found: Found) -> dict[str, str]:
    """What stands in braces in ``reading.md``."""
    named = {one.name: it for one, it in found.items()}
    rules = {name: it.free[RULES] for name, it in named.items()}
    replied = {name: it.recorded for name, it in named.items() if it.recorded}
    hurt = sorted(rules[name].hurt_rate for name in RESTLESS)
    losses = sorted(-lost(rules[name]) for name in RESTLESS)
    return {
        **{
            f"{name}_rules": points(score.difference, corrected=True)
            for name, score in rules.items()
        },
        **{
            f"{name}_combined": points(it[FULL].difference, corrected=True)
            for name, it in replied.items()
        },
        **{f"{name}_share": share(it) for name, it in replied.items()},
        "hurt_low": f"{hurt[0]:.0%}",
        "hurt_high": f"{hurt[-1]:.0%}",
        "lost_low": f"{losses[0]:.0f}",
        "lost_high": f"{losses[-1]:.0f}",
    }


def share(comparison: Comparison, *, beyond: str = BASELINE) -> str:
    """How much the gate keeps of what the model gains over the system *beyond*; empty where that is next to nothing."""
    full, kept, known = (comparison[name].difference.gain for name in (FULL, GATED, beyond))
    return f"{(kept - known) / (full - known):.0%}" if full - known > 0.01 else ""


def lost(score: SystemScore) -> float:
    """The mean loss of the questions that do worse, in points; 0 where none does."""
    losses = [100 * loss for _, loss in score.worst(len(score.gains))]
    return mean(losses) if losses else 0.0
