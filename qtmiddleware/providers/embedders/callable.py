"""Embed texts with any function, client method or object of another library.

An embedding function takes one text and returns its vector, or takes a list of texts and returns a
list of vectors. If the function's type and signature do not show which, the first calls do. A call
that succeeds proves nothing. Given a list, a function of one text often returns the vector of the
first text. Given a text, a function of lists returns the vectors of its letters. Therefore the
vectors are checked: there must be one per text, and different texts must have different vectors.
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
from qtmiddleware.providers import find_name
from qtmiddleware.providers.embedders.vectors import (
    Vectors,
    check_vectors,
    count_tokens,
    read_vectors,
)
from qtmiddleware.runtime.background_loop import is_async, run_in_background_loop
from qtmiddleware.runtime.drivers import in_thread
from qtmiddleware.runtime.steps import adrive_generator, drive_generator


class Contract(Enum):
    """Whether an embedding function takes one text or a list of texts."""

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

The asynchronous ones have an ``a`` before the name.
"""
CONCURRENCY: Final = 8
"""The most calls at a time of a function that takes one text per call."""

_LISTS: Final = (list, Sequence, Iterable, Collection)
_PROBES: Final = ("How are invoices paid?", "How does a cat sleep on the sofa?")
"""Two texts that begin with the same letter.

A function of lists that gets one of them may look at its first item alone, the letter; then both
vectors are equal.
"""
_MISUSE: Final = (
    TypeError,
    AttributeError,
    LookupError,
    ValueError,
    AssertionError,
    NotImplementedError,
)
"""The exceptions of a function that got a wrong argument; others are about its service."""
_DRAIN_SECONDS: Final = 0.02
"""How many seconds cancelled calls may take to clean up."""

_Calls = Sequence[str | list[str]]
"""The arguments of the calls to make, one item per call."""
_Vectors = list[list[float]]
_Embedding = Generator[_Calls, Any, _Vectors]
"""Yields calls, is sent their results or has the error thrown in, and returns the vectors."""


