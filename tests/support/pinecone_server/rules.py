"""What every request must keep to; stricter than the description of 2026-04 where that of 2026-07 is."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from tests.support.pinecone_server.errors import Refused, RuleBroken

MOST_METADATA_BYTES = 40 * 1024


def rule(kept: bool, message: str) -> None:
    if not kept:
        raise RuleBroken(message)


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def parsed(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RuleBroken(f"the body is no JSON: {type(error).__name__}") from error


def mapping(value: Any, allowed: str | None = None) -> dict[str, Any]:
    """An object. Pinecone ignores a key that is not known, but a client of ours has no reason to send one."""
    rule(isinstance(value, dict), f"{value!r:.99} must be an object")
    unknown = set(value) - set(value if allowed is None else allowed.split())
    rule(not unknown, f"unknown keys: {sorted(unknown)}")
    return dict(value)


def listed(value: Any, most: int, what: str) -> list[Any]:
    is_list = isinstance(value, list) and 1 <= len(value) <= most
    rule(is_list, f"{what} must be a list of 1 to {most}")
    return list(value)


def text(value: Any, what: str) -> str:
    rule(isinstance(value, str), f"{what} must be a string")
    return str(value)


def flag(body: dict[str, Any], name: str, *, default: bool = False) -> bool:
    value = body.get(name, default)
    rule(isinstance(value, bool), f"{name} must be a boolean")
    return bool(value)


def namespace(value: Any) -> str:
    name = text("" if value is None else value, "namespace")
    is_name = len(name) <= 512 and name.isascii() and "\0" not in name
    rule(is_name, "namespace must be at most 512 ASCII characters")
    return name or "__default__"


def id_(value: Any) -> str:
    is_id = isinstance(value, str) and re.fullmatch(r"[\x01-\x7f]{1,512}", value)
    rule(bool(is_id), "an id must be 1 to 512 ASCII characters")
    return str(value)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def whole(value: Any, low: int, high: int, what: str) -> int:
    is_whole = is_number(value) and value == int(value) and low <= value <= high
    rule(is_whole, f"{what} must be a whole number from {low} to {high}")
    return int(value)


def numbers(value: Any, what: str, most: int = 20_000) -> list[float]:
    rule(all(map(is_number, listed(value, most, what))), f"{what} must hold numbers")
    return [float(number) for number in value]


def sparse(value: Any) -> dict[int, float]:
    held = mapping(value, "indices values")
    weights = numbers(held.get("values"), "sparse values", 2_048)
    indices = [
        whole(index, 0, 2**32 - 1, "a sparse index")
        for index in listed(held.get("indices"), 2_048, "sparse indices")
    ]
    rule(len(set(indices)) == len(weights), "sparse indices must be as many as values")
    return dict(zip(indices, weights, strict=True))


def metadata(value: Any) -> dict[str, Any]:
    """Metadata as it is kept: nulls go, numbers become floats."""
    kept = {key: one for key, one in mapping(value or {}).items() if one is not None}
    for key, one in kept.items():
        is_text_list = isinstance(one, list) and all(isinstance(member, str) for member in one)
        fits = isinstance(one, str | bool) or is_number(one) or is_text_list
        rule(fits and not key.startswith("$"), f"metadata must not have {key!r} or its value")
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if len(written.encode("utf-8", "replace")) > MOST_METADATA_BYTES:
        raise Refused(f"the metadata exceeds the limit of {MOST_METADATA_BYTES} bytes")
    return {key: float(one) if is_number(one) else one for key, one in kept.items()}
