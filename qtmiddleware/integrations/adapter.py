"""Adapt a framework's retriever to the middleware, for every framework alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError, ResponseShapeError
from qtmiddleware.retrieval.responses import read_response
from qtmiddleware.types import Retrieval, Variant
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.wrapped import Wrapped


class Adapter:
    """A retriever as a wrapped function.

    Args:
        functions: The retriever as a function. If there are two, async calls use the second one.
            If there is one, async calls run it in a thread.
        options: The options of `QueryMiddleware`, ``config`` among them.
        accepted: What a user may pass as the retriever, for error messages.
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
        count_name: str | None = None,
        never_widens: bool = False,
    ) -> None:
        function = functions[0]
        if not callable(function) or isinstance(function, type):
            raise ConfigError(
                f"retriever must be {accepted}, not {_describe_type(function)}",
                path="retriever",
                allowed=accepted,
            )
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
        count = self._add_count(arguments, counts)
        return _limit(self.search.retrieve(query, **arguments), count)

    async def aretrieve(
        self,
        query: Any,
        arguments: dict[str, Any],
        *counts: int | None,
    ) -> Retrieval:
        """Return the passages for *query*. This is the async version of `retrieve`."""
        count = self._add_count(arguments, counts)
        return _limit(await self.asearch.aretrieve(query, **arguments), count)

    def _add_count(
        self,
        arguments: dict[str, Any],
        counts: tuple[int | None, ...],
    ) -> int | None:
        """Add the number of passages to *arguments*; return it if the function takes none."""
        count = next((count for count in counts if count is not None), None)
        name = self.search.top_k_argument
        if name is None:
            return count
        if count is not None:
            arguments.setdefault(name, count)
        return None


def _limit(retrieval: Retrieval, count: int | None) -> Retrieval:
    if count is None:
        return retrieval
    response = retrieval.response
    return replace(
        retrieval,
        matches=retrieval.matches[:count],
        response=response[:count] if isinstance(response, list) else response,
    )


def convert_matches(
    retrieval: Retrieval,
    own_types: type | tuple[type, ...],
    make_item: Callable[[str | None, str, dict[str, Any]], Any],
) -> list[tuple[Any, float | None]]:
    """Return an object of *own_types* for each match, and its score beside it if there is one.

    *make_item* makes an object from an id, a text and metadata, if the retriever returned something
    else. Raises `ResponseShapeError` if that is no passage with a text.
    """
    response = retrieval.response
    if isinstance(response, list) and all(isinstance(item, own_types) for item in response):
        return [(item, None) for item in response]
    problems = {(problem.stage, problem.reason) for problem in retrieval.degradations}
    if ("response", "unreadable") in problems:
        shape = _describe_type(response)
        raise ResponseShapeError(
            f"retriever must return documents, (document, score) pairs or passages, not {shape}",
            shape=shape,
        )
    try:
        # A passage that only a variant found has a score here, on the question's scale.
        scores = read_response(Variant("original", ""), response).ranking.scores
    except ResponseShapeError:  # The user's own `read` function understands this response.
        scores = [match.score for match in retrieval.matches]
    found = []
    for match, score in zip(retrieval.matches, scores, strict=False):
        item = match.raw[0] if isinstance(match.raw, tuple | list) and match.raw else match.raw
        if not isinstance(item, own_types):
            if match.text is None:
                shape = _describe_type(item)
                raise ResponseShapeError(
                    f"retriever returned {shape} without text; set keywordEvidence.fields.text to"
                    " the field that holds it",
                    shape=shape,
                )
            fields = match.metadata.items()
            metadata = {name: value for name, value in fields if value is not match.text}
            item = make_item(match.id, match.text, metadata)
        found.append((item, score))
    return found


def check_count(name: str, count: Any) -> None:
    """Raise `ConfigError` if *count*, the value of the option *name*, is no number of passages."""
    if count is not None and (type(count) is not int or count < 1):
        message = f"{name} must be a whole number of at least 1, not {count!r}"
        raise ConfigError(message, path=name, value=count, allowed="1 or more")


def _describe_type(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
