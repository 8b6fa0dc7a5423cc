"""Embed texts with a function, a client's method or an object of another library.

An embedding function takes one text and returns its vector, or takes a list of texts and returns a
list of vectors. The function's type or signature usually shows which. Otherwise, the first calls
do. A wrong call may succeed: with a list, a function for single texts often returns the vector of
the first text, and with a text, a function for lists returns one vector per letter. So the vectors
are compared. There must be one per text, and different texts must have different vectors.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from enum import Enum
from functools import partial
from math import isclose
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin

from qtmiddleware.errors import EmbeddingError, WrapError, is_outage
from qtmiddleware.providers import find_function_name
from qtmiddleware.providers.embedders.vectors import (
    Vectors,
    check_vectors,
    read_input_tokens,
    read_vectors,
)
from qtmiddleware.runtime.background_loop import is_async, run_in_background_loop
from qtmiddleware.runtime.drivers import run_in_thread
from qtmiddleware.runtime.steps import adrive_generator, drive_generator


class Contract(Enum):
    """The argument of an embedding function: one text, or a list of texts."""

    ONE = "a function from a text to its vector"
    MANY = "a function from a list of texts to a list of vectors"


QUERY_METHODS: Final = ("embed_query", "get_query_embedding", "embed", "encode_query", "encode")
PASSAGE_METHODS: Final = (
    "embed_documents",
    "get_text_embedding_batch",
    "embed",
    "encode_document",
    "encode",
)
"""The methods of LangChain, LlamaIndex, this package's `Embedder` and sentence-transformers.

Their asynchronous versions have an ``a`` before the name.
"""
CONCURRENCY: Final = 8
"""The most concurrent calls of a function that takes one text per call."""

_LISTS: Final = (list, Sequence, Iterable, Collection)
_PROBES: Final = ("How are invoices paid?", "How does a cat sleep on the sofa?")
"""Two texts that begin with the same letter.

A function for lists may treat a text as a list of letters, and return only the vector of the first
letter. Then both texts get equal vectors.
"""
_MISUSE: Final = (
    TypeError,
    AttributeError,
    LookupError,
    ValueError,
    AssertionError,
    NotImplementedError,
)
"""The exceptions that a wrong argument causes. All others come from the function's service."""
_DRAIN_SECONDS: Final = 0.02
"""The most seconds to wait until cancelled calls have cleaned up."""

_Calls = Sequence[str | list[str]]
"""The calls to make, as one argument per call."""
_Vectors = list[list[float]]
_Embedding = Generator[_Calls, Any, _Vectors]
"""A generator that yields calls and returns the vectors.

The caller sends the calls' results, or throws their error.
"""


