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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final, TypedDict, Unpack

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError, ResponseShapeError, WrapError
from qtmiddleware.integrations import require_package
from qtmiddleware.retrieval.responses import read_response
from qtmiddleware.runtime.threads import run_in_thread
from qtmiddleware.types import Match, Retrieval, Variant
from qtmiddleware.wrapping.options import check_options
from qtmiddleware.wrapping.query_log import TextWriter, build_record
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.wrapped import Wrapped, find_import_name

with require_package("haystack-ai", "2.25", extra="haystack"):
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.core.errors import DeserializationError, SerializationError
    from haystack.core.serialization import (
        component_from_dict,
        component_to_dict,
        import_class_by_name,
    )
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
_FIELDS: Final = (
    *("retriever", "text_embedder", "top_k", "config", "client"),
    *("reranker", "redact", "observers", "on_retrieval", "clock"),
)
_PLAIN_FIELDS: Final = ("top_k", "config")
_MIDDLEWARE_FIELDS: Final = _FIELDS[3:]
_UNREADABLE: Final = ("response", "unreadable")

_Rows = list[dict[str, Any]]
_outputs = component.output_types(
    documents=list[Document],
    status=str,
    variants=_Rows,
    degradations=_Rows,
    trace=dict[str, Any],
    confidence=dict[str, Any],
)


