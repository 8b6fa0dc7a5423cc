"""Check passages' metadata against a filter, for stores that cannot filter by themselves.

A filter is written in Pinecone's filter language.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final

from qtmiddleware.errors import InvalidQuery

Matcher = Callable[[Mapping[str, Any]], bool]
"""A function that returns whether a passage's metadata meets a condition."""

DEEPEST: Final = 16
"""The maximum nesting depth of conditions."""

_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_OPERATORS: Final = ("$eq", "$ne", *_ORDERS, "$in", "$nin", "$exists")
_JUNCTIONS: Final = ("$and", "$or")


def build_matcher(filter: Mapping[str, Any]) -> Matcher:  # noqa: A002
    """Return a function that checks whether a passage's metadata meets *filter*.

    The returned function never raises an exception. For an invalid filter, `build_matcher` itself
    raises `InvalidQuery`, with a message that does not quote the filter's values.

    ``{"field": value}`` is short for ``{"field": {"$eq": value}}``. If a mapping has several keys,
    the metadata must meet the conditions of all keys. The operators are:

    - ``$eq`` and ``$ne`` take a text, a number or a boolean.
    - ``$gt``, ``$gte``, ``$lt`` and ``$lte`` take a number.
    - ``$in`` and ``$nin`` take a list of texts, numbers and booleans.
    - ``$exists`` takes a boolean.
    - ``$and`` and ``$or`` take a list of conditions, which may be nested 16 deep.

    A list in the metadata meets a condition if any of its elements does. ``$ne`` is the opposite of
    ``$eq``, and ``$nin`` is the opposite of ``$in``. A missing field therefore meets ``$ne`` and
    ``$nin``. A boolean is not a number, and ``null`` counts as missing.

    Source: https://docs.pinecone.io/guides/search/filter-by-metadata
    """
    return _build_conditions_matcher(filter, 1)


def _build_conditions_matcher(conditions: Any, depth: int) -> Matcher:
    """Return a function that checks whether metadata meets all conditions of a filter.

    *conditions* is the filter, or a mapping inside the filter at the nesting level *depth*, from 1.
    Raises `InvalidQuery` for invalid conditions.
    """
    if not isinstance(conditions, Mapping):
        raise _build_filter_error(
            f"a condition must be a mapping from fields, $and or $or, not"
            f" {_get_type_name(conditions)}"
        )
    # A filter from an untrusted source must not exhaust Python's stack.
    if depth > DEEPEST:
        raise _build_filter_error(f"conditions must be nested at most {DEEPEST} deep")
    return _combine_with_and(
        [_build_condition_matcher(key, value, depth) for key, value in conditions.items()]
    )


def _build_condition_matcher(field_or_operator: Any, operand: Any, depth: int) -> Matcher:
    """Return a function that checks metadata against one condition of a filter.

    Args:
        field_or_operator: the name of a metadata field, ``$and`` or ``$or``.
        operand: for a field, the required value, or a mapping from operators to values. For
            ``$and`` and ``$or``, a list of conditions.
        depth: the nesting level of the condition, from 1.

    Raises:
        InvalidQuery: for an invalid condition.
    """
    if not isinstance(field_or_operator, str):
        raise _build_filter_error(
            f"the name of a field must be text, not {_get_type_name(field_or_operator)}"
        )
    if field_or_operator in _JUNCTIONS:
        if not isinstance(operand, list | tuple) or not operand:
            raise _build_filter_error(
                f"{field_or_operator} must be a list of one or more conditions, not"
                f" {_get_type_name(operand)}"
            )
        matchers = [_build_conditions_matcher(condition, depth + 1) for condition in operand]
        return (
            _combine_with_and(matchers)
            if field_or_operator == "$and"
            else _combine_with_or(matchers)
        )
    if field_or_operator.startswith("$"):
        raise _build_filter_error(
            f"{field_or_operator} cannot be used as a field name; only"
            f" {' and '.join(_JUNCTIONS)} can"
        )
    if not isinstance(operand, Mapping):
        return _build_equality_matcher(field_or_operator, [_check_operand("$eq", operand)])
    if not operand:
        raise _build_filter_error(
            f"the field {field_or_operator!r} must have an operator; the operators are"
            f" {', '.join(_OPERATORS)}"
        )
    return _combine_with_and(
        [_build_operator_matcher(field_or_operator, name, value) for name, value in operand.items()]
    )


