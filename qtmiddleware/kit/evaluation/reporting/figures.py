"""Numbers, texts and tables as readers see them: one form each, a dash for what is not known, a bounded length."""

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
from qtmiddleware.preprocessing.text import clean

NAME_LENGTH: Final = 120
"""Characters of a system's name that are shown; a tuned one names what is changed about it."""
UNKNOWN: Final = "–"
"""What stands where a number is not known."""
SIGNIFICANT: Final = "*"
"""What marks a gain that is more than chance."""
_ELLIPSIS: Final = "…"
_FIRST: Final = "MRR@10"
"""1 for a question whose first passage is relevant, less for every other."""


def is_known(number: float | None) -> TypeGuard[float]:
    """Whether *number* is there and finite."""
    return number is not None and isfinite(number)


def format_measure(number: float | None) -> str:
    """A measure from 0 to 1: ``0.712``."""
    return _format_fixed(number, 3)


def format_points(gain: float | None) -> str:
    """A difference of a measure in points, hundredths, with its sign: ``+12.3``."""
    if gain is None or not isfinite(100 * gain):
        return UNKNOWN
    return "0.0" if abs(gain) < 0.0005 else f"{100 * gain:+,.1f}"


def format_interval(difference: Difference) -> str:
    """The 95% interval of a difference in points: ``[+8.1, +16.4]``."""
    return f"[{format_points(difference.low)}, {format_points(difference.high)}]"


def describe_interval(difference: Difference) -> str:
    """The same in a sentence: ``95% interval +8.1 to +16.4``."""
    return f"95% interval {format_points(difference.low)} to {format_points(difference.high)}"


def format_gain(difference: Difference) -> str:
    """A difference in points with its interval: ``+12.3 [+8.1, +16.4]``."""
    return f"{format_points(difference.gain)} {format_interval(difference)}"


def format_share(part: float | None) -> str:
    """A share of the questions: ``5%``; ``0%`` and ``100%`` only where it is exactly that."""
    if not is_known(part):
        return UNKNOWN
    if 0.0 < part < 0.005:
        return "<1%"
    if 0.995 <= part < 1.0:
        return ">99%"
    return f"{100 * part:.0f}%"


def format_milliseconds(ms: float | None) -> str:
    """A time in milliseconds without the unit: ``1,240``, and ``0.4`` below ten."""
    return UNKNOWN if ms is None else _format_fixed(ms, 1 if abs(ms) < 9.95 else 0)


def format_duration(ms: float | None) -> str:
    """A time with its unit: ``0.4 ms``, ``310 ms``, ``1.2 s``."""
    if not is_known(ms):
        return UNKNOWN
    return (
        f"{_format_fixed(ms / 1e3, 1)} s" if abs(ms) >= 999.5 else f"{format_milliseconds(ms)} ms"
    )


def format_rate(number: float | None) -> str:
    """A number per question: ``1.00``."""
    return _format_fixed(number, 2)


def format_dollars(usd: float | None) -> str:
    """US dollars to two significant digits, to cents from a dollar on: ``$0.0041``, ``$0.32``, ``$1,204.00``."""
    if not is_known(usd):
        return UNKNOWN
    size = abs(usd)
    if 0.0 < size < 0.00001:
        return "<$0.00001"
    digits = 2 if size >= 0.1 or size == 0.0 else 1 - floor(log10(size))
    return f"{'-' if usd < 0 else ''}${_format_fixed(size, digits)}"


def _format_fixed(number: float | None, digits: int) -> str:
    """*number* with so many *digits* behind the point, and no minus before a zero."""
    if not is_known(number):
        return UNKNOWN
    text = f"{number:.3g}" if abs(number) >= 1e9 else f"{number:,.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text


def describe_missing_time(comparison: Comparison) -> str:
    """What must be said with a time added where the model's own time is no part of it; else empty."""
    if comparison.counts_model_time or not any(score.llm_calls for score in comparison.systems):
        return ""
    return ", without the model’s own time"


def count_first(score: SystemScore) -> int:
    """For how many questions the first passage of *score*'s system is a relevant one."""
    return sum(rank > 1.0 - TOLERANCE for rank in score.per_query.values[_FIRST].values())


