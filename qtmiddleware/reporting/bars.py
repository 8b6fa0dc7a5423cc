"""The chart of quality: a bar a system with the interval of its gain, and the baseline as a line through all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from qtmiddleware.evaluation import PRIMARY, Comparison, SystemScore
from qtmiddleware.reporting import figures
from qtmiddleware.reporting.scales import Axis, axis
from qtmiddleware.reporting.wording import fitted, short

FONT: Final = 13.0
_THICK: Final = 16.0
_BOLD: Final = 1.12
_GAIN: Final = 142.0
"""The room for a gain and its interval."""
_TITLE_LENGTH: Final = 80


@dataclass(frozen=True, slots=True)
class Bar:
    """One system's bar: where it lies, and the texts at it; *kind* is how it did."""

    kind: str
    name: str
    title: str
    y: float
    width: float
    low: float | None
    high: float | None
    label_x: float
    label_y: float
    value: str
    gain: str
    value_y: float


@dataclass(frozen=True, slots=True)
class Bars:
    """The whole chart, in pixels.

    *left* is where bars begin and *value_x* where their values end; *line* is the path of the baseline, at *base*.
    """

    width: float
    height: float
    left: float
    value_x: float
    thick: float
    bars: tuple[Bar, ...]
    base: float
    line: str
    axis: Axis
    bottom: float


def kind(comparison: Comparison, score: SystemScore) -> str:
    """How a system did: ``base``, ``better`` or ``worse`` by more than chance, or ``same``."""
    if score.name == comparison.baseline:
        return "base"
    if not score.difference.is_significant or not score.difference.gain:
        return "same"
    return "better" if score.difference.gain > 0 else "worse"


def bars(comparison: Comparison, width: float, *, is_narrow: bool = False) -> Bars:
    """The chart *width* pixels wide, best system first; a *narrow* one has the names above the bars."""
    name_width = 0.0 if is_narrow else 200.0
    value_width = 0.0 if is_narrow else 190.0
    row = 46.0 if is_narrow else 34.0
    left, right, top = name_width, width - value_width - 8.0, 26.0
    scores = sorted(comparison.systems, key=lambda score: -score.means[PRIMARY])
    base = comparison[comparison.baseline].means[PRIMARY]
    reached = [base + score.difference.high for score in scores] + [score.means[PRIMARY] for score in scores]
    along = axis((min(1.0, number) for number in reached), left, right, count=4 if is_narrow else 8)
    drawn = []
    for place, score in enumerate(scores):
        y = top + place * row + (20.0 if is_narrow else 6.0)
        is_base = score.name == comparison.baseline
        value = figures.value(score.means[PRIMARY])
        gain = "baseline" if is_base else figures.gain(score.difference)
        reach = (width - _GAIN - 50.0) if is_narrow else name_width - 12.0
        drawn.append(
            Bar(
                kind=kind(comparison, score),
                name=fitted(score.name, reach / (_BOLD * FONT)),
                title=f"{short(score.name, _TITLE_LENGTH)}: {PRIMARY} {value}, {gain}",
                y=y,
                width=max(0.0, round(along.scale(score.means[PRIMARY]) - left, 1)),
                low=None if is_base else along.scale(base + score.difference.low),
                high=None if is_base else along.scale(base + score.difference.high),
                label_x=0.0 if is_narrow else name_width - 10.0,
                label_y=y - 6.0 if is_narrow else y + _THICK - 3.5,
                value=value,
                gain=gain,
                value_y=y - 6.0 if is_narrow else y + _THICK - 3.5,
            )
        )
    bottom = top + len(scores) * row
    at = along.scale(base)
    # Names lie between narrow bars, and a line through them would strike them out.
    reaches = [(bar.y - 3.0, bar.y + _THICK + 3.0) for bar in drawn] if is_narrow else [(top - 12.0, bottom)]
    line = "".join(f"M{at:g} {start:g}V{end:g}" for start, end in reaches)
    return Bars(width, bottom + 24.0, left, width - _GAIN, _THICK, tuple(drawn), at, line, along, bottom)
