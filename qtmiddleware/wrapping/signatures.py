"""Find and replace the query and the number of passages in calls of a wrapped function.

This module reads a function's signature once, and uses it for every call. The caller's arguments
never change: replacements are made in copies.
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
from qtmiddleware.wrapping.nested import BUNDLE, read_value_at_path, replace_value_at_path
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

ArgumentKey = str | int
"""The keyword or the position at which a call passes a value."""
Location = tuple[str, int | None]
"""A parameter's name and position; the position is ``None`` for a keyword-only parameter."""

_BY_POSITION: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_ANYTHING: Final = inspect.signature(lambda *args, **kwargs: None).parameters  # noqa: ARG005
_TEXT_TYPES: Final = (str, str | None, "str", "str | None", "Optional[str]")
# Types of a query itself, not of an object that holds the query.
_QUERY_TYPES: Final = (str, list, tuple)
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
    """Return a `CallSignature` that finds the query and the number of passages in calls of *fn*.

    Args:
        fn: the function whose signature to read.
        query_arg: the name of the query's parameter, with dots for a value inside it
            (``query.inputs.text``). By default, qtmiddleware tries common names such as
            ``query``, and then the first positional parameter.
        top_k_arg: the name of the parameter for the number of passages, with dots for a value
            inside it. By default, qtmiddleware tries common names such as ``top_k``.
        page_arg: the name of the parameter that selects a page of results; ``False`` if there is
            none. By default, `Paging` looks for one.
        takes_vector: whether *fn* takes the query's vector instead of its text.

    Raises:
        WrapError: if no parameter can be the query.
    """
    parameters = Parameters(fn)
    argument = parameters.find_query_name(query_arg, takes_vector)
    signature_class: type[CallSignature] = CallSignature
    if argument == clauses.SCORE_BY:
        signature_class = ClauseSignature
    elif takes_vector:
        signature_class = VectorSignature
    elif parameters.is_pinecone_search and argument.partition(".")[0] in ("query", "inputs"):
        signature_class = PineconeSearchSignature
    parameters.check_page_arg(page_arg)
    top_k = parameters.find_top_k_name(top_k_arg)
    return signature_class(
        parameters, argument, top_k, is_query_named=query_arg is not None, page_arg=page_arg
    )


_NO_TEXT_REASON: Final = (
    "takes a vector, not a text; pass embed=, a function from a text to its vector"
)


