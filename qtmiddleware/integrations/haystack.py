"""Wrap a retriever component or a function as a Haystack retriever.

    from qtmiddleware.integrations.haystack import QueryTransformRetriever

    retriever = QueryTransformRetriever(
        InMemoryBM25Retriever(store), config="balanced", client=OpenAIChatGenerator()
    )
    history = [ChatMessage.from_user("..."), ChatMessage.from_assistant("...")]
    retriever.run("And last year?", history=history)

In a pipeline, the retriever works like any text retriever, and is saved and loaded with the
pipeline. Every search and every model call is a span of Haystack's tracer. `SPAN` is the name of
the whole retrieval's span.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from functools import partial
from inspect import isawaitable
from itertools import islice
from typing import Any, Final

from qtmiddleware.config import Config
from qtmiddleware.integrations import require_package
from qtmiddleware.integrations.adapter import (
    MIDDLEWARE_OPTIONS,
    Adapter,
    check_count,
    describe_type,
    list_scores,
    reject,
)
from qtmiddleware.runtime.threads import run_in_thread
from qtmiddleware.types import Retrieval
from qtmiddleware.wrapping.wrapped import Wrapped, find_import_name

with require_package("haystack-ai", "2.25", extra="haystack"):
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.core.errors import SerializationError
    from haystack.core.serialization import component_to_dict
    from haystack.dataclasses import ChatMessage
    from haystack.tracing.tracer import Span, is_tracing_enabled, tracer
    from haystack.utils import deserialize_callable, serialize_callable

SPAN: Final = "qtmiddleware.retrieval"
"""The name of the span for a whole retrieval.