class CallableEmbedder:
    """Embeds texts with a function, or with an object of another library.

    The function (or method, partial, callable object; synchronous or asynchronous) takes one text
    and returns its vector, or takes a list of texts and returns one vector per text. Vectors are
    lists, tuples, arrays or tensors. The function may also return a whole response of OpenAI's
    ``embeddings.create`` or Pinecone's ``inference.embed``. Accepted objects are LangChain's
    ``Embeddings``, LlamaIndex embeddings, sentence-transformers models and any `Embedder`.

    The annotation of the function's parameter (``str``, ``list[str]``, ``Sequence[str]``) says
    whether the function takes a text or a list. Without an annotation, the embedder finds out with
    the first texts and remembers the answer. If there is only one text, the embedder sends a
    constant second text with it. A function of single texts is called at least three more times.

    Thread-safe if *given* is. Exceptions of the function pass through unchanged.

    Args:
        given: The function or object.
        name: The name that is stored in an index made with this embedder; by default the name of
            the function or model.
        dimension: The length of the vectors; by default the length of the first vectors.
        for_queries: Whether to call the object's method for questions instead of its method for
            passages.

    Raises:
        WrapError: *given* cannot embed.
        EmbeddingError: On use, if the results fit neither kind of function, or the vectors differ
            in length or contain numbers that are not finite.
    """

    def __init__(
        self, given: Any, *, name: str = "", dimension: int | None = None, for_queries: bool = False
    ) -> None:
        self._given = given
        self._plain, self._awaited = _find_methods(
            given, QUERY_METHODS if for_queries else PASSAGE_METHODS
        )
        self._keyword, self._contract = _read_signature(self._plain)
        self._name = name or _find_name(given, self._plain)
        self.model_name = "" if self._name == find_name(given) else self._name
        """The model's name; ``""`` for a function."""
        self.provider: str = getattr(given, "provider", "")
        """The model's provider, if *given* is an embedder of this package that knows it."""
        self._dimension = dimension

    def __repr__(self) -> str:
        return f"CallableEmbedder(name={self._name!r}, dimension={self._dimension})"

    @property
    def name(self) -> str:
        """The *name* argument or, by default, the name of the function or model."""
        return self._name

    @property
    def server(self) -> Any:
        """The host and port of the server that *given* calls; ``None`` if they are unknown."""
        return getattr(self._given, "server", None)

    @property
    def dimension(self) -> int:
        """The length of every vector. If the length is unknown, one word is embedded to find it."""
        if self._dimension is None:
            return len(self.embed(["dimension"])[0])
        return self._dimension

    @property
    def queries(self) -> CallableEmbedder:
        """The embedder of the questions that search an index made with this embedder.

        This is the embedder itself if it embeds questions and passages in the same way.
        """
        if _find_methods(self._given, QUERY_METHODS)[0] == self._plain:
            return self
        return CallableEmbedder(
            self._given, name=self._name, dimension=self._dimension, for_queries=True
        )

    def embed(self, texts: Sequence[str], limit: int = CONCURRENCY) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*.

        An asynchronous function runs in the background loop. A function of single texts is called
        for up to *limit* texts at a time, in threads if it is synchronous.
        """
        if not texts:
            return []
        return drive_generator(self._embed(list(texts)), partial(self._call_each, limit=limit))

    async def aembed(self, texts: Sequence[str], limit: int = CONCURRENCY) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*, without blocking the running loop.

        A synchronous function runs in a thread. A function of single texts is called for up to
        *limit* texts at a time.
        """
        if not texts:
            return []
        fn = self._awaited or self._plain
        return await adrive_generator(
            self._embed(list(texts)), partial(self._gather_calls, fn, limit=limit)
        )

    def _call_each(self, calls: _Calls, limit: int) -> list[Any]:
        """Call the function once with each argument in *calls* and return the results.

        A single call is made in this thread.
        """
        if len(calls) > 1:
            return run_in_background_loop(lambda: self._gather_calls(self._plain, calls, limit))
        returned = self._call(self._plain, calls[0])
        return [
            run_in_background_loop(lambda: _await_result(returned))
            if inspect.isawaitable(returned)
            else returned
        ]

    async def _gather_calls(self, fn: Callable[..., Any], calls: _Calls, limit: int) -> list[Any]:
        """Call *fn* once with each argument in *calls* and return the results.

        At most *limit* calls run at once. If a call fails, all other calls are cancelled.
        """
        if len(calls) == 1:
            return [await self._acall(fn, calls[0])]
        slots = asyncio.Semaphore(limit)

        async def call(argument: str | list[str]) -> Any:
            async with slots:
                return await self._acall(fn, argument)

        tasks = [asyncio.ensure_future(call(argument)) for argument in calls]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_DRAIN_SECONDS)

    def _call(self, fn: Callable[..., Any], argument: str | list[str]) -> Any:
        if isinstance(argument, list):
            argument = list(argument)  # A copy, because the function may change its argument.
        returned = fn(**{self._keyword: argument}) if self._keyword else fn(argument)
        return returned if inspect.isawaitable(returned) else _list_if_iterator(returned)

    async def _acall(self, fn: Callable[..., Any], argument: str | list[str]) -> Any:
        call = partial(self._call, fn, argument)
        returned = call() if is_async(fn) else await in_thread(call)
        return await _await_result(returned) if inspect.isawaitable(returned) else returned

    def _embed(self, texts: list[str]) -> _Embedding:
        """Yield the arguments of the calls needed to embed *texts*, and return the vectors."""
        if self._contract is Contract.ONE:
            vectors = yield from self._embed_singly(texts)
        elif self._contract is Contract.MANY:
            (returned,) = yield [texts]
            vectors = self._read(returned, len(texts), self._dimension)
        else:
            vectors = yield from self._learn_contract(texts)
        self._dimension = len(vectors[0])
        return vectors

    def _embed_singly(self, texts: list[str]) -> _Embedding:
        vectors = Vectors()
        for returned in (yield texts):
            vectors.add(self._read(returned, 1, len(vectors[0]) if vectors else self._dimension))
        return vectors

    def _learn_contract(self, texts: list[str]) -> _Embedding:
        """Return the vectors of *texts*, and find out whether the function takes a text or a list.

        Equal vectors from a list prove nothing, because two texts may have the same vector (for
        some models "Fees" and "fees" do).
        """
        sent = (
            texts
            if len(set(texts)) > 1
            else [*texts, next(probe for probe in _PROBES if probe != texts[0])]
        )
        list_attempt = yield from self._try_call(sent, len(sent))
        if list_attempt.vectors and not _are_nearly_equal(list_attempt.vectors):
            self._contract = Contract.MANY
            return list_attempt.vectors[: len(texts)]
        text_attempt, other_attempt = (
            (yield from self._probe(_PROBES[0])),
            (yield from self._probe(_PROBES[1])),
        )
        if text_attempt.vectors and other_attempt.vectors:
            if (
                yield from self._reads_whole_texts(
                    text_attempt.vectors[0], other_attempt.vectors[0]
                )
            ):
                self._contract = Contract.ONE
                return (yield from self._embed_singly(texts))
            text_attempt = text_attempt._replace(report="treated the text as a list of letters")
        elif list_attempt.vectors and (yield from self._embeds_list_items_separately()):
            self._contract = Contract.MANY
            return list_attempt.vectors[: len(texts)]
        if (error := _choose_error(text_attempt.error, list_attempt.error)) is not None:
            raise error
        raise EmbeddingError(
            f"{self._name} must be {Contract.ONE.value} or {Contract.MANY.value}. "
            f"Given a text it {text_attempt.report}; given a list of {len(sent)} texts it"
            f" {list_attempt.report}"
        ) from (text_attempt.error or list_attempt.error)

    def _reads_whole_texts(
        self, vector: list[float], other_vector: list[float]
    ) -> Generator[_Calls, Any, bool]:
        """Return whether *vector* and *other_vector* represent whole texts, not only first letters.

        The vectors belong to two constant texts that begin with the same letter. Equal vectors may
        also come from a function that returns one vector for every text, as in tests. In this case
        a third call, with a list, decides.
        """
        if not _are_nearly_equal([vector, other_vector]):
            return True
        attempt = yield from self._probe([_PROBES[0]])
        return _are_nearly_equal([vector, *(attempt.vectors or ())])

    def _embeds_list_items_separately(self) -> Generator[_Calls, Any, bool]:
        """Return whether a text gets the same vector in a list of two texts as in a list by itself.

        Used if different texts had equal vectors.
        """
        pair, alone = (
            (yield from self._probe(list(_PROBES))),
            (yield from self._probe([_PROBES[1]])),
        )
        return (
            _are_nearly_equal([*pair.vectors[1:], *alone.vectors])
            if pair.vectors and alone.vectors
            else False
        )

    def _probe(self, argument: str | list[str]) -> Generator[_Calls, Any, _Attempt]:
        """Call the function with *argument* and return the attempt.

        An error that shows an outage is raised, because a service that is down cannot show how the
        function works.
        """
        attempt = yield from self._try_call(
            argument, 1 if isinstance(argument, str) else len(argument)
        )
        if attempt.error is not None and is_outage(attempt.error):
            raise attempt.error
        return attempt

    def _try_call(self, argument: str | list[str], count: int) -> Generator[_Calls, Any, _Attempt]:
        """Call the function with *argument* and return the attempt, which may hold an error."""
        try:
            (returned,) = yield [argument]
        except Exception as error:
            return _Attempt(error=error, report=f"raised {type(error).__name__}")
        try:
            vectors = self._read(returned, count, self._dimension)
        except EmbeddingError as error:
            problem = str(error).removeprefix(f"{self._name} returned ")
            return _Attempt(report=f"returned {type(returned).__name__} ({problem})")
        return _Attempt(
            vectors, report="returned the same vector for each" if count > 1 else "returned one"
        )

    def _read(self, returned: Any, count: int, dimension: int | None) -> Vectors:
        """Return the *count* vectors in *returned*, a result of the function.

        Raises `EmbeddingError` if *returned* does not contain *count* valid vectors.
        """
        data = (
            returned.get("data")
            if isinstance(returned, Mapping)
            else getattr(returned, "data", None)
        )
        # A whole response of Pinecone's or OpenAI's client. Arrays have a `data`, too, but no list.
        if isinstance(data, list):
            values = [
                item.values for item in data if isinstance(getattr(item, "values", None), list)
            ]
            returned = (
                Vectors(values, count_tokens(returned))
                if values
                else read_vectors(returned, count, self._name)
            )
        elif isinstance(returned, Mapping | Set):
            returned = None
        elif _is_single_vector(returned):
            if count > 1:
                raise EmbeddingError(f"{self._name} returned one vector for {count} texts")
            returned = [returned]
        return check_vectors(returned, count, dimension=dimension, name=self._name)


