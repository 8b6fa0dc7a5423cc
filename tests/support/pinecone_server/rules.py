"""What every request must keep to; stricter than the description of 2026-04 where that of 2026-07 is."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from tests.support.pinecone_server.errors import Refused, RuleBroken

ID = re.compile(r"[\x01-\x7f]{1,512}")
MOST_REQUEST_BYTES = 2 * 1024 * 1024
MOST_METADATA_BYTES = 40 * 1024
MOST_DIMENSION = 20_000
MOST_SPARSE = 2_048


def rule(kept: bool, message: str) -> None:
    if not kept:
        raise RuleBroken(message)


def no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def parsed(body: bytes, *, lines: bool = False) -> Any:
    """The JSON of a body, or the list of those of its lines."""
    try:
        text = body.decode("utf-8")
        if lines:
            return [json.loads(line) for line in text.split("\n") if line.strip()]
        return json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise RuleBroken(f"the body is no JSON: {type(error).__name__}") from error


def mapping(value: Any, what: str) -> dict[str, Any]:
    rule(isinstance(value, dict), f"{what} must be an object")
    return value  # type: ignore[no-any-return]


def only_keys(body: dict[str, Any], allowed: str, what: str) -> None:
    """A key that is not known is ignored by Pinecone, but a client of ours has no reason to send one."""
    unknown = set(body) - set(allowed.split())
    rule(not unknown, f"unknown in {what}: {sorted(unknown)}")


def text(value: Any, what: str, *, default: str | None = None) -> str:
    if value is None and default is not None:
        return default
    rule(isinstance(value, str), f"{what} must be a string")
    return value  # type: ignore[no-any-return]


def flag(value: Any, what: str) -> bool:
    rule(value is None or isinstance(value, bool), f"{what} must be a boolean")
    return bool(value)


def namespace(value: Any) -> str:
    name = text(value, "namespace", default="")
    rule(
        len(name) <= 512 and name.isascii() and "\0" not in name,
        "namespace must be at most 512 ASCII characters",
    )
    return name or "__default__"


def id_(value: Any) -> str:
    rule(
        isinstance(value, str) and ID.fullmatch(value) is not None,
        "an id must be 1 to 512 ASCII characters",
    )
    return value  # type: ignore[no-any-return]


def ids(value: Any) -> list[str]:
    rule(isinstance(value, list) and 1 <= len(value) <= 1_000, "ids must be a list of 1 to 1000")
    return [id_(one) for one in value]


def is_whole(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def whole(value: Any, low: int, high: int, what: str) -> int:
    finite = is_number(value)
    rule(
        finite and is_whole(value) and low <= value <= high,
        f"{what} must be a whole number from {low} to {high}",
    )
    return int(value)


def numbers(value: Any, what: str, most: int = MOST_DIMENSION) -> list[float]:
    rule(
        isinstance(value, list) and 1 <= len(value) <= most, f"{what} must be a list of 1 to {most}"
    )
    rule(all(map(is_number, value)), f"{what} must hold numbers")
    return [float(number) for number in value]


def sparse(value: Any) -> dict[int, float]:
    held = mapping(value, "sparse values")
    only_keys(held, "indices values", "sparse values")
    indices = held.get("indices")
    weights = numbers(held.get("values"), "sparse values", MOST_SPARSE)
    rule(
        isinstance(indices, list) and len(indices) == len(weights),
        "sparse indices must be as many as values",
    )
    whole_ones = [whole(index, 0, 2**32 - 1, "a sparse index") for index in indices or ()]
    rule(len(set(whole_ones)) == len(whole_ones), "sparse indices must not repeat")
    return dict(zip(whole_ones, weights, strict=True))


def metadata(value: Any, *, whose: str = "") -> dict[str, Any]:
    """Metadata as it is kept: nulls go, numbers become floats."""
    if value is None:
        return {}
    kept: dict[str, Any] = {}
    for key, one in mapping(value, "metadata").items():
        rule(not key.startswith("$"), "a metadata key must not start with $")
        fits = isinstance(one, str | bool) or is_number(one) or one is None
        fits = fits or (isinstance(one, list) and all(isinstance(member, str) for member in one))
        rule(
            fits, f"metadata value of {key!r} must be a string, number, boolean or list of strings"
        )
        if one is not None:
            kept[key] = float(one) if is_number(one) else one
    size = len(
        json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    )
    if size > MOST_METADATA_BYTES:
        raise Refused(
            f"metadata size is {size} bytes, which exceeds the limit of {MOST_METADATA_BYTES} bytes {whose}"
        )
    return kept


def texts(value: Any, what: str, field: str, most: int) -> list[str]:
    """The text of each member of a list of objects."""
    rule(isinstance(value, Sequence) and not isinstance(value, str), f"{what} must be a list")
    if not 1 <= len(value) <= most:
        raise Refused(f"{what} must be 1 to {most}, not {len(value)}")
    return [
        text(mapping(one, f"one of {what}").get(field), f"{field} of one of {what}")
        for one in value
    ]