The tag ``qtmiddleware.record`` contains a record of the query log. The record contains texts, so
the tag is set only if ``HAYSTACK_CONTENT_TRACING_ENABLED`` is set.
"""

_ACCEPTED: Final = (
    "a retriever component that takes a query, one that takes an embedding with text_embedder="
    " beside it, a function of a query (plain or async), or a function that qtm.middleware wrapped"
)
_CHAT_GENERATOR: Final = "a chat generator of Haystack, or what client= of QueryMiddleware takes"
_EMBEDDER: Final = "a component that embeds a text, such as a TextEmbedder"
_FIELDS: Final = ("retriever", "text_embedder", "top_k", *MIDDLEWARE_OPTIONS)
_PLAIN_FIELDS: Final = ("top_k", "config")

_Mapping = dict[str, Any]
_Rows = list[_Mapping]
_outputs = component.output_types(
    documents=list[Document],
    status=str,
    variants=_Rows,
    degradations=_Rows,
    trace=_Mapping,
    confidence=_Mapping,
)


@component
class QueryTransformRetriever:
    """A Haystack text retriever that improves the results of your *retriever*.

    The arguments cannot be changed after creation. Each call also takes these options:

    - *filters* and *retriever_kwargs*: arguments for *retriever*.
    - *history*: the conversation so far, as `ChatMessage` objects or any other history that
      `Wrapped.retrieve` accepts.
    - *qtm_config*: settings for this call, or the name of a preset.

    A saved pipeline contains components, settings and the import paths of functions. API keys are
    never saved.

    *config*, *reranker*, *redact*, *observers*, *on_retrieval* and *clock* are the arguments of
    `QueryMiddleware`.

    *retriever* is one of:

    - A component that takes a ``query`` or a ``query_embedding`` and returns ``documents``.
    - A `SuperComponent` of a whole pipeline.
    - A sync or async function that takes a query.
    - A function that is already wrapped.

    Results that are not documents, such as Pinecone's matches, are converted.

    qtmiddleware asks the retriever for more than *top_k* documents, to have candidates for
    reranking. If your retriever has no ``top_k``, make it return about 50 documents.

    Args:
        retriever: Your retriever, as described above.
        text_embedder: Embeds the query for a *retriever* that takes a ``query_embedding``.
        top_k: The number of documents to return; by default the retriever's own ``top_k``. The
            ``top_k`` of a call overrides this number.
        client: A Haystack chat generator, or any client that `QueryMiddleware` accepts.

    Raises `ConfigError` if *retriever* has an unsupported type or a setting is not valid.
    """

    def __init__(
        self,
        retriever: Any,
        *,
        text_embedder: Any = None,
        top_k: int | None = None,
        config: Any = None,
        client: Any = None,
        reranker: Any = None,
        redact: Any = None,
        observers: Any = (),
        on_retrieval: Any = None,
        clock: Any = None,
    ) -> None:
        self.retriever = retriever
        self.text_embedder = text_embedder
        self.top_k = top_k
        self.config = config
        self.client = client
        self.reranker = reranker
        self.redact = redact
        self.observers = observers
        self.on_retrieval = on_retrieval
        self.clock = clock
        check_count("top_k", top_k)
        options = {name: getattr(self, name) for name in MIDDLEWARE_OPTIONS}
        if _is_component(client):
            options["client"] = _ChatModel(client)
        self._adapter = Adapter(
            _make_functions(retriever, text_embedder),
            options,
            accepted=_ACCEPTED,
            items="documents",
            awaited="`run_async` or `aretrieve`",
            count_name="top_k" if "top_k" in _get_sockets(retriever, "input") else None,
        )
        self._default_top_k = _find_default_top_k(retriever)

    @_outputs
    def run(
        self,
        query: str,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        history: list[ChatMessage] | None = None,
        retriever_kwargs: dict[str, Any] | None = None,
        qtm_config: dict[str, Any] | str | None = None,
    ) -> dict[str, Any]:
        """Return the best documents for *query*, with details of the retrieval.

        Each document has its score for *query*, or its fused score if the setting ``scores`` is
        ``fused``.

        Returns:
            documents: The documents, best first.
            status: ``full`` or ``degraded``.
            variants: The texts that were searched, with ``kind``, ``text`` and ``weight``.
            degradations: The steps that failed or were skipped, with ``stage``, ``reason`` and
                ``detail``.
            trace: The searches, model calls, times and costs.
            confidence: How good the result is, compared with earlier results.

        Raises:
            ConfigError: A setting is not valid.
            WrapError: The retriever is an async function. Use `run_async`.

        Exceptions of the retriever pass through unchanged.
        """
        with _open_span(SPAN) as span:
            retrieval = self.retrieve(query, filters, top_k, history, retriever_kwargs, qtm_config)
            return self._build_outputs(retrieval, span)

    @_outputs
    async def run_async(
        self,
        query: str,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        history: list[ChatMessage] | None = None,
        retriever_kwargs: dict[str, Any] | None = None,
        qtm_config: dict[str, Any] | str | None = None,
    ) -> dict[str, Any]:
        """Return the best documents for *query*. This is the async version of `run`.

        A component without ``run_async`` runs in a thread, so the event loop is not blocked.
        """
        with _open_span(SPAN) as span:
            retrieval = await self.aretrieve(
                query, filters, top_k, history, retriever_kwargs, qtm_config
            )
            return self._build_outputs(retrieval, span)

    def retrieve(self, query: str, *inputs: Any, **named_inputs: Any) -> Retrieval:
        """Return a `Retrieval` with the matches for *query* and all their scores.

        The field ``raw`` of a match is the document that *retriever* returned. The other inputs,
        and the exceptions, are those of `run`.
        """
        return self._adapter.retrieve(query, *self._bind(*inputs, **named_inputs))

    async def aretrieve(self, query: str, *inputs: Any, **named_inputs: Any) -> Retrieval:
        """Return a `Retrieval` for *query*. This is the async version of `retrieve`."""
        return await self._adapter.aretrieve(query, *self._bind(*inputs, **named_inputs))

    @property
    def search(self) -> Any:
        """The wrapped function that `run` calls. Use it to call ``check`` or ``answer``."""
        return self._adapter.search

    def warm_up(self) -> None:
        """Load everything that the first question needs.

        Warms up the retriever, the embedder, the chat generator and the middleware. The middleware
        sends no request.
        """
        for warm_up in self._find_methods("warm_up"):
            warm_up()
        self.search.middleware.warm_up()

    def close(self) -> None:
        """Close the retriever, the embedder, the chat generator and the middleware's own clients.

        If the retriever is a function that was already wrapped, its middleware stays open.
        """
        for close in self._find_methods("close"):
            close()
        # The user made the middleware of a wrapped function, and may use it elsewhere.
        if not isinstance(self.retriever, Wrapped):
            self.search.middleware.close()

    async def close_async(self) -> None:
        """Close what `close` closes, and the running event loop's clients."""
        for close in self._find_methods("close_async", "close"):
            if isawaitable(closing := close()):
                await closing
        if not isinstance(self.retriever, Wrapped):
            await self.search.middleware.aclose()

    def to_dict(self) -> dict[str, Any]:
        """Return the retriever's arguments as a dict for a pipeline file.

        Raises Haystack's `SerializationError` if an argument cannot be saved.
        """
        values = {name: getattr(self, name) for name in _FIELDS}
        saved = {name: _save(name, it) for name, it in values.items() if it not in (None, ())}
        return default_to_dict(self, **saved)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> QueryTransformRetriever:
        """Create a retriever from *data*, a result of `to_dict`.

        Raises Haystack's `DeserializationError` if a function or component cannot be loaded.
        """
        loaded = {
            name: deserialize_callable(value)
            if isinstance(value, str) and name not in _PLAIN_FIELDS
            else value
            for name, value in data.get("init_parameters", {}).items()
        }
        made: QueryTransformRetriever = default_from_dict(cls, {**data, "init_parameters": loaded})
        return made

    def _find_methods(self, *names: str) -> Iterator[Callable[[], Any]]:
        """Yield the first of these methods that each component has."""
        for part in (self.retriever, self.text_embedder, self.client):
            methods = [getattr(part, name, None) for name in names]
            if _is_component(part):
                yield from islice(filter(None, methods), 1)

    def _bind(
        self,
        filters: _Mapping | None = None,
        top_k: int | None = None,
        history: Any = None,
        retriever_kwargs: _Mapping | None = None,
        qtm_config: Mapping[str, Any] | str | None = None,
    ) -> tuple[Any, ...]:
        """Return the arguments of the adapter's methods after the query."""
        arguments = {
            **(retriever_kwargs or {}),
            "history": history,
            "qtm_config": qtm_config,
        }
        if filters is not None:
            arguments["filters"] = filters
        return arguments, top_k, self.top_k, self._default_top_k

    def _build_outputs(self, retrieval: Retrieval, span: Span) -> dict[str, Any]:
        """Return the outputs of `run` for *retrieval*, and add tags about *retrieval* to *span*.

        The tags contain no texts. If content tracing is on, a query-log record is also added.
        """
        if is_tracing_enabled():
            trace = retrieval.trace
            degradations = [f"{entry.stage}: {entry.reason}" for entry in retrieval.degradations]
            tags = {
                "qtmiddleware.status": retrieval.status,
                "qtmiddleware.variants": [variant.kind for variant in retrieval.variants],
                "qtmiddleware.degradations": degradations,
                "qtmiddleware.query_id": trace.query_id,
                "qtmiddleware.searches": trace.searches,
                "qtmiddleware.llm_calls": trace.llm_calls,
            }
            span.set_tags(tags)
            span.set_content_tag("qtmiddleware.record", self._adapter.build_record(retrieval))
        documents = self._adapter.convert_matches(retrieval, Document, _make_document)
        return {
            "documents": [
                document if score in (None, document.score) else replace(document, score=score)
                for document, score in zip(documents, list_scores(retrieval), strict=True)
            ],
            "status": retrieval.status,
            "variants": [asdict(variant) for variant in retrieval.variants],
            "degradations": [asdict(entry) for entry in retrieval.degradations],
            "trace": retrieval.trace.to_dict(),
            "confidence": retrieval.standing.to_dict(),
        }