class CallSignature:
    """Reads and replaces the query and the number of passages in calls of a function.

    This class is for functions that take a text. Subclasses are for other functions.

    Attributes:
        argument: the name of the query's parameter, with dots for a value inside it.
        top_k_argument: the name of the parameter for the number of passages; ``None`` if the
            signature has none.
        paging: finds the argument with which a call selects a page of results.
    """

    __slots__ = (
        *("_home", "_is_named", "_locations", "_name", "_parameters", "_path"),
        *("_top_k_home", "_top_k_path", "argument", "paging", "top_k_argument"),
    )

    def __init__(
        self,
        parameters: Parameters,
        argument: str,
        top_k_argument: str | None,
        *,
        is_query_named: bool,
        page_arg: PageArgument = None,
    ) -> None:
        self.argument = argument
        self.top_k_argument = top_k_argument
        self._parameters = parameters
        self._is_named = is_query_named
        self._name, *path = argument.split(".")
        self._path = tuple(path)
        self._top_k_home, *top_k_path = (top_k_argument or "").split(".")
        self._top_k_path = tuple(top_k_path)
        self.paging = Paging(parameters, page_arg, (self._name, self._top_k_home))
        self._locations = self._list_query_locations()
        self._home = self._find_target_keyword()

    def choose_signature(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallSignature:
        """Return the signature that reads this call, usually this object.

        Returns a `ClauseSignature` if the call passes ``score_by`` clauses to a function whose
        parameters are unknown.
        """
        parameters = self._parameters
        if (
            not (parameters.is_loose and clauses.are_valid_clauses(kwargs.get(clauses.SCORE_BY)))
            or self._is_named
        ):
            return self
        if any(isinstance(value, str) for value in args) or any(name in kwargs for name in QUERIES):
            return self
        return ClauseSignature(
            parameters, clauses.SCORE_BY, self.top_k_argument, is_query_named=False
        )

    @property
    def function_name(self) -> str:
        """The function's name, with the name of its class."""
        return self._parameters.function_name.rpartition("<locals>.")[2]

    @property
    def has_var_keyword(self) -> bool:
        """Whether the function has a ``**kwargs`` parameter."""
        return self._parameters.has_var_keyword

    def read_query(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the query that a call passes.

        If the query is a list with a single text, as in calls of Chroma, returns that text. Raises
        `WrapError` if the call has no query.
        """
        value = self.read_passed_query(args, kwargs)
        return (
            value[0]
            if _is_list_of_one_text(value) and value is self._find_query_argument(args, kwargs)[1]
            else value
        )

    def read_passed_query(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the query exactly as a call passes it, for example as a list with one text.

        Raises `WrapError` if the call has no query.
        """
        key, value = self._find_query_argument(args, kwargs)
        for name in self._find_text_path(key, value):
            if (value := read_field(value, name)) is None:
                raise self._build_missing_query_error()
        return value

    def read_top_k(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """Return the number of passages that a call requests, or the function's default number.

        Returns ``None`` if this number is missing or not an integer.
        """
        top_k = self._read_nested_top_k(*self._find_query_argument(args, kwargs))
        if self._top_k_path:
            top_k = read_value_at_path(
                self._parameters.read_value(self._top_k_home, args, kwargs), self._top_k_path
            )
        elif top_k is None and (name := self._find_top_k_name(kwargs)) is not None:
            top_k = self._parameters.read_value(name, args, kwargs)
        # NumPy's integers count too, but `True` is a mistake rather than 1.
        return (
            int(top_k)
            if hasattr(type(top_k), "__index__") and not isinstance(top_k, bool)
            else None
        )

    def replace_arguments(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        query: Any,
        top_k: int | None = None,
        has_query_list: bool = False,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return copies of the arguments with another query and number of passages.

        Args:
            args: the call's positional arguments.
            kwargs: the call's keyword arguments.
            query: the new query: a text, or a vector if the function takes vectors.
            top_k: the new number of passages; ``None`` to keep the number.
            has_query_list: whether the call passes a list of queries, which *query* replaces.
        """
        key, value = self._find_query_argument(args, kwargs)
        # The caller's list of queries is not a list that the function itself takes, so the query
        # is passed as a plain text.
        if has_query_list and isinstance(query, str) and isinstance(value, list | tuple):
            value = query
        new_args, new_kwargs = list(args), dict(kwargs)
        is_nested = not self._top_k_path and self._read_nested_top_k(key, value) is not None
        if top_k is not None and is_nested:
            value = replace_value_at_path(value, ("top_k",), top_k)
        self._replace_query(key, value, query, new_args, new_kwargs)
        if top_k is not None and self._top_k_path:
            self._replace_nested_top_k(top_k, new_args, new_kwargs)
        elif (
            top_k is not None
            and not is_nested
            and (name := self._find_top_k_name(kwargs)) is not None
        ):
            self._parameters.set_argument(name, top_k, new_args, new_kwargs)
        return tuple(new_args), new_kwargs

    def should_pass_vector(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Return whether this call must get the query's vector instead of its text.

        The result matters only if the function was wrapped with ``embed=``.
        """
        return True

    def read_clauses(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:  # noqa: ARG002
        """Return the ``score_by`` clauses of a document search, or ``()`` for other functions."""
        return ()

    def find_unrequested_field(
        self,
        args: tuple[Any, ...],  # noqa: ARG002
        kwargs: Mapping[str, Any],  # noqa: ARG002
        field_name: str | None,  # noqa: ARG002
    ) -> str:
        """Return *field_name* if this call could request the field but does not, else ``""``.

        Only a document search takes a list of fields to request.
        """
        return ""

    def move_query_text(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Move the query's text to the parameter that takes it, and return the new arguments.

        If the caller already passed the text to this parameter, return the arguments unchanged.
        """
        if self._home and args:
            with suppress(WrapError):
                key, value = self._find_query_argument(args, kwargs)
                if key != self._home and isinstance(value, str):
                    return self.replace_arguments(args, kwargs, query=value)
        return args, kwargs

    def _list_query_locations(self) -> tuple[Location, ...]:
        """Return the parameters that may hold the query, from the most to the least likely."""
        parameters, query_location = self._parameters, self._query_location
        if parameters.is_loose:
            return (query_location, *((name, None) for name in QUERIES), _NESTED_LOCATIONS[1])
        if parameters.has_var_keyword and not self._is_named and self._name not in QUERIES:
            # The query's parameter was only guessed, and **kwargs may hold a better match.
            return (*((name, None) for name in QUERIES), query_location)
        return (
            (query_location,)
            if parameters.can_take_positional
            else (query_location, parameters.first_location)
        )

    def _find_target_keyword(self) -> str:
        """Return the only keyword with which the function takes the query.

        A query that the caller passes in another argument must move to this keyword. Returns ``""``
        if the query may stay in any argument.
        """
        parameters = self._parameters
        if (
            parameters.is_loose
            or parameters.has_positional
            or parameters.find_position(self._name) is not None
        ):
            return ""
        return self._name

    def _replace_query(
        self,
        argument_key: ArgumentKey,
        argument: Any,
        new_query: Any,
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> None:
        """Replace the query in *argument* with *new_query*, and update *args* or *kwargs*.

        *argument_key* is the keyword or the position of *argument*.
        """
        if self._home and argument_key != self._home and isinstance(argument, str):
            _remove_argument(argument_key, args, kwargs)
            kwargs[self._home] = new_query
        else:
            if _is_list_of_one_text(argument) and isinstance(new_query, str):
                new_query = [new_query]
            self._set_argument(
                argument_key,
                replace_value_at_path(
                    argument, self._find_text_path(argument_key, argument), new_query
                ),
                args,
                kwargs,
            )

    @property
    def _query_location(self) -> Location:
        return self._name, self._parameters.find_position(self._name)

    def _find_query_argument(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[ArgumentKey, Any]:
        """Return the keyword or position of the query in a call, and the query's value."""
        null_name: ArgumentKey | None = None
        for name, index in self._locations:
            if name in kwargs:
                if (value := kwargs[name]) is not None:
                    return name, value
                null_name = name
            elif index is not None and len(args) > index:
                return index, args[index]
        # Nothing is known about the parameters. The first text is the best guess, else the last
        # argument.
        if self._parameters.is_loose and args:
            position = next(
                (i for i, value in enumerate(args) if isinstance(value, str)), len(args) - 1
            )
            return position, args[position]
        if null_name is not None:
            return null_name, None
        if (value := self._parameters.read_default(self._name)) is not None:
            return self._name, value
        raise self._build_missing_query_error()

    def _find_text_path(self, argument_key: ArgumentKey, argument: Any) -> tuple[str, ...]:
        """Return the path to the query's text inside *argument*.

        Returns ``()`` if *argument* itself is the text.
        """
        if argument is None or isinstance(argument, _QUERY_TYPES):
            return ()
        if self._path and argument_key in (self._name, self._parameters.find_position(self._name)):
            return self._path
        if argument_key == "inputs":
            return _NESTED[1:]
        if isinstance(read_field(argument, *BUNDLE), str):
            return BUNDLE
        return _NESTED if read_field(argument, "inputs") is not None else ()

    def _replace_nested_top_k(self, top_k: int, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Set the number of passages inside a copy of an argument, such as ``request.top_k``.

        Does nothing if the argument cannot be copied or changed.
        """
        with suppress(Exception):
            container = self._parameters.read_value(self._top_k_home, args, kwargs)
            self._parameters.set_argument(
                self._top_k_home,
                replace_value_at_path(container, self._top_k_path, top_k),
                args,
                kwargs,
            )

    def _read_nested_top_k(self, argument_key: ArgumentKey, argument: Any) -> Any:
        return (
            read_field(argument, "top_k")
            if self._find_text_path(argument_key, argument) == _NESTED
            else None
        )

    def _find_top_k_name(self, kwargs: Mapping[str, Any]) -> str | None:
        """Return the name of the parameter for the number of passages; ``None`` if missing."""
        if self._top_k_path:
            return None
        if self.top_k_argument is not None or not self._parameters.has_var_keyword:
            return self.top_k_argument
        return next((name for name in TOP_KS if name in kwargs), None)

    def _set_argument(
        self, argument_key: ArgumentKey, value: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        """Set the argument at *argument_key*, a keyword or a position, to *value*."""
        if isinstance(argument_key, int):
            args[argument_key] = value
        else:
            self._parameters.set_argument(argument_key, value, args, kwargs)

    def _build_missing_query_error(self) -> WrapError:
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
    """The signature of Pinecone's search: the text is inside ``inputs`` or ``query``."""

    __slots__ = ()

    def _list_query_locations(self) -> tuple[Location, ...]:
        return (*_NESTED_LOCATIONS, self._parameters.first_location)

    def _find_target_keyword(self) -> str:
        return "inputs"

    def _replace_query(
        self,
        argument_key: ArgumentKey,
        argument: Any,
        new_query: Any,
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> None:
        value_to_pass = (
            {"text": new_query}
            if isinstance(argument, str) and argument_key != "inputs"
            else new_query
        )
        super()._replace_query(argument_key, argument, value_to_pass, args, kwargs)

    def _find_text_path(self, argument_key: ArgumentKey, argument: Any) -> tuple[str, ...]:
        path = super()._find_text_path(argument_key, argument)
        return path or (() if argument is None or isinstance(argument, _QUERY_TYPES) else _NESTED)


class ClauseSignature(CallSignature):
    """The signature of a document search, whose query is inside the clauses of ``score_by``.

    A caller may pass a text in addition to the clauses. If the function has no parameter for the
    text, the text replaces the query in the clauses.
    """

    __slots__ = ()

    def read_query(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the text passed in addition to the clauses, or else the query in the clauses.

        Raises `ClauseProblem` if the query cannot be improved.
        """
        return self.read_passed_query(args, kwargs)

    def read_passed_query(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the query, or the list of queries, exactly as the call passes it."""
        call_clauses, key = self.read_clauses(args, kwargs), self._find_text_key(args, kwargs)
        if key is None or not call_clauses:
            return clauses.read_question(call_clauses)
        return args[key] if isinstance(key, int) else kwargs[key]

    def replace_arguments(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        query: Any,
        top_k: int | None = None,
        has_query_list: bool = False,  # noqa: ARG002
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return copies of the arguments with *query*, a text or a vector, in the clauses.

        *top_k* is the new number of passages. If *top_k* is ``None``, the number does not change.
        """
        return super().replace_arguments(args, kwargs, query=query, top_k=top_k)

    def replace_clauses(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        field_names: Sequence[str],
        keywords: str,
        top_k: int | None,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return new arguments for a keyword search in *field_names*.

        A single clause that searches for *keywords* replaces the call's clauses. *top_k* is the new
        number of passages. If *top_k* is ``None``, the number does not change.
        """
        replaced, new_kwargs = self.replace_arguments(args, kwargs, query=keywords, top_k=top_k)
        new_args = list(replaced)
        clause = clauses.build_text_clauses(field_names, keywords)
        self._parameters.set_argument(clauses.SCORE_BY, clause, new_args, new_kwargs)
        return tuple(new_args), new_kwargs

    def move_query_text(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Move the query's text into the clauses, and return the new arguments.

        A caller may pass the text in addition to the clauses. If the caller did not, return the
        arguments unchanged.
        """
        key = self._find_text_key(args, kwargs)
        if key is None or not self.read_clauses(args, kwargs):
            return args, kwargs
        return self.replace_arguments(
            args, kwargs, query=args[key] if isinstance(key, int) else kwargs[key]
        )

    def should_pass_vector(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether the clauses of this call take a vector."""
        return clauses.are_vector_clauses(self.read_clauses(args, kwargs))

    def read_clauses(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Return the ``score_by`` clauses of this call, or ``()`` if they cannot be read.

        The clauses may come from the caller or from a `functools.partial`.
        """
        value = self._parameters.read_value(clauses.SCORE_BY, args, kwargs)
        return value if clauses.are_valid_clauses(value) else ()

    def find_unrequested_field(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], field_name: str | None
    ) -> str:
        """Return *field_name* if this call could request the field but does not, else ``""``.

        Only a document search takes a list of fields to request.
        """
        name = clauses.INCLUDE_FIELDS
        if not field_name or not (name in self._parameters.named or name in kwargs):
            return ""
        fields = self._parameters.read_value(name, args, kwargs)
        # Only a list of names can be extended. Without a list, the index returns no fields.
        is_known = fields is None or isinstance(fields, list | tuple)
        return (
            field_name
            if is_known and not {field_name, clauses.EVERY_FIELD} & set(fields or ())
            else ""
        )

    def request_field(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], field_name: str
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return new arguments that also request *field_name* of each document."""
        new_args, new_kwargs = list(args), dict(kwargs)
        fields = self._parameters.read_value(clauses.INCLUDE_FIELDS, args, kwargs) or ()
        self._parameters.set_argument(
            clauses.INCLUDE_FIELDS, [*fields, field_name], new_args, new_kwargs
        )
        return tuple(new_args), new_kwargs

    def _list_query_locations(self) -> tuple[Location, ...]:
        return (self._query_location,)

    def _find_target_keyword(self) -> str:
        return ""

    def _replace_query(
        self,
        argument_key: ArgumentKey,
        argument: Any,
        new_query: Any,
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> None:
        # The text now is in the clauses. The function may have no parameter for it.
        if (text_key := self._find_text_key(args, kwargs)) is not None:
            _remove_argument(text_key, args, kwargs)
        self._set_argument(
            argument_key, clauses.replace_question(argument, new_query), args, kwargs
        )

    def _find_text_key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ArgumentKey | None:
        """Return the keyword or position of a text passed in addition to the clauses.

        Returns ``None`` if there is no such text.
        """
        parameters, first_position = self._parameters, self._parameters.first_location[1] or 0
        if not parameters.has_var_keyword:
            for name in QUERIES:
                if name in kwargs and name not in parameters.named:
                    return name
        return (
            first_position
            if not parameters.can_take_positional and len(args) > first_position
            else None
        )


class VectorSignature(CallSignature):
    """The signature of a wrapped function that takes a vector, while its callers pass a text.

    Callers may pass the text with any common name of a query parameter, such as ``query``.
    """

    __slots__ = ()

    def _list_query_locations(self) -> tuple[Location, ...]:
        parameters, query_location = self._parameters, self._query_location
        text_names = [name for name in QUERIES if name in parameters.named and name != self._name]
        by_position = (
            (parameters.first_location,)
            if query_location[1] is None and not parameters.is_loose
            else ()
        )
        return (
            *((name, parameters.find_position(name)) for name in text_names),
            query_location,
            *_NESTED_LOCATIONS,
            *by_position,
        )

    def _find_target_keyword(self) -> str:
        parameters = self._parameters
        if parameters.find_position(self._name) is not None:
            return ""
        # A method called `query` that shows no parameters is assumed to be Pinecone's, which takes
        # keywords only.
        is_query_method = parameters.function_name.rpartition(".")[2] == "query"
        return self._name if not parameters.is_loose or self._is_named or is_query_method else ""

    def _replace_query(
        self,
        argument_key: ArgumentKey,
        argument: Any,
        new_query: Any,
        args: list[Any],
        kwargs: dict[str, Any],
    ) -> None:
        if isinstance(new_query, str) or self._is_vector_key(argument_key):
            self._set_argument(
                argument_key,
                replace_value_at_path(
                    argument, self._find_text_path(argument_key, argument), new_query
                ),
                args,
                kwargs,
            )
            return
        # If the function has a parameter for the text, the text stays there.
        if (
            self._parameters.is_pinecone_search
            or self._parameters.find_parameter_name(argument_key) is None
        ):
            _remove_argument(argument_key, args, kwargs)
            name = None if self._top_k_path else self.top_k_argument
            if (
                name is not None
                and (top_k := self._read_nested_top_k(argument_key, argument)) is not None
            ):
                self._parameters.set_argument(name, top_k, args, kwargs)
        self._parameters.set_argument(self._name, new_query, args, kwargs)

    def _find_text_path(self, argument_key: ArgumentKey, argument: Any) -> tuple[str, ...]:
        path = super()._find_text_path(argument_key, argument)
        return () if path == BUNDLE else path

    def _is_vector_key(self, argument_key: ArgumentKey) -> bool:
        if isinstance(argument_key, str):
            return argument_key == self._name
        return argument_key == self._parameters.find_position(self._name) or (
            self._parameters.is_loose and not self._home
        )

    def _build_missing_query_error(self) -> WrapError:
        return WrapError(
            f"{self._parameters.function_name}() was called without a query; pass the query as"
            f" {self.argument!r}, or name the parameter that holds the query with query_arg="
        )


class Parameters:
    """The parameters of one function, read from its signature.

    Attributes:
        function_name: the function's name, with the name of its class.
        named: the parameters by name, without ``*args`` and ``**kwargs``.
        has_var_keyword: whether the function has a ``**kwargs`` parameter.
        first_location: the location of the first positional argument after ``self`` or ``cls``.
        has_positional: whether at least one named parameter may be passed by position.
        can_take_positional: whether at least one argument may be passed by position, to a named
            parameter or to ``*args``.
        is_loose: whether only ``*args`` or ``**kwargs`` can hold the query.
        is_pinecone_search: whether the function has the parameters of Pinecone's search.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        fn = fn.__func__ if isinstance(fn, staticmethod | classmethod) else fn
        if not callable(fn):
            raise WrapError(f"{type(fn).__qualname__} is not callable; wrap its search method")
        inner = fn.func if isinstance(fn, functools.partial) else fn
        all_parameters = _read_parameters(fn)
        self.function_name: str = getattr(inner, "__qualname__", type(inner).__qualname__)
        self._module = str(getattr(inner, "__module__", ""))
        self.named = {
            name: parameter
            for name, parameter in all_parameters.items()
            if parameter.kind not in _VARIADIC
        }
        self.has_var_keyword = any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in all_parameters.values()
        )
        any_position = any(
            parameter.kind is parameter.VAR_POSITIONAL for parameter in all_parameters.values()
        )
        self._inner = _read_parameters(inner)
        self._fixed: Mapping[str, Any] = fn.keywords if isinstance(fn, functools.partial) else {}
        by_position = [
            name for name, parameter in self.named.items() if parameter.kind in _BY_POSITION
        ]
        self._positions = {name: index for index, name in enumerate(by_position)}
        first_position = int(by_position[:1] in (["self"], ["cls"]))
        self._positional = by_position[first_position:]
        self.first_location: Location = ("", first_position)
        self.has_positional = bool(self._positional)
        self.can_take_positional = self.has_positional or any_position
        free = self.named.keys() - self._fixed.keys() - {"self", "cls"}
        can_hold = not free.isdisjoint((*self._positional, *QUERIES, *VECTORS))
        self.is_loose = (any_position or self.has_var_keyword) and not can_hold
        self.is_pinecone_search = {
            "inputs",
            "namespace",
        } <= self.named.keys() and not self._positional

    def find_query_name(self, query_arg: str | None, takes_vector: bool) -> str:
        """Return the name of the query's parameter, such as ``query`` or ``inputs.text``.

        Raises `WrapError` if no parameter can be the query.
        """
        if query_arg is not None:
            self._check_has_parameter(query_arg.partition(".")[0], "query_arg")
            return self._require_unset_argument(query_arg)
        if clauses.SCORE_BY in self.named and self._inner.keys().isdisjoint(QUERIES):
            return clauses.SCORE_BY
        if self.is_pinecone_search and not takes_vector:
            self._require_unset_argument("query")
            return self._require_unset_argument("inputs.text")
        # Search the inner function's parameters, so that a partial that sets the query is reported.
        for name in (*VECTORS, *QUERIES) if takes_vector else QUERIES:
            if name in self._inner:
                if not takes_vector and self._is_vector_parameter(name):
                    raise self._build_error(_NO_TEXT_REASON)
                return self._require_unset_argument(name)
        return self._choose_positional_query_name(takes_vector)

    def find_top_k_name(self, top_k_arg: str | None) -> str | None:
        """Return the name of the parameter for the number of passages; ``None`` if missing.

        Raises `WrapError` if *top_k_arg* is not a parameter.
        """
        if top_k_arg is not None:
            self._check_has_parameter(top_k_arg.partition(".")[0], "top_k_arg")
            return top_k_arg
        return next((name for name in TOP_KS if name in self.named), None)

    def check_page_arg(self, page_arg: object) -> None:
        """Raise `WrapError` if *page_arg* is not a parameter's name, ``None`` or ``False``."""
        if page_arg is None or page_arg is False:
            return
        if not isinstance(page_arg, str):
            raise self._build_error(
                f"cannot be wrapped: page_arg must be a parameter's name or False, not {page_arg!r}"
            )
        self._check_has_parameter(page_arg.partition(".")[0], "page_arg")

    def find_position(self, parameter_name: str) -> int | None:
        """Return the position of *parameter_name*, or ``None`` for a keyword-only parameter."""
        return self._positions.get(parameter_name)

    def find_parameter_name(self, argument_key: ArgumentKey) -> str | None:
        """Return the name of the parameter at *argument_key*, a keyword or a position.

        Returns ``None`` if the function has no such parameter.
        """
        names = self.named if isinstance(argument_key, str) else self._positions
        return next(
            (name for name in names if argument_key in (name, self._positions.get(name))), None
        )

    def read_default(self, parameter_name: str) -> Any:
        """Return the default of *parameter_name*, or ``None`` if the parameter has no default."""
        parameter = self.named.get(parameter_name)
        return (
            None if parameter is None or parameter.default is parameter.empty else parameter.default
        )

    def read_value(
        self, parameter_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Return the value that a call passes for *parameter_name*, or else the default."""
        return self.read_passed_value(
            parameter_name, args, kwargs, self.read_default(parameter_name)
        )

    def read_passed_value(
        self,
        parameter_name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        default: Any = None,
    ) -> Any:
        """Return the value that a call passes for *parameter_name*, or else *default*."""
        if parameter_name in kwargs:
            return kwargs[parameter_name]
        index = self._positions.get(parameter_name)
        return args[index] if index is not None and index < len(args) else default

    def set_argument(
        self, parameter_name: str, value: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> None:
        """Set the parameter *parameter_name* to *value* in *args* or *kwargs*.

        If the call does not pass this parameter yet, add *value* by keyword if possible.
        """
        index = self._positions.get(parameter_name)
        if parameter_name not in kwargs and index is not None:
            if index < len(args):
                args[index] = value
                return
            if self.named[parameter_name].kind is inspect.Parameter.POSITIONAL_ONLY:
                # The parameters before this one can only be passed by position, too.
                args.extend(
                    self.read_default(skipped_name)
                    for skipped_name in list(self._positions)[len(args) : index]
                )
                args.append(value)
                return
        kwargs[parameter_name] = value

    def _choose_positional_query_name(self, takes_vector: bool) -> str:
        free = [name for name in self._positional if name not in self._fixed]
        chosen = next(
            iter(free if takes_vector else sorted(free, key=self._rank_as_query_text)), None
        )
        if not takes_vector and (
            self._is_vector_only if chosen is None else self._is_vector_parameter(chosen)
        ):
            raise self._build_error(_NO_TEXT_REASON)
        if chosen is not None:
            return chosen
        if self.is_loose:
            return "vector" if takes_vector else "query"
        raise self._build_error(
            "has no parameter that looks like the query; name it with query_arg="
            f" ({self._describe_parameters()})"
        )

    @property
    def _is_vector_only(self) -> bool:
        # The signature of Pinecone's synchronous `query` method has no named parameters.
        is_pinecone = (
            self.is_loose
            and self.function_name.endswith(".query")
            and self._module.startswith("pinecone.")
        )
        return is_pinecone or not self.named.keys().isdisjoint(VECTORS)

    def _is_vector_parameter(self, parameter_name: str) -> bool:
        """Return whether *parameter_name* takes a vector, judged by its name and annotation."""
        parameter = self._inner.get(parameter_name)
        annotation = "" if parameter is None else str(parameter.annotation)
        return parameter_name in VECTORS or bool(
            _VECTOR_TYPE.search(annotation) and not re.search(r"\bstr\b", annotation)
        )

    def _rank_as_query_text(self, parameter_name: str) -> int:
        """Return how likely *parameter_name* takes the query's text, from 0 (most likely) to 3.

        - 0: a required parameter annotated as text.
        - 1: a parameter annotated as text with a default, or without an annotation.
        - 2: a parameter with another annotation.
        - 3: the number of passages.
        """
        parameter = self.named[parameter_name]
        if parameter_name in TOP_KS:
            return 3
        if parameter.annotation is parameter.empty:
            return 1
        if parameter.annotation not in _TEXT_TYPES:
            return 2
        return 0 if parameter.default is parameter.empty else 1

    def _require_unset_argument(self, argument_name: str) -> str:
        """Return *argument_name* unchanged.

        Raises `WrapError` if the function is a partial that already sets this argument.
        """
        name = argument_name.partition(".")[0]
        if name in self._fixed or (name in self._inner and name not in self.named):
            raise self._build_error(
                f"is a partial that already sets {name!r}; leave the query out of the partial"
            )
        return argument_name

    def _check_has_parameter(self, parameter_name: str, option_name: str) -> None:
        """Raise `WrapError` if the function has no parameter *parameter_name*.

        The error message mentions *option_name*, the option that names this parameter.
        """
        if parameter_name in self.named or parameter_name in self._inner or self.has_var_keyword:
            return
        from difflib import get_close_matches

        suggestions = get_close_matches(parameter_name, self.named, 1)
        hint = f"did you mean {suggestions[0]!r}?" if suggestions else self._describe_parameters()
        raise self._build_error(
            f"has no parameter {parameter_name!r}, but {option_name}= names it; {hint}"
        )

    def _describe_parameters(self) -> str:
        return "its parameters are: " + (", ".join(self.named) or "none")

    def _build_error(self, reason: str) -> WrapError:
        return WrapError(f"{self.function_name}() {reason}")


def should_await_calls(fn: Any, declared_kind: object) -> bool:
    """Return whether calls of *fn* must be awaited.

    *declared_kind* is the user's choice, ``"sync"`` or ``"async"``. If *declared_kind* is ``None``,
    inspect *fn*. Raises `WrapError` if *fn* cannot be wrapped.
    """
    if declared_kind not in (None, "sync", "async"):
        raise WrapError(f"kind must be 'sync' or 'async', not {declared_kind!r}")
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
    return declared_kind == "async" if declared_kind else is_async(fn)


def has_parameter(fn: Callable[..., Any], parameter_name: str) -> bool:
    """Return whether the signature of *fn* has a parameter *parameter_name*."""
    return parameter_name in _read_parameters(fn)


def _read_parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return read_parameters(fn)
    except (ValueError, TypeError):  # some builtins have no signature
        return _ANYTHING


def _is_list_of_one_text(value: Any) -> bool:
    """Return whether *value* is a list with a single text, which is how Chroma takes a query."""
    return isinstance(value, list) and len(value) == 1 and isinstance(value[0], str)


def _remove_argument(argument_key: ArgumentKey, args: list[Any], kwargs: dict[str, Any]) -> None:
    if isinstance(argument_key, int):
        del args[argument_key]
    else:
        kwargs.pop(argument_key, None)
