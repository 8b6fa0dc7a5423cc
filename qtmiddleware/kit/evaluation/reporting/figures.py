"""Format the numbers, texts and tables of reports. Unknown numbers become a dash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import floor, isfinite, log10
from typing import Final, TypeGuard

from qtmiddleware.kit.evaluation import (
    DEEP,
    PRIMARY,
    TOLERANCE,
    Comparison,
    Difference,
    SystemScore,
)
from qtmiddleware.preprocessing.text import clean_text

NAME_LENGTH: Final = 120
"""Reports show at most this many characters of a system's name."""
UNKNOWN: Final = "–"
"""The text for a number that is not known."""
SIGNIFICANT: Final = "*"
"""The mark of a significant gain."""
_ELLIPSIS: Final = "…"
_FIRST: Final = "MRR@10"
"""The measure that is 1 only if a question's first passage is relevant."""


def is_known(number: float | None) -> TypeGuard[float]:
    """Return whether *number* is known, meaning finite and not ``None``."""
    return number is not None and isfinite(number)


def format_measure(number: float | None) -> str:
    """Format a measure from 0 to 1, such as ``0.712``."""
    return _format_fixed(number, 3)


def format_points(gain: float | None) -> str:
    """Format a difference in points (hundredths of a measure), such as ``+12.3``."""
    if gain is None or not isfinite(100 * gain):
        return UNKNOWN
    # Without this, a tiny loss would be "-0.0".
    return "0.0" if abs(gain) < 0.0005 else f"{100 * gain:+,.1f}"


def format_interval(difference: Difference) -> str:
    """Format a difference's 95% interval in points, such as ``[+8.1, +16.4]``."""
    return f"[{format_points(difference.low)}, {format_points(difference.high)}]"


def describe_interval(difference: Difference) -> str:
    """Return a difference's interval in words, such as ``95% interval +8.1 to +16.4``."""
    return f"95% interval {format_points(difference.low)} to {format_points(difference.high)}"


def format_gain(difference: Difference) -> str:
    """Format a difference in points with its interval, such as ``+12.3 [+8.1, +16.4]``."""
    return f"{format_points(difference.gain)} {format_interval(difference)}"


def format_share(share: float | None) -> str:
    """Format a share from 0 to 1 as a percentage, such as ``5%``.

    A share above 0 that would round to ``0%`` becomes ``<1%``. A share below 1 that would round to
    ``100%`` becomes ``>99%``.
    """
    if not is_known(share):
        return UNKNOWN
    if 0.0 < share < 0.005:
        return "<1%"
    if 0.995 <= share < 1.0:
        return ">99%"
    return f"{100 * share:.0f}%"


def format_milliseconds(ms: float | None) -> str:
    """Format a time in milliseconds, without the unit, such as ``1,240``.

    Times below ten have one decimal, such as ``0.4``.
    """
    # From 9.95 on, one decimal would round to 10.0.
    return UNKNOWN if ms is None else _format_fixed(ms, 1 if abs(ms) < 9.95 else 0)


def format_duration(ms: float | None) -> str:
    """Format a time in milliseconds with its unit, such as ``310 ms`` or ``1.2 s``."""
    if not is_known(ms):
        return UNKNOWN
    # From 999.5 on, the time would round to 1,000 ms.
    return (
        f"{_format_fixed(ms / 1e3, 1)} s" if abs(ms) >= 999.5 else f"{format_milliseconds(ms)} ms"
    )


def format_rate(rate: float | None) -> str:
    """Format a rate, such as model calls per question, with two decimals, such as ``1.00``."""
    return _format_fixed(rate, 2)


def format_dollars(usd: float | None) -> str:
    """Format an amount of US dollars, such as ``$0.0041``, ``$0.32`` or ``$1,204.00``.

    Amounts below ten cents have two significant digits; others have two decimals.
    """
    if not is_known(usd):
        return UNKNOWN
    size = abs(usd)
    if 0.0 < size < 0.00001:
        return "<$0.00001"
    digits = 2 if size >= 0.1 or size == 0.0 else 1 - floor(log10(size))
    return f"{'-' if usd < 0 else ''}${_format_fixed(size, digits)}"


def _format_fixed(number: float | None, digits: int) -> str:
    """Format *number* with *digits* decimals. A number that rounds to zero has no minus sign."""
    if not is_known(number):
        return UNKNOWN
    # Written out, a number from a billion on would not fit into its column.
    text = f"{number:.3g}" if abs(number) >= 1e9 else f"{number:,.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text


def describe_missing_time(comparison: Comparison) -> str:
    """Return a remark that the added times lack the model's time; ``""`` if they include it."""
    if comparison.counts_model_time or not any(score.llm_calls for score in comparison.systems):
        return ""
    return ", without the model’s own time"


def count_relevant_first_passages(score: SystemScore) -> int:
    """Return the number of questions for which the system's first passage is relevant."""
    return sum(rank > 1.0 - TOLERANCE for rank in score.per_query.values[_FIRST].values())