class _Part:
    """A component inside the retriever: each of its runs is a span named after its *role*."""

    def __init__(self, role: str, inner: Any) -> None:
        self.inner = inner
        self._role = role

    def run(self, **inputs: Any) -> Any:
        """Run the component, and return its outputs."""
        with self._open_span(inputs) as span:
            outputs = self.inner.run(**inputs)
            span.set_content_tag("haystack.component.output", outputs)
            return outputs

    async def run_async(self, **inputs: Any) -> Any:
        """Run the component; in a thread if it has no ``run_async``, so the loop is not blocked."""
        with self._open_span(inputs) as span:
            outputs = await (
                self.inner.run_async(**inputs)
                if hasattr(self.inner, "run_async")
                else run_in_thread(partial(self.inner.run, **inputs))
            )
            span.set_content_tag("haystack.component.output", outputs)
            return outputs

    def _open_span(self, inputs: Mapping[str, Any]) -> AbstractContextManager[Span]:
        tags = {
            "haystack.component.name": self._role,
            "haystack.component.type": type(self.inner).__name__,
        }
        return _open_span(f"haystack.{self._role}.run", tags, inputs)


class _ChatModel(_Part):
    """Gives a Haystack chat generator the interface of a LangChain chat model."""

    def __init__(self, generator: Any) -> None:
        sockets = _get_sockets(generator, "input") | _get_sockets(generator, "output")
        if not sockets.keys() >= {"messages", "replies"}:
            reason = f"not {describe_type(generator)}"
            raise reject(reason, generator, _CHAT_GENERATOR, "client")
        super().__init__("chat_generator", generator)
        self.model = getattr(generator, "model", None)
        self.__qualname__ = type(generator).__name__  # The name in degradations and logs.

    def invoke(self, messages: list[dict[str, str]]) -> _Mapping:
        """Return the reply to *messages* with its model, token counts and finish reason."""
        return _read_reply(self.run(messages=_build_messages(messages)))

    async def ainvoke(self, messages: list[dict[str, str]]) -> _Mapping:
        """Return the reply to *messages*. This is the async version of `invoke`."""
        return _read_reply(await self.run_async(messages=_build_messages(messages)))


