"""The figures of a comparison as rows of texts, for any kind of table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from qtmiddleware.evaluation import DEEP, PRIMARY, Comparison, SystemScore
from qtmiddleware.reporting import figures
from qtmiddleware.reporting.wording import shown


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its *heading*, what it *means*, the number in it and the text of that.

    *number* is what rows are ordered by. A *wide* one is left out where there is little room.
    """

    heading: str
    means: str
    number: Callable[[SystemScore], float | None]
    text: Callable[[float | None], str]
    wide: bool = False

    def cell(self, score: SystemScore) -> str:
        """What stands in the row of *score*."""
        return self.text(self.number(score))


def _mean(measure: str) -> Callable[[SystemScore], float | None]:
    return lambda score: score.means.get(measure)


_DEEP: Final = DEEP[0]
_COLUMNS: Final = (
    Column(PRIMARY, "quality of the first ten passages, 0 to 1", _mean(PRIMARY), figures.value),
    Column(
        "gain [95 %]",
        f"{PRIMARY} in points (hundredths) above the baseline, with its 95 % interval; "
        f"{figures.SIGNIFICANT} is more than chance",
        lambda score: score.difference.gain,
        figures.points,
    ),
    Column("R@10", "share of the relevant passages among the first ten", _mean("R@10"), figures.value),
    Column(_DEEP, "share of the relevant passages among the first hundred", _mean(_DEEP), figures.value),
    Column("MRR@10", "1 / rank of the first relevant passage", _mean("MRR@10"), figures.value),
    Column("P@5", "share of relevant passages among the first five", _mean("P@5"), figures.value, wide=True),
    Column("MAP", "mean of the precision at each relevant passage", _mean("AP"), figures.value, wide=True),
    Column("hurt", f"questions whose {PRIMARY} fell", lambda score: score.hurt_rate, figures.share),
    Column("helped", f"questions whose {PRIMARY} rose", lambda score: score.helped_rate, figures.share),
    Column(
        "+ms p50", "milliseconds added, median over the questions", lambda it: it.added_ms.p50, figures.milliseconds
    ),
    Column("p95", "milliseconds added, 95 of 100 questions at most", lambda it: it.added_ms.p95, figures.milliseconds),
    Column("calls", "model calls per question", lambda it: it.llm_calls / len(it.runs), figures.rate),
    Column("$/1k", "US dollars per 1,000 questions", lambda score: score.usd_per_thousand, figures.dollars),
    Column(
        "$/+0.01",
        f"US dollars per 1,000 questions for each +0.01 of {PRIMARY}",
        lambda score: score.usd_per_point,
        figures.dollars,
        wide=True,
    ),
)
GAIN: Final = _COLUMNS[1]


def columns(comparison: Comparison, *, wide: bool = True) -> tuple[Column, ...]:
    """The columns after the system's name; what is measured of a hundred passages only where it was.

    Without *wide* they fit, with the names, into 120 characters.
    """
    measured = any(_DEEP in score.means for score in comparison.systems)
    return tuple(column for column in _COLUMNS if (wide or not column.wide) and (measured or column.heading != _DEEP))


def headings(comparison: Comparison, *, wide: bool = False) -> list[str]:
    """What stands above each column of `rows`; the first holds names, all others numbers."""
    return ["system", *(column.heading for column in columns(comparison, wide=wide))]


def rows(comparison: Comparison, *, wide: bool = False) -> list[list[str]]:
    """A row a system, in the order they were compared: its name, its figures, and dashes for what is not known.

    A gain is in points of nDCG@10 with its 95 % interval; ``*`` marks one that is more than chance after Holm's
    correction. R@100 is there where it was measured. With *wide* come P@5, MAP and the price of +0.01 too.
    """
    shown_columns = columns(comparison, wide=wide)
    return [
        [shown(score.name), *(_cell(column, comparison, score) for column in shown_columns)]
        for score in comparison.systems
    ]


def _cell(column: Column, comparison: Comparison, score: SystemScore) -> str:
    if column is not GAIN:
        return column.cell(score)
    if score.name == comparison.baseline:
        return figures.UNKNOWN
    # A blank in the mark's place keeps the numbers of a column under one another.
    return figures.gain(score.difference) + (figures.SIGNIFICANT if score.difference.is_significant else " ")