class AskOptions(TypedDict, total=False):
    """The options of one call to `QueryTransformRetriever.run`.

    Attributes:
        filters: The filters for your retriever.
        top_k: The number of documents to return.
        history: The conversation so far.
        retriever_kwargs: More arguments for your retriever.
        qtm_config: Settings for this call, or the name of a preset.
    """

    filters: dict[str, Any] | None
    top_k: int | None
    history: Iterable[Any] | None
    retriever_kwargs: dict[str, Any] | None
    qtm_config: Mapping[str, Any] | str | None


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
        if top_k is not None and (type(top_k) is not int or top_k < 1):
            raise ConfigError(
                f"top_k must be a whole number of at least 1, not {top_k!r}",
                path="top_k",
                allowed="1 or more",
            )
        self._is_warm = False
        self._search, self._asearch = self._wrap_retriever()
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
        self._warm_up_components()
        with _open_span(SPAN) as span:
            options = AskOptions(
                filters=filters,
                top_k=top_k,
                history=history,
                retriever_kwargs=retriever_kwargs,
                qtm_config=qtm_config,
            )
            return self._build_outputs(self.retrieve(query, **options), span)

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
        await self._warm_up_components_async()
        with _open_span(SPAN) as span:
            options = AskOptions(
                filters=filters,
                top_k=top_k,
                history=history,
                retriever_kwargs=retriever_kwargs,
                qtm_config=qtm_config,
            )
            return self._build_outputs(await self.aretrieve(query, **options), span)

    def retrieve(self, query: str, **options: Unpack[AskOptions]) -> Retrieval:
        """Return a `Retrieval` with the matches for *query* and all their scores.

        The field ``raw`` of a match is the document that *retriever* returned. `run` describes the
        *options* and the exceptions.
        """
        if self._search.is_async:
            raise WrapError(f"{self._search!r} is asynchronous: use `run_async` or `aretrieve`")
        return self._limit_matches(
            self._search.retrieve(query, **self._build_arguments(options)), options
        )

    async def aretrieve(self, query: str, **options: Unpack[AskOptions]) -> Retrieval:
        """Return a `Retrieval` for *query*. This is the async version of `retrieve`."""
        return self._limit_matches(
            await self._asearch.aretrieve(query, **self._build_arguments(options)), options
        )

    @property
    def search(self) -> Any:
        """The wrapped function that `run` calls. Use it to call ``check`` or ``answer``."""
        return self._search

    def warm_up(self) -> None:
        """Load everything that the first question needs.

        Warms up the retriever, the embedder, the chat generator and the middleware. The middleware
        sends no request.
        """
        self._warm_up_components()
        if not self._is_warm:
            self._search.middleware.warm_up()
            self._is_warm = True

    async def warm_up_async(self) -> None:
        """Load everything that the first question needs. This is the async version of `warm_up`.

        The middleware is loaded in a thread. A component without ``warm_up_async`` is warmed up on
        the event loop, and blocks the loop meanwhile.
        """
        await self._warm_up_components_async()
        if not self._is_warm:
            await run_in_thread(self._search.middleware.warm_up)
            self._is_warm = True

    def close(self) -> None:
        """Close the retriever, the embedder, the chat generator and the middleware's own clients.

        If the retriever is a function that was already wrapped, its middleware stays open.
        """
        for inner in self._components:
            _call_optional_method(inner, "close")
        # The user made the middleware of a wrapped function, and may use it elsewhere.
        if not isinstance(self.retriever, Wrapped):
            self._search.middleware.close()
            self._is_warm = False

    async def close_async(self) -> None:
        """Close the retriever, the embedder, the chat generator and the middleware's clients.

        This is the async version of `close`. It also closes the running event loop's clients.
        """
        for inner in self._components:
            await _acall_optional_method(inner, "close")
        if not isinstance(self.retriever, Wrapped):
            await self._search.middleware.aclose()
            self._is_warm = False

    def to_dict(self) -> dict[str, Any]:
        """Return the retriever's arguments as a dict for a pipeline file.

        Raises Haystack's `SerializationError` if an argument cannot be saved.
        """
        arguments = {name: getattr(self, name) for name in _FIELDS}
        saved = {
            name: _serialize_parameter(name, value)
            for name, value in arguments.items()
            if value is not None and value != ()
        }
        return default_to_dict(self, **saved)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> QueryTransformRetriever:
        """Create a retriever from *data*, a result of `to_dict`.

        Raises Haystack's `DeserializationError` if a parameter is unknown or cannot be loaded. The
        error names the parameter, and the function or component that is missing.
        """
        saved = data.get("init_parameters", {})
        if unknown := sorted(set(saved) - set(_FIELDS)):
            message = (
                f"{cls.__name__} has no option {', '.join(unknown)}; the options are"
                f" {', '.join(_FIELDS)}"
            )
            raise DeserializationError(
                f"{message}. Was it saved by a newer version of qtmiddleware?"
            )
        loaded = {
            name: value if name in _PLAIN_FIELDS else _deserialize_parameter(name, value)
            for name, value in saved.items()
        }
        retriever: QueryTransformRetriever = default_from_dict(
            cls, {**data, "init_parameters": loaded}
        )
        return retriever

    @property
    def _components(self) -> list[Any]:
        return [
            part
            for part in (self.text_embedder, self.retriever, self.client)
            if _is_component(part)
        ]

    def _warm_up_components(self) -> None:
        for inner in self._components:
            _call_optional_method(inner, "warm_up")

    async def _warm_up_components_async(self) -> None:
        for inner in self._components:
            await _acall_optional_method(inner, "warm_up")

    def _wrap_retriever(self) -> tuple[Any, Any]:
        """Wrap the retriever, and return the wrapped functions for sync and for async calls.

        Raises `ConfigError` if the retriever or the embedder has an unsupported type.
        """
        inner = self.retriever
        embedder = self.text_embedder
        if isinstance(inner, Wrapped):
            if repeated := [
                name for name in ("text_embedder", *_MIDDLEWARE_FIELDS) if getattr(self, name)
            ]:
                raise _build_config_error(
                    f"retriever is already wrapped; set {', '.join(repeated)} where you wrap it",
                    inner,
                )
            return inner, inner
        settings = {name: getattr(self, name) for name in _MIDDLEWARE_FIELDS}
        if _is_component(self.client):
            settings["client"] = _ChatModel(self.client)
        functions: tuple[Callable[..., Any], ...]
        # The last function is for async calls. If there is only one, the middleware runs it in a
        # thread.
        if _is_component(inner):
            functions = (search := _Search(inner, embedder),)
            if any(hasattr(part, "run_async") for part in (inner, embedder)):
                functions = (search, _AsyncSearch(inner, embedder))
        elif not callable(inner) or isinstance(inner, type) or hasattr(inner, "run"):
            # An object with a `run` is most likely a component whose class lacks the decorator.
            hint = "; decorate its class with @component" if hasattr(inner, "run") else ""
            raise _build_config_error(
                f"retriever must be {_ACCEPTED}, not {_describe_type(inner)}{hint}", inner
            )
        elif embedder is not None:
            raise _build_config_error(
                "a function takes the query as text; leave text_embedder out",
                inner,
                "text_embedder",
            )
        else:
            functions = (inner,)
        middleware = QueryMiddleware(**settings)
        return middleware.wrap(functions[0]), middleware.wrap(functions[-1])

    def _choose_top_k(self, options: AskOptions) -> int | None:
        """Return the number of documents to return: the call's ``top_k``, or else the retriever's.

        Returns ``None`` if no number is set.
        """
        return next(
            (
                count
                for count in (options.get("top_k"), self.top_k, self._default_top_k)
                if count is not None
            ),
            None,
        )

    def _build_arguments(self, options: AskOptions) -> dict[str, Any]:
        """Return the keyword arguments for the wrapped function, without the query."""
        check_options(self.retrieve, options, AskOptions.__optional_keys__)
        history = options.get("history")
        filters = options.get("filters")
        count = self._choose_top_k(options)
        arguments = dict(options.get("retriever_kwargs") or {})
        if filters is not None:
            arguments["filters"] = filters
        if (name := self._search.top_k_argument) is not None and count is not None:
            arguments.setdefault(name, count)
        if isinstance(history, list | tuple):
            history = [_convert_message(message) for message in history]
        return {**arguments, "history": history, "qtm_config": options.get("qtm_config")}

    def _limit_matches(self, retrieval: Retrieval, options: AskOptions) -> Retrieval:
        """Return *retrieval*, truncated to the number of documents for this call.

        If the wrapped function limits the number itself, *retrieval* is returned unchanged.
        """
        count = self._choose_top_k(options) if self._search.top_k_argument is None else None
        return (
            retrieval
            if type(count) is not int or count < 1
            else replace(retrieval, matches=retrieval.matches[:count])
        )

    def _build_outputs(self, retrieval: Retrieval, span: Span) -> dict[str, Any]:
        """Return the outputs of `run` for *retrieval*, and add tags about *retrieval* to *span*.

        The tags contain no texts. If content tracing is on, a query-log record is also added.
        """
        if is_tracing_enabled():
            degradations = [f"{entry.stage}: {entry.reason}" for entry in retrieval.degradations]
            tags = {
                "status": retrieval.status,
                "variants": [variant.kind for variant in retrieval.variants],
                "degradations": degradations,
            }
            counts = {
                name: getattr(retrieval.trace, name)
                for name in ("query_id", "searches", "llm_calls")
            }
            span.set_tags(
                {f"qtmiddleware.{name}": value for name, value in (tags | counts).items()}
            )
            span.set_content_tag(
                "qtmiddleware.record", build_record(retrieval, TextWriter(self.redact))
            )
        return {
            "documents": _read_documents(retrieval),
            "status": retrieval.status,
            "variants": [asdict(variant) for variant in retrieval.variants],
            "degradations": [asdict(entry) for entry in retrieval.degradations],
            "trace": retrieval.trace.to_dict(),
            "confidence": retrieval.standing.to_dict(),
        }


