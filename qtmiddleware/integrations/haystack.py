"""Wrap a retriever component or a function as a Haystack retriever.

    from qtmiddleware.integrations.haystack import QueryTransformRetriever

    retriever = QueryTransformRetriever(
        InMemoryBM25Retriever(store), config="balanced", client=OpenAIChatGenerator()
    )
    history = [ChatMessage.from_user("..."), ChatMessage.from_assistant("...")]
    retriever.run("And last year?", history=history)

In a pipeline, the retriever works like any text retriever, and is saved and loaded with the
pipeline.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final, Unpack

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError
from qtmiddleware.integrations import require_package
from qtmiddleware.integrations.adapter import Adapter, check_count, convert_matches
from qtmiddleware.runtime.concurrency import run_in_thread
from qtmiddleware.types import Retrieval
from qtmiddleware.wrapping.engine import MiddlewareOptions
from qtmiddleware.wrapping.wrapped import Wrapped

with require_package("haystack-ai", "2.25", extra="haystack"):
    from haystack import Document, component, default_to_dict
    from haystack.core.errors import SerializationError
    from haystack.core.serialization import component_to_dict
    from haystack.dataclasses import ChatMessage

_ACCEPTED: Final = (
    "a retriever component that takes a query, a function of a query (plain or async), or a"
    " function that qtm.middleware wrapped"
)

_outputs = component.output_types(
    documents=list[Document],
    status=str,
    variants=list[dict[str, Any]],
    degradations=list[dict[str, Any]],
    trace=dict[str, Any],
    confidence=dict[str, Any],
)


@component
class QueryTransformRetriever:
    """A Haystack text retriever that improves the results of your *retriever*.

    *retriever* is a component that takes a ``query`` and returns ``documents``, a sync or async
    function that takes a query, or a function that is already wrapped. To search by vectors, pass
    Haystack's `TextEmbeddingRetriever`; to search by a whole pipeline, pass a `SuperComponent`.
    Results that are not documents, such as Pinecone's matches, are converted.

    qtmiddleware asks the retriever for more than *top_k* documents, to have candidates for
    reranking. If your retriever has no ``top_k``, make it return about 50 documents.

    A saved pipeline contains components and settings. API keys are never saved.

    Args:
        retriever: Your retriever, as described above.
        top_k: The number of documents to return; by default the retriever's own ``top_k``. The
            ``top_k`` of a call overrides this number.
        config: The configuration, as for `QueryMiddleware`.
        options: The other options of `QueryMiddleware`. ``client`` may be a Haystack chat generator
            too.

    Raises `ConfigError` if *retriever* has an unsupported type or a setting is not valid.
    """

    def __init__(
        self,
        retriever: Any,
        *,
        top_k: int | None = None,
        config: Any = None,
        **options: Unpack[MiddlewareOptions],
    ) -> None:
        check_count("top_k", top_k)
        self.retriever = retriever
        self.top_k = top_k
        self.config = config
        self.options = options
        client = options.get("client")
        model = _ChatModel(client) if "messages" in _get_sockets(client, "input") else client
        self._adapter = Adapter(
            _make_functions(retriever),
            {"config": config, **options, "client": model},
            accepted=_ACCEPTED,
            count_name="top_k" if "top_k" in _get_sockets(retriever, "input") else None,
        )
        self._parts = list(filter(_is_component, (retriever, client)))
        # The user made the middleware of a wrapped function, and may use it elsewhere.
        if not isinstance(retriever, Wrapped):
            self._parts.append(self.search.middleware)
        # Haystack's `TextEmbeddingRetriever` leaves the number to the retriever inside.
        inner = retriever if hasattr(retriever, "top_k") else getattr(retriever, "retriever", None)
        number = getattr(inner, "top_k", None)
        self._default_top_k = number if type(number) is int and _is_component(inner) else None

    @_outputs
    def run(
        self,
        query: str,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        history: list[ChatMessage] | None = None,
        qtm_config: dict[str, Any] | str | None = None,
    ) -> dict[str, Any]:
        """Return the best documents for *query*, with details of the retrieval.

        Each document has its score for *query*, or its fused score if the setting ``scores`` is
        ``fused``.

        Args:
            query: The question.
            filters: The filters for the retriever.
            top_k: The number of documents to return.
            history: The conversation so far, as `Wrapped.retrieve` accepts it.
            qtm_config: Settings for this call, or the name of a preset.

        Returns:
            documents: The documents, best first.
            status: ``full`` or ``degraded``.
            variants: The texts that were searched, with ``kind``, ``text`` and ``weight``.
            degradations: The steps that failed or were skipped, with ``stage``, ``reason`` and
                ``detail``.
            trace: The searches, model calls, times and costs.
            confidence: How good the result is, compared with earlier results.

        Exceptions of the retriever pass through unchanged.
        """
        arguments = {"filters": filters, "history": history, "qtm_config": qtm_config}
        return _build_outputs(self.retrieve(query, top_k=top_k, **arguments))

    @_outputs
    async def run_async(
        self,
        query: str,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        history: list[ChatMessage] | None = None,
        qtm_config: dict[str, Any] | str | None = None,
    ) -> dict[str, Any]:
        """Return the best documents for *query*. This is the async version of `run`."""
        arguments = {"filters": filters, "history": history, "qtm_config": qtm_config}
        return _build_outputs(await self.aretrieve(query, top_k=top_k, **arguments))

    def retrieve(self, query: str, *, top_k: int | None = None, **arguments: Any) -> Retrieval:
        """Return a `Retrieval` with the matches for *query* and all their scores.

        *arguments* are the retriever's own, such as ``filters``, and *history* and *qtm_config*.
        The field ``raw`` of a match is the document that the retriever returned.
        """
        counts = top_k, self.top_k, self._default_top_k
        return self._adapter.retrieve(query, _drop_missing(arguments), *counts)

    async def aretrieve(
        self, query: str, *, top_k: int | None = None, **arguments: Any
    ) -> Retrieval:
        """Return a `Retrieval` for *query*. This is the async version of `retrieve`."""
        counts = top_k, self.top_k, self._default_top_k
        return await self._adapter.aretrieve(query, _drop_missing(arguments), *counts)

    @property
    def search(self) -> Any:
        """The wrapped function that `run` calls. Use it to call ``check`` or ``answer``."""
        return self._adapter.search

    def warm_up(self) -> None:
        """Load everything that the first question needs, in the components and the middleware."""
        for part in self._parts:
            if hasattr(part, "warm_up"):
                part.warm_up()

    def close(self) -> None:
        """Close the components and the middleware's own clients.

        If the retriever is a function that was already wrapped, its middleware stays open.
        """
        for part in self._parts:
            if hasattr(part, "close"):
                part.close()

    def to_dict(self) -> dict[str, Any]:
        """Return the retriever's arguments as a dict for a pipeline file.

        Raises Haystack's `SerializationError` if one of them is neither a component nor a setting.
        """
        arguments = {"retriever": self.retriever, "top_k": self.top_k, "config": self.config}
        saved: dict[str, Any] = {}
        for name, value in _drop_missing({**arguments, **self.options}).items():
            if _is_component(value):
                saved[name] = component_to_dict(value, name)
            elif isinstance(value, str | int | dict | Config):
                saved[name] = value
            else:
                kind = type(value).__name__
                raise SerializationError(
                    f"{name}={kind} cannot be saved: a file can hold components and settings. Name"
                    " a model in config and set its key in the environment."
                )
        return default_to_dict(self, **saved)


class _ChatModel:
    """Gives a chat generator of Haystack the interface of a LangChain chat model."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self.model = getattr(generator, "model", None)
        self.__qualname__ = type(generator).__name__  # The name in degradations and logs.

    def invoke(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        return _read_reply(self._generator.run(messages=_build_messages(messages)))

    async def ainvoke(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        if not hasattr(self._generator, "run_async"):
            return await run_in_thread(partial(self.invoke, messages))
        return _read_reply(await self._generator.run_async(messages=_build_messages(messages)))


def _build_messages(messages: list[dict[str, str]]) -> list[ChatMessage]:
    return [ChatMessage.from_openai_dict_format(message) for message in messages]


def _read_reply(outputs: dict[str, Any]) -> dict[str, Any]:
    for reply in outputs.get("replies") or ():
        return {**reply.meta, "content": "\n".join(reply.texts)}
    return {"content": ""}


def _drop_missing(arguments: dict[str, Any]) -> dict[str, Any]:
    # A function that takes no filters gets none.
    return {name: value for name, value in arguments.items() if value is not None}


def _make_functions(retriever: Any) -> tuple[Any, ...]:
    """Return *retriever* as a function and, if it has an async method, an async function.

    Raises `ConfigError` if it is a component that takes no query or returns no documents.
    """
    if not _is_component(retriever):
        return (retriever,)
    inputs, outputs = _get_sockets(retriever, "input"), _get_sockets(retriever, "output")
    if "query" not in inputs or "documents" not in outputs:
        raise ConfigError(
            f"retriever must be {_ACCEPTED}, not {type(retriever).__name__}. For vectors, pass"
            " TextEmbeddingRetriever(retriever=..., text_embedder=...).",
            path="retriever",
            allowed=_ACCEPTED,
        )

    def search(query: Any, **more: Any) -> Any:
        return retriever.run(query=query, **more)["documents"]

    async def asearch(query: Any, **more: Any) -> Any:
        return (await retriever.run_async(query=query, **more))["documents"]

    search.__qualname__ = asearch.__qualname__ = f"{type(retriever).__name__}.run"
    return (search, asearch) if hasattr(retriever, "run_async") else (search,)


def _is_component(value: Any) -> bool:
    return not isinstance(value, type) and hasattr(value, "__haystack_input__")


def _get_sockets(value: Any, direction: str) -> dict[str, Any]:
    """Return the inputs or outputs of *value* by name; empty if it is no component."""
    if not _is_component(value):
        return {}
    return getattr(value, f"__haystack_{direction}__")._sockets_dict  # type: ignore[no-any-return]


def _build_outputs(retrieval: Retrieval) -> dict[str, Any]:
    return {
        "documents": [
            document if score is None else replace(document, score=score)
            for document, score in convert_matches(retrieval, Document, _make_document)
        ],
        "status": retrieval.status,
        "variants": [asdict(variant) for variant in retrieval.variants],
        "degradations": [asdict(entry) for entry in retrieval.degradations],
        "trace": retrieval.trace.to_dict(),
        "confidence": retrieval.standing.to_dict(),
    }


def _make_document(id_: str | None, text: str, meta: dict[str, Any]) -> Document:
    return Document(id=id_ or "", content=text, meta=meta)
