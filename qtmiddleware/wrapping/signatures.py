"""Where the query text and top_k are in a call of a wrapped function.

The signature is read once. A call is then read and rewritten in its own arguments, which are never
bound to the signature again; nothing the caller passed is changed.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from qtmiddleware.errors import WrapError
from qtmiddleware.runtime.background_loop import is_async
from qtmiddleware.runtime.fields import read_field, read_parameters
from qtmiddleware.wrapping import clauses
from qtmiddleware.wrapping.nested import BUNDLE, get_inside, put_inside
from qtmiddleware.wrapping.paging import PageArgument, Paging

QUERIES: Final = (
    *(
        "query",
        "question",
        "q",
        "text",
        "search_query",
        "query_text",
        "query_texts",
        "user_query",
        "prompt",
    ),
    *("message", "input"),
)
VECTORS: Final = ("vector", "query_vector", "embedding", "query_embedding", "vec", "emb")
TOP_KS: Final = (
    "top_k", "topk", "topK", "k", "limit", "n_results", "num_results", "n", "size", "max_results",
    "max_num_results", "similarity_top_k", "num_docs",
)  # fmt: skip

Place = str | int
"""Where a call holds a value: the keyword or the position it is passed at."""
Location = tuple[str, int | None]
"""A parameter's name and the position it may be passed at."""

_BY_POSITION: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_MANY: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_ANYTHING: Final = inspect.signature(lambda *args, **kwargs: None).parameters  # noqa: ARG005
_TEXT_TYPES: Final = (str, str | None, "str", "str | None", "Optional[str]")
# What is the query itself, and nothing that holds it.
_WHOLE: Final = (str, list, tuple)
# Pinecone's search takes query={"inputs": {"text": ...}} or inputs={"text": ...}.
_NESTED: Final = ("inputs", "text")
_VECTOR_TYPE: Final = re.compile(r"\[\s*float|[Nn][Dd][Aa]rray|Tensor")
_SEARCHES: Final = (
    "invoke",
    "retrieve",
    "search",
    "query",
    "similarity_search",
    "get_relevant_documents",
    "run",
)
_NESTED_LOCATIONS: Final[tuple[Location, ...]] = (("query", None), ("inputs", None))


def read_signature(
    fn: Callable[..., Any],
    *,
    query_arg: str | None = None,
    top_k_arg: str | None = None,
    page_arg: PageArgument = None,
    takes_vector: bool = False,
) -> CallSignature:
    """Returns where calls of *fn* hold the query and top_k.

    *takes_vector* says that *fn* wants the embedded query in the text's place. *query_arg* names
    the query's parameter and *top_k_arg* that of the number of passages, with dots for what lies
    inside it (``query.inputs.text``). Without them the usual names are looked for; failing these,
    the first positional parameter is the query. *page_arg* names the parameter that asks for a
    page, ``False`` says that none does; without it `Paging` looks for one. Raises `WrapError` with
    advice where no parameter can be the query.
    """
    parameters = Parameters(fn)
    argument = parameters.find_query(query_arg, takes_vector)
    kind: type[CallSignature] = CallSignature
    if argument == clauses.SCORE_BY:
        kind = ClauseSignature
    elif takes_vector:
        kind = VectorSignature
    elif parameters.is_pinecone_search and argument.partition(".")[0] in ("query", "inputs"):
        kind = PineconeSearchSignature
    parameters.check_page_arg(page_arg)
    top_k = parameters.find_top_k(top_k_arg)
    return kind(parameters, argument, top_k, is_named=query_arg is not None, page_arg=page_arg)


_NO_TEXT: Final = "takes a vector, not a text; pass embed=, a function from a text to its vector"