def _build_messages(messages: list[dict[str, str]]) -> list[ChatMessage]:
    return [ChatMessage.from_openai_dict_format(message) for message in messages]


def _read_reply(outputs: Mapping[str, Any]) -> _Mapping:
    for reply in outputs.get("replies") or ():
        return {**reply.meta, "content": "\n".join(reply.texts)}
    return {"content": ""}


def _make_functions(retriever: Any, text_embedder: Any) -> tuple[Any, ...]:
    """Return *retriever*, with *text_embedder* before it, as a sync and an async function.

    The embedder's output ``embedding`` becomes the retriever's input ``query_embedding``, and
    ``sparse_embedding`` becomes ``query_sparse_embedding``. Raises `ConfigError` if the embedder
    takes no text, or if the retriever has other required inputs or returns no documents.
    """
    if text_embedder is not None and "text" not in _get_sockets(text_embedder, "input"):
        reason = f"not {describe_type(text_embedder)}"
        raise reject(reason, text_embedder, _EMBEDDER, "text_embedder")
    if not _is_component(retriever):
        if text_embedder is not None:
            reason = "and a function takes the query as text; leave text_embedder out"
            raise reject(reason, text_embedder, _EMBEDDER, "text_embedder")
        return (retriever,)
    inputs, outputs = _get_sockets(retriever, "input"), _get_sockets(retriever, "output")
    vectors = _get_sockets(text_embedder, "output")
    vectors = {name: f"query_{name}" for name in vectors if f"query_{name}" in inputs}
    required = [name for name, socket in inputs.items() if socket.is_mandatory]
    covered = {"query", *vectors.values()}
    if not (
        covered.issuperset(required)
        and not covered.isdisjoint(inputs)
        and bool(vectors) == (text_embedder is not None)
        and "documents" in outputs
    ):
        takes, returns = ", ".join(required) or "no query", ", ".join(outputs)
        reason = f"and {describe_type(retriever)} takes {takes} and returns {returns}"
        raise reject(reason, retriever, _ACCEPTED)
    part = _Part("retriever", retriever)
    embedder = _Part("text_embedder", text_embedder) if vectors else None

    def build_inputs(query: Any, embedded: _Mapping, more: _Mapping) -> _Mapping:
        found = {vectors[name]: vector for name, vector in embedded.items() if name in vectors}
        own = {"query": query} if "query" in inputs else {}
        return {**more, **own, **found}

    def search(query: Any, **more: Any) -> Any:
        embedded = embedder.run(text=query) if embedder else {}
        return part.run(**build_inputs(query, embedded, more))["documents"]

    async def asearch(query: Any, **more: Any) -> Any:
        embedded = await embedder.run_async(text=query) if embedder else {}
        found = await part.run_async(**build_inputs(query, embedded, more))
        return found["documents"]

    search.__qualname__ = asearch.__qualname__ = f"{type(retriever).__name__}.run"
    can_await = hasattr(retriever, "run_async") or hasattr(text_embedder, "run_async")
    return (search, asearch) if can_await else (search,)


