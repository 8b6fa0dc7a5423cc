"""Embed texts with a function or with an object of another library."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from math import isfinite
from typing import Any, Final

from qtmiddleware.errors import EmbeddingError, WrapError
from qtmiddleware.providers import find_function_name
from qtmiddleware.retrieval.fields import read_field, read_parameters
from qtmiddleware.runtime.concurrency import (
    current_bulkhead,
    gather_results,
    is_async,
    make_async_io,
    run_in_background_loop,
)

# The maximum number of concurrent calls to a function that takes one text per call.
CONCURRENCY: Final = 8

# The methods for questions and for passages: of LangChain, LlamaIndex, new models of
# sentence-transformers, `Embedder`, and old models of sentence-transformers.
_METHODS: Final = (
    ("embed_query", "embed_documents"),
    ("get_query_embedding", "get_text_embedding_batch"),
    ("encode_query", "encode_document"),
    ("embed", "embed"),
    ("encode", "encode"),
)
_ONE_TEXT: Final = ("embed_query", "get_query_embedding")
# How the clients of OpenAI and Chroma call a list of texts.
_LIST_NAME: Final = "input"


class CallableEmbedder:
    """Embeds texts with a function, or with an object of another library.

    A function, async or not, takes one text and returns its vector. If *takes_list* is true, or if
    its parameter is called ``input``, it takes a list and returns one vector per text. Vectors are
    lists, tuples, arrays, tensors or a response of OpenAI or Pinecone. Exceptions of the function
    pass through unchanged.

    Args:
        model: The function or object that embeds texts.
        takes_list: Whether a function takes a list of texts.
        name: The name to store in an index; by default that of the function or model.
        dimension: The length of the vectors; by default that of the first vectors.
        for_queries: Whether to call an object's method for questions.
    """

    def __init__(
        self,
        model: Any,
        *,
        takes_list: bool = False,
        name: str = "",
        dimension: int | None = None,
        for_queries: bool = False,
    ) -> None:
        self._model = model
        self._dimension = dimension
        self._function = model
        if method := _find_method(model, for_queries=for_queries):
            self._function = getattr(model, method)
            takes_list = method not in _ONE_TEXT
            for key in ("name", "model_name", "model"):
                own_name = getattr(model, key, "")
                name = name or (own_name if isinstance(own_name, str) else "")
        parameter = _find_parameter(self._function)
        self._keyword = parameter.name if parameter.kind is parameter.KEYWORD_ONLY else ""
        self.takes_list = takes_list or parameter.name == _LIST_NAME
        """Whether one call embeds a list of texts."""
        self.model_name = name
        """The model's name; ``""`` for a function."""
        self.name = name or find_function_name(model)
        self.provider: str = getattr(model, "provider", "")

    @property
    def dimension(self) -> int:
        """The length of every vector. If the length is unknown, embeds one word to find it."""
        return self._dimension or len(self.embed(["dimension"])[0])

    @property
    def queries(self) -> CallableEmbedder:
        """The embedder that calls the model's method for questions."""
        return CallableEmbedder(
            self._model,
            takes_list=self.takes_list,
            name=self.model_name,
            dimension=self._dimension,
            for_queries=True,
        )

    def embed(self, texts: Sequence[str], limit: int = CONCURRENCY) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*.

        A function that takes one text per call gets up to *limit* calls at a time.
        """
        calls = self._list_calls(texts)
        if len(calls) != 1 or is_async(self._function):
            results = run_in_background_loop(_run_calls(calls, limit))
        else:
            result = calls[0]()
            if inspect.isawaitable(result):
                result = run_in_background_loop(result)
            results = [result]
        return self._read_results(results, texts)

    async def aembed(self, texts: Sequence[str], limit: int = CONCURRENCY) -> list[list[float]]:
        """Return one vector per text as `embed` does, without blocking the event loop."""
        results = await _run_calls(self._list_calls(texts), limit)
        return self._read_results(results, texts)

    def _list_calls(self, texts: Sequence[str]) -> list[partial[Any]]:
        # A copy, because the function may change its argument.
        arguments = [list(texts)] if self.takes_list and texts else list(texts)
        if self._keyword:
            return [partial(self._function, **{self._keyword: value}) for value in arguments]
        return [partial(self._function, value) for value in arguments]

    def _read_results(self, results: list[Any], texts: Sequence[str]) -> list[list[float]]:
        vectors: list[list[float]] = []
        count = len(texts) if self.takes_list else 1
        for result in results:
            vectors += read_vectors(result, count, self.name, self._dimension)
            self._dimension = len(vectors[0])
        return vectors


def query_embedder(model: Any, *, takes_list: bool = False) -> CallableEmbedder:
    """Return an embedder of questions; raise `WrapError` if the object cannot embed."""
    if isinstance(model, CallableEmbedder):
        return model.queries
    return CallableEmbedder(model, takes_list=takes_list, for_queries=True)


async def _run_calls(calls: Sequence[partial[Any]], limit: int) -> list[Any]:
    """Run all *calls*, at most *limit* at a time. If a call fails, the others are cancelled."""
    io = make_async_io(current_bulkhead.get())
    return await gather_results(io, [partial(io.call, call) for call in calls], limit)


def _find_method(model: Any, *, for_queries: bool) -> str:
    """Return the name of the method of *model* that embeds; ``""`` if *model* is a function."""
    # A text, such as a model's name, has a method `encode`.
    if not isinstance(model, str | type):
        for pair in _METHODS:
            if all(callable(getattr(model, name, None)) for name in pair):
                return pair[0] if for_queries else pair[1]
        if callable(model):
            return ""
    raise WrapError(
        f"embed must be a function or an object that embeds, not {type(model).__name__}."
        " Pass a function of a list of texts as embed_many"
    )


def _find_parameter(fn: Any) -> inspect.Parameter:
    """Return the parameter of *fn* that takes the texts: the first that a call must pass."""
    # Some builtins have no readable signature.
    with suppress(ValueError, TypeError):
        for parameter in read_parameters(fn).values():
            has_default = parameter.default is not parameter.empty
            if not (parameter.kind is parameter.KEYWORD_ONLY and has_default):
                return parameter
    return inspect.Parameter("_", inspect.Parameter.POSITIONAL_ONLY)


def read_vectors(
    result: Any, text_count: int, model_name: str, dimension: int | None = None
) -> list[list[float]]:
    """Return the vectors in the *result* of a function or service, as lists of floats.

    *result* is one vector, a list of vectors, or a response of OpenAI's or Pinecone's client.
    Raises `EmbeddingError` if there is not one vector of finite numbers and equal length per text.
    """
    rows = result
    # Arrays also have `data`, which is no list.
    if isinstance(data := read_field(result, "data"), list):
        # Some servers omit OpenAI's index, and keep the order of the texts.
        data = sorted(data, key=lambda item: read_field(item, "index") or 0)
        rows = [read_field(item, "embedding") or read_field(item, "values") for item in data]
    try:
        rows = _list_items(rows)
        if rows and not hasattr(rows[0], "__iter__"):
            rows = [rows]
        vectors = [[float(number) for number in _list_items(row)] for row in rows]
    except (TypeError, ValueError, OverflowError):
        # A wrong function may return the text itself, and Python's error would quote it.
        raise EmbeddingError(
            f"{model_name} must return a vector of numbers per text, not {type(result).__name__}"
        ) from None
    if len(vectors) != text_count:
        hint = "" if text_count > 1 else ". Pass a function of a list of texts as embed_many="
        raise EmbeddingError(
            f"{model_name} returned {len(vectors)} vectors for {text_count} texts{hint}"
        )
    length = dimension or len(vectors[0])
    for vector in vectors:
        if not vector or len(vector) != length or not all(map(isfinite, vector)):
            raise EmbeddingError(f"{model_name} must return vectors of {length} finite numbers")
    return vectors


def _list_items(values: Any) -> list[Any]:
    # A dict or a set would give numbers in the wrong order, and a text its letters.
    if isinstance(values, str | bytes | Mapping | Set):
        raise TypeError
    return values.tolist() if hasattr(values, "tolist") else list(values)
