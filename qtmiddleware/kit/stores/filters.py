"""Check passages' metadata against a filter, for stores that cannot filter by themselves.

A filter is written in Pinecone's filter language.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, Final

from qtmiddleware.errors import InvalidQuery

# A function that returns whether a passage's metadata meets a condition.
Matcher = Callable[[Mapping[str, Any]], bool]

# The maximum nesting depth of conditions. A filter must not exhaust Python's stack.
DEEPEST: Final = 16

_SCALARS: Final = (str, int, float)
_LISTS: Final = (list, tuple, set, frozenset)
_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
# What each operator takes.
_OPERATORS: Final = {
    **dict.fromkeys(("$eq", "$ne"), "a text, a number or a boolean"),
    **dict.fromkeys(_ORDERS, "a number"),
    **dict.fromkeys(("$in", "$nin"), "a list of texts, numbers and booleans"),
    "$exists": "true or false",
}


def build_matcher(filter: Mapping[str, Any]) -> Matcher:  # noqa: A002
    """Return a function that checks whether a passage's metadata meets *filter*.

    The returned function never raises an exception. For an invalid filter, `build_matcher` itself
    raises `InvalidQuery`, with a message that does not quote the filter's values.

    A list in the metadata meets a condition if any of its elements does. ``$ne`` is the opposite of
    ``$eq``, and ``$nin`` is the opposite of ``$in``. A missing field therefore meets ``$ne`` and
    ``$nin``. A boolean is not a number, and ``null`` counts as missing.

    Source: https://docs.pinecone.io/guides/search/filter-by-metadata
    """
    return _build_conjunction(filter, 1)


def _build_conjunction(conditions: Any, depth: int) -> Matcher:
    if not isinstance(conditions, Mapping) or depth > DEEPEST:
        allowed = f"a mapping from fields, $and or $or, nested at most {DEEPEST} deep"
        raise _build_error("a condition", allowed, _name_kind(conditions))
    matchers = [
        matcher for item in conditions.items() for matcher in _build_conditions(*item, depth)
    ]
    # For a single condition, this saves a function call per passage.
    if len(matchers) == 1:
        return matchers[0]
    return lambda metadata: all(matcher(metadata) for matcher in matchers)


def _build_conditions(name: Any, operand: Any, depth: int) -> list[Matcher]:
    """Return a function per condition on *name*, which is a field, ``$and`` or ``$or``."""
    if name in ("$and", "$or"):
        if not isinstance(operand, list | tuple) or not operand:
            raise _build_error(name, "a list of one or more conditions", _name_kind(operand))
        matchers = [_build_conjunction(condition, depth + 1) for condition in operand]
        combine = all if name == "$and" else any
        return [lambda metadata: combine(matcher(metadata) for matcher in matchers)]
    if not isinstance(name, str) or name.startswith("$"):
        raise _build_error("a name", "that of a field, $and or $or", repr(name))
    operators = operand if isinstance(operand, Mapping) else {"$eq": operand}
    if not operators:
        raise _build_error(
            f"the field {name!r}", f"a value or {', '.join(_OPERATORS)}", _name_kind(operand)
        )
    return [_build_operator(name, key, value) for key, value in operators.items()]


def _build_operator(field: str, name: Any, operand: Any) -> Matcher:
    """Return a function that compares *field* with *operand* by the operator *name*."""
    match name:
        case "$eq" | "$ne" if isinstance(operand, _SCALARS):
            return _build_membership(field, [operand], is_wanted=name == "$eq")
        case "$in" | "$nin" if isinstance(operand, _LISTS) and all(
            isinstance(value, _SCALARS) for value in operand
        ):
            return _build_membership(field, operand, is_wanted=name == "$in")
        # NaN and infinity are not valid in JSON.
        case "$gt" | "$gte" | "$lt" | "$lte" if _is_number(operand) and abs(operand) < inf:
            compare = _ORDERS[name]
            return lambda metadata: any(
                _is_number(value) and compare(value, operand)
                for value in _list_values(metadata, field)
            )
        case "$exists" if isinstance(operand, bool):
            return lambda metadata: (metadata.get(field) is not None) is operand
    if name in _OPERATORS:
        raise _build_error(name, _OPERATORS[name], _name_kind(operand))
    raise _build_error("an operator", f"one of {', '.join(_OPERATORS)}", repr(name))


def _build_membership(field: str, operands: Iterable[Any], *, is_wanted: bool) -> Matcher:
    # In Python, True equals 1, so each value is paired with whether it is a boolean.
    known = frozenset((isinstance(operand, bool), operand) for operand in operands)
    return lambda metadata: (
        any(
            isinstance(value, _SCALARS) and (isinstance(value, bool), value) in known
            for value in _list_values(metadata, field)
        )
        is is_wanted
    )


def _list_values(metadata: Mapping[str, Any], field: str) -> Iterable[Any]:
    value = metadata.get(field)
    return value if isinstance(value, list | tuple) else (value,)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _build_error(subject: str, allowed: str, found: str) -> InvalidQuery:
    return InvalidQuery(
        f"the filter cannot be applied: {subject} must be {allowed}, not {found}", argument="filter"
    )


def _name_kind(value: Any) -> str:
    """Name the type of *value*, because messages must not quote the values of a filter."""
    return "null" if value is None else type(value).__name__
