"""Format the numbers and names of reports. Unknown numbers become a dash."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from math import floor, isfinite, log10
from typing import Any, Final

from qtmiddleware.config.settings import to_camel_case
from qtmiddleware.preprocessing.text import shorten_text

# Reports show at most this many characters of a system's name.
NAME_LENGTH: Final = 120
UNKNOWN: Final = "–"


def format_number(number: float | None, digits: int = 2) -> str:
    """Format a number with so many decimals, such as ``1,204.00``."""
    if number is None or not isfinite(number):
        return UNKNOWN
    return f"{number:,.{digits}f}"


def format_points(gain: float) -> str:
    """Format a difference in points (hundredths of a measure), such as ``+12.3``."""
    # Without this, a tiny loss would be "-0.0".
    return "0.0" if abs(gain) < 0.0005 else f"{100 * gain:+,.1f}"


def format_size(gain: float) -> str:
    """Format the size of a difference in points, without its sign."""
    return format_points(abs(gain)).removeprefix("+")


def format_share(share: float) -> str:
    """Format a share from 0 to 1 as a percentage, such as ``5%`` or ``<1%``."""
    return "<1%" if 0.0 < share < 0.005 else f"{100 * share:.0f}%"


def format_milliseconds(ms: float) -> str:
    """Format a time in milliseconds, without the unit, such as ``1,240`` or ``0.4``."""
    # From 9.95 on, one decimal would round to 10.0.
    return format_number(ms, 1 if abs(ms) < 9.95 else 0)


def format_duration(ms: float) -> str:
    """Format a time in milliseconds with its unit, such as ``310 ms`` or ``1.2 s``."""
    # From 999.5 on, the time would round to 1,000 ms.
    is_long = abs(ms) >= 999.5
    return f"{format_number(ms / 1e3, 1)} s" if is_long else f"{format_milliseconds(ms)} ms"


def format_dollars(usd: float | None) -> str:
    """Format an amount of US dollars, such as ``$0.0041``, ``$0.32`` or ``$1,204.00``.

    Amounts below ten cents have two significant digits; others have two decimals.
    """
    if usd is None or not isfinite(usd):
        return UNKNOWN
    if 0.0 < usd < 0.00001:
        return "<$0.00001"
    digits = 2 if usd >= 0.1 or usd <= 0.0 else 1 - floor(log10(usd))
    return f"${format_number(usd, digits)}"


def quote_name(name: str) -> str:
    """Return a system's name in quotation marks."""
    return f"“{shorten_text(name, NAME_LENGTH)}”"


def quote_names(names: Iterable[str]) -> str:
    """Return *names* in quotation marks as an English list."""
    return join_names(map(quote_name, names))


def join_names(names: Iterable[str]) -> str:
    """Return *names* as an English list, such as ``off, rules and hyde``."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def to_json(
    instance: Any,
    *properties: str,
    leave_out: Collection[str] = (),
) -> dict[str, Any]:
    """Return a dataclass as a dict with camelCase keys, ready for JSON.

    The dict has the fields but for those in *leave_out*, and the *properties*.
    """
    names = [attribute.name for attribute in fields(instance) if attribute.name not in leave_out]
    return {
        to_camel_case(name): _convert(getattr(instance, name)) for name in (*names, *properties)
    }


def _convert(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _convert(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_convert(item) for item in value]
    if is_dataclass(value):
        return value.to_dict() if hasattr(value, "to_dict") else to_json(value)
    return value