class _Attempt(NamedTuple):
    """The result of one call that was made to find out how a function works.

    Attributes:
        vectors: The checked vectors, or ``None``.
        error: The function's exception, if it raised one.
        report: A description of the result for error messages.
    """

    vectors: _Vectors | None = None
    error: Exception | None = None
    report: str = ""


async def _await_result(pending: Awaitable[Any]) -> Any:
    return _list_if_iterator(await pending)


def _list_if_iterator(returned: Any) -> Any:
    """Return a list of the items if *returned* is an iterator, else *returned* unchanged."""
    return list(returned) if isinstance(returned, Iterator) else returned


def _find_methods(
    embedder: Any, names: Sequence[str]
) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """Return the embedding method of *embedder*, and the asynchronous version of that method.

    *names* are the method names to try, in order. The second item is ``None`` if there is no
    asynchronous version. If there is only an asynchronous method, both items are that method.
    Raises `WrapError` if *embedder* has none of the methods and is not a function.
    """
    if not isinstance(embedder, str | bytes | type):
        for name in names:
            plain, awaited = (
                method if callable(method := getattr(embedder, f"{prefix}{name}", None)) else None
                for prefix in ("", "a")
            )
            if (either := plain or awaited) is not None:
                return either, awaited
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


def _find_name(embedder: Any, fn: Any) -> str:
    """Return the name of the model or function.

    If *embedder* is a function, this is its own name. If it is an object, this is the name of its
    model, or else of its class.
    """
    if fn is embedder:
        return getattr(fn, "__qualname__", "") or type(fn).__qualname__
    names = (getattr(embedder, name, None) for name in ("name", "model_name", "model"))
    return next(
        (name for name in names if isinstance(name, str) and name), type(embedder).__qualname__
    )


