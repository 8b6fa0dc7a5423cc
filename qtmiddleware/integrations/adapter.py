"""Adapt a framework's retriever to the middleware, for every framework alike.

A framework's module turns its retriever into functions, and passages into its own documents. The
rest is here: the options, the number of passages, the call, and the conversion of matches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from qtmiddleware.errors import ConfigError, ResponseShapeError, WrapError
from qtmiddleware.retrieval.responses import read_response
from qtmiddleware.types import Match, Retrieval, Variant
from qtmiddleware.wrapping.query_log import TextWriter, build_record
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.wrapped import Wrapped, refuse_to_pickle

MIDDLEWARE_OPTIONS: Final = (
    "config",
    "client",
    "reranker",
    "redact",
    "observers",
    "on_retrieval",
    "clock",
)
"""The options of an adapter that `QueryMiddleware` gets."""

_UNREADABLE: Final = ("response", "unreadable")


class Adapter:
    """A retriever as a wrapped function, whose matches become a framework's own documents.

    Args:
        functions: The retriever as a function. If there are two, async calls use the second one.
            If there is one, async calls run it in a thread.
        options: The values of `MIDDLEWARE_OPTIONS`.
        accepted: What a user may pass as the retriever, for error messages.
        items: What the framework calls its documents, for error messages.
        awaited: The names of the async methods, for error messages.
        never_widens: Whether to ask for exactly as many passages as the caller wants.

    Attributes:
        search: The wrapped function for sync calls.
        asearch: The wrapped function for async calls.

    Raises `ConfigError` if the first function is not a function, or if *options* are set although
    it is already wrapped.
    """

    def __init__(
        self,
        functions: tuple[Any, ...],
        options: Mapping[str, Any],
        *,
        accepted: str,
        items: str,
        awaited: str,
        never_widens: bool = False,
    ) -> None:
        self._options = options
        self._items = items
        self._awaited = awaited
        self._never_widens = never_widens
        function = functions[0]
        if not callable(function) or isinstance(function, type):
            raise reject(
                f"not {describe_type(function)}",
                function,
                accepted,
            )
        if not isinstance(function, Wrapped):
            wrap = QueryMiddleware(**options).wrap
            self.search: Any = wrap(function)
            self.asearch: Any = wrap(functions[-1])
            return
        if repeated := [name for name, value in options.items() if value]:
            raise ConfigError(
                f"retriever is already wrapped; set {', '.join(repeated)} where you wrap it",
                path="retriever",
            )
        self.search = self.asearch = function

    def retrieve(
        self,
        query: Any,
        count: int | None,
        arguments: dict[str, Any],
    ) -> Retrieval:
        """Return at most *count* passages. *arguments* are those of `Wrapped.retrieve`."""
        if self.search.is_async:
            raise WrapError(f"{self.search!r} is asynchronous: use {self._awaited}")
        retrieval = self.search.retrieve(query, **self._add_count(count, arguments))
        return self._limit(retrieval, count)

    async def aretrieve(
        self, query: Any, count: int | None, arguments: dict[str, Any]
    ) -> Retrieval:
        """Return at most *count* passages. This is the async version of `retrieve`."""
        retrieval = await self.asearch.aretrieve(query, **self._add_count(count, arguments))
        return self._limit(retrieval, count)

    def _add_count(
        self,
        count: int | None,
        arguments: dict[str, Any],
    ) -> dict[str, Any]:
        name = self.search.top_k_argument
        if name is not None and count is not None:
            arguments.setdefault(name, count)
        # With as many candidates as passages, the middleware does not ask the retriever for more.
        if self._never_widens and isinstance(count, int):
            arguments["config"] = {"keywordEvidence": {"candidates": count}}
        return arguments

    def _limit(
        self,
        retrieval: Retrieval,
        count: int | None,
    ) -> Retrieval:
        if self.search.top_k_argument is not None or not isinstance(count, int) or count < 1:
            return retrieval
        response = retrieval.response
        return replace(
            retrieval,
            matches=retrieval.matches[:count],
            response=response[:count] if isinstance(response, list) else response,
        )

    def convert_matches(
        self,
        retrieval: Retrieval,
        own_types: type | tuple[type, ...],
        make_item: Callable[[str | None, str, dict[str, Any]], Any],
    ) -> list[Any]:
        """Return an object of *own_types* for each match: the one that was found, or a new one.

        *make_item* makes a new object from an id, a text and metadata. Raises `ResponseShapeError`
        if the retriever returned something else than passages with a text.
        """
        if any((entry.stage, entry.reason) == _UNREADABLE for entry in retrieval.degradations):
            shape = describe_type(retrieval.response)
            item = self._items.removesuffix("s")
            message = (
                f"retriever must return {self._items}, ({item}, score) pairs or passages, not"
                f" {shape}"
            )
            raise ResponseShapeError(message, shape=shape)
        found = []
        for match in retrieval.matches:
            item = unwrap_pair(match.raw)
            found.append(item if isinstance(item, own_types) else _make(match, make_item))
        return found

    def build_record(self, retrieval: Retrieval) -> dict[str, Any]:
        """Return the query log's record of *retrieval*, redacted."""
        return build_record(retrieval, TextWriter(self._options["redact"]))

    def reduce(
        self,
        owner: object,
        arguments: dict[str, Any],
    ) -> tuple[Any, ...]:
        """Return what pickles *owner*, which is made with *arguments*.

        Raises `TypeError` if an option besides ``config`` is set, because such an object may hold
        connections or keys.
        """
        if any(self._options[name] for name in MIDDLEWARE_OPTIONS[1:]):
            raise refuse_to_pickle(owner)
        return partial(type(owner), **arguments), ()


