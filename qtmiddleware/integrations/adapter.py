"""Adapt a framework's retriever to the middleware, for every framework alike.

A framework's module turns its retriever into functions, and passages into its own documents. The
rest is here: the options, the number of passages, the call, and the conversion of matches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from qtmiddleware.config import Config
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
        count_name: The functions' argument for the number of passages, if it is known.
        never_widens: Whether to ask for exactly as many passages as the caller wants.

    Attributes:
        search: The wrapped function for sync calls.
        asearch: The wrapped function for async calls.

    Raises `ConfigError` if the first function is not a function, or if *options* are set although
    it is already wrapped.
    """

    search: Any
    asearch: Any

    def __init__(
        self,
        functions: tuple[Any, ...],
        options: Mapping[str, Any],
        *,
        accepted: str,
        items: str,
        awaited: str,
        count_name: str | None = None,
        never_widens: bool = False,
    ) -> None:
        self._options = options
        self._items = items
        self._awaited = awaited
        function = functions[0]
        if not callable(function) or isinstance(function, type):
            raise reject(f"not {describe_type(function)}", function, accepted)
        if isinstance(function, Wrapped):
            if repeated := [name for name, value in options.items() if value]:
                raise ConfigError(
                    f"retriever is already wrapped; set {', '.join(repeated)} where you wrap it",
                    path="retriever",
                )
            self.search = self.asearch = function
            return
        if never_widens:
            config = Config.load(options["config"], origin="QueryMiddleware")
            config = config.overridden({"keywordEvidence": {"candidates": 0}})
            options = {**options, "config": config}
        wrap = QueryMiddleware(**options).wrap
        self.search = wrap(function, top_k_arg=count_name)
        self.asearch = wrap(functions[-1], top_k_arg=count_name)

    def retrieve(
        self,
        query: Any,
        arguments: dict[str, Any],
        *counts: int | None,
    ) -> Retrieval:
        """Return at most as many passages as the first of *counts* that is set says.

        *arguments* are those of `Wrapped.retrieve`.
        """
        if self.search.is_async:
            raise WrapError(f"{self.search!r} is asynchronous: use {self._awaited}")
        count = self._add_count(arguments, counts)
        return self._limit(self.search.retrieve(query, **arguments), count)

    async def aretrieve(
        self,
        query: Any,
        arguments: dict[str, Any],
        *counts: int | None,
    ) -> Retrieval:
        """Return the passages for *query*. This is the async version of `retrieve`."""
        count = self._add_count(arguments, counts)
        return self._limit(await self.asearch.aretrieve(query, **arguments), count)

    def _add_count(self, arguments: dict[str, Any], counts: Iterable[int | None]) -> int | None:
        """Add the number of passages to *arguments*; return it if the function takes none."""
        count = next((count for count in counts if count is not None), None)
        name = self.search.top_k_argument
        if name is None:
            return count
        if count is not None:
            arguments.setdefault(name, count)
        return None

    def _limit(self, retrieval: Retrieval, count: int | None) -> Retrieval:
        if count is None:
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

    def reduce(self, owner: object, arguments: dict[str, Any]) -> tuple[Any, ...]:
        """Return what pickles *owner*, which is made with *arguments*.

        Raises `TypeError` if an option besides ``config`` is set, because such an object may hold
        connections or keys.
        """
        if any(self._options[name] for name in MIDDLEWARE_OPTIONS[1:]):
            raise refuse_to_pickle(owner)
        return partial(type(owner), **arguments), ()


def check_count(name: str, count: Any) -> None:
    """Raise `ConfigError` if *count*, the value of the option *name*, is no number of passages."""
    if count is not None and (type(count) is not int or count < 1):
        message = f"{name} must be a whole number of at least 1, not {count!r}"
        raise ConfigError(message, path=name, value=count, allowed="1 or more")


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
