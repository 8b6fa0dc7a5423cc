"""Embeds with whatever makes vectors of texts: a function, a client's method, an object of another library.

Such a function takes one text and returns its vector, or takes a list of texts and returns a list
of vectors. Where neither its type nor its signature says which, the first real call finds out.
Being taken proves nothing: a function of one text often takes a list too and returns the vector of
the first text, and one of a list takes a text and returns the vectors of its letters. What counts
are the vectors: as many as there are texts, and different ones.
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
from qtmiddleware.runtime.steps import aconverse, converse


class Contract(Enum):
    """What a function that embeds takes and returns."""

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
"""The methods of LangChain, LlamaIndex, our own `Embedder` and sentence-transformers; with an ``a`` before the name
those that are awaited."""
CONCURRENCY: Final = 8
"""Calls in flight at most, of a function that takes one text a call."""

_LISTS: Final = (list, Sequence, Iterable, Collection)
_PROBES: Final = ("How are invoices paid?", "How does a cat sleep on the sofa?")
"""Different texts of one first letter: a function of lists that looks at the first item alone makes them equal."""
_MISUSE: Final = (
    TypeError,
    AttributeError,
    LookupError,
    ValueError,
    AssertionError,
    NotImplementedError,
)
"""What functions raise about what they were given; anything else is about their service."""
_DRAIN_SECONDS: Final = 0.02
"""How long calls that were cancelled may take to clean up."""

_Calls = Sequence[str | list[str]]
"""What the function is called with, one call an entry."""
_Vectors = list[list[float]]
_Embedding = Generator[_Calls, Any, _Vectors]
"""Is sent the returned values of each round of calls, or has the error thrown in; returns the vectors."""


class CallableEmbedder:
    """Makes an embedder of *given*: a function, or an object of another library.

    A function (method, partial, callable object; synchronous or not) takes one text and returns its
    vector, or takes a list of texts and returns a vector each. Vectors are lists, tuples, arrays or
    tensors; a whole response of OpenAI's ``embeddings.create`` or Pinecone's ``inference.embed``
    will do too. Of an object the method is called that embeds passages or, *for_queries*,
    questions: of LangChain's ``Embeddings``, a LlamaIndex embedding, a model of
    sentence-transformers or an `Embedder`.

    Which of the two contracts a function has is told by the annotation of its parameter (``str``,
    ``list[str]``, ``Sequence[str]``), else learned from the first texts: a function of lists gets a
    constant text beside the caller's own where that is alone, one of single texts is called three
    times more. It is remembered then, and so is the length of the vectors. *name* stands beside an
    index made with it; by default that of the function or model. *dimension* is learned from the
    first vectors where it is not given.

    Thread-safe as far as *given* is. Raises `WrapError` where *given* cannot embed. On use, what
    the function raises passes through unchanged; what fits neither contract, vectors of unequal
    length and numbers that are not finite raise `EmbeddingError`.
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
        """The model's name, ``""`` for a function, which has none."""
        self.provider: str = getattr(given, "provider", "")
        """Who serves it, where an embedder of ours knows."""
        self._dimension = dimension

    def __repr__(self) -> str:
        return f"CallableEmbedder(name={self._name!r}, dimension={self._dimension})"

    @property
    def name(self) -> str:
        """The name it was given, else that of the function or model."""
        return self._name

    @property
    def server(self) -> Any:
        """The host and port it is asked at, where an embedder of ours knows them."""
        return getattr(self._given, "server", None)

    @property
    def dimension(self) -> int:
        """The length of every vector; where it was not given, one word is embedded to learn it."""
        if self._dimension is None:
            return len(self.embed(["dimension"])[0])
        return self._dimension

    @property
    def queries(self) -> CallableEmbedder:
        """The embedder of questions for an index made with this one; itself where they are embedded like passages."""
        if _find_methods(self._given, QUERY_METHODS)[0] == self._plain:
            return self
        return CallableEmbedder(
            self._given, name=self._name, dimension=self._dimension, for_queries=True
        )

    def embed(self, texts: Sequence[str], limit: int = CONCURRENCY) -> list[list[float]]:
        """One vector a text, in the texts' order.

        An asynchronous function runs in the background loop. One that takes one text a call is
        called for at most
        *limit* texts at a time, in threads where it is synchronous.
        """
        if not texts:
            return []
        return converse(self._embed(list(texts)), partial(self._call_each, limit=limit))

    async def aembed(self, texts: Sequence[str], limit: int = CONCURRENCY) -> list[list[float]]:
        """`embed` without blocking the running loop; a synchronous function runs in a thread."""
        if not texts:
            return []
        fn = self._awaited or self._plain
        return await aconverse(
            self._embed(list(texts)), partial(self._gather_calls, fn, limit=limit)
        )

    def _call_each(self, calls: _Calls, limit: int) -> list[Any]:
        """What the function returns for each of *calls*; a single call is made in this thread."""
        if len(calls) > 1:
            return run_in_background_loop(lambda: self._gather_calls(self._plain, calls, limit))
        made = self._call(self._plain, calls[0])
        return [
            run_in_background_loop(lambda: _await_result(made))
            if inspect.isawaitable(made)
            else made
        ]

    async def _gather_calls(self, fn: Callable[..., Any], calls: _Calls, limit: int) -> list[Any]:
        """`_call_each` for the running loop: at most *limit* calls at a time, none left running."""
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
            argument = list(argument)  # The function's own, to do with as it likes.
        made = fn(**{self._keyword: argument}) if self._keyword else fn(argument)
        return made if inspect.isawaitable(made) else _read_iterator(made)

    async def _acall(self, fn: Callable[..., Any], argument: str | list[str]) -> Any:
        call = partial(self._call, fn, argument)
        made = call() if is_async(fn) else await in_thread(call)
        return await _await_result(made) if inspect.isawaitable(made) else made

    def _embed(self, texts: list[str]) -> _Embedding:
        """The vectors of *texts*, by calls of the function that somebody else makes."""
        if self._contract is Contract.ONE:
            vectors = yield from self._embed_singly(texts)
        elif self._contract is Contract.MANY:
            (made,) = yield [texts]
            vectors = self._read(made, len(texts), self._dimension)
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
        """The vectors of *texts*, and on the way the function's contract.

        Two texts may well have one vector (to some models "Fees" and "fees" are the same), so equal
        vectors of a list decide nothing yet.
        """
        asked = (
            texts if len(set(texts)) > 1 else [*texts, next(it for it in _PROBES if it != texts[0])]
        )
        many = yield from self._try_call(asked, len(asked))
        if many.vectors and not _are_alike(many.vectors):
            self._contract = Contract.MANY
            return many.vectors[: len(texts)]
        one, other = (yield from self._probe(_PROBES[0])), (yield from self._probe(_PROBES[1]))
        if one.vectors and other.vectors:
            if (yield from self._reads_whole(one.vectors[0], other.vectors[0])):
                self._contract = Contract.ONE
                return (yield from self._embed_singly(texts))
            one = one._replace(came="treated the text as a list of letters")
        elif many.vectors and (yield from self._keeps_texts_apart()):
            self._contract = Contract.MANY
            return many.vectors[: len(texts)]
        if (error := _choose_error(one.error, many.error)) is not None:
            raise error
        raise EmbeddingError(
            f"{self._name} must be {Contract.ONE.value} or {Contract.MANY.value}. "
            f"Given a text it {one.came}; given a list of {len(asked)} texts it {many.came}"
        ) from (one.error or many.error)

    def _reads_whole(self, vector: list[float], other: list[float]) -> Generator[_Calls, Any, bool]:
        """Whether *vector* and *other* are those of the whole probes, not of the letter both begin with.

        One that has the same vector for everything, as in tests, is told from that by a list.
        """
        if not _are_alike([vector, other]):
            return True
        listed = yield from self._probe([_PROBES[0]])
        return _are_alike([vector, *(listed.vectors or ())])

    def _keeps_texts_apart(self) -> Generator[_Calls, Any, bool]:
        """Whether a text has the same vector in a list as alone, though different texts had equal ones."""
        pair, alone = (
            (yield from self._probe(list(_PROBES))),
            (yield from self._probe([_PROBES[1]])),
        )
        return (
            _are_alike([*pair.vectors[1:], *alone.vectors])
            if pair.vectors and alone.vectors
            else False
        )

    def _probe(self, argument: str | list[str]) -> Generator[_Calls, Any, _Attempt]:
        """`_try_call`, raising the outage of a service that cannot say."""
        attempt = yield from self._try_call(
            argument, 1 if isinstance(argument, str) else len(argument)
        )
        if attempt.error is not None and is_outage(attempt.error):
            raise attempt.error
        return attempt

    def _try_call(self, argument: str | list[str], count: int) -> Generator[_Calls, Any, _Attempt]:
        """What comes of calling the function with *argument*; an error is part of that."""
        try:
            (made,) = yield [argument]
        except Exception as error:
            return _Attempt(error=error, came=f"raised {type(error).__name__}")
        try:
            vectors = self._read(made, count, self._dimension)
        except EmbeddingError as error:
            why = str(error).removeprefix(f"{self._name} returned ")
            return _Attempt(came=f"returned {type(made).__name__} ({why})")
        return _Attempt(
            vectors, came="returned the same vector for each" if count > 1 else "returned one"
        )

    def _read(self, made: Any, count: int, dimension: int | None) -> Vectors:
        """The *count* vectors in what the function returned; raises `EmbeddingError`."""
        data = made.get("data") if isinstance(made, Mapping) else getattr(made, "data", None)
        # A whole response, of Pinecone's client or of OpenAI's; the data of arrays is no list.
        if isinstance(data, list):
            values = [it.values for it in data if isinstance(getattr(it, "values", None), list)]
            made = (
                Vectors(values, count_tokens(made))
                if values
                else read_vectors(made, count, self._name)
            )
        elif isinstance(made, Mapping | Set):
            made = None
        elif _is_flat(made):
            if count > 1:
                raise EmbeddingError(f"{self._name} returned one vector for {count} texts")
            made = [made]
        return check_vectors(made, count, dimension=dimension, name=self._name)