class CallableEmbedder:
    """Embeds texts with a function, or with an object of another library.

    The function takes one text and returns its vector, or takes a list of texts and returns one
    vector per text. It may be a method, partial or callable object, and it may be async. Vectors
    are lists, tuples, arrays or tensors. The function may also return a response of OpenAI's
    ``embeddings.create`` or Pinecone's ``inference.embed``. Accepted objects are LangChain's
    ``Embeddings``, LlamaIndex embeddings, sentence-transformers models and any `Embedder`.

    The annotation of the function's parameter (``str``, ``list[str]``, ``Sequence[str]``) shows
    whether the function takes a text or a list. Without an annotation, the first call tries a list.
    If that fails, three more calls follow. The result is remembered.

    Thread-safe if the function is. Exceptions of the function pass through unchanged.

    Args:
        function_or_model: The function or object.
        name: The name to store in an index; by default the name of the function or model.
        dimension: The length of the vectors; by default the length of the first vectors.
        for_queries: Whether to call the object's method for questions instead of its method for
            passages.

    Raises:
        WrapError: *function_or_model* cannot embed texts.
        EmbeddingError: A result contains no valid vectors, or not one per text.
    """

    def __init__(
        self,
        function_or_model: Any,
        *,
        name: str = "",
        dimension: int | None = None,
        for_queries: bool = False,
    ) -> None:
        self._embedder = function_or_model
        self._function, self._async_function = _find_embedding_methods(
            function_or_model, QUERY_METHODS if for_queries else PASSAGE_METHODS
        )
        self._keyword, self._contract = _find_keyword_and_contract(self._function)
        self._name = name or _find_embedder_name(function_or_model, self._function)
        self.model_name = "" if self._name == find_function_name(function_or_model) else self._name
        """The model's name; ``""`` for a function."""
        self.provider: str = getattr(function_or_model, "provider", "")
        """The model's provider; ``""`` if it is unknown."""
        self._dimension = dimension

    def __repr__(self) -> str:
        return f"CallableEmbedder(name={self._name!r}, dimension={self._dimension})"

    @property
    def name(self) -> str:
        """The argument *name*, or else the name of the function or model."""
        return self._name

    @property
    def server(self) -> Any:
        """The server's host and port; ``None`` if they are unknown."""
        return getattr(self._embedder, "server", None)

    @property
    def dimension(self) -> int:
        """The length of every vector. If the length is unknown, one word is embedded to find it."""
        if self._dimension is None:
            return len(self.embed(["dimension"])[0])
        return self._dimension

    @property
    def queries(self) -> CallableEmbedder:
        """The embedder that calls the model's method for questions.

        If the model embeds questions and passages in the same way, this is the embedder itself.
        """
        if _find_embedding_methods(self._embedder, QUERY_METHODS)[0] == self._function:
            return self
        return CallableEmbedder(
            self._embedder, name=self._name, dimension=self._dimension, for_queries=True
        )

    def embed(self, texts: Sequence[str], max_concurrency: int = CONCURRENCY) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*.

        An async function runs in the background loop. A function that takes one text per call gets
        up to *max_concurrency* calls at a time, in threads if it is synchronous.
        """
        if not texts:
            return []
        return drive_generator(
            self._embed(list(texts)), partial(self._call_each, max_concurrency=max_concurrency)
        )

    async def aembed(
        self, texts: Sequence[str], max_concurrency: int = CONCURRENCY
    ) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*, without blocking the event loop.

        A synchronous function runs in a thread. A function that takes one text per call gets up to
        *max_concurrency* calls at a time.
        """
        if not texts:
            return []
        fn = self._async_function or self._function
        return await adrive_generator(
            self._embed(list(texts)),
            partial(self._gather_calls, fn, max_concurrency=max_concurrency),
        )

    def _call_each(self, calls: _Calls, max_concurrency: int) -> list[Any]:
        """Call the function once per argument in *calls*, and return the results.

        A single call is made in this thread.
        """
        if len(calls) > 1:
            return run_in_background_loop(
                lambda: self._gather_calls(self._function, calls, max_concurrency)
            )
        result = self._call_function(self._function, calls[0])
        return [
            run_in_background_loop(lambda: _await_result(result))
            if inspect.isawaitable(result)
            else result
        ]

    async def _gather_calls(
        self, fn: Callable[..., Any], calls: _Calls, max_concurrency: int
    ) -> list[Any]:
        """Call *fn* once per argument in *calls*, and return the results.

        At most *max_concurrency* calls run at the same time. If one fails, the others are
        cancelled.
        """
        if len(calls) == 1:
            return [await self._acall_function(fn, calls[0])]
        slots = asyncio.Semaphore(max_concurrency)

        async def call_in_slot(argument: str | list[str]) -> Any:
            async with slots:
                return await self._acall_function(fn, argument)

        tasks = [asyncio.ensure_future(call_in_slot(argument)) for argument in calls]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            # The cancelled calls get a moment to clean up before the error is raised.
            await asyncio.wait(tasks, timeout=_DRAIN_SECONDS)

    def _call_function(self, fn: Callable[..., Any], argument: str | list[str]) -> Any:
        if isinstance(argument, list):
            argument = list(argument)  # A copy, because the function may change its argument.
        result = fn(**{self._keyword: argument}) if self._keyword else fn(argument)
        return result if inspect.isawaitable(result) else _collect_iterator(result)

    async def _acall_function(self, fn: Callable[..., Any], argument: str | list[str]) -> Any:
        call = partial(self._call_function, fn, argument)
        result = call() if is_async(fn) else await run_in_thread(call)
        return await _await_result(result) if inspect.isawaitable(result) else result

    def _embed(self, texts: list[str]) -> _Embedding:
        """Yield the calls that embed *texts*, and return the vectors."""
        if self._contract is Contract.ONE:
            vectors = yield from self._embed_each(texts)
        elif self._contract is Contract.MANY:
            (result,) = yield [texts]
            vectors = self._read_result(result, len(texts), self._dimension)
        else:
            vectors = yield from self._learn_contract(texts)
        self._dimension = len(vectors[0])
        return vectors

    def _embed_each(self, texts: list[str]) -> _Embedding:
        vectors = Vectors()
        for result in (yield texts):
            vectors.add(
                self._read_result(result, 1, len(vectors[0]) if vectors else self._dimension)
            )
        return vectors

    def _learn_contract(self, texts: list[str]) -> _Embedding:
        """Find out whether the function takes a text or a list, and return the vectors of *texts*.

        Different vectors prove that a list works. Equal vectors prove nothing, because some models
        ignore case: "Fees" and "fees" get the same vector.
        """
        # A list of one text shows nothing, so a constant text is added.
        sent = (
            texts
            if len(set(texts)) > 1
            else [*texts, next(probe for probe in _PROBES if probe != texts[0])]
        )
        # The list comes first: if it works, this single call returns all vectors.
        list_attempt = yield from self._try_call(sent, len(sent))
        if list_attempt.vectors and not _are_nearly_equal(list_attempt.vectors):
            self._contract = Contract.MANY
            return list_attempt.vectors[: len(texts)]
        text_attempt, other_attempt = (
            (yield from self._probe_function(_PROBES[0])),
            (yield from self._probe_function(_PROBES[1])),
        )
        if text_attempt.vectors and other_attempt.vectors:
            if (
                yield from self._reads_whole_texts(
                    text_attempt.vectors[0], other_attempt.vectors[0]
                )
            ):
                self._contract = Contract.ONE
                return (yield from self._embed_each(texts))
            text_attempt = text_attempt._replace(report="treated the text as a list of letters")
        elif list_attempt.vectors and (yield from self._embeds_list_items_separately()):
            self._contract = Contract.MANY
            return list_attempt.vectors[: len(texts)]
        if (error := _find_service_error(text_attempt.error, list_attempt.error)) is not None:
            raise error
        raise EmbeddingError(
            f"{self._name} must be {Contract.ONE.value} or {Contract.MANY.value}. "
            f"Given a text it {text_attempt.report}; given a list of {len(sent)} texts it"
            f" {list_attempt.report}"
        ) from (text_attempt.error or list_attempt.error)

    def _reads_whole_texts(
        self, vector: list[float], other_vector: list[float]
    ) -> Generator[_Calls, Any, bool]:
        """Return whether the function embedded whole texts rather than their first letters.

        *vector* and *other_vector* belong to two constant texts with the same first letter, so
        different vectors prove it. A test double may return the same vector for every text. Then a
        third call, with a list, decides.
        """
        if not _are_nearly_equal([vector, other_vector]):
            return True
        attempt = yield from self._probe_function([_PROBES[0]])
        return _are_nearly_equal([vector, *(attempt.vectors or ())])

    def _embeds_list_items_separately(self) -> Generator[_Calls, Any, bool]:
        """Return whether a text gets the same vector in a list of two as in a list of one.

        This test is needed if different texts had equal vectors.
        """
        pair, alone = (
            (yield from self._probe_function(list(_PROBES))),
            (yield from self._probe_function([_PROBES[1]])),
        )
        return (
            _are_nearly_equal([*pair.vectors[1:], *alone.vectors])
            if pair.vectors and alone.vectors
            else False
        )

    def _probe_function(self, argument: str | list[str]) -> Generator[_Calls, Any, _Attempt]:
        """Call the function with *argument*, and return the attempt.

        Errors of an outage are raised, because the function cannot be examined while its service is
        down.
        """
        attempt = yield from self._try_call(
            argument, 1 if isinstance(argument, str) else len(argument)
        )
        if attempt.error is not None and is_outage(attempt.error):
            raise attempt.error
        return attempt

    def _try_call(
        self, argument: str | list[str], text_count: int
    ) -> Generator[_Calls, Any, _Attempt]:
        """Call the function with *argument*, and return its vectors or its error."""
        try:
            (result,) = yield [argument]
        except Exception as error:
            return _Attempt(error=error, report=f"raised {type(error).__name__}")
        try:
            vectors = self._read_result(result, text_count, self._dimension)
        except EmbeddingError as error:
            problem = str(error).removeprefix(f"{self._name} returned ")
            return _Attempt(report=f"returned {type(result).__name__} ({problem})")
        return _Attempt(
            vectors,
            report="returned the same vector for each" if text_count > 1 else "returned one",
        )

    def _read_result(self, result: Any, text_count: int, dimension: int | None) -> Vectors:
        """Return the vectors in the function's *result*.

        Raises `EmbeddingError` if *result* does not contain *text_count* valid vectors.
        """
        data = result.get("data") if isinstance(result, Mapping) else getattr(result, "data", None)
        # A response of Pinecone's or OpenAI's client. Arrays also have `data`, which is no list.
        if isinstance(data, list):
            values = [
                item.values for item in data if isinstance(getattr(item, "values", None), list)
            ]
            result = (
                Vectors(values, read_input_tokens(result))
                if values
                else read_vectors(result, text_count, self._name)
            )
        # Iterating over a dict or a set would yield numbers in the wrong order.
        elif isinstance(result, Mapping | Set):
            result = None
        elif _is_single_vector(result):
            if text_count > 1:
                raise EmbeddingError(f"{self._name} returned one vector for {text_count} texts")
            result = [result]
        return check_vectors(result, text_count, dimension=dimension, name=self._name)


