"""Find the argument with which a call selects a page of results.

If a call selects a page, qtmiddleware must not add or drop passages. Otherwise, someone who reads
all pages would see some passages twice and miss others. The search considers an argument's name,
type and value, because the name alone is not enough: a ``cursor`` may be a database cursor, and a
``start`` may be a date.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from inspect import Parameter
from types import UnionType
from typing import Annotated, Any, Final, Literal, Protocol, Union, get_args, get_origin

from qtmiddleware.retrieval.responses import list_fields
from qtmiddleware.runtime.fields import read_annotations

PageArgument = str | Literal[False] | None
"""The name of the argument that selects a page of results.

``False`` means that no argument selects a page. ``None`` means that `Paging` looks for such an
argument.
"""

# The names (see `_fold_name`) of a number of passages or pages, and of a token to continue from.
_COUNTS: Final = frozenset(
    (
        *(
            "offset",
            "rowoffset",
            "resultoffset",
            "resultsoffset",
            "pageoffset",
            "skip",
            "skipcount",
            "skipresults",
        ),
        *(
            "start",
            "startat",
            "startfrom",
            "startindex",
            "startrow",
            "startrecord",
            "from",
            "fromindex",
        ),
        *(
            "firstresult",
            "firstrow",
            "page",
            "pageno",
            "pagenum",
            "pagenumber",
            "pageindex",
            "currentpage",
        ),
    )
)
_TOKENS: Final = frozenset(
    (
        *("cursor", "nextcursor", "pagecursor", "aftercursor", "startcursor", "paginationcursor"),
        *(
            "pagetoken",
            "nexttoken",
            "nextpagetoken",
            "paginationtoken",
            "continuationtoken",
            "startingtoken",
        ),
        *(
            "continuation",
            "nextpage",
            "pagestate",
            "pagingstate",
            "scrollid",
            "bookmark",
            "marker",
            "resumetoken",
        ),
        *(
            "after",
            "searchafter",
            "startafter",
            "startingafter",
            "afterid",
            "lastid",
            "lastkey",
            "lastevaluatedkey",
        ),
        *("exclusivestartkey", "paginationkey", "endingbefore"),
    )
)
_NAMES: Final = _COUNTS | _TOKENS
# The beginning of the names of arguments that may hold such a value inside: page, pagination,
# pageable, ...
_HOLDER: Final = "pag"
_DEEPEST: Final = 2
# A text under one of these names is as likely a date as a page.
_OFTEN_DATES: Final = frozenset({"start", "startat", "startfrom", "from"})
# Compiled when it is first used, because most functions have no such parameter.
_DATE: Final = (
    r"(?ix) \s*(?: \d{4}[-/]\d | \d{1,2}[-./]\d{1,2}[-./]\d | now\b | today | yesterday"
    r" | last\s | -?p\d"
    "\n   "
    r" | -?\d+\s?(?:s|sec|second|min|minute|h|hour|d|day|w|week|m|month|y|year)s?\b )"
)
_LONGEST_DATE: Final = 40
_NUMBERS: Final = frozenset(
    (
        "int",
        "Any",
        "object",
        "Integral",
        "SupportsIndex",
        "PositiveInt",
        "NonNegativeInt",
        "StrictInt",
        "conint",
    )
)
_TEXTS: Final = frozenset(("str", "bytes", "AnyStr", "StrictStr", "constr"))
_GROUPS: Final = frozenset(
    (
        "list",
        "List",
        "tuple",
        "Tuple",
        "Sequence",
        "Iterable",
        "Collection",
        "set",
        "Set",
        "dict",
        "Dict",
        "Mapping",
    )
)


class Parameters(Protocol):
    """The methods and attributes of `signatures.Parameters` that this module uses."""

    named: dict[str, Parameter]
    has_var_keyword: bool

    def read_value(
        self, parameter_name: str, args: Sequence[Any], kwargs: Mapping[str, Any], /
    ) -> Any:
        """Return the value that a call passes for *parameter_name*, or else the default."""

    def read_passed_value(
        self, parameter_name: str, args: Sequence[Any], kwargs: Mapping[str, Any], /
    ) -> Any:
        """Return the value that a call passes for *parameter_name*, or ``None``."""


class Paging:
    """Finds the argument with which calls of one function select a page of results.

    Args:
        parameters: reads the function's parameters and the values that calls pass.
        page_argument: the user's choice: a parameter's name, ``None`` or ``False``. See
            `PageArgument`.
        other_parameters: the parameters of the query and of the number of passages, which never
            select a page.
        object_parameters: the names in *other_parameters* that take an object with several fields,
            such as a request. One of these fields may select a page.
    """

    __slots__ = ("_declared", "_homes", "_named", "_parameters", "is_open")

    def __init__(
        self,
        parameters: Parameters,
        page_argument: PageArgument,
        other_parameters: Collection[str],
        object_parameters: Collection[str],
    ) -> None:
        self._parameters = parameters
        self._named = page_argument
        self._homes = tuple(object_parameters) if page_argument is None else ()
        self._declared: tuple[tuple[str, str, bool], ...] = ()
        if page_argument is None:
            folded = {
                name: _fold_name(name) for name in parameters.named if name not in other_parameters
            }
            candidates = [
                (name, folded_name, parameters.named[name])
                for name, folded_name in folded.items()
                if _can_select_page(folded_name)
            ]
            self._declared = tuple(
                (
                    name,
                    folded_name,
                    _is_page_parameter(
                        folded_name, parameter.annotation, parameter.default, folded.values()
                    ),
                )
                for name, folded_name, parameter in candidates
            )
        shows_page = self.is_set_by_user or any(
            folded_name in _NAMES for _, folded_name, _ in self._declared
        )
        # Whether only some calls can show that the function has pages, because its signature does
        # not show it.
        self.is_open = not shows_page and bool(self._homes or parameters.has_var_keyword)

    @property
    def is_set_by_user(self) -> bool:
        """Whether the user named the page argument, or said that the function has none."""
        return self._named is not None

    def find_page_argument(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the name of the argument that selects a page in this call, or ``""``."""
        if self._named is not None:
            return self._named or ""
        if not (self._declared or self._homes or self._parameters.has_var_keyword):
            return ""
        # Reading a user's object may raise any exception.
        with suppress(Exception):
            return next(self._iterate_page_arguments(args, kwargs), "")
        return ""

    def _iterate_page_arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Iterator[str]:
        parameters = self._parameters
        for name, folded_name, is_page in self._declared:
            value = parameters.read_passed_value(name, args, kwargs)
            if _is_page_argument(folded_name, value) if value is not None else is_page:
                yield name
        if parameters.has_var_keyword:
            named_parameters = parameters.named
            yield from (
                name
                for name, value in kwargs.items()
                if name not in named_parameters and _is_page_argument(_fold_name(name), value)
            )
        for parameter_name in self._homes:
            yield from (
                f"{parameter_name}.{name}"
                for name in _iterate_page_fields(
                    parameters.read_value(parameter_name, args, kwargs)
                )
            )


