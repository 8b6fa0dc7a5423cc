"""Where the query text and top_k sit in a call of a wrapped function.

The signature is looked at once. A call is then read and rewritten by looking into its own arguments; they are never
bound to the signature again, and nothing the caller passed is written to.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from qtmiddleware.errors import WrapError
from qtmiddleware.wrapping.calls.base import TOP_KS, Function

__all__ = ["CallShape"]

_NESTED: Final = ("inputs", "text")  # Pinecone's search takes query={"inputs": {"text": ...}} or inputs={"text": ...}


class CallShape:
    """Where the query text and top_k sit in a call of one function."""

    __slots__ = ("_function", "_home", "_loose", "_path", "_searches", "_sources", "_top_k", "_vector", "argument")

    def __init__(
        self, function: Function, argument: str, *, top_k: str | None, takes_vector: bool, named: bool
    ) -> None:
        name, _, below = argument.partition(".")
        self._searches = function.searches and not takes_vector and name in ("query", "inputs")
        self.argument = argument
        self._function = function
        self._top_k = top_k
        self._vector = name if takes_vector else None
        self._path = (name, tuple(below.split("."))) if below else ("", ())
        self._loose = function.is_loose
        home = function.keyword_home(name, takes_vector=takes_vector, named=named)
        self._home = "inputs" if self._searches else home
        self._sources = function.sources(name, searches=self._searches, takes_vector=takes_vector, named=named)

    @classmethod
    def of(
        cls,
        fn: Callable[..., Any],
        *,
        query_arg: str | None = None,
        top_k_arg: str | None = None,
        takes_vector: bool = False,
    ) -> CallShape:
        """The shape of calls of *fn*, which *takes_vector* where it wants the embedded query in the text's place.

        *query_arg* names the query's parameter, with dots for what lies inside it (``query.inputs.text``), *top_k_arg*
        the other. Without them the usual names are looked for; failing these, the first positional parameter is the
        query. Raises `WrapError` with advice where that leads nowhere.
        """
        function = Function(fn)
        argument = function.argument(query_arg, takes_vector)
        top_k, named = function.top_k(top_k_arg), query_arg is not None
        return cls(function, argument, top_k=top_k, takes_vector=takes_vector, named=named)

    @property
    def top_k_argument(self) -> str | None:
        """The name of the parameter that says how many passages are wanted, where the signature shows it."""
        return self._top_k

    def query(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The query as it was passed, unchecked; raises `WrapError` where the call holds none."""
        where, value = self._find(args, kwargs)
        for name in self._below(where, value):
            if (value := _get(value, name)) is None:
                raise self._absent()
        return value

    def top_k(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """The top_k in effect, the caller's or the signature's default; ``None`` where it is no whole number."""
        found = self._nested_top_k(*self._find(args, kwargs))
        if found is None and (name := self._top_k_name(kwargs)) is not None:
            found = self._function.passed(name, args, kwargs)
        return int(found) if hasattr(type(found), "__index__") and not isinstance(found, bool) else None

    def replaced(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, query: Any, top_k: int | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with another *query* and, unless it is ``None``, another *top_k*; all else is passed on.

        A *query* that is no string is a vector and goes where the function wants that.
        """
        where, value = self._find(args, kwargs)
        new_args, new_kwargs = list(args), dict(kwargs)
        if self._vector is not None and not isinstance(query, str) and not self._is_vector_place(where):
            if not self._function.keeps_text(where):
                self._remove(where, new_args, new_kwargs)
            self._function.assign(self._vector, query, new_args, new_kwargs)
        elif self._vector is None and self._home and where != self._home and isinstance(value, str):
            self._remove(where, new_args, new_kwargs)
            new_kwargs[self._home] = {"text": query} if self._searches else query
        else:
            self._assign(where, _put(value, self._below(where, value), query), new_args, new_kwargs)
        if top_k is not None:
            self._replace_top_k(where, value, top_k, new_args, new_kwargs)
        return tuple(new_args), new_kwargs

    def _find(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str | int, Any]:
        """Where the query was passed, and what lies there."""
        blank: tuple[str | int, Any] | None = None
        for name, index in self._sources:
            if name in kwargs:
                if (value := kwargs[name]) is not None:
                    return name, value
                blank = name, None
            elif index is not None and len(args) > index:
                return index, args[index]
        if self._loose and args:
            where = next((i for i, value in enumerate(args) if isinstance(value, str)), len(args) - 1)
            return where, args[where]
        name = self.argument.partition(".")[0]
        if blank is None and (value := self._function.default(name)) is not None:
            return name, value
        if blank is None:
            raise self._absent()
        return blank

    def _below(self, where: str | int, value: Any) -> tuple[str, ...]:
        """The path from what was passed down to the text."""
        if value is None or isinstance(value, (str, list, tuple)):
            return ()
        if where == self._path[0] or self._function.place(self._path[0]) == where:
            return self._path[1]
        if where == "inputs":
            return _NESTED[1:]
        return _NESTED if self._searches or _get(value, "inputs") is not None else ()

    def _nested_top_k(self, where: str | int, value: Any) -> Any:
        return _get(value, "top_k") if self._below(where, value) == _NESTED else None

    def _top_k_name(self, kwargs: Mapping[str, Any]) -> str | None:
        if self._top_k is not None or not self._function.any_keyword:
            return self._top_k
        return next((name for name in TOP_KS if name in kwargs), None)

    def _replace_top_k(self, where: str | int, value: Any, top_k: int, args: list[Any], kwargs: dict[str, Any]) -> None:
        if self._nested_top_k(where, value) is not None:
            inside = kwargs[where] if isinstance(where, str) else args[where]
            self._assign(where, _put(inside, ("top_k",), top_k), args, kwargs)
        elif (name := self._top_k_name(kwargs)) is not None:
            self._function.assign(name, top_k, args, kwargs)

    def _is_vector_place(self, where: str | int) -> bool:
        if isinstance(where, str):
            return where == self._vector
        return where == self._function.place(self._vector or "") or (self._loose and not self._home)

    def _assign(self, where: str | int, value: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        if isinstance(where, int):
            args[where] = value
        else:
            self._function.assign(where, value, args, kwargs)

    @staticmethod
    def _remove(where: str | int, args: list[Any], kwargs: dict[str, Any]) -> None:
        if isinstance(where, int):
            del args[where]
        else:
            kwargs.pop(where, None)

    def _absent(self) -> WrapError:
        by_vector = "if it takes a vector, wrap it with embed=; else " if self._loose and self._vector is None else ""
        return WrapError(
            f"{self._function.name}() was called without a query; {by_vector}pass it as {self.argument!r}, or name the "
            "parameter that holds it with query_arg="
        )


def _get(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _put(holder: Any, path: Sequence[str], value: Any) -> Any:
    """A copy of *holder* with *value* at the end of *path*; what lies on the way is copied too."""
    if not path:
        return value
    below = _put(_get(holder, path[0]), path[1:], value)
    if isinstance(holder, Mapping):
        return {**holder, path[0]: below}
    twin = copy.copy(holder)
    try:
        setattr(twin, path[0], below)
    except (AttributeError, TypeError, ValueError):  # frozen
        object.__setattr__(twin, path[0], below)
    return twin