class _Attempt(NamedTuple):
    """What came of one call: checked *vectors* or, where there are none, what else, in words."""

    vectors: _Vectors | None = None
    error: Exception | None = None
    came: str = ""


async def _await_result(made: Awaitable[Any]) -> Any:
    return _read_iterator(await made)


def _read_iterator(made: Any) -> Any:
    """*made*, or all it gives where it can be read once only."""
    return list(made) if isinstance(made, Iterator) else made


def _find_methods(
    given: Any, names: Sequence[str]
) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """What embeds of *given*, and what of it is awaited where that is another method; raises `WrapError`."""
    if not isinstance(given, str | bytes | type):
        for name in names:
            plain, awaited = (
                it if callable(it := getattr(given, f"{a}{name}", None)) else None
                for a in ("", "a")
            )
            if (either := plain or awaited) is not None:
                return either, awaited
        if callable(given):
            return given, None
    what = (
        f"the class {given.__name__}; make an object of it"
        if isinstance(given, type)
        else type(given).__name__
    )
    raise WrapError(
        f"embed must be {Contract.ONE.value}, {Contract.MANY.value}, or an object that embeds "
        f"(LangChain, LlamaIndex, sentence-transformers or an Embedder), not {what}"
    )


def _find_name(given: Any, fn: Any) -> str:
    """The model's name where *given* is an object that has one, else the function's."""
    if fn is given:
        return getattr(fn, "__qualname__", "") or type(fn).__qualname__
    names = (getattr(given, name, None) for name in ("name", "model_name", "model"))
    return next(
        (name for name in names if isinstance(name, str) and name), type(given).__qualname__
    )


