"""Which argument of a call asks for one page of the passages: decided by its name, its type and its value.

A page must hold the passages that the plain call gives, or a reader who turns the pages meets some
twice and others never. A database cursor, a date or a filter by the same name is no page.
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
"""The argument that asks for a page, ``False`` if none does, ``None`` to look for one."""

# Names as `_fold` writes them: those of a count of passages or pages, and those of a token to go on
# from.
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
# What may hold such names inside: page, pagination, pageable, ...
_HOLDER: Final = "pag"
_DEEPEST: Final = 2
# A text by these names is a date as likely as not.
_OFTEN_DATES: Final = frozenset({"start", "startat", "startfrom", "from"})
# Compiled when it is first used: most functions have no such parameter.
_DATE: Final = r"""(?ix) \s*(?: \d{4}[-/]\d | \d{1,2}[-./]\d{1,2}[-./]\d | now\b | today | yesterday | last\s | -?p\d
    | -?\d+\s?(?:s|sec|second|min|minute|h|hour|d|day|w|week|m|month|y|year)s?\b )"""
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
    """What `signatures.Parameters` tells of a function."""

    named: dict[str, Parameter]
    any_keyword: bool

    def read_value(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], /) -> Any:
        """Return what a call gives parameter *name*, its default included."""

    def read_given(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], /) -> Any:
        """Return what a call passes as parameter *name*, ``None`` if nothing."""


class Paging:
    """Where calls of one function ask for a page.

    *named* is what its user says of it. *taken* are the parameters of the query and of the number
    of passages, and
    *homes* those that hold one of the two inside, as a request object does; a page may lie beside
    it there.
    """

    __slots__ = ("_declared", "_homes", "_named", "_parameters", "is_open")

    def __init__(
        self,
        parameters: Parameters,
        named: PageArgument,
        taken: Collection[str],
        homes: Collection[str],
    ) -> None:
        self._parameters = parameters
        self._named = named
        self._homes = tuple(homes) if named is None else ()
        self._declared: tuple[tuple[str, str, bool], ...] = ()
        if named is None:
            folded = {name: _fold(name) for name in parameters.named if name not in taken}
            own = [
                (name, short, parameters.named[name])
                for name, short in folded.items()
                if _may_hold_page(short)
            ]
            self._declared = tuple(
                (name, short, _is_declared_page(short, it.annotation, it.default, folded.values()))
                for name, short, it in own
            )
        has_own = self.is_named or any(short in _NAMES for _, short, _ in self._declared)
        # Whether only some calls show that the function has pages: its signature does not.
        self.is_open = not has_own and bool(self._homes or parameters.any_keyword)

    @property
    def is_named(self) -> bool:
        """Whether the user said which argument asks for a page, or that none does."""
        return self._named is not None

    def find(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the argument that asks for a page in this call, ``""`` if none does."""
        if self._named is not None:
            return self._named or ""
        if not (self._declared or self._homes or self._parameters.any_keyword):
            return ""
        with suppress(Exception):  # whatever a foreign object raises when it is looked at
            return next(self._list_pages(args, kwargs), "")
        return ""

    def _list_pages(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[str]:
        parameters = self._parameters
        for name, short, is_page in self._declared:
            value = parameters.read_given(name, args, kwargs)
            if _is_page(short, value) if value is not None else is_page:
                yield name
        if parameters.any_keyword:
            own = parameters.named
            yield from (
                name for name, it in kwargs.items() if name not in own and _is_page(_fold(name), it)
            )
        for home in self._homes:
            yield from (
                f"{home}.{name}"
                for name in _list_pages_inside(parameters.read_value(home, args, kwargs))
            )


@lru_cache(maxsize=1_024)
def _fold(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


def _may_hold_page(name: str) -> bool:
    return name in _NAMES or name.startswith(_HOLDER)


def _is_page(name: str, value: Any, depth: int = _DEEPEST) -> bool:
    """Return whether *value*, which is not ``None``, asks for a page under a folded *name*."""
    if isinstance(value, str):
        if name in _OFTEN_DATES:
            return value.strip().isdecimal()
        return name in _NAMES and not re.match(_DATE, value[:_LONGEST_DATE])
    if isinstance(value, bool):
        return False
    if hasattr(type(value), "__index__"):
        return name in _NAMES
    if isinstance(value, bytes) or (isinstance(value, Mapping) and name in _TOKENS):
        return name in _TOKENS
    if isinstance(value, list) or (isinstance(value, tuple) and not hasattr(value, "_fields")):
        # The values of the last passage that a search goes on from.
        return name in _TOKENS and all(isinstance(it, str | int | float | None) for it in value)
    return name.startswith(_HOLDER) and next(_list_pages_inside(value, depth - 1), None) is not None


def _list_pages_inside(holder: Any, depth: int = _DEEPEST) -> Iterator[str]:
    """Yield the fields of *holder*, a mapping or an object, that ask for a page; a class declares what it has."""
    if holder is None or isinstance(holder, str) or not depth:
        return
    is_class = not isinstance(holder, Mapping)
    fields = list_fields(holder) if is_class else holder
    folded = {name: _fold(name) for name in fields if isinstance(name, str)}
    for name, short in folded.items():
        value = fields[name]
        if not _may_hold_page(short):
            is_page = False
        elif value is not None:
            is_page = _is_page(short, value, depth)
        else:
            is_page = is_class and _is_declared_page(
                short, _read_annotation(type(holder), name), None, folded.values()
            )
        if is_page:
            yield name


def _read_annotation(kind: type, name: str) -> Any:
    """Return how a class or one of its parents annotates its field *name*."""
    annotations = map(read_annotations, kind.__mro__)
    return next((own[name] for own in annotations if name in own), Parameter.empty)


def _is_declared_page(name: str, annotation: Any, default: Any, siblings: Collection[str]) -> bool:
    """Return whether a parameter of a folded *name* that a call does not set asks for the first page."""
    if name not in _NAMES:
        return default is not None and default is not Parameter.empty and _is_page(name, default)
    if name == "after" and "before" in siblings and "first" not in siblings:
        return False  # of two dates
    if annotation is Parameter.empty:
        return default is None or default is Parameter.empty or _is_page(name, default)
    words = _read_type_names(annotation)
    if words & _GROUPS:
        return name in _TOKENS
    return bool(words & _NUMBERS) or (bool(words & _TEXTS) and name not in _OFTEN_DATES)


def _read_type_names(annotation: Any) -> frozenset[str]:
    """Return the names of the types that *annotation* allows, without what they hold or what is noted on them."""
    if isinstance(annotation, str):
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return frozenset(_list_names(ast.parse(annotation, mode="eval").body))
        return frozenset()
    origin = get_origin(annotation)
    if origin is Annotated:
        return _read_type_names(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return frozenset().union(*map(_read_type_names, get_args(annotation)))
    kind = origin or getattr(annotation, "__supertype__", annotation)  # of a NewType
    return frozenset({getattr(kind, "__name__", str(kind))})


def _list_names(node: ast.AST) -> Iterator[str]:
    """Yield the names of the types of an annotation that is written as text."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.Constant(value=str() as text):
            yield from _read_type_names(text)
        case ast.BinOp(left=left, right=right):
            yield from (*_list_names(left), *_list_names(right))
        case ast.Subscript(value=value, slice=inner):
            (kind,) = (*_list_names(value), "")[:1]
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if kind in ("Optional", "Union", "Annotated"):
                for part in parts[:1] if kind == "Annotated" else parts:
                    yield from _list_names(part)
            else:
                yield kind
