"""Check passages' metadata against a filter, for stores that cannot filter by themselves.

A filter is written in Pinecone's filter language.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from qtmiddleware.errors import InvalidQuery

# A function that returns whether a passage's metadata meets a condition.
Matcher = Callable[[Mapping[str, Any]], bool]

_SCALARS: Final = (str, int, float)
_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
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
    if not isinstance(filter, Mapping):
        raise _build_error("a condition", "a mapping from fields, $and or $or")
    matchers = [_build_condition(name, operand) for name, operand in filter.items()]
    # For a single condition, this saves a function call per passage.
    if len(matchers) == 1:
        return matchers[0]
    return lambda metadata: all(matcher(metadata) for matcher in matchers)


def _build_condition(name: Any, operand: Any) -> Matcher:
    """Return a function for the conditions on *name*, which is a field, ``$and`` or ``$or``."""
    if name in ("$and", "$or"):
        # An empty condition would match every passage.
        if not isinstance(operand, list) or not operand or {} in operand:
            raise _build_error(name, "a list of one or more conditions")
        conditions = [build_matcher(condition) for condition in operand]
        combine = all if name == "$and" else any
        return lambda metadata: combine(condition(metadata) for condition in conditions)
    if not isinstance(name, str) or name.startswith("$"):
        raise _build_error(repr(name), "a field, $and or $or")
    if operand == {}:
        raise _build_error(f"the condition on {name!r}", 'an operator and a value, as {"$eq": 1}')
    operators = operand if isinstance(operand, Mapping) else {"$eq": operand}
    matchers = [_build_operator(name, key, value) for key, value in operators.items()]
    return lambda metadata: all(matcher(metadata) for matcher in matchers)


def _build_operator(field: str, name: Any, operand: Any) -> Matcher:
    """Return a function that compares *field* with *operand* by the operator *name*."""
    if name in ("$eq", "$ne", "$in", "$nin"):
        values = operand if name in ("$in", "$nin") else [operand]
        if isinstance(values, list) and all(isinstance(value, _SCALARS) for value in values):
            return _build_membership(field, values, is_wanted=name in ("$eq", "$in"))
    if name == "$exists" and isinstance(operand, bool):
        return lambda metadata: (metadata.get(field) is not None) is operand
    if name in _ORDERS and _is_number(operand):
        compare = _ORDERS[name]
        return lambda metadata: any(
            _is_number(value) and compare(value, operand) for value in _list_values(metadata, field)
        )
    allowed = (
        "a text, number or boolean ($eq, $ne), a list of them ($in, $nin), a boolean ($exists), or"
        " a number ($gt, $gte, $lt, $lte)"
    )
    raise _build_error(f"{name!r} of the field {field!r}", allowed)


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
    return value if isinstance(value, list) else (value,)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _build_error(subject: str, allowed: str) -> InvalidQuery:
    message = f"the filter cannot be applied: {subject} must be {allowed}"
    return InvalidQuery(message, argument="filter")