def _read_signature(fn: Callable[..., Any]) -> tuple[str, Contract | None]:
    """The keyword *fn* takes its texts by, ``""`` where that is its first position, and what its annotation tells."""
    try:
        parameters = list(inspect.signature(fn, eval_str=True).parameters.values())
    except Exception:  # Annotations are run: what they name may be there for type checkers only.
        return "", None
    first = next(
        (it for it in parameters if it.kind in (it.POSITIONAL_ONLY, it.POSITIONAL_OR_KEYWORD)), None
    )
    if first is None and not any(it.kind is it.VAR_POSITIONAL for it in parameters):
        needed = [it for it in parameters if it.kind is it.KEYWORD_ONLY and it.default is it.empty]
        first = needed[0] if len(needed) == 1 else None
    if first is None:
        return "", None
    return first.name if first.kind is first.KEYWORD_ONLY else "", _read_contract(first.annotation)


def _read_contract(annotation: Any) -> Contract | None:
    """The contract of a parameter of this type; ``None`` where it tells none, or both."""
    if annotation is str:
        return Contract.ONE
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        contracts = {_read_contract(it) for it in arguments if it is not NoneType}
        return contracts.pop() if len(contracts) == 1 else None
    return (
        Contract.MANY if annotation is list or (origin in _LISTS and arguments == (str,)) else None
    )


def _is_flat(made: Any) -> bool:
    """Whether *made* is one vector: its first item is a number, in an array or tensor one without dimensions."""
    try:
        iter(next(iter(made)))
    except StopIteration:
        return False
    except TypeError:
        return hasattr(made, "__iter__")
    return False


def _are_alike(vectors: _Vectors) -> bool:
    """Whether all are the same, up to what a service's arithmetic differs from one call to the next."""
    first, *others = vectors
    return all(
        len(first) == len(other)
        and all(
            isclose(a, b, rel_tol=1e-4, abs_tol=1e-6) for a, b in zip(first, other, strict=True)
        )
        for other in others
    )


def _choose_error(*errors: Exception | None) -> Exception | None:
    """The error to be raised as it is, of those of a call with a text and one with a list.

    A service's outage or, where both failed, its refusal; not what a function says about the type
    of what it was given.
    """
    raised = [error for error in errors if error is not None]
    own = (
        it for it in raised if is_outage(it) or (len(raised) == 2 and not isinstance(it, _MISUSE))
    )
    return next(own, None)