@lru_cache(maxsize=1_024)
def _fold_name(name: str) -> str:
    """Return *name* in lower case and without underscores and hyphens."""
    return name.replace("_", "").replace("-", "").casefold()


def _can_select_page(folded_name: str) -> bool:
    return folded_name in _NAMES or folded_name.startswith(_HOLDER)


def _is_page_argument(folded_name: str, value: Any, max_depth: int = _DEEPEST) -> bool:
    """Return whether an argument with this *folded_name* and *value* selects a page.

    *folded_name* comes from `_fold_name`. *value* is not ``None``. Objects inside *value* are read
    down to *max_depth* levels.
    """
    if isinstance(value, str):
        if folded_name in _OFTEN_DATES:
            return value.strip().isdecimal()
        return folded_name in _NAMES and not re.match(_DATE, value[:_LONGEST_DATE])
    # `paginate=True` is a switch, not a page number.
    if isinstance(value, bool):
        return False
    if hasattr(type(value), "__index__"):
        return folded_name in _NAMES
    if isinstance(value, bytes) or (isinstance(value, Mapping) and folded_name in _TOKENS):
        return folded_name in _TOKENS
    if isinstance(value, list) or (isinstance(value, tuple) and not hasattr(value, "_fields")):
        # A token may be a list: the values of the last passage, from which the search continues.
        return folded_name in _TOKENS and all(
            isinstance(item, str | int | float | None) for item in value
        )
    return (
        folded_name.startswith(_HOLDER)
        and next(_iterate_page_fields(value, max_depth - 1), None) is not None
    )


