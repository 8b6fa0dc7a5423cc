"""Numbers as readers see them: one form each, and a dash for what is not known."""

from __future__ import annotations

from math import floor, isfinite, log10
from typing import Final

from qtmiddleware.evaluation import Difference

UNKNOWN: Final = "–"
"""What stands where a number is not known."""
SIGNIFICANT: Final = "*"
"""What marks a gain that is more than chance."""


def value(number: float | None) -> str:
    """A measure from 0 to 1: ``0.712``."""
    return _fixed(number, 3)


def points(gain: float | None) -> str:
    """A difference of a measure in points, hundredths, with its sign: ``+12.3``."""
    if gain is None or not isfinite(100 * gain):
        return UNKNOWN
    return "0.0" if abs(gain) < 0.0005 else f"{100 * gain:+,.1f}"


def interval(difference: Difference) -> str:
    """The 95 % interval of a difference in points: ``[+8.1, +16.4]``."""
    return f"[{points(difference.low)}, {points(difference.high)}]"


def gain(difference: Difference) -> str:
    """A difference in points with its interval: ``+12.3 [+8.1, +16.4]``."""
    return f"{points(difference.gain)} {interval(difference)}"


def share(part: float | None) -> str:
    """A share of the questions: ``5 %``; what is neither none nor all is never told as such."""
    if part is None or not isfinite(part):
        return UNKNOWN
    if 0.0 < part < 0.005:
        return "<1 %"
    if 0.995 <= part < 1.0:
        return ">99 %"
    return f"{100 * part:.0f} %"


def milliseconds(ms: float | None) -> str:
    """A time in milliseconds without the unit: ``1,240``, and ``0.4`` below ten."""
    return UNKNOWN if ms is None else _fixed(ms, 1 if abs(ms) < 9.95 else 0)


def duration(ms: float | None) -> str:
    """A time with its unit: ``0.4 ms``, ``310 ms``, ``1.2 s``."""
    if ms is None or not isfinite(ms):
        return UNKNOWN
    return f"{_fixed(ms / 1e3, 1)} s" if abs(ms) >= 999.5 else f"{milliseconds(ms)} ms"


def rate(number: float | None) -> str:
    """So many a question: ``1.00``."""
    return _fixed(number, 2)


def dollars(usd: float | None) -> str:
    """US dollars to two digits that count, and to cents from a dollar on: ``$0.0041``, ``$0.32``, ``$1,204.00``."""
    if usd is None or not isfinite(usd):
        return UNKNOWN
    size = abs(usd)
    if 0.0 < size < 0.00001:
        return "<$0.00001"
    digits = 2 if size >= 0.1 or size == 0.0 else 1 - floor(log10(size))
    return f"{'-' if usd < 0 else ''}${_fixed(size, digits)}"


def _fixed(number: float | None, digits: int) -> str:
    """*number* with so many *digits* behind the point, never a minus before nothing but zeros."""
    if number is None or not isfinite(number):
        return UNKNOWN
    text = f"{number:.3g}" if abs(number) >= 1e9 else f"{number:,.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text
