"""Embed texts with a function, a client's method or an object of another library.

An embedding function takes either one text or a list of texts. The function's signature usually
shows the type of the argument. Otherwise, the first calls find out the type.

A call with the wrong type of argument may succeed. Given a list, a function for single texts often
returns the vector of the first text. Given a text, a function for lists returns one vector per
letter. So this module compares the vectors: there must be one vector per text, and different texts
must have different vectors.
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
    check_and_convert_vectors,
    read_input_tokens,
    read_vectors,
)
from qtmiddleware.runtime.background_loop import is_async, run_in_background_loop
from qtmiddleware.runtime.drivers import run_in_thread
from qtmiddleware.runtime.steps import adrive_generator, drive_generator


class ArgumentType(Enum):
    """The type of argument that an embedding function takes: one text, or a list of texts."""

    ONE_TEXT = "a function from a text to its vector"
    TEXT_LIST = "a function from a list of texts to a list of vectors"


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
"""The maximum number of concurrent calls to a function that takes one text per call."""

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
"""The exceptions that a wrong argument causes. Others come from the function's service."""
_DRAIN_SECONDS: Final = 0.02
"""The maximum time in seconds for cancelled calls to clean up."""

_Arguments = Sequence[str | list[str]]
"""The arguments of the calls to make, one per call."""
_Vectors = list[list[float]]
_Embedding = Generator[_Arguments, Any, _Vectors]
"""A generator that yields the arguments of calls, and returns the vectors.

The code that runs the generator makes the calls. It sends their results to the generator, or throws
their error.
"""


