"""Whether metadata meet a filter, read anew from Pinecone's own description of its operators."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tests.support.pinecone_server.rules import Refused


def _is_plain(operand: Any) -> bool:
    return isinstance(operand, str | bool | int | float)


def _are_plain(operand: Any) -> bool:
    return isinstance(operand, list) and all(map(_is_plain, operand))


def _is_number(operand: Any) -> bool:
    return isinstance(operand, int | float) and not isinstance(operand, bool)


def _equal(value: Any, operand: Any) -> bool:
    """A list of strings equals each of its members; true is not 1."""
    if isinstance(value, list):
        return operand in value
    return isinstance(value, bool) == isinstance(operand, bool) and value == operand


def _among(value: Any, operands: list[Any]) -> bool:
    return any(_equal(value, operand) for operand in operands)


def _ordered(compare: Callable[[float, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda value, operand: isinstance(value, float) and compare(value, operand)


# By operator: whether it takes an operand, and whether a value meets it.
OPERATORS: dict[str, tuple[Callable[[Any], bool], Callable[[Any, Any], bool]]] = {
    "$eq": (_is_plain, _equal),
    "$ne": (_is_plain, lambda value, operand: not _equal(value, operand)),
    "$in": (_are_plain, _among),
    "$nin": (_are_plain, lambda value, operands: not _among(value, operands)),
    "$gt": (_is_number, _ordered(operator.gt)),
    "$gte": (_is_number, _ordered(operator.ge)),
    "$lt": (_is_number, _ordered(operator.lt)),
    "$lte": (_is_number, _ordered(operator.le)),
    "$exists": (lambda it: isinstance(it, bool), lambda value, it: (value is not None) == it),
}


def meets(metadata: dict[str, Any], condition: dict[str, Any]) -> bool:
    """All of *condition* is read, so that a bad one is refused whatever the rest says."""
    parts = [_meets_part(metadata, *part) for part in condition.items()]
    return all(parts)


def _meets_part(metadata: dict[str, Any], key: str, wanted: Any) -> bool:
    if key in ("$and", "$or") and isinstance(wanted, list) and wanted:
        parts = [meets(metadata, part) for part in wanted]
        return all(parts) if key == "$and" else any(parts)
    wanted = wanted if isinstance(wanted, dict) else {"$eq": wanted}
    if key.startswith("$") or not wanted:
        raise Refused(f"{key} is no field with a condition")
    for name, operand in wanted.items():
        if name not in OPERATORS or not OPERATORS[name][0](operand):
            raise Refused(f"{name} is no operator, or does not take such an operand")
    return all(OPERATORS[name][1](metadata.get(key), it) for name, it in wanted.items())