def make_searches(
    name: str,
    call: Callable[[Any, int | None, dict[str, Any]], Any],
    acall: Callable[[Any, int | None, dict[str, Any]], Awaitable[Any]] | None,
    *,
    sets_count: bool,
) -> tuple[Callable[..., Any], ...]:
    """Return *call* and *acall* as functions of a query and a number of passages.

    Args:
        name: The name of the functions in messages.
        call: Gets the query, the number of passages (``None`` for the retriever's own number) and
            the other arguments.
        acall: The async version of *call*, if there is one.
        sets_count: Whether the retriever takes a number. If not, its result is truncated.
    """

    def limit(response: Any, top_k: int | None) -> Any:
        return response if sets_count or not isinstance(response, list) else response[:top_k]

    def search(query: Any, top_k: int | None = None, **arguments: Any) -> Any:
        return limit(
            call(
                query,
                top_k if sets_count else None,
                arguments,
            ),
            top_k,
        )

    search.__qualname__ = name
    if acall is None:
        return (search,)

    async def asearch(query: Any, top_k: int | None = None, **arguments: Any) -> Any:
        return limit(
            await acall(
                query,
                top_k if sets_count else None,
                arguments,
            ),
            top_k,
        )

    asearch.__qualname__ = name
    return search, asearch


def check_count(name: str, count: Any) -> None:
    """Raise `ConfigError` if *count*, the value of the option *name*, is no number of passages."""
    if count is not None and (type(count) is not int or count < 1):
        message = f"{name} must be a whole number of at least 1, not {count!r}"
        raise ConfigError(
            message,
            path=name,
            value=count,
            allowed="1 or more",
        )


def choose_count(*counts: int | None) -> int | None:
    """Return the first of *counts* that is set; ``None`` if none is."""
    return next((count for count in counts if count is not None), None)


def list_scores(retrieval: Retrieval) -> list[float | None]:
    """Return the score of each match, as the response shows it.

    In the response, a passage that only a variant found has a score on the question's scale. Its
    match has none.
    """
    try:
        ranking = read_response(Variant("original", ""), retrieval.response).ranking
    except ResponseShapeError:  # The user's own `read` function understands this response.
        return [match.score for match in retrieval.matches]
    return list(ranking.scores[: len(retrieval.matches)])


def unwrap_pair(item: Any) -> Any:
    """Return the document in *item*, a document or a (document, score) pair."""
    return item[0] if isinstance(item, tuple | list) and item else item


def reject(
    reason: str,
    value: Any,
    accepted: str,
    path: str = "retriever",
) -> ConfigError:
    """Return the error for *value*, which cannot be what the option *path* must be."""
    return ConfigError(
        f"{path} must be {accepted}, {reason}",
        path=path,
        value=describe_type(value),
        allowed=accepted,
    )


def describe_type(value: Any) -> str:
    """Return the name of the type of *value*, or of *value* if it is a class."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _make(match: Match, make_item: Callable[[str | None, str, dict[str, Any]], Any]) -> Any:
    if match.text is None:
        shape = describe_type(unwrap_pair(match.raw))
        message = (
            f"retriever returned {shape} without text; set keywordEvidence.fields.text to the field"
            " that holds it"
        )
        raise ResponseShapeError(message, shape=shape)
    metadata = {name: value for name, value in match.metadata.items() if value is not match.text}
    return make_item(match.id, match.text, metadata)