class CallableEmbedder:
    """Embeds texts with a function, or with an object of another library.

    The function takes one text and returns its vector, or takes a list of texts and returns one
    vector per text. The function may be a method, partial or callable object, and it may be async.
    Vectors are lists, tuples, arrays or tensors. The function may also return a response of
    OpenAI's ``embeddings.create`` or Pinecone's ``inference.embed``. Accepted objects are
    LangChain's ``Embeddings``, LlamaIndex embeddings, sentence-transformers models and any
    `Embedder`.

    The annotation of the function's parameter (``str``, ``list[str]``, ``Sequence[str]``) shows
    whether the function takes a text or a list. Without an annotation, the first call passes a
    list. If its result is unclear, up to four test calls follow. Later calls need no tests.

    Thread-safe if the function is. Exceptions of the function pass through unchanged.

    Args:
        function_or_model: The function or object that embeds texts.
        name: The name to store in an index; by default the name of the function or model.
        dimension: The length of the vectors; by default the length of the first vectors.
        for_queries: Whether to call the object's method for questions instead of its method for
            passages.

    Raises:
        WrapError: *function_or_model* cannot embed texts.
        EmbeddingError: A result does not contain one valid vector per text.
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
        self._keyword, self._argument_type = _find_keyword_and_argument_type(self._function)
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
        """The embedder's name: the argument *name*, or else the name of the function or model."""
        return self._name

    @property
    def server(self) -> Any:
        """The server's host and port; ``None`` if they are unknown."""
        return getattr(self._embedder, "server", None)

    @property
    def dimension(self) -> int:
        """The length of every vector. If the length is unknown, embeds one word to find it."""
        if self._dimension is None:
            return len(self.embed(["dimension"])[0])
        return self._dimension

    @property
    def queries(self) -> CallableEmbedder:
        """The embedder that calls the model's method for questions.

        If the model has no separate method for questions, this is the embedder itself.
        """
        if _find_embedding_methods(self._embedder, QUERY_METHODS)[0] == self._function:
            return self
        return CallableEmbedder(
            self._embedder, name=self._name, dimension=self._dimension, for_queries=True
        )

    def embed(self, texts: Sequence[str], max_concurrency: int = CONCURRENCY) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*.

        An async function runs in the background loop. A function that takes one text per call gets
        up to *max_concurrency* calls at a time, in threads if the function is synchronous.
        """
        if not texts:
            return []
        return drive_generator(
            self._embed_texts(list(texts)),
            partial(self._collect_results, max_concurrency=max_concurrency),
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
            self._embed_texts(list(texts)),
            partial(self._gather_results, fn, max_concurrency=max_concurrency),
        )

    def _collect_results(self, arguments: _Arguments, max_concurrency: int) -> list[Any]:
        """Call the function once per item of *arguments*, and return the results.

        A single call runs in the caller's thread. Several calls run at the same time.
        """
        if len(arguments) > 1:
            return run_in_background_loop(
                lambda: self._gather_results(self._function, arguments, max_concurrency)
            )
        result = self._call_function(self._function, arguments[0])
        return [
            run_in_background_loop(lambda: _await_result(result))
            if inspect.isawaitable(result)
            else result
        ]

    async def _gather_results(
        self, fn: Callable[..., Any], arguments: _Arguments, max_concurrency: int
    ) -> list[Any]:
        """Call *fn* once per item of *arguments*, and return the results.

        At most *max_concurrency* calls run at the same time. If a call fails, the other calls are
        cancelled.
        """
        if len(arguments) == 1:
            return [await self._acall_function(fn, arguments[0])]
        slots = asyncio.Semaphore(max_concurrency)

        async def call_in_slot(argument: str | list[str]) -> Any:
            async with slots:
                return await self._acall_function(fn, argument)

        tasks = [asyncio.ensure_future(call_in_slot(argument)) for argument in arguments]
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
        return result if inspect.isawaitable(result) else _convert_iterator_to_list(result)

    async def _acall_function(self, fn: Callable[..., Any], argument: str | list[str]) -> Any:
        call = partial(self._call_function, fn, argument)
        result = call() if is_async(fn) else await run_in_thread(call)
        return await _await_result(result) if inspect.isawaitable(result) else result

    def _embed_texts(self, texts: list[str]) -> _Embedding:
        """Yield the arguments of the calls that embed *texts*, and return the vectors."""
        if self._argument_type is ArgumentType.ONE_TEXT:
            vectors = yield from self._embed_in_separate_calls(texts)
        elif self._argument_type is ArgumentType.TEXT_LIST:
            (result,) = yield [texts]
            vectors = self._read_result_vectors(result, len(texts), self._dimension)
        else:
            vectors = yield from self._learn_argument_type(texts)
        self._dimension = len(vectors[0])
        return vectors

    def _embed_in_separate_calls(self, texts: list[str]) -> _Embedding:
        vectors = Vectors()
        for result in (yield texts):
            vectors.append_vectors(
                self._read_result_vectors(
                    result, 1, len(vectors[0]) if vectors else self._dimension
                )
            )
        return vectors

    def _learn_argument_type(self, texts: list[str]) -> _Embedding:
        """Find out whether the function takes a text or a list, and return the vectors of *texts*.

        The first call passes a list. If the vectors differ, the function takes lists. Equal vectors
        prove nothing, because some models ignore case: "Fees" and "fees" get the same vector.
        """
        # A list of one text shows nothing, so a constant text is added.
        sent = (
            texts
            if len(set(texts)) > 1
            else [*texts, next(probe for probe in _PROBES if probe != texts[0])]
        )
        # The list comes first: if it works, this single call returns all vectors.
        list_attempt = yield from self._try_function(sent, len(sent))
        if list_attempt.vectors and not _are_nearly_equal(list_attempt.vectors):
            self._argument_type = ArgumentType.TEXT_LIST
            return list_attempt.vectors[: len(texts)]
        text_attempt, other_attempt = (
            (yield from self._probe_function(_PROBES[0])),
            (yield from self._probe_function(_PROBES[1])),
        )
        if text_attempt.vectors and other_attempt.vectors:
            if (
                yield from self._has_embedded_whole_texts(
                    text_attempt.vectors[0], other_attempt.vectors[0]
                )
            ):
                self._argument_type = ArgumentType.ONE_TEXT
                return (yield from self._embed_in_separate_calls(texts))
            text_attempt = text_attempt._replace(report="treated the text as a list of letters")
        elif list_attempt.vectors and (yield from self._can_embed_lists()):
            self._argument_type = ArgumentType.TEXT_LIST
            return list_attempt.vectors[: len(texts)]
        if (error := _find_service_error(text_attempt.error, list_attempt.error)) is not None:
            raise error
        raise EmbeddingError(
            f"{self._name} must be {ArgumentType.ONE_TEXT.value} or"
            f" {ArgumentType.TEXT_LIST.value}. Given a text it {text_attempt.report}; given a list"
            f" of {len(sent)} texts it {list_attempt.report}"
        ) from (text_attempt.error or list_attempt.error)

    def _has_embedded_whole_texts(
        self, vector: list[float], other_vector: list[float]
    ) -> Generator[_Arguments, Any, bool]:
        """Return whether the function embedded whole texts rather than their first letters.

        *vector* and *other_vector* belong to two constant texts with the same first letter. If the
        vectors differ, the function embedded whole texts. A test double may return the same vector
        for every text, so a call with a list decides if the vectors are equal.
        """
        if not _are_nearly_equal([vector, other_vector]):
            return True
        attempt = yield from self._probe_function([_PROBES[0]])
        return _are_nearly_equal([vector, *(attempt.vectors or ())])

    def _can_embed_lists(self) -> Generator[_Arguments, Any, bool]:
        """Return whether a text gets the same vector in a list of two as in a list of one.

        This shows that the function takes lists, even if it returned equal vectors for different
        texts.
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

    def _probe_function(self, argument: str | list[str]) -> Generator[_Arguments, Any, _Attempt]:
        """Call the function with *argument*, and return its vectors or its error.

        Raises the error if the function's service is down, because the call then shows nothing
        about the function.
        """
        attempt = yield from self._try_function(
            argument, 1 if isinstance(argument, str) else len(argument)
        )
        if attempt.error is not None and is_outage(attempt.error):
            raise attempt.error
        return attempt

    def _try_function(
        self, argument: str | list[str], text_count: int
    ) -> Generator[_Arguments, Any, _Attempt]:
        """Call the function with *argument*, and return its vectors or its error.

        If the result does not contain *text_count* valid vectors, the attempt has no vectors.
        """
        try:
            (result,) = yield [argument]
        except Exception as error:
            return _Attempt(error=error, report=f"raised {type(error).__name__}")
        try:
            vectors = self._read_result_vectors(result, text_count, self._dimension)
        except EmbeddingError as error:
            problem = str(error).removeprefix(f"{self._name} returned ")
            return _Attempt(report=f"returned {type(result).__name__} ({problem})")
        return _Attempt(
            vectors,
            report="returned the same vector for each" if text_count > 1 else "returned one",
        )

    def _read_result_vectors(self, result: Any, text_count: int, dimension: int | None) -> Vectors:
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
        return check_and_convert_vectors(
            result, text_count, dimension=dimension, model_name=self._name
        )