class CallSignature:
    """Where a function of a text is passed the query and top_k.

    *argument* names the query's parameter, with dots for what lies inside it, and *top_k_argument*
    that of the number of passages, ``None`` if the signature shows none. *paging* finds the page
    that a call asks for.
    """

    __slots__ = (
        *("_home", "_is_named", "_locations", "_name", "_parameters", "_path"),
        *("_top_k_home", "_top_k_path", "argument", "paging", "top_k_argument"),
    )

    def __init__(
        self,
        parameters: Parameters,
        argument: str,
        top_k: str | None,
        *,
        is_named: bool,
        page_arg: PageArgument = None,
    ) -> None:
        self.argument = argument
        self.top_k_argument = top_k
        self._parameters = parameters
        self._is_named = is_named
        self._name, *path = argument.split(".")
        self._path = tuple(path)
        self._top_k_home, *top_k_path = (top_k or "").split(".")
        self._top_k_path = tuple(top_k_path)
        homes = {self._name: self._path, self._top_k_home: self._top_k_path}
        self.paging = Paging(
            parameters, page_arg, homes, [name for name, path in homes.items() if path]
        )
        self._locations = self._list_locations()
        self._home = self._find_home()

    def choose_for_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallSignature:
        """Returns where this call holds the query: a function that shows no parameters may take clauses or a text."""
        parameters = self._parameters
        if (
            not (parameters.is_loose and clauses.are_clauses(kwargs.get(clauses.SCORE_BY)))
            or self._is_named
        ):
            return self
        if any(isinstance(value, str) for value in args) or any(name in kwargs for name in QUERIES):
            return self
        return ClauseSignature(parameters, clauses.SCORE_BY, self.top_k_argument, is_named=False)

    @property
    def function_name(self) -> str:
        """The function's name, with that of its class."""
        return self._parameters.function_name.rpartition("<locals>.")[2]

    @property
    def takes_any_keyword(self) -> bool:
        """Whether the function takes keywords that its signature does not name."""
        return self._parameters.any_keyword

    def read_query(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Returns the query as it was passed, unchecked; raises `WrapError` where the call holds none.

        Of a list of one text, as Chroma takes it, that text.
        """
        value = self.read_passed(args, kwargs)
        return value[0] if _is_lone_text(value) and value is self._find(args, kwargs)[1] else value

    def read_passed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """`query`, of a list of one text that list."""
        place, value = self._find(args, kwargs)
        for name in self._find_path(place, value):
            if (value := read_field(value, name)) is None:
                raise self._build_missing_error()
        return value

    def read_top_k(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """Returns the top_k in effect, the caller's or the signature's default; ``None`` where it is no integer."""
        top_k = self._read_nested_top_k(*self._find(args, kwargs))
        if self._top_k_path:
            top_k = get_inside(
                self._parameters.read_value(self._top_k_home, args, kwargs), self._top_k_path
            )
        elif top_k is None and (name := self._find_top_k_name(kwargs)) is not None:
            top_k = self._parameters.read_value(name, args, kwargs)
        return (
            int(top_k)
            if hasattr(type(top_k), "__index__") and not isinstance(top_k, bool)
            else None
        )

    def replace(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        query: Any,
        top_k: int | None = None,
        is_one_of_list: bool = False,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with another *query* and, unless it is ``None``, another *top_k*.

        A *query* that is no string is a vector and goes where the function wants that. With
        *is_one_of_list* it goes where a list of queries was passed, as if it had been passed there
        itself.
        """
        place, value = self._find(args, kwargs)
        if is_one_of_list and isinstance(query, str) and isinstance(value, list | tuple):
            value = query
        new_args, new_kwargs = list(args), dict(kwargs)
        is_nested = not self._top_k_path and self._read_nested_top_k(place, value) is not None
        if top_k is not None and is_nested:
            value = put_inside(value, ("top_k",), top_k)
        self._replace_query(place, value, query, new_args, new_kwargs)
        if top_k is not None and self._top_k_path:
            self._replace_inside(top_k, new_args, new_kwargs)
        elif (
            top_k is not None
            and not is_nested
            and (name := self._find_top_k_name(kwargs)) is not None
        ):
            self._parameters.assign(name, top_k, new_args, new_kwargs)
        return tuple(new_args), new_kwargs

    def takes_vector(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Returns whether this call of a function that is wrapped with ``embed=`` takes the query as a vector."""
        return True

    def read_clauses(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:  # noqa: ARG002
        """Returns the clauses that a call of a document search is made with, none for any other function."""
        return ()

    def find_missing_field(
        self,
        args: tuple[Any, ...],  # noqa: ARG002
        kwargs: Mapping[str, Any],  # noqa: ARG002
        field: str | None,  # noqa: ARG002
    ) -> str:
        """Returns *field* if a document search could return it and is not asked to, else ``""``."""
        return ""

    def move_text(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Returns the arguments as they are, except that a text goes where the function has a place for it."""
        if self._home and args:
            with suppress(WrapError):
                place, value = self._find(args, kwargs)
                if place != self._home and isinstance(value, str):
                    return self.replace(args, kwargs, query=value)
        return args, kwargs

    def _list_locations(self) -> tuple[Location, ...]:
        """Returns where a call may hold the query, in the order they are looked at."""
        parameters, own = self._parameters, self._own_location
        if parameters.is_loose:
            return (own, *((name, None) for name in QUERIES), _NESTED_LOCATIONS[1])
        if parameters.any_keyword and not self._is_named and self._name not in QUERIES:
            # It was only guessed, and **kwargs may hold a better one.
            return (*((name, None) for name in QUERIES), own)
        return (own,) if parameters.takes_positions else (own, parameters.first_location)

    def _find_home(self) -> str:
        """Returns the keyword a text moves to that was passed where the function itself has no place for it, or ""."""
        parameters = self._parameters
        if (
            parameters.is_loose
            or parameters.has_positional
            or parameters.find_position(self._name) is not None
        ):
            return ""
        return self._name

    def _replace_query(
        self, place: Place, value: Any, query: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        if self._home and place != self._home and isinstance(value, str):
            _remove(place, args, kwargs)
            kwargs[self._home] = query
        else:
            if _is_lone_text(value) and isinstance(query, str):
                query = [query]
            self._assign(
                place, put_inside(value, self._find_path(place, value), query), args, kwargs
            )

    @property
    def _own_location(self) -> Location:
        return self._name, self._parameters.find_position(self._name)

    def _find(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Place, Any]:
        """Returns where the query was passed, and what lies there."""
        null: Place | None = None
        for name, index in self._locations:
            if name in kwargs:
                if (value := kwargs[name]) is not None:
                    return name, value
                null = name
            elif index is not None and len(args) > index:
                return index, args[index]
        if self._parameters.is_loose and args:
            position = next(
                (i for i, value in enumerate(args) if isinstance(value, str)), len(args) - 1
            )
            return position, args[position]
        if null is not None:
            return null, None
        if (value := self._parameters.read_default(self._name)) is not None:
            return self._name, value
        raise self._build_missing_error()

    def _find_path(self, place: Place, value: Any) -> tuple[str, ...]:
        """Returns the path from what was passed down to the text."""
        if value is None or isinstance(value, _WHOLE):
            return ()
        if self._path and place in (self._name, self._parameters.find_position(self._name)):
            return self._path
        if place == "inputs":
            return _NESTED[1:]
        if isinstance(read_field(value, *BUNDLE), str):
            return BUNDLE
        return _NESTED if read_field(value, "inputs") is not None else ()

    def _replace_inside(self, top_k: int, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Put *top_k* into a copy of the argument that holds it; one that cannot be changed stays as it is."""
        with suppress(Exception):
            holder = self._parameters.read_value(self._top_k_home, args, kwargs)
            self._parameters.assign(
                self._top_k_home, put_inside(holder, self._top_k_path, top_k), args, kwargs
            )

    def _read_nested_top_k(self, place: Place, value: Any) -> Any:
        return read_field(value, "top_k") if self._find_path(place, value) == _NESTED else None

    def _find_top_k_name(self, kwargs: Mapping[str, Any]) -> str | None:
        if self._top_k_path:
            return None
        if self.top_k_argument is not None or not self._parameters.any_keyword:
            return self.top_k_argument
        return next((name for name in TOP_KS if name in kwargs), None)

    def _assign(self, place: Place, value: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        if isinstance(place, int):
            args[place] = value
        else:
            self._parameters.assign(place, value, args, kwargs)

    def _build_missing_error(self) -> WrapError:
        advice = (
            "if it takes a vector, wrap it with embed=; otherwise "
            if self._parameters.is_loose
            else ""
        )
        return WrapError(
            f"{self._parameters.function_name}() was called without a query; {advice}pass it as"
            f" {self.argument!r}, or name the parameter that holds the query with query_arg="
        )


class PineconeSearchSignature(CallSignature):
    """Pinecone's search, which takes the text inside ``inputs`` or ``query``, by keyword only."""

    __slots__ = ()

    def _list_locations(self) -> tuple[Location, ...]:
        return (*_NESTED_LOCATIONS, self._parameters.first_location)

    def _find_home(self) -> str:
        return "inputs"

    def _replace_query(
        self, place: Place, value: Any, query: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        wanted = {"text": query} if isinstance(value, str) and place != "inputs" else query
        super()._replace_query(place, value, wanted, args, kwargs)

    def _find_path(self, place: Place, value: Any) -> tuple[str, ...]:
        path = super()._find_path(place, value)
        return path or (() if value is None or isinstance(value, _WHOLE) else _NESTED)


class ClauseSignature(CallSignature):
    """A document search, which takes the query inside the clauses of ``score_by``.

    A text that is passed beside them, where the function itself has no place for one, goes into
    them.
    """

    __slots__ = ()

    def read_query(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Returns the text that the clauses hold; raises `ClauseProblem` with the reason if it is none to work with."""
        return self.read_passed(args, kwargs)

    def read_passed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """`query`, and a list of several queries as it is."""
        found, place = self.read_clauses(args, kwargs), self._find_text(args, kwargs)
        if place is None or not found:
            return clauses.read_question(found)
        return args[place] if isinstance(place, int) else kwargs[place]

    def replace(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        query: Any,
        top_k: int | None = None,
        is_one_of_list: bool = False,  # noqa: ARG002
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with *query*, a text or a vector, in copies of the clauses, and another *top_k*."""
        return super().replace(args, kwargs, query=query, top_k=top_k)

    def replace_clauses(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        fields: Sequence[str],
        keywords: str,
        top_k: int | None,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with a clause that searches *fields* for *keywords* in place of those of the call."""
        replaced, new_kwargs = self.replace(args, kwargs, query=keywords, top_k=top_k)
        new_args = list(replaced)
        clause = clauses.build_text_clause(fields, keywords)
        self._parameters.assign(clauses.SCORE_BY, clause, new_args, new_kwargs)
        return tuple(new_args), new_kwargs

    def move_text(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Returns the arguments as they are, except that a text beside the clauses goes into them."""
        place = self._find_text(args, kwargs)
        if place is None or not self.read_clauses(args, kwargs):
            return args, kwargs
        return self.replace(
            args, kwargs, query=args[place] if isinstance(place, int) else kwargs[place]
        )

    def takes_vector(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Returns whether the clause of this call holds a vector."""
        return clauses.are_vector_clauses(self.read_clauses(args, kwargs))

    def read_clauses(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Returns the clauses of this call, those that a partial fixes included; none if they cannot be read."""
        found = self._parameters.read_value(clauses.SCORE_BY, args, kwargs)
        return found if clauses.are_clauses(found) else ()

    def find_missing_field(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], field: str | None
    ) -> str:
        """Returns *field* if it is not among those that this call asks for, else ``""``."""
        name = clauses.INCLUDE_FIELDS
        if not field or not (name in self._parameters.named or name in kwargs):
            return ""
        asked = self._parameters.read_value(name, args, kwargs)
        is_known = asked is None or isinstance(asked, list | tuple)
        return field if is_known and not {field, clauses.EVERY_FIELD} & set(asked or ()) else ""

    def add_field(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], field: str
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with *field* among those that the documents are returned with."""
        new_args, new_kwargs = list(args), dict(kwargs)
        asked = self._parameters.read_value(clauses.INCLUDE_FIELDS, args, kwargs) or ()
        self._parameters.assign(clauses.INCLUDE_FIELDS, [*asked, field], new_args, new_kwargs)
        return tuple(new_args), new_kwargs

    def _list_locations(self) -> tuple[Location, ...]:
        return (self._own_location,)

    def _find_home(self) -> str:
        return ""

    def _replace_query(
        self, place: Place, value: Any, query: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        if (text := self._find_text(args, kwargs)) is not None:
            _remove(text, args, kwargs)
        self._assign(place, clauses.put_question(value, query), args, kwargs)

    def _find_text(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Place | None:
        """The place of a text that is passed beside the clauses."""
        parameters, first = self._parameters, self._parameters.first_location[1] or 0
        if not parameters.any_keyword:
            for name in QUERIES:
                if name in kwargs and name not in parameters.named:
                    return name
        return first if not parameters.takes_positions and len(args) > first else None


class VectorSignature(CallSignature):
    """A function that takes the vector of the query; its callers pass the text, wherever they like."""

    __slots__ = ()

    def _list_locations(self) -> tuple[Location, ...]:
        parameters, own = self._parameters, self._own_location
        texts = [name for name in QUERIES if name in parameters.named and name != self._name]
        by_position = (
            (parameters.first_location,) if own[1] is None and not parameters.is_loose else ()
        )
        return (
            *((name, parameters.find_position(name)) for name in texts),
            own,
            *_NESTED_LOCATIONS,
            *by_position,
        )

    def _find_home(self) -> str:
        parameters = self._parameters
        if parameters.find_position(self._name) is not None:
            return ""
        # A method called `query` that shows no parameters is taken for Pinecone's, which is
        # keyword-only.
        is_query_method = parameters.function_name.rpartition(".")[2] == "query"
        return self._name if not parameters.is_loose or self._is_named or is_query_method else ""

    def _replace_query(
        self, place: Place, value: Any, query: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        if isinstance(query, str) or self._is_vector_place(place):
            self._assign(
                place, put_inside(value, self._find_path(place, value), query), args, kwargs
            )
            return
        # A text that has a parameter of its own stays where it is.
        if self._parameters.is_pinecone_search or self._parameters.find_name(place) is None:
            _remove(place, args, kwargs)
            name = None if self._top_k_path else self.top_k_argument
            if name is not None and (top_k := self._read_nested_top_k(place, value)) is not None:
                self._parameters.assign(name, top_k, args, kwargs)
        self._parameters.assign(self._name, query, args, kwargs)

    def _find_path(self, place: Place, value: Any) -> tuple[str, ...]:
        path = super()._find_path(place, value)
        return () if path == BUNDLE else path

    def _is_vector_place(self, place: Place) -> bool:
        if isinstance(place, str):
            return place == self._name
        return place == self._parameters.find_position(self._name) or (
            self._parameters.is_loose and not self._home
        )

    def _build_missing_error(self) -> WrapError:
        return WrapError(
            f"{self._parameters.function_name}() was called without a query; pass the query as"
            f" {self.argument!r}, or name the parameter that holds the query with query_arg="
        )


class Parameters:
    """The parameters of one function, and what they tell without a call of it.

    *named* are its own but ``*args`` and ``**kwargs``. *is_loose* says that only these two can hold
    the query.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        fn = fn.__func__ if isinstance(fn, staticmethod | classmethod) else fn
        if not callable(fn):
            raise WrapError(f"{type(fn).__qualname__} is not callable; wrap its search method")
        inner = fn.func if isinstance(fn, functools.partial) else fn
        every = _read_parameters(fn)
        self.function_name: str = getattr(inner, "__qualname__", type(inner).__qualname__)
        self._module = str(getattr(inner, "__module__", ""))
        self.named = {name: p for name, p in every.items() if p.kind not in _MANY}
        self.any_keyword = any(p.kind is p.VAR_KEYWORD for p in every.values())
        any_position = any(p.kind is p.VAR_POSITIONAL for p in every.values())
        self._inner = _read_parameters(inner)
        self._fixed: Mapping[str, Any] = fn.keywords if isinstance(fn, functools.partial) else {}
        by_position = [name for name, p in self.named.items() if p.kind in _BY_POSITION]
        self._positions = {name: index for index, name in enumerate(by_position)}
        first = int(by_position[:1] in (["self"], ["cls"]))
        self._positional = by_position[first:]
        self.first_location: Location = ("", first)
        self.has_positional = bool(self._positional)
        self.takes_positions = self.has_positional or any_position
        free = self.named.keys() - self._fixed.keys() - {"self", "cls"}
        can_hold = not free.isdisjoint((*self._positional, *QUERIES, *VECTORS))
        self.is_loose = (any_position or self.any_keyword) and not can_hold
        self.is_pinecone_search = {
            "inputs",
            "namespace",
        } <= self.named.keys() and not self._positional

    def find_query(self, query_arg: str | None, takes_vector: bool) -> str:
        """Returns the parameter that holds the query, with dots for what lies inside it; raises `WrapError`."""
        if query_arg is not None:
            self._check_known(query_arg.partition(".")[0], "query_arg")
            return self._check_free(query_arg)
        if clauses.SCORE_BY in self.named and self._inner.keys().isdisjoint(QUERIES):
            return clauses.SCORE_BY
        if self.is_pinecone_search and not takes_vector:
            self._check_free("query")
            return self._check_free("inputs.text")
        for name in (*VECTORS, *QUERIES) if takes_vector else QUERIES:
            if name in self._inner:
                if not takes_vector and self._is_vector(name):
                    raise self._build_error(_NO_TEXT)
                return self._check_free(name)
        return self._choose_first_positional(takes_vector)

    def find_top_k(self, top_k_arg: str | None) -> str | None:
        """Returns the parameter that holds top_k, ``None`` where none is seen; raises `WrapError`."""
        if top_k_arg is not None:
            self._check_known(top_k_arg.partition(".")[0], "top_k_arg")
            return top_k_arg
        return next((name for name in TOP_KS if name in self.named), None)

    def check_page_arg(self, page_arg: object) -> None:
        """Raises `WrapError` where *page_arg* names no parameter."""
        if page_arg is None or page_arg is False:
            return
        if not isinstance(page_arg, str):
            raise self._build_error(
                f"cannot be wrapped: page_arg must be a parameter's name or False, not {page_arg!r}"
            )
        self._check_known(page_arg.partition(".")[0], "page_arg")

    def find_position(self, name: str) -> int | None:
        """Returns the position parameter *name* may be passed at."""
        return self._positions.get(name)

    def find_name(self, place: Place) -> str | None:
        """Returns the parameter that is passed at *place*."""
        names = self.named if isinstance(place, str) else self._positions
        return next((name for name in names if place in (name, self._positions.get(name))), None)

    def read_default(self, name: str) -> Any:
        """Returns the default of parameter *name*, ``None`` where it has none."""
        parameter = self.named.get(name)
        return (
            None if parameter is None or parameter.default is parameter.empty else parameter.default
        )

    def read_value(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Returns what a call gives parameter *name*, its default included."""
        return self.read_given(name, args, kwargs, self.read_default(name))

    def read_given(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], default: Any = None
    ) -> Any:
        """Returns what a call passes as parameter *name*, else *default*."""
        if name in kwargs:
            return kwargs[name]
        index = self._positions.get(name)
        return args[index] if index is not None and index < len(args) else default

    def assign(self, name: str, value: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Pass *value* as parameter *name*, in the place it is passed at already where there is one."""
        index = self._positions.get(name)
        if name not in kwargs and index is not None:
            if index < len(args):
                args[index] = value
                return
            if self.named[name].kind is inspect.Parameter.POSITIONAL_ONLY:
                args.extend(
                    self.read_default(between)
                    for between in list(self._positions)[len(args) : index]
                )
                args.append(value)
                return
        kwargs[name] = value

    def _choose_first_positional(self, takes_vector: bool) -> str:
        free = [name for name in self._positional if name not in self._fixed]
        chosen = next(iter(free if takes_vector else sorted(free, key=self._rank_as_text)), None)
        if not takes_vector and (
            self._takes_vector_alone if chosen is None else self._is_vector(chosen)
        ):
            raise self._build_error(_NO_TEXT)
        if chosen is not None:
            return chosen
        if self.is_loose:
            return "vector" if takes_vector else "query"
        raise self._build_error(
            "has no parameter that looks like the query; name it with query_arg="
            f" ({self._write_parameters()})"
        )

    @property
    def _takes_vector_alone(self) -> bool:
        # The query of Pinecone's synchronous index shows no parameters.
        is_pinecone = (
            self.is_loose
            and self.function_name.endswith(".query")
            and self._module.startswith("pinecone.")
        )
        return is_pinecone or not self.named.keys().isdisjoint(VECTORS)

    def _is_vector(self, name: str) -> bool:
        """Returns whether the name or the annotation of a parameter says that it is a vector, and no text."""
        parameter = self._inner.get(name)
        annotation = "" if parameter is None else str(parameter.annotation)
        return name in VECTORS or bool(
            _VECTOR_TYPE.search(annotation) and not re.search(r"\bstr\b", annotation)
        )

    def _rank_as_text(self, name: str) -> int:
        """Returns 0 for a required parameter annotated as text, 1 where nothing speaks against a text, else 2 or 3."""
        parameter = self.named[name]
        if name in TOP_KS:
            return 3
        if parameter.annotation is parameter.empty:
            return 1
        if parameter.annotation not in _TEXT_TYPES:
            return 2
        return 0 if parameter.default is parameter.empty else 1

    def _check_free(self, argument: str) -> str:
        """Returns *argument*; raises `WrapError` where a partial holds it already."""
        name = argument.partition(".")[0]
        if name in self._fixed or (name in self._inner and name not in self.named):
            raise self._build_error(
                f"is a partial that already sets {name!r}; leave the query out of the partial"
            )
        return argument

    def _check_known(self, name: str, option: str) -> None:
        if name in self.named or name in self._inner or self.any_keyword:
            return
        from difflib import get_close_matches

        near = get_close_matches(name, self.named, 1)
        hint = f"did you mean {near[0]!r}?" if near else self._write_parameters()
        raise self._build_error(f"has no parameter {name!r}, but {option}= names it; {hint}")

    def _write_parameters(self) -> str:
        return "its parameters are: " + (", ".join(self.named) or "none")

    def _build_error(self, why: str) -> WrapError:
        return WrapError(f"{self.function_name}() {why}")


def returns_awaitable(fn: Any, kind: object) -> bool:
    """Returns whether calls of *fn* must be awaited; raises `WrapError` where it cannot be wrapped at all."""
    if kind not in (None, "sync", "async"):
        raise WrapError(f"kind must be 'sync' or 'async', not {kind!r}")
    if not callable(fn):
        methods = [name for name in _SEARCHES if callable(getattr(type(fn), name, None))]
        advice = (
            f"wrap its search method: .{methods[0]}" if methods else "pass a function that searches"
        )
        raise WrapError(f"{type(fn).__name__} is not callable; {advice}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        is_awaited = inspect.isasyncgenfunction(fn)
        name = getattr(fn, "__name__", "search")
        example = (
            f"an async def that returns [hit async for hit in {name}(query)]"
            if is_awaited
            else f"lambda query: list({name}(query))"
        )
        raise WrapError(
            f"{getattr(fn, '__name__', fn)} yields its results one by one; wrap a function that"
            f" returns a list, for example {example}"
        )
    return kind == "async" if kind else is_async(fn)


def has_parameter(fn: Callable[..., Any], name: str) -> bool:
    """Returns whether the signature of *fn* shows a parameter *name*."""
    return name in _read_parameters(fn)


def _read_parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return read_parameters(fn)
    except (ValueError, TypeError):  # some builtins tell nothing
        return _ANYTHING


def _is_lone_text(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 1 and isinstance(value[0], str)


def _remove(place: Place, args: list[Any], kwargs: dict[str, Any]) -> None:
    if isinstance(place, int):
        del args[place]
    else:
        kwargs.pop(place, None)
