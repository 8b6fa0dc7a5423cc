"""The figures of a comparison as rows of texts, for any kind of table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from qtmiddleware.evaluation import DEEP, PRIMARY, Comparison, SystemScore
from qtmiddleware.evaluation.reporting import figures


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its *heading*, what it *means*, the number in it and how that is written.

    A *wide* one is left out where there is little room.
    """

    heading: str
    means: str
    number: Callable[[SystemScore], float | None]
    format: Callable[[float | None], str]
    wide: bool = False

    def write(self, score: SystemScore) -> str:
        """The number of *score* as text."""
        return self.format(self.number(score))


def _read_mean(measure: str) -> Callable[[SystemScore], float | None]:
    return lambda score: score.means.get(measure)


_DEEP: Final = DEEP[0]
GAIN: Final = Column(
    "gain [95 %]",
    f"{PRIMARY} in points (hundredths) above the baseline, with its 95 % interval; "
    f"{figures.SIGNIFICANT} is more than chance",
    lambda score: score.difference.gain,
    figures.format_points,
)
_COLUMNS: Final = (
    Column(PRIMARY, "quality of the first ten passages, 0 to 1", _read_mean(PRIMARY), figures.format_measure),
    GAIN,
    Column("R@10", "share of the relevant passages among the first ten", _read_mean("R@10"), figures.format_measure),
    Column(_DEEP, "share of the relevant passages among the first hundred", _read_mean(_DEEP), figures.format_measure),
    Column("MRR@10", "1 / rank of the first relevant passage", _read_mean("MRR@10"), figures.format_measure),
    Column("P@5", "share of relevant passages among the first five", _read_mean("P@5"), figures.format_measure, True),
    Column("MAP", "mean of the precision at each relevant passage", _read_mean("AP"), figures.format_measure, True),
    Column("hurt", f"questions whose {PRIMARY} fell", lambda it: it.hurt_rate, figures.format_share),
    Column("helped", f"questions whose {PRIMARY} rose", lambda it: it.helped_rate, figures.format_share),
    Column(
        "+ms p50",
        "milliseconds added, median over the questions",
        lambda it: it.added_ms.p50,
        figures.format_milliseconds,
    ),
    Column(
        "p95",
        "milliseconds added, 95 of 100 questions at most",
        lambda it: it.added_ms.p95,
        figures.format_milliseconds,
    ),
    Column("calls", "model calls per question", lambda it: it.llm_calls / len(it.runs), figures.format_rate),
    Column("$/1k", "US dollars per 1,000 questions", lambda it: it.usd_per_thousand, figures.format_dollars),
    Column(
        "$/+0.01",
        f"US dollars per 1,000 questions for each +0.01 of {PRIMARY}",
        lambda it: it.usd_per_point,
        figures.format_dollars,
        wide=True,
    ),
)


def choose_columns(comparison: Comparison, *, wide: bool = True) -> tuple[Column, ...]:
    """The columns after the system's name; what is measured of a hundred passages only where it was.

    Without *wide* they fit, with the names, into 120 characters.
    """
    measured = any(_DEEP in score.means for score in comparison.systems)
    return tuple(column for column in _COLUMNS if (wide or not column.wide) and (measured or column.heading != _DEEP))


def headings(comparison: Comparison, *, wide: bool = False) -> list[str]:
    """What stands above each column of `rows`; the first holds names, all others numbers."""
    return ["system", *(column.heading for column in choose_columns(comparison, wide=wide))]


def rows(comparison: Comparison, *, wide: bool = False) -> list[list[str]]:
    """A row for each system, in the order they were compared: its name, its figures, dashes for what is not known.

    A gain is in points of nDCG@10 with its 95 % interval; ``*`` marks one that is more than chance after Holm's
    correction. R@100 is there where it was measured. With *wide* come P@5, MAP and the price of +0.01 too.
    """
    columns = choose_columns(comparison, wide=wide)
    return [
        [figures.clean_text(score.name), *(_write_cell(column, comparison, score) for column in columns)]
        for score in comparison.systems
    ]


def _write_cell(column: Column, comparison: Comparison, score: SystemScore) -> str:
    if column is not GAIN:
        return column.write(score)
    if score.name == comparison.baseline:
        return figures.UNKNOWN
    # A blank in the mark's place keeps the numbers of a column under one another.
    return figures.format_gain(score.difference) + (figures.SIGNIFICANT if score.difference.is_significant else " ")