class _Attempt(NamedTuple):
    """The outcome of one test call, made to find out which type of argument a function takes.

    Attributes:
        vectors: The checked vectors; ``None`` if the call failed.
        error: The function's exception; ``None`` if the function raised no exception.
        report: A description of the result for error messages.
    """

    vectors: _Vectors | None = None
    error: Exception | None = None
    report: str = ""


async def _await_result(awaitable: Awaitable[Any]) -> Any:
    return _convert_iterator_to_list(await awaitable)


def _convert_iterator_to_list(result: Any) -> Any:
    """Return *result* as a list if *result* is an iterator, else *result* unchanged."""
    return list(result) if isinstance(result, Iterator) else result


def _find_embedding_methods(
    embedder: Any, method_names: Sequence[str]
) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """Return the embedding method of *embedder*, and the method's async version.

    The method is the first of *method_names* that *embedder* has. If *embedder* is a function, the
    function itself is returned. The async version is ``None`` if there is none. If there is only an
    async method, both items are that method.

    Raises `WrapError` if *embedder* is not a function and has none of the methods.
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
        f"embed must be {ArgumentType.ONE_TEXT.value}, {ArgumentType.TEXT_LIST.value}, or an object"
        f" that embeds (LangChain, LlamaIndex, sentence-transformers or an Embedder), not {kind}"
    )


def _find_embedder_name(embedder: Any, fn: Any) -> str:
    """Return the name of *embedder*, whose function or method *fn* embeds texts.

    A function has its own name. An object has the name of its model, or else of its class.
    """
    if fn is embedder:
        return getattr(fn, "__qualname__", "") or type(fn).__qualname__
    names = (getattr(embedder, name, None) for name in ("name", "model_name", "model"))
    return next(
        (name for name in names if isinstance(name, str) and name), type(embedder).__qualname__
    )


def _find_keyword_and_argument_type(fn: Callable[..., Any]) -> tuple[str, ArgumentType | None]:
    """Return the keyword that passes texts to *fn*, and the type of argument that *fn* takes.

    The keyword is ``""`` if *fn* takes texts as its first positional argument. The type is ``None``
    if the annotation does not show whether *fn* takes one text or a list.
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
    return chosen.name if chosen.kind is chosen.KEYWORD_ONLY else "", _read_argument_type(
        chosen.annotation
    )


def _read_argument_type(annotation: Any) -> ArgumentType | None:
    """Return whether a parameter with this *annotation* takes one text or a list of texts.

    Returns ``None`` if the annotation does not show the type.
    """
    if annotation is str:
        return ArgumentType.ONE_TEXT
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        argument_types = {
            _read_argument_type(argument) for argument in arguments if argument is not NoneType
        }
        return argument_types.pop() if len(argument_types) == 1 else None
    return (
        ArgumentType.TEXT_LIST
        if annotation is list or (origin in _LISTS and arguments == (str,))
        else None
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
    """Return the first of *errors* that the function's service caused; ``None`` if there is none.

    *errors* are the errors of two calls, one with a text and one with a list. The service caused
    every outage. If both calls failed, the service also caused every error that a wrong argument
    cannot cause.
    """
    raised = [error for error in errors if error is not None]
    candidates = (
        error
        for error in raised
        if is_outage(error) or (len(raised) == 2 and not isinstance(error, _MISUSE))
    )
    return next(candidates, None)
