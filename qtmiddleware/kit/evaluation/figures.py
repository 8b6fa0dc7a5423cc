"""Format the numbers and names of reports. Unknown numbers become a dash."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from math import floor, isfinite, log10
from typing import Any, Final, TypeGuard

from qtmiddleware.config.settings import to_camel_case
from qtmiddleware.kit.evaluation.measures import Difference
from qtmiddleware.preprocessing.text import clean_text, shorten_text

NAME_LENGTH: Final = 120
"""Reports show at most this many characters of a system's name."""
UNKNOWN: Final = "–"
"""The text for a number that is not known."""


def is_known(number: float | None) -> TypeGuard[float]:
    """Return whether *number* is finite and not ``None``."""
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


def format_size(gain: float) -> str:
    """Format the size of a difference in points, without its sign."""
    return format_points(abs(gain)).removeprefix("+")


def format_interval(difference: Difference) -> str:
    """Format a difference's 95% interval in points, such as ``[+8.1, +16.4]``."""
    return f"[{format_points(difference.low)}, {format_points(difference.high)}]"


def format_gain(difference: Difference) -> str:
    """Format a difference in points with its interval, such as ``+12.3 [+8.1, +16.4]``."""
    return f"{format_points(difference.gain)} {format_interval(difference)}"


def format_p(p: float) -> str:
    """Format a p-value, such as ``p = .18`` or ``p < .001``."""
    return "p < .001" if p < 0.001 else f"p = {p:.2g}".replace("0.", ".", 1)


def describe_chance(difference: Difference) -> str:
    """Return that *difference* may be chance, and why if its interval does not include 0."""
    if difference.low <= 0 <= difference.high:
        return "may be chance"
    count = difference.tests
    why = f" after correction for {count} comparisons" if count > 1 else ""
    return f"may be chance ({format_p(difference.p_holm)}{why})"


def format_share(share: float | None) -> str:
    """Format a share from 0 to 1 as a percentage, such as ``5%``, ``<1%`` or ``>99%``."""
    if not is_known(share):
        return UNKNOWN
    if 0.0 < share < 0.005:
        return "<1%"
    if 0.995 <= share < 1.0:
        return ">99%"
    return f"{100 * share:.0f}%"


def format_milliseconds(ms: float | None) -> str:
    """Format a time in milliseconds, without the unit, such as ``1,240`` or ``0.4``."""
    # From 9.95 on, one decimal would round to 10.0.
    return UNKNOWN if ms is None else _format_fixed(ms, 1 if abs(ms) < 9.95 else 0)


def format_duration(ms: float | None) -> str:
    """Format a time in milliseconds with its unit, such as ``310 ms`` or ``1.2 s``."""
    if not is_known(ms):
        return UNKNOWN
    # From 999.5 on, the time would round to 1,000 ms.
    if abs(ms) >= 999.5:
        return f"{_format_fixed(ms / 1e3, 1)} s"
    return f"{format_milliseconds(ms)} ms"


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
    if not is_known(number):
        return UNKNOWN
    # Written out, a number from a billion on would not fit into its column.
    text = f"{number:.3g}" if abs(number) >= 1e9 else f"{number:,.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text


def quote_name(name: str) -> str:
    """Return a system's name in quotation marks."""
    return f"“{shorten_text(name, NAME_LENGTH)}”"


def join_names(names: Iterable[str]) -> str:
    """Return *names* as an English list, such as ``off, rules and hyde``."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def shorten_start(text: str, max_length: int) -> str:
    """Return *text*, cut at its start, because ids often differ only at the end."""
    whole = clean_text(text)
    return whole if len(whole) <= max_length else "…" + whole[1 - max_length :].lstrip()


def to_json(instance: Any, *properties: str, leave_out: Collection[str] = ()) -> dict[str, Any]:
    """Return a dataclass as a dict with camelCase keys, ready for JSON.

    Args:
        instance: The dataclass. If a value in it has a method ``to_dict``, the dict has its result.
        properties: The names of properties to add to the fields.
        leave_out: The names of fields without a place in the dict.
    """
    names = [it.name for it in fields(instance) if it.name not in leave_out]
    return {
        to_camel_case(name): _convert(getattr(instance, name)) for name in (*names, *properties)
    }


def _convert(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _convert(it) for key, it in value.items()}
    if isinstance(value, tuple | list):
        return [_convert(it) for it in value]
    if is_dataclass(value):
        return value.to_dict() if hasattr(value, "to_dict") else to_json(value)
    return value