def _read_signature(fn: Callable[..., Any]) -> tuple[str, Contract | None]:
    """Return the keyword for passing texts to *fn*, and whether *fn* takes one text or a list.

    The keyword is ``""`` if *fn* takes texts as its first positional argument. The second item is
    ``None`` if the parameter's annotation does not show the answer.
    """
    try:
        parameters = list(inspect.signature(fn, eval_str=True).parameters.values())
    except Exception:  # Annotations are evaluated; names for type checkers only are missing then.
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
    """Return whether a parameter with this *annotation* takes one text or a list of texts.

    Returns ``None`` if the annotation does not show it.
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


def _is_single_vector(returned: Any) -> bool:
    """Return whether *returned* is a single vector, that is, whether its first item is a number.

    In an array or tensor, a number is an item without dimensions.
    """
    try:
        iter(next(iter(returned)))
    except StopIteration:
        return False
    except TypeError:
        return hasattr(returned, "__iter__")
    return False


def _are_nearly_equal(vectors: _Vectors) -> bool:
    """Return whether all vectors are equal within a tolerance (relative 1e-4, absolute 1e-6).

    A service's vectors for the same text differ slightly from call to call.
    """
    reference, *others = vectors
    return all(
        len(reference) == len(other)
        and all(
            isclose(a, b, rel_tol=1e-4, abs_tol=1e-6) for a, b in zip(reference, other, strict=True)
        )
        for other in others
    )


def _choose_error(*errors: Exception | None) -> Exception | None:
    """Return the first of *errors* that a service caused, or ``None``.

    *errors* are the errors of two calls, one with a text and one with a list. An outage is always
    the service's error. If both calls failed, other exceptions are the service's errors too, except
    those about a wrong argument.
    """
    raised = [error for error in errors if error is not None]
    candidates = (
        error
        for error in raised
        if is_outage(error) or (len(raised) == 2 and not isinstance(error, _MISUSE))
    )
    return next(candidates, None)