def _make_document(
    id_: str | None,
    text: str,
    meta: dict[str, Any],
) -> Document:
    return Document(id=id_ or "", content=text, meta=meta)


@contextmanager
def _open_span(
    name: str,
    tags: _Mapping | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> Iterator[Span]:
    # A search may run in a thread of the middleware. The thread has the caller's context, so the
    # current span is the right parent there too.
    with tracer.trace(name, tags=tags, parent_span=tracer.current_span()) as span:
        if inputs is not None:
            span.set_content_tag("haystack.component.input", inputs)
        yield span


def _is_component(value: Any) -> bool:
    return not isinstance(value, type) and hasattr(value, "__haystack_input__")


def _get_sockets(value: Any, direction: str) -> _Mapping:
    """Return the inputs or outputs of *value* by name; empty if it is no component."""
    sockets = getattr(value, f"__haystack_{direction}__", None)
    return {} if sockets is None or isinstance(value, type) else dict(sockets._sockets_dict)


def _find_default_top_k(retriever: Any) -> int | None:
    """Return the ``top_k`` of *retriever*, or else of a retriever that *retriever* contains."""
    while _is_component(retriever):
        if type(top_k := getattr(retriever, "top_k", None)) is int:
            return top_k
        retriever = getattr(retriever, "retriever", None)
    return None


def _save(name: str, value: Any) -> Any:
    """Convert *value*, the value of the parameter *name*, to plain data for a pipeline file.

    A component becomes what Haystack saves of it, and a function its import path. Raises
    `SerializationError` if *value* cannot be saved.
    """
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if name in _PLAIN_FIELDS:
        is_plain = isinstance(value, int | str | Mapping)
        return value if is_plain else Config.load(value).to_dict()
    if _is_component(value):
        return component_to_dict(value, name)
    if callable(value) and find_import_name(value, value) is not None:
        return serialize_callable(value)
    advice = " Name a model in config and set its key in the environment."
    raise SerializationError(
        f"{name}={describe_type(value)} cannot be saved: a file can hold components and functions"
        " that can be imported from a module, but no lambdas, methods or other objects, which may"
        f" hold a key.{advice if name == 'client' else ''}"
    )