def shorten_start(text: str, max_length: int) -> str:
    """Return *text*, cut at its start if it is longer than *max_length* characters.

    Use this for ids, which often differ only at the end.
    """
    whole = clean_text(text)
    return whole if len(whole) <= max_length else _ELLIPSIS + whole[1 - max_length :].lstrip()


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table with a row per system.

    Attributes:
        heading: The column's heading.
        means: The explanation of the column's numbers.
        number: Returns the number of a system.
        format: Formats a number as text.
        wide: Whether the column is shown only in wide tables.
    """

    heading: str
    means: str
    number: Callable[[SystemScore], float | None]
    format: Callable[[float | None], str]
    wide: bool = False

    def format_value(self, score: SystemScore) -> str:
        """Return the column's text for the system that *score* describes."""
        return self.format(self.number(score))


def _build_mean_reader(measure: str) -> Callable[[SystemScore], float | None]:
    return lambda score: score.means.get(measure)


_DEEP: Final = DEEP[0]
_READS: Final = "reads $/1k"
_GAIN: Final = Column(
    "gain [95%]",
    f"{PRIMARY} in points (hundredths) above the baseline, with its 95% interval; {SIGNIFICANT} is"
    " more than chance",
    lambda score: score.difference.gain,
    format_points,
)
_COLUMNS: Final = (
    Column(
        PRIMARY,
        "quality of the first ten passages, 0 to 1",
        _build_mean_reader(PRIMARY),
        format_measure,
    ),
    _GAIN,
    Column(
        "first",
        "questions whose first passage is relevant",
        lambda score: count_relevant_first_passages(score) / len(score.runs),
        format_share,
        wide=True,
    ),
    Column(
        "R@10",
        "share of the relevant passages that are among the first ten",
        _build_mean_reader("R@10"),
        format_measure,
    ),
    Column(
        _DEEP,
        "share of the relevant passages that are among the first hundred",
        _build_mean_reader(_DEEP),
        format_measure,
    ),
    Column(
        "MRR@10",
        "1 / rank of the first relevant passage",
        _build_mean_reader("MRR@10"),
        format_measure,
        True,
    ),
    Column(
        "P@5",
        "share of relevant passages among the first five",
        _build_mean_reader("P@5"),
        format_measure,
        True,
    ),
    Column(
        "MAP",
        "mean of the precision at each relevant passage",
        _build_mean_reader("AP"),
        format_measure,
        True,
    ),
    Column(
        "hurt",
        f"questions that got worse (lower {PRIMARY})",
        lambda score: score.hurt_rate,
        format_share,
    ),
    Column(
        "helped",
        f"questions that got better (higher {PRIMARY})",
        lambda score: score.helped_rate,
        format_share,
        True,
    ),
    Column(
        "+ms p50",
        "milliseconds added, median of the questions",
        lambda score: score.added_ms.p50,
        format_milliseconds,
    ),
    Column(
        "p95",
        "milliseconds added, at most this for 95 of 100 questions",
        lambda score: score.added_ms.p95,
        format_milliseconds,
    ),
    Column(
        "searches",
        "searches of the index per question",
        lambda score: score.searches_per_question,
        format_rate,
    ),
    Column(
        _READS,
        "US dollars for the searches of 1,000 questions",
        lambda score: score.read_usd_per_thousand,
        format_dollars,
    ),
    Column(
        "calls",
        "model calls per question",
        lambda score: score.llm_calls / len(score.runs),
        format_rate,
    ),
    Column(
        "$/1k",
        "US dollars for the model per 1,000 questions",
        lambda score: score.usd_per_thousand,
        format_dollars,
    ),
    Column(
        "$/+0.01",
        f"US dollars for the model per 1,000 questions per +0.01 of {PRIMARY}",
        lambda score: score.usd_per_point,
        format_dollars,
        wide=True,
    ),
)


def choose_columns(comparison: Comparison, *, is_wide: bool = True) -> tuple[Column, ...]:
    """Return the columns of the table of all systems, except the column with the names.

    R@100 and the cost of searches are included if they are known. If *is_wide* is false, only the
    columns that fit into 120 characters are returned.
    """
    optional = {
        _DEEP: any(_DEEP in score.means for score in comparison.systems),
        _READS: any(is_known(score.read_usd_per_thousand) for score in comparison.systems),
    }
    return tuple(
        column
        for column in _COLUMNS
        if (is_wide or not column.wide) and optional.get(column.heading, True)
    )


def headings(comparison: Comparison, *, wide: bool = False) -> list[str]:
    """Return the column headings for `rows`: first the system's name, then the figures."""
    return ["system", *(column.heading for column in choose_columns(comparison, is_wide=wide))]


def rows(comparison: Comparison, *, wide: bool = False) -> list[list[str]]:
    """Return one row per system, in the comparison's order: its name and its figures.

    An unknown number is a dash. A gain is in points (hundredths) of nDCG@10, with its 95% interval.
    ``*`` marks a gain that is significant after Holm's correction. R@100 is included if it was
    measured. The cost of searches is included if ``store.readPrice`` is set. If *wide* is true, the
    rows have six more figures, such as MRR@10, P@5 and MAP.
    """
    columns = choose_columns(comparison, is_wide=wide)
    return [
        [clean_text(score.name), *(_format_cell(column, comparison, score) for column in columns)]
        for score in comparison.systems
    ]


def _format_cell(column: Column, comparison: Comparison, score: SystemScore) -> str:
    """Return the text of *column* for one system. A significant gain is marked with ``*``."""
    if column is not _GAIN:
        return column.format_value(score)
    if score.name == comparison.baseline:
        return UNKNOWN
    # A space in place of the mark keeps the numbers of the column aligned.
    return format_gain(score.difference) + (SIGNIFICANT if score.difference.is_significant else " ")
