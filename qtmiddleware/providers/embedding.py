"""Embed texts with a function or with an object of another library."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from math import isfinite
from typing import Any, Final

from qtmiddleware.errors import EmbeddingError, WrapError
from qtmiddleware.providers import find_function_name, read_count
from qtmiddleware.runtime.fields import read_field, read_parameters
from qtmiddleware.runtime.io import is_async, run_in_background_loop, run_in_thread

CONCURRENCY: Final = 8
"""The maximum number of concurrent calls to a function that takes one text per call."""

_ONE_TEXT: Final = ("embed_query", "get_query_embedding", "get_text_embedding")
QUERY_METHODS: Final = (
    "embed_query",
    "get_query_embedding",
    "encode_query",
    "embed",
    "encode",
    "get_text_embedding",
)
PASSAGE_METHODS: Final = (
    "embed_documents",
    "get_text_embedding_batch",
    "embed",
    "encode_document",
    "encode",
    *_ONE_TEXT,
)
"""The methods of LangChain, LlamaIndex, Chroma, sentence-transformers and `Embedder`.

Those of `_ONE_TEXT` take one text, and the others take a list."""
# How the clients of OpenAI, Pinecone and Chroma and many functions call a list of texts.
_LIST_NAMES: Final = frozenset({"input", "inputs", "texts", "documents", "sentences"})
_LIST_TYPES: Final = re.compile(r"\b(list|List|Sequence|Iterable|Collection)\b")


class Vectors(list[list[float]]):
    """A list of vectors, and the number of tokens that the service counted, if it is known."""

    __slots__ = ("input_tokens",)

    def __init__(self, vectors: Iterable[list[float]] = (), input_tokens: int = 0) -> None:
        super().__init__(vectors)
        self.input_tokens = input_tokens


class CallableEmbedder:
    """Embeds texts with a function, or with an object of another library.

    A function, async or not, takes one text and returns its vector. If *takes_list* is true, or if
    its parameter is annotated as a list or called ``texts``, ``input`` or the like, it takes a list
    and returns one vector per text. Vectors are lists, tuples, arrays, tensors or a response of
    OpenAI or Pinecone. An object is called by the first of `QUERY_METHODS` or `PASSAGE_METHODS`
    that it has. Nothing is called to find this out. Exceptions of the function pass through
    unchanged.

    Args:
        function_or_model: The function or object that embeds texts.
        takes_list: Whether a function takes a list of texts.
        name: The name to store in an index; by default that of the function or model.
        dimension: The length of the vectors; by default that of the first vectors.
        for_queries: Whether to call an object's method for questions.
    """

    def __init__(
        self,
        function_or_model: Any,
        *,
        takes_list: bool = False,
        name: str = "",
        dimension: int | None = None,
        for_queries: bool = False,
    ) -> None:
        self._options = function_or_model, takes_list
        method, self._function = _find_method(
            function_or_model, QUERY_METHODS if for_queries else PASSAGE_METHODS
        )
        self._keyword, names_list = _read_parameter(self._function)
        self.takes_list = names_list or (method not in _ONE_TEXT if method else takes_list)
        """Whether one call embeds a list of texts."""
        names = (getattr(function_or_model, key, None) for key in ("name", "model_name", "model"))
        if method and not name:
            name = next((it for it in names if isinstance(it, str)), "")
        self.model_name = name
        """The model's name; ``""`` for a function."""
        self.name = self.model_name or find_function_name(function_or_model)
        """The name of the model, or else of the function."""
        self.provider: str = getattr(function_or_model, "provider", "")
        """The model's provider; ``""`` if it is unknown."""
        self.server: Any = getattr(function_or_model, "server", None)
        """The server's host and port; ``None`` if they are unknown."""
        self._dimension = dimension

    def __repr__(self) -> str:
        return f"CallableEmbedder(name={self.name!r}, dimension={self._dimension})"

    @property
    def dimension(self) -> int:
        """The length of every vector. If the length is unknown, embeds one word to find it."""
        return self._dimension or len(self.embed(["dimension"])[0])

    @property
    def queries(self) -> CallableEmbedder:
        """The embedder that calls the model's method for questions."""
        embedder, takes_list = self._options
        return CallableEmbedder(
            embedder,
            takes_list=takes_list,
            name=self.model_name,
            dimension=self._dimension,
            for_queries=True,
        )

    def embed(
        self,
        texts: Sequence[str],
        max_concurrency: int = CONCURRENCY,
    ) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*.

        A function that takes one text per call gets up to *max_concurrency* calls at a time.
        """
        calls = self._list_calls(self._function, texts)
        if len(calls) == 1 and not is_async(self._function):
            result = calls[0]()
            if inspect.isawaitable(result):
                result = run_in_background_loop(result)
            return self._read_results([result], texts)
        results = run_in_background_loop(_run_calls(calls, max_concurrency))
        return self._read_results(results, texts)

    async def aembed(
        self, texts: Sequence[str], max_concurrency: int = CONCURRENCY
    ) -> list[list[float]]:
        """Return one vector per text as `embed` does, without blocking the event loop."""
        calls = self._list_calls(self._function, texts)
        return self._read_results(await _run_calls(calls, max_concurrency), texts)

    def _list_calls(self, fn: Callable[..., Any], texts: Sequence[str]) -> list[partial[Any]]:
        # A copy, because the function may change its argument.
        arguments = [list(texts)] if self.takes_list and texts else list(texts)
        if not self._keyword:
            return [partial(fn, argument) for argument in arguments]
        return [partial(fn, **{self._keyword: argument}) for argument in arguments]

    def _read_results(self, results: list[Any], texts: Sequence[str]) -> Vectors:
        vectors = Vectors()
        count = len(texts) if self.takes_list else 1
        for result in results:
            found = read_vectors(result, count, self.name, self._dimension)
            self._dimension = len(found[0])
            vectors.extend(found)
            vectors.input_tokens += found.input_tokens
        return vectors


def query_embedder(function_or_model: Any, *, takes_list: bool = False) -> CallableEmbedder:
    """Return an embedder of questions; raise `WrapError` if the object cannot embed."""
    if isinstance(function_or_model, CallableEmbedder):
        return function_or_model.queries
    return CallableEmbedder(function_or_model, takes_list=takes_list, for_queries=True)


async def _run_calls(calls: Sequence[partial[Any]], max_concurrency: int) -> list[Any]:
    """Run all *calls*. If a call fails, the others are cancelled."""
    room = asyncio.Semaphore(max_concurrency)

    async def run(call: partial[Any]) -> Any:
        async with room:
            result = call() if is_async(call) else await run_in_thread(call)
            return await result if inspect.isawaitable(result) else result

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(call)) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _find_method(embedder: Any, method_names: Sequence[str]) -> tuple[str, Callable[..., Any]]:
    """Return the name of the method that embeds (``""`` for a function), and what to call."""
    if not isinstance(embedder, str | bytes | type):
        for name in method_names:
            if callable(method := getattr(embedder, name, None)):
                return name, method
        if callable(embedder):
            return "", embedder
    raise WrapError(
        "embed must be a function from a text to its vector, or an object that embeds, not"
        f" {type(embedder).__name__}. A function of a list of texts is passed as embed_many"
    )


def _read_parameter(fn: Callable[..., Any]) -> tuple[str, bool]:
    """Return the keyword for texts (``""`` for a position), and whether *fn* takes a list."""
    try:
        parameters = list(read_parameters(fn).values())
    except (ValueError, TypeError):  # Some builtins have no readable signature.
        return "", False
    places = [it for it in parameters if it.kind in (it.POSITIONAL_ONLY, it.POSITIONAL_OR_KEYWORD)]
    keywords = [it for it in parameters if it.kind is it.KEYWORD_ONLY and it.default is it.empty]
    for parameter in (*places, *keywords):
        note = str(parameter.annotation)
        is_text = parameter.annotation is str or note == "str"
        has_list_name = parameter.name in _LIST_NAMES and not is_text
        takes_list = has_list_name or _LIST_TYPES.search(note) is not None
        return "" if places else parameter.name, takes_list
    return "", False


def read_vectors(
    result: Any, text_count: int, model_name: str, dimension: int | None = None
) -> Vectors:
    """Return the vectors in the *result* of a function or service, as lists of floats.

    *result* is one vector, a list of vectors, or a response of OpenAI's or Pinecone's client.
    Raises `EmbeddingError` if there is not one vector of finite numbers and equal length per text.
    """
    tokens, rows = 0, result
    # Arrays also have `data`, which is no list.
    if isinstance(data := read_field(result, "data"), list):
        # Some servers omit OpenAI's index, and keep the order of the texts.
        data = sorted(data, key=lambda item: read_field(item, "index") or 0)
        rows = [read_field(item, "embedding") or read_field(item, "values") for item in data]
        tokens = read_count(read_field(result, "usage"), ("prompt_tokens", "total_tokens"))
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
    lengths = {len(vector) for vector in vectors}
    has_one_length = lengths == {dimension or len(vectors[0])} and bool(vectors[0])
    if not has_one_length or not all(all(map(isfinite, vector)) for vector in vectors):
        wanted = f"{dimension} finite numbers" if dimension else "one length, of finite numbers"
        raise EmbeddingError(
            f"{model_name} must return vectors of {wanted}; it returned {sorted(lengths)} numbers"
        )
    return Vectors(vectors, tokens)


def _list_items(values: Any) -> list[Any]:
    if isinstance(values, list | tuple):
        return list(values)
    # A dict or a set would give numbers in the wrong order, and a text its letters.
    if isinstance(values, str | bytes | Mapping | Set):
        raise TypeError
    return values.tolist() if hasattr(values, "tolist") else list(values)
