"""Whether metadata meet a filter, read anew from Pinecone's own description of its operators."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tests.support.pinecone_server.errors import Refused

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def meets(metadata: dict[str, Any], condition: dict[str, Any]) -> bool:
    return all(_clause(metadata, key, wanted) for key, wanted in condition.items())


def check(condition: Any) -> dict[str, Any] | None:
    """*condition*, if it can be read, so that a bad one is refused though nothing is there to be compared."""
    if condition is None:
        return None
    if not isinstance(condition, dict):
        raise Refused("the filter must be an object")
    meets({}, condition)
    return condition


def _clause(metadata: dict[str, Any], key: str, wanted: Any) -> bool:
    if key in ("$and", "$or"):
        if (
            not isinstance(wanted, list)
            or not wanted
            or not all(isinstance(part, dict) for part in wanted)
        ):
            raise Refused(f"{key} must be a list of conditions")
        parts = [meets(metadata, part) for part in wanted]
        return all(parts) if key == "$and" else any(parts)
    if key.startswith("$"):
        raise Refused(f"{key} is not a valid operator")
    if not isinstance(wanted, dict):
        wanted = {"$eq": wanted}
    if not wanted:
        raise Refused("a condition must not be empty")
    found = [_holds(metadata.get(key), name, operand) for name, operand in wanted.items()]
    return all(found)


def _holds(value: Any, name: str, operand: Any) -> bool:
    if name == "$exists":
        if not isinstance(operand, bool):
            raise Refused("$exists takes a boolean")
        return (value is not None) == operand
    if name in _ORDER:
        if isinstance(operand, bool) or not isinstance(operand, int | float):
            raise Refused(f"{name} takes a number")
        return isinstance(value, float) and _ORDER[name](value, operand)
    if name in ("$in", "$nin"):
        if not isinstance(operand, list) or not all(_is_plain(one) for one in operand):
            raise Refused(f"{name} takes a list of strings, numbers or booleans")
        return any(_equal(value, one) for one in operand) == (name == "$in")
    if name in ("$eq", "$ne"):
        if not _is_plain(operand):
            raise Refused(f"{name} takes a string, a number or a boolean")
        return _equal(value, operand) == (name == "$eq")
    raise Refused(f"{name} is not a valid operator")


def _is_plain(operand: Any) -> bool:
    return isinstance(operand, str | bool | int | float)


def _equal(value: Any, operand: Any) -> bool:
    """A list of strings equals each of its members; true is not 1."""
    if isinstance(value, list):
        return operand in value
    return isinstance(value, bool) == isinstance(operand, bool) and value == operand
