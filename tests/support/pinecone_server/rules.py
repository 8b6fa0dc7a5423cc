"""What every request must keep to; stricter than the description of 2026-04 where that of 2026-07 is."""

from __future__ import annotations

import json
import math
import re
from typing import Any

MOST_METADATA_BYTES = 40 * 1024


class Refused(Exception):
    """The request is sound but cannot be served as things stand."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class RuleBroken(Refused):
    """The request is not as Pinecone describes its requests: a client that sends it has a defect."""


def rule(kept: bool, message: str) -> None:
    if not kept:
        raise RuleBroken(message)


def parse(body: bytes) -> Any:
    def refuse(text: str) -> Any:
        raise ValueError(f"{text} is no JSON")

    try:
        return json.loads(body.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise RuleBroken(f"the body is no JSON: {type(error).__name__}") from error


def read_mapping(value: Any, allowed: str | None = None) -> dict[str, Any]:
    """An object. Pinecone ignores a key that is not known, but a client of ours has no reason to send one."""
    rule(isinstance(value, dict), f"{value!r:.99} must be an object")
    unknown = set(value) - set(value if allowed is None else allowed.split())
    rule(not unknown, f"unknown keys: {sorted(unknown)}")
    return dict(value)


def read_list(value: Any, most: int, what: str) -> list[Any]:
    is_list = isinstance(value, list) and 1 <= len(value) <= most
    rule(is_list, f"{what} must be a list of 1 to {most}")
    return list(value)


def read_text(value: Any, what: str) -> str:
    rule(isinstance(value, str), f"{what} must be a string")
    return str(value)


def read_id(value: Any) -> str:
    is_id = isinstance(value, str) and re.fullmatch(r"[\x01-\x7f]{1,512}", value)
    rule(bool(is_id), "an id must be 1 to 512 ASCII characters")
    return str(value)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_count(value: Any, most: int, what: str) -> int:
    is_whole = is_number(value) and value == int(value) and 1 <= value <= most
    rule(is_whole, f"{what} must be a whole number from 1 to {most}")
    return int(value)


def read_numbers(value: Any, what: str) -> list[float]:
    rule(all(map(is_number, read_list(value, 20_000, what))), f"{what} must hold numbers")
    return [float(number) for number in value]


def read_metadata(value: Any) -> dict[str, Any]:
    """Metadata as it is kept: nulls go, numbers become floats."""
    kept = {key: one for key, one in read_mapping(value or {}).items() if one is not None}
    for key, one in kept.items():
        is_text_list = isinstance(one, list) and all(isinstance(member, str) for member in one)
        fits = isinstance(one, str | bool) or is_number(one) or is_text_list
        rule(fits and not key.startswith("$"), f"metadata must not have {key!r} or its value")
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if len(written.encode("utf-8", "replace")) > MOST_METADATA_BYTES:
        raise Refused(f"the metadata exceeds the limit of {MOST_METADATA_BYTES} bytes")
    return {key: float(one) if is_number(one) else one for key, one in kept.items()}