def _iterate_page_fields(container: Any, max_depth: int = _DEEPEST) -> Iterator[str]:
    """Yield the names of the fields of *container* that select a page.

    *container* is a mapping or an object. If a field of an object is ``None``, the field's
    annotation decides.
    """
    if container is None or isinstance(container, str) or not max_depth:
        return
    is_class = not isinstance(container, Mapping)
    fields = list_fields(container) if is_class else container
    folded = {name: _fold_name(name) for name in fields if isinstance(name, str)}
    for name, folded_name in folded.items():
        value = fields[name]
        if not _can_select_page(folded_name):
            is_page = False
        elif value is not None:
            is_page = _is_page_argument(folded_name, value, max_depth)
        else:
            is_page = is_class and _is_page_parameter(
                folded_name, _read_annotation(type(container), name), None, folded.values()
            )
        if is_page:
            yield name


def _read_annotation(class_: type, field_name: str) -> Any:
    """Return the annotation of field *field_name* in *class_* or one of its parents.

    Returns `Parameter.empty` if the field has no annotation.
    """
    annotations = map(read_annotations, class_.__mro__)
    return next(
        (
            annotations_of_class[field_name]
            for annotations_of_class in annotations
            if field_name in annotations_of_class
        ),
        Parameter.empty,
    )


def _is_page_parameter(
    folded_name: str, annotation: Any, default: Any, sibling_names: Collection[str]
) -> bool:
    """Return whether a parameter selects a page, judged by its name, annotation and default.

    This function judges calls that omit the parameter and thereby request the first page.
    *sibling_names* are the names of the other parameters or fields. `_fold_name` must have folded
    all names.
    """
    if folded_name not in _NAMES:
        return (
            default is not None
            and default is not Parameter.empty
            and _is_page_argument(folded_name, default)
        )
    if folded_name == "after" and "before" in sibling_names and "first" not in sibling_names:
        return False  # `before` and `after` are the ends of a range of dates
    if annotation is Parameter.empty:
        return (
            default is None or default is Parameter.empty or _is_page_argument(folded_name, default)
        )
    words = _read_type_names(annotation)
    if words & _GROUPS:
        return folded_name in _TOKENS
    return bool(words & _NUMBERS) or (bool(words & _TEXTS) and folded_name not in _OFTEN_DATES)


def _read_type_names(annotation: Any) -> frozenset[str]:
    """Return the names of the types that *annotation* allows, such as ``int`` or ``list``.

    The result contains neither types inside a container nor the metadata of ``Annotated``.
    """
    if isinstance(annotation, str):
        # Evaluating the text would need the user's imports, so only its syntax is read.
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return frozenset(_iterate_type_names(ast.parse(annotation, mode="eval").body))
        return frozenset()
    origin = get_origin(annotation)
    if origin is Annotated:
        return _read_type_names(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return frozenset().union(*map(_read_type_names, get_args(annotation)))
    # A `NewType` has a `__supertype__`.
    allowed_type = origin or getattr(annotation, "__supertype__", annotation)
    return frozenset({getattr(allowed_type, "__name__", str(allowed_type))})


def _iterate_type_names(annotation_node: ast.AST) -> Iterator[str]:
    """Yield the names of the types in *annotation_node*, the syntax tree of an annotation."""
    match annotation_node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.Constant(value=str() as text):
            yield from _read_type_names(text)
        case ast.BinOp(left=left, right=right):
            yield from (*_iterate_type_names(left), *_iterate_type_names(right))
        case ast.Subscript(value=value, slice=inner):
            (outer_name,) = (*_iterate_type_names(value), "")[:1]
            allowed = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if outer_name in ("Optional", "Union", "Annotated"):
                for allowed_type in allowed[:1] if outer_name == "Annotated" else allowed:
                    yield from _iterate_type_names(allowed_type)
            else:
                yield outer_name
