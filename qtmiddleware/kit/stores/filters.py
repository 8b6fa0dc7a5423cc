"""Conditions on metadata in Pinecone's language, for stores that have to apply them themselves."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final

from qtmiddleware.errors import InvalidQuery

Matcher = Callable[[Mapping[str, Any]], bool]

DEEPEST: Final = 16
"""How deep conditions may be nested in one another."""

_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_OPERATORS: Final = ("$eq", "$ne", *_ORDERS, "$in", "$nin", "$exists")
_JUNCTIONS: Final = ("$and", "$or")


def build_matcher(filter: Mapping[str, Any]) -> Matcher:  # noqa: A002
    """Return a function that says whether metadata meets *filter*; it raises for no metadata whatever.

    ``{"field": value}`` means ``{"field": {"$eq": value}}``; several keys of one mapping must all
    be met. ``$eq`` and ``$ne`` take a text, a number or a boolean, ``$gt $gte $lt $lte`` a number,
    ``$in`` and ``$nin`` a list of what ``$eq`` takes, ``$exists`` a boolean, ``$and`` and ``$or`` a
    list of conditions, which may be nested 16 deep. A list in the metadata meets a condition if any
    of its elements does. ``$ne`` and ``$nin`` are met by whatever does not meet ``$eq`` and
    ``$in``, a missing field too. A boolean is no number, and ``null`` is as good as missing.

    An impossible filter raises `InvalidQuery` that names the operator and what it takes, never the
    value. (https://docs.pinecone.io/guides/search/filter-by-metadata)
    """
    return _conditions(filter, 1)


def _conditions(given: Any, depth: int) -> Matcher:
    if not isinstance(given, Mapping):
        raise _make_error(
            f"a condition must be a mapping from fields, $and or $or, not {_kind_of(given)}"
        )
    if depth > DEEPEST:
        raise _make_error(f"conditions must be nested at most {DEEPEST} deep")
    return _all([_condition(key, value, depth) for key, value in given.items()])


def _condition(key: Any, value: Any, depth: int) -> Matcher:
    if not isinstance(key, str):
        raise _make_error(f"the name of a field must be text, not {_kind_of(key)}")
    if key in _JUNCTIONS:
        if not isinstance(value, list | tuple) or not value:
            raise _make_error(
                f"{key} must be a list of one or more conditions, not {_kind_of(value)}"
            )
        parts = [_conditions(part, depth + 1) for part in value]
        return _all(parts) if key == "$and" else _any(parts)
    if key.startswith("$"):
        raise _make_error(
            f"{key} cannot be used as a field name; only {' and '.join(_JUNCTIONS)} can"
        )
    if not isinstance(value, Mapping):
        return _equal(key, [_operand("$eq", value)])
    if not value:
        raise _make_error(
            f"the field {key!r} must have an operator; the operators are {', '.join(_OPERATORS)}"
        )
    return _all([_operation(key, name, operand) for name, operand in value.items()])


def _operation(field: str, name: Any, operand: Any) -> Matcher:
    """The condition that one operator sets for one field."""
    if name in ("$eq", "$ne"):
        equal = _equal(field, [_operand(name, operand)])
        return equal if name == "$eq" else _not(equal)
    if name in ("$in", "$nin"):
        if not isinstance(operand, list | tuple | set | frozenset):
            raise _make_error(
                f"{name} must be a list of texts, numbers and booleans, not {_kind_of(operand)}"
            )
        equal = _equal(field, [_operand(name, one) for one in operand])
        return equal if name == "$in" else _not(equal)
    if name in _ORDERS:
        if not _is_number(operand) or not abs(operand) < inf:
            raise _make_error(f"{name} must be a number, not {_kind_of(operand)}")
        compare = _ORDERS[name]
        return _any_value(field, lambda one: _is_number(one) and compare(one, operand))
    if name == "$exists":
        if not isinstance(operand, bool):
            raise _make_error(f"$exists must be true or false, not {_kind_of(operand)}")
        return lambda metadata: (metadata.get(field) is not None) is operand
    raise _make_error(f"{name!r} is not an operator; the operators are {', '.join(_OPERATORS)}")


def _equal(field: str, operands: Iterable[Any]) -> Matcher:
    # Beside the value goes whether it is a boolean, as Python takes True for 1.
    wanted = frozenset((isinstance(one, bool), one) for one in operands)
    return _any_value(
        field,
        lambda one: isinstance(one, str | int | float) and (isinstance(one, bool), one) in wanted,
    )


def _any_value(field: str, holds: Callable[[Any], bool]) -> Matcher:
    """A matcher for metadata whose *field*, or any element of a list there, *holds*."""

    def meets(metadata: Mapping[str, Any]) -> bool:
        value = metadata.get(field)
        return any(map(holds, value)) if isinstance(value, list | tuple) else holds(value)

    return meets


def _all(parts: Sequence[Matcher]) -> Matcher:
    return parts[0] if len(parts) == 1 else lambda metadata: all(part(metadata) for part in parts)


def _any(parts: Sequence[Matcher]) -> Matcher:
    return lambda metadata: any(part(metadata) for part in parts)


def _not(part: Matcher) -> Matcher:
    return lambda metadata: not part(metadata)


def _operand(name: str, value: Any) -> Any:
    if not isinstance(value, str | int | float):
        raise _make_error(f"{name} must be a text, a number or a boolean, not {_kind_of(value)}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind_of(value: Any) -> str:
    """What *value* is, without telling what it holds."""
    if isinstance(value, list | tuple) and not value:
        return "an empty list"
    return "null" if value is None else type(value).__name__


def _make_error(why: str) -> InvalidQuery:
    return InvalidQuery(f"the filter cannot be applied: {why}", argument="filter")