# --- components as functions ----------------------------------------------------------------------


class _Search:
    """Calls the Haystack component *retriever* with a query and the number of documents.

    If there is an *embedder*, it embeds the query first. The embedder's output ``embedding``
    becomes the retriever's input ``query_embedding``, and its output ``sparse_embedding`` becomes
    ``query_sparse_embedding``.

    Raises `ConfigError` if *retriever* has other required inputs, or returns no documents.
    """

    def __init__(self, retriever: Any, embedder: Any) -> None:
        self.retriever = retriever
        self.embedder = embedder
        inputs = _get_sockets(retriever, "input")
        self.takes_query = "query" in inputs
        self.takes_top_k = "top_k" in inputs
        query_inputs = _list_embedder_outputs(embedder)
        self.query_inputs = {
            name: f"query_{name}" for name in query_inputs if f"query_{name}" in inputs
        }
        type_name = _describe_type(retriever)
        covered = {"query", *self.query_inputs.values()}
        missing = [
            name for name, socket in inputs.items() if socket.is_mandatory and name not in covered
        ]
        if (
            missing
            or "documents" not in _get_sockets(retriever, "output")
            or not (self.takes_query or self.query_inputs)
        ):
            hint = (
                f"{type_name} needs {', '.join(missing)}"
                if missing
                else f"{type_name} does not return documents for a query"
            )
            raise _build_config_error(f"retriever must be {_ACCEPTED}; {hint}", retriever)
        if embedder is not None and not self.query_inputs:
            message = (
                f"{type_name} takes no output of {_describe_type(embedder)}; leave text_embedder"
                " out"
            )
            raise _build_config_error(message, embedder, "text_embedder")

    def __call__(self, query: Any, top_k: int | None = None, **retriever_arguments: Any) -> Any:
        outputs = (
            {}
            if self.embedder is None
            else _run_component("text_embedder", self.embedder, text=query)
        )
        return self.select_documents(
            _run_component(
                "retriever",
                self.retriever,
                **self.build_inputs(query, outputs, top_k, retriever_arguments),
            ),
            top_k,
        )

    def build_inputs(
        self,
        query: Any,
        embedder_outputs: Mapping[str, Any],
        top_k: int | None,
        retriever_arguments: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the retriever's inputs, by name: query, embeddings, *top_k* and further arguments.

        *query* and *top_k* are omitted if the retriever has no such input.
        """
        inputs = retriever_arguments | {
            socket: embedder_outputs[name]
            for name, socket in self.query_inputs.items()
            if name in embedder_outputs
        }
        if self.takes_query:
            inputs["query"] = query
        return inputs if top_k is None or not self.takes_top_k else inputs | {"top_k": top_k}

    def select_documents(self, outputs: Mapping[str, Any], top_k: int | None) -> Any:
        """Return the documents in *outputs*, the retriever's result.

        If the retriever takes no ``top_k``, the documents are truncated to *top_k*.
        """
        documents = outputs["documents"]
        return documents if self.takes_top_k or top_k is None or top_k < 1 else documents[:top_k]

    def __repr__(self) -> str:
        return f"{type(self.retriever).__name__}.run"


class _AsyncSearch(_Search):
    """Calls the Haystack component *retriever* asynchronously with a query and its ``top_k``."""

    async def __call__(
        self, query: Any, top_k: int | None = None, **retriever_arguments: Any
    ) -> Any:
        outputs = (
            {}
            if self.embedder is None
            else await _arun_component("text_embedder", self.embedder, text=query)
        )
        return self.select_documents(
            await _arun_component(
                "retriever",
                self.retriever,
                **self.build_inputs(query, outputs, top_k, retriever_arguments),
            ),
            top_k,
        )


class _ChatModel:
    """Gives a Haystack chat generator the interface of a LangChain chat model."""

    def __init__(self, generator: Any) -> None:
        if "messages" not in _get_sockets(generator, "input") or "replies" not in _get_sockets(
            generator, "output"
        ):
            allowed = "a chat generator of Haystack, or what client= of QueryMiddleware takes"
            message = (
                f"client must be {allowed}; {_describe_type(generator)} must take messages and"
                " return replies"
            )
            raise ConfigError(
                message, path="client", value=_describe_type(generator), allowed=allowed
            )
        self.generator = generator
        self.model = getattr(generator, "model", None)
        self.__qualname__ = type(generator).__name__  # The name in degradations and logs.

    def invoke(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """Return the text, model, token counts and finish reason of the reply to *messages*."""
        return self.read_reply(
            _run_component("chat_generator", self.generator, messages=self.build_messages(messages))
        )

    async def ainvoke(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """Return the reply to *messages* as a dict. This is the async version of `invoke`."""
        return self.read_reply(
            await _arun_component(
                "chat_generator", self.generator, messages=self.build_messages(messages)
            )
        )

    def build_messages(self, messages: list[dict[str, str]]) -> list[ChatMessage]:
        """Return *messages* as Haystack's `ChatMessage` objects."""
        makers = {"system": ChatMessage.from_system, "user": ChatMessage.from_user}
        return [makers[message["role"]](message["content"]) for message in messages]

    def read_reply(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the text, model, token counts and finish reason of the first reply in *outputs*.

        If there is no reply, the text is empty.
        """
        reply = next(iter(outputs.get("replies") or ()), None)
        details = (
            {}
            if reply is None
            else {name: reply.meta.get(name) for name in ("usage", "model", "finish_reason")}
        )
        return {"content": "\n".join(reply.texts) if reply is not None else "", **details}


def _run_component(role: str, haystack_component: Any, **inputs: Any) -> Any:
    """Run *haystack_component* in a new span named after *role*, and return its outputs."""
    with _open_component_span(role, haystack_component, inputs) as span:
        outputs = haystack_component.run(**inputs)
        span.set_content_tag("haystack.component.output", outputs)
    return outputs


async def _arun_component(role: str, haystack_component: Any, **inputs: Any) -> Any:
    """Run *haystack_component* in a new span, and return its outputs.

    This is the async version of `_run_component`. A component without ``run_async`` runs in a
    thread, so the event loop is not blocked.
    """
    with _open_component_span(role, haystack_component, inputs) as span:
        can_await = hasattr(haystack_component, "run_async")
        outputs = await (
            haystack_component.run_async(**inputs)
            if can_await
            else run_in_thread(partial(haystack_component.run, **inputs))
        )
        span.set_content_tag("haystack.component.output", outputs)
    return outputs


@contextmanager
def _open_component_span(
    role: str, haystack_component: Any, inputs: Mapping[str, Any]
) -> Iterator[Span]:
    tags = {
        "haystack.component.name": role,
        "haystack.component.type": type(haystack_component).__name__,
    }
    with _open_span(f"haystack.{role}.run", tags) as span:
        span.set_content_tag("haystack.component.input", inputs)
        yield span


@contextmanager
def _open_span(span_name: str, tags: dict[str, Any] | None = None) -> Iterator[Span]:
    # A search may run in a thread of the middleware. The thread has the caller's context, so the
    # current span is the right parent there too.
    with tracer.trace(span_name, tags=tags, parent_span=tracer.current_span()) as span:
        yield span


def _call_optional_method(haystack_component: Any, method_name: str) -> None:
    """Call the method *method_name* of *haystack_component*, if there is one."""
    if hasattr(haystack_component, method_name):
        getattr(haystack_component, method_name)()


async def _acall_optional_method(haystack_component: Any, method_name: str) -> None:
    """Await the method ``<method_name>_async`` of *haystack_component*.

    If there is none, call the synchronous method *method_name*, if there is one.
    """
    if hasattr(haystack_component, f"{method_name}_async"):
        await getattr(haystack_component, f"{method_name}_async")()
    else:
        _call_optional_method(haystack_component, method_name)


def _is_component(value: Any) -> bool:
    return not isinstance(value, type) and hasattr(value, "__haystack_input__")


def _get_sockets(haystack_component: Any, direction: str) -> dict[str, Any]:
    sockets: dict[str, Any] = getattr(haystack_component, f"__haystack_{direction}__")._sockets_dict
    return sockets


def _list_embedder_outputs(embedder: Any) -> tuple[str, ...]:
    """Return the names of the embedder's outputs; an empty tuple if *embedder* is ``None``.

    Raises `ConfigError` if *embedder* is not a component that takes a text.
    """
    if embedder is None:
        return ()
    if not _is_component(embedder) or "text" not in _get_sockets(embedder, "input"):
        allowed = "a component that embeds a text, such as a TextEmbedder"
        message = f"text_embedder must be {allowed}, not {_describe_type(embedder)}"
        raise ConfigError(
            message, path="text_embedder", value=_describe_type(embedder), allowed=allowed
        )
    return tuple(_get_sockets(embedder, "output"))


def _find_default_top_k(retriever: Any) -> int | None:
    """Return the ``top_k`` of *retriever*, or else of a retriever that *retriever* contains.

    Returns ``None`` if no retriever has a ``top_k``.
    """
    while _is_component(retriever):
        if type(top_k := getattr(retriever, "top_k", None)) is int:
            return top_k
        retriever = getattr(retriever, "retriever", None)
    return None


# --- what comes in and goes out -------------------------------------------------------------------


def _convert_message(message: Any) -> Any:
    """Convert *message*, a `ChatMessage`, to a dict with its role and text.

    Tool calls and images are dropped. Any other *message* is returned unchanged.
    """
    if not isinstance(message, ChatMessage):
        return message
    return {"role": message.role.value, "content": "\n".join(message.texts)}


def _read_documents(retrieval: Retrieval) -> list[Document]:
    """Return the documents in *retrieval*, each with its score in the retriever's response.

    Raises `ResponseShapeError` if the response contains neither documents nor passages.
    """
    if any((entry.stage, entry.reason) == _UNREADABLE for entry in retrieval.degradations):
        shape = _describe_type(retrieval.response)
        message = (
            f"retriever must return documents, (document, score) pairs or passages, not {shape}"
        )
        raise ResponseShapeError(message, shape=shape)
    try:
        # In the response, a passage that only a variant found has a score on the question's scale.
        # Its match has the score it had for that variant.
        ranking = read_response(Variant("original", ""), retrieval.response).ranking
        items = [(passage.item, passage.score) for passage in ranking.passages]
    except ResponseShapeError:  # The user's own `read` function understands this response.
        items = [(match.raw, match.score) for match in retrieval.matches]
    return [
        _make_document(match, item, match.score if score is None else score)
        for match, (item, score) in zip(retrieval.matches, items, strict=False)
    ]


def _make_document(match: Match, response_item: Any, score: float | None) -> Document:
    """Return the document in *response_item* with *score*.

    If *response_item* contains no document, returns a new document with the text and metadata of
    *match*. Raises `ResponseShapeError` if *match* has no text.
    """
    # A function may return pairs of document and score.
    document = (
        response_item[0]
        if isinstance(response_item, tuple | list) and response_item
        else response_item
    )
    if isinstance(document, Document):
        return (
            document if score is None or document.score == score else replace(document, score=score)
        )
    if match.text is None:
        shape = _describe_type(document)
        message = (
            f"retriever returned {shape} without text; set keywordEvidence.fields.text to the field"
            " that holds it"
        )
        raise ResponseShapeError(message, shape=shape)
    meta = {name: value for name, value in match.metadata.items() if value is not match.text}
    return Document(id=match.id or "", content=match.text, meta=meta, score=score)


# --- what a pipeline's file holds -----------------------------------------------------------------


def _serialize_parameter(parameter_name: str, value: Any) -> Any:
    """Convert *value*, the value of *parameter_name*, to plain data for a pipeline file.

    A component is converted to Haystack's format, and a function to its import path. Raises
    `SerializationError` if *value* cannot be saved.
    """
    if parameter_name == "config":
        value = (
            value
            if isinstance(value, str | os.PathLike | Mapping)
            else Config.load(value).to_dict()
        )
        return (
            os.fspath(value) if isinstance(value, os.PathLike) else _convert_to_plain_values(value)
        )
    if parameter_name in _PLAIN_FIELDS:
        return value
    if _is_component(value):
        return component_to_dict(value, parameter_name)
    if not callable(value) or find_import_name(value, value) is None:
        raise SerializationError(
            f"{parameter_name}={_describe_type(value)} cannot be saved: a file can hold components"
            " and functions that can be imported from a module, but no lambdas, methods or other"
            " objects, which may hold a key."
            + (
                " Name a model in config and set its key in the environment."
                if parameter_name == "client"
                else ""
            )
        )
    return serialize_callable(value)


def _convert_to_plain_values(value: Any) -> Any:
    """Return *value* with all nested mappings as dicts, and all nested tuples as lists."""
    if isinstance(value, Mapping):
        return {name: _convert_to_plain_values(entry) for name, entry in value.items()}
    return (
        [_convert_to_plain_values(entry) for entry in value]
        if isinstance(value, list | tuple)
        else value
    )


def _deserialize_parameter(parameter_name: str, saved_value: Any) -> Any:
    """Convert *saved_value*, a result of `_serialize_parameter`, back to the parameter's value.

    Raises `DeserializationError` if a function or component cannot be loaded.
    """
    class_name = saved_value.get("type") if isinstance(saved_value, Mapping) else None
    try:
        if isinstance(saved_value, str):
            return deserialize_callable(saved_value)
        return (
            component_from_dict(
                _import_component(str(class_name)), dict(saved_value), parameter_name
            )
            if class_name
            else saved_value
        )
    except (DeserializationError, ImportError, AttributeError) as error:
        subject = f"the component {class_name}" if class_name else f"the function {saved_value}"
        raise DeserializationError(
            f"{parameter_name}: {subject}, named in the file, cannot be loaded: {error}"
        ) from error


def _import_component(class_name: str) -> type[Any]:
    """Import and return the component class with the import path *class_name*.

    Raises `DeserializationError` if the class is not a Haystack component.
    """
    cls: Any = import_class_by_name(class_name)
    # A pipeline file may name any class, and creating an object of it could run harmful code.
    if f"{cls.__module__}.{cls.__qualname__}" not in component.registry:
        raise DeserializationError("it is not a component")
    return cls  # type: ignore[no-any-return]


def _build_config_error(
    error_message: str, rejected_value: Any, parameter_name: str = "retriever"
) -> ConfigError:
    return ConfigError(
        error_message, path=parameter_name, value=_describe_type(rejected_value), allowed=_ACCEPTED
    )


def _describe_type(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