def shorten_start(text: str, length: int) -> str:
    """The end of *text* as `shorten` shows it: ids begin alike and end apart."""
    whole = clean(text)
    return whole if len(whole) <= length else _ELLIPSIS + whole[1 - length :].lstrip()


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
_READS: Final = "reads $/1k"
GAIN: Final = Column(
    "gain [95%]",
    f"{PRIMARY} in points (hundredths) above the baseline, with its 95% interval; {SIGNIFICANT} is"
    " more than chance",
    lambda score: score.difference.gain,
    format_points,
)
FIRST: Final = Column(
    "first",
    "questions whose first passage is relevant",
    lambda score: count_first(score) / len(score.runs),
    format_share,
    wide=True,
)
_COLUMNS: Final = (
    Column(
        PRIMARY, "quality of the first ten passages, 0 to 1", _read_mean(PRIMARY), format_measure
    ),
    GAIN,
    FIRST,
    Column(
        "R@10",
        "share of the relevant passages that are among the first ten",
        _read_mean("R@10"),
        format_measure,
    ),
    Column(
        _DEEP,
        "share of the relevant passages that are among the first hundred",
        _read_mean(_DEEP),
        format_measure,
    ),
    Column(
        "MRR@10",
        "1 / rank of the first relevant passage",
        _read_mean("MRR@10"),
        format_measure,
        True,
    ),
    Column(
        "P@5",
        "share of relevant passages among the first five",
        _read_mean("P@5"),
        format_measure,
        True,
    ),
    Column(
        "MAP",
        "mean of the precision at each relevant passage",
        _read_mean("AP"),
        format_measure,
        True,
    ),
    Column(
        "hurt", f"questions that got worse (lower {PRIMARY})", lambda it: it.hurt_rate, format_share
    ),
    Column(
        "helped",
        f"questions that got better (higher {PRIMARY})",
        lambda it: it.helped_rate,
        format_share,
        True,
    ),
    Column(
        "+ms p50",
        "milliseconds added, median of the questions",
        lambda it: it.added_ms.p50,
        format_milliseconds,
    ),
    Column(
        "p95",
        "milliseconds added, at most this for 95 of 100 questions",
        lambda it: it.added_ms.p95,
        format_milliseconds,
    ),
    Column(
        "searches",
        "searches of the index per question",
        lambda it: it.searches_per_question,
        format_rate,
    ),
    Column(
        _READS,
        "US dollars for the searches of 1,000 questions",
        lambda it: it.read_usd_per_thousand,
        format_dollars,
    ),
    Column(
        "calls", "model calls per question", lambda it: it.llm_calls / len(it.runs), format_rate
    ),
    Column(
        "$/1k",
        "US dollars for the model per 1,000 questions",
        lambda it: it.usd_per_thousand,
        format_dollars,
    ),
    Column(
        "$/+0.01",
        f"US dollars for the model per 1,000 questions per +0.01 of {PRIMARY}",
        lambda it: it.usd_per_point,
        format_dollars,
        wide=True,
    ),
)


def choose_columns(comparison: Comparison, *, wide: bool = True) -> tuple[Column, ...]:
    """The columns after the system's name; R@100 and what searches cost only where that is known.

    Without *wide* they fit, with the names, into 120 characters.
    """
    known = {
        _DEEP: any(_DEEP in score.means for score in comparison.systems),
        _READS: any(is_known(score.read_usd_per_thousand) for score in comparison.systems),
    }
    return tuple(it for it in _COLUMNS if (wide or not it.wide) and known.get(it.heading, True))


def headings(comparison: Comparison, *, wide: bool = False) -> list[str]:
    """What stands above each column of `rows`; the first holds names, all others numbers."""
    return ["system", *(column.heading for column in choose_columns(comparison, wide=wide))]


def rows(comparison: Comparison, *, wide: bool = False) -> list[list[str]]:
    """A row for each system, in the order they were compared: its name, its figures, dashes for what is not known.

    A gain is in points of nDCG@10 with its 95% interval; ``*`` marks one that is more than chance
    after Holm's correction. R@100 is there where it was measured, and what searches cost where
    ``store.readPrice`` is set. With
    *wide* come MRR@10, P@5, MAP, the questions that were helped and the price of +0.01 too.
    """
    columns = choose_columns(comparison, wide=wide)
    return [
        [clean(score.name), *(_write_cell(column, comparison, score) for column in columns)]
        for score in comparison.systems
    ]


def _write_cell(column: Column, comparison: Comparison, score: SystemScore) -> str:
    if column is not GAIN:
        return column.write(score)
    if score.name == comparison.baseline:
        return UNKNOWN
    # A blank in the mark's place keeps the numbers of a column under one another.
    return format_gain(score.difference) + (SIGNIFICANT if score.difference.is_significant else " ")