class _Attempt(NamedTuple):
    """The result of one call that shows what a function takes.

    Attributes:
        vectors: The checked vectors; ``None`` if the call failed.
        error: The function's exception; ``None`` if it raised none.
        report: A description of the result for error messages.
    """

    vectors: _Vectors | None = None
    error: Exception | None = None
    report: str = ""


async def _await_result(awaitable: Awaitable[Any]) -> Any:
    return _collect_iterator(await awaitable)


def _collect_iterator(result: Any) -> Any:
    """Return the items of *result* as a list if it is an iterator, else *result* unchanged."""
    return list(result) if isinstance(result, Iterator) else result


def _find_embedding_methods(
    embedder: Any, method_names: Sequence[str]
) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """Return the embedding method of *embedder*, and its async version.

    The first of *method_names* that exists is used. A function is its own method. The second item
    is ``None`` if there is no async version. If there is only an async method, both items are that
    method. Raises `WrapError` if *embedder* has no such method and is no function.
    """
    if not isinstance(embedder, str | bytes | type):
        for name in method_names:
            sync_method, async_method = (
                method if callable(method := getattr(embedder, f"{prefix}{name}", None)) else None
                for prefix in ("", "a")
            )
            if (either := sync_method or async_method) is not None:
                return either, async_method
        if callable(embedder):
            return embedder, None
    kind = (
        f"the class {embedder.__name__}; make an object of it"
        if isinstance(embedder, type)
        else type(embedder).__name__
    )
    raise WrapError(
        f"embed must be {Contract.ONE.value}, {Contract.MANY.value}, or an object that embeds "
        f"(LangChain, LlamaIndex, sentence-transformers or an Embedder), not {kind}"
    )