def _build_operator_matcher(field: str, operator_name: Any, operand: Any) -> Matcher:
    """Return a function that compares the value of *field* in metadata with *operand*.

    *operator_name* is the operator, such as ``$gt``. Raises `InvalidQuery` for an unknown operator
    or an invalid *operand*.
    """
    if operator_name in ("$eq", "$ne"):
        equal = _build_equality_matcher(field, [_check_operand(operator_name, operand)])
        return equal if operator_name == "$eq" else _negate_matcher(equal)
    if operator_name in ("$in", "$nin"):
        if not isinstance(operand, list | tuple | set | frozenset):
            raise _build_filter_error(
                f"{operator_name} must be a list of texts, numbers and booleans, not"
                f" {_get_type_name(operand)}"
            )
        equal = _build_equality_matcher(
            field, [_check_operand(operator_name, value) for value in operand]
        )
        return equal if operator_name == "$in" else _negate_matcher(equal)
    if operator_name in _ORDERS:
        # NaN and infinity are not valid in JSON.
        if not _is_number(operand) or not abs(operand) < inf:
            raise _build_filter_error(
                f"{operator_name} must be a number, not {_get_type_name(operand)}"
            )
        compare = _ORDERS[operator_name]
        return _build_value_matcher(
            field, lambda value: _is_number(value) and compare(value, operand)
        )
    if operator_name == "$exists":
        if not isinstance(operand, bool):
            raise _build_filter_error(
                f"$exists must be true or false, not {_get_type_name(operand)}"
            )
        return lambda metadata: (metadata.get(field) is not None) is operand
    raise _build_filter_error(
        f"{operator_name!r} is not an operator; the operators are {', '.join(_OPERATORS)}"
    )


def _build_equality_matcher(field: str, operands: Iterable[Any]) -> Matcher:
    # In Python, True equals 1, so each value is paired with whether it is a boolean.
    wanted_values = frozenset((isinstance(operand, bool), operand) for operand in operands)
    return _build_value_matcher(
        field,
        lambda value: (
            isinstance(value, str | int | float)
            and (isinstance(value, bool), value) in wanted_values
        ),
    )


def _build_value_matcher(field: str, predicate: Callable[[Any], bool]) -> Matcher:
    """Return a function that applies *predicate* to the value of *field* in metadata.

    If the value is a list, *predicate* must be true for at least one of its elements.
    """

    def meets_condition(metadata: Mapping[str, Any]) -> bool:
        value = metadata.get(field)
        return any(map(predicate, value)) if isinstance(value, list | tuple) else predicate(value)

    return meets_condition


def _combine_with_and(matchers: Sequence[Matcher]) -> Matcher:
    # For a single condition, this saves a function call per passage.
    return (
        matchers[0]
        if len(matchers) == 1
        else lambda metadata: all(matcher(metadata) for matcher in matchers)
    )


def _combine_with_or(matchers: Sequence[Matcher]) -> Matcher:
    return lambda metadata: any(matcher(metadata) for matcher in matchers)


def _negate_matcher(matcher: Matcher) -> Matcher:
    return lambda metadata: not matcher(metadata)


def _check_operand(operator_name: str, operand: Any) -> Any:
    if not isinstance(operand, str | int | float):
        raise _build_filter_error(
            f"{operator_name} must be a text, a number or a boolean, not {_get_type_name(operand)}"
        )
    return operand


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _get_type_name(value: Any) -> str:
    """Return the name of the type of *value* for an error message, such as ``null`` or ``str``."""
    if isinstance(value, list | tuple) and not value:
        return "an empty list"
    return "null" if value is None else type(value).__name__


def _build_filter_error(reason: str) -> InvalidQuery:
    return InvalidQuery(f"the filter cannot be applied: {reason}", argument="filter")