def _find_embedder_name(embedder: Any, fn: Any) -> str:
    """Return the name of the function or model that embeds.

    For a function, this is the function's name. For an object, it is the model's name, or else the
    name of the class.
    """
    if fn is embedder:
        return getattr(fn, "__qualname__", "") or type(fn).__qualname__
    names = (getattr(embedder, name, None) for name in ("name", "model_name", "model"))
    return next(
        (name for name in names if isinstance(name, str) and name), type(embedder).__qualname__
    )


def _find_keyword_and_contract(fn: Callable[..., Any]) -> tuple[str, Contract | None]:
    """Return the keyword that passes texts to *fn*, and whether *fn* takes one text or a list.

    The keyword is ``""`` if the texts are the first positional argument. The second item is
    ``None`` if the annotation does not show what *fn* takes.
    """
    try:
        parameters = list(inspect.signature(fn, eval_str=True).parameters.values())
    except Exception:  # An annotation may use a name that is imported only for type checkers.
        return "", None
    chosen = next(
        (
            parameter
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ),
        None,
    )
    if chosen is None and not any(
        parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters
    ):
        # Without positional parameters, a single required keyword takes the texts.
        needed = [
            parameter
            for parameter in parameters
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
        ]
        chosen = needed[0] if len(needed) == 1 else None
    if chosen is None:
        return "", None
    return chosen.name if chosen.kind is chosen.KEYWORD_ONLY else "", _read_contract(
        chosen.annotation
    )


def _read_contract(annotation: Any) -> Contract | None:
    """Return what a parameter with this *annotation* takes: one text, or a list of texts.

    Returns ``None`` if the annotation shows neither.
    """
    if annotation is str:
        return Contract.ONE
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        contracts = {_read_contract(argument) for argument in arguments if argument is not NoneType}
        return contracts.pop() if len(contracts) == 1 else None
    return (
        Contract.MANY if annotation is list or (origin in _LISTS and arguments == (str,)) else None
    )


def _is_single_vector(result: Any) -> bool:
    """Return whether *result* is a single vector rather than a list of vectors."""
    # The first item of a vector is a number, which cannot be iterated. In an array or tensor, the
    # number is an item without dimensions, which cannot be iterated either.
    try:
        iter(next(iter(result)))
    except StopIteration:
        return False
    except TypeError:
        return hasattr(result, "__iter__")
    return False


def _are_nearly_equal(vectors: _Vectors) -> bool:
    """Return whether all *vectors* are equal within a tolerance (relative 1e-4, absolute 1e-6).

    The tolerance is needed because a service's vectors for one text differ slightly between calls.
    """
    reference, *others = vectors
    return all(
        len(reference) == len(other)
        and all(
            isclose(a, b, rel_tol=1e-4, abs_tol=1e-6) for a, b in zip(reference, other, strict=True)
        )
        for other in others
    )


def _find_service_error(*errors: Exception | None) -> Exception | None:
    """Return the first error that the function's service caused; ``None`` if there is none.

    *errors* are the errors of two calls, one with a text and one with a list. An outage is always
    the service's error. If both calls failed, so is every error that a wrong argument cannot cause.
    """
    raised = [error for error in errors if error is not None]
    candidates = (
        error
        for error in raised
        if is_outage(error) or (len(raised) == 2 and not isinstance(error, _MISUSE))
    )
    return next(candidates, None)
