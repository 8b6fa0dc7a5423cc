"""A retriever of Haystack with the middleware in it, around any retriever component or function.

    from qtmiddleware.integrations.haystack import QueryTransformRetriever

    retriever = QueryTransformRetriever(InMemoryBM25Retriever(store), config="balanced",
    client=OpenAIChatGenerator()) retriever.run("And last year?",
    history=[ChatMessage.from_user("..."), ChatMessage.from_assistant("...")])

It stands in a pipeline as any text retriever does, and is saved and loaded with it. Every search
and model call is a span of Haystack's tracer; `SPAN` is that of a retrieval.
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
from qtmiddleware.integrations import needs
from qtmiddleware.retrieval.responses import read_response
from qtmiddleware.runtime.drivers import in_thread
from qtmiddleware.types import Match, Retrieval, Variant
from qtmiddleware.wrapping.options import check_options
from qtmiddleware.wrapping.pickling import find_import_name
from qtmiddleware.wrapping.query_log import TextWriter, build_record
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.wrapped import Bound, Wrapped

with needs("haystack-ai", "2.25", extra="haystack"):
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
"""The span of each retrieval. Its tag ``qtmiddleware.record`` is the record that the query log has, with the same keys;
it holds texts, and is set where ``HAYSTACK_CONTENT_TRACING_ENABLED`` is."""

_ACCEPTED: Final = (
    "a retriever component that takes a query, one that takes an embedding with text_embedder="
    " beside it, a function of a query (plain or async), or a function that qtm.middleware wrapped"
)
_FIELDS: Final = (
    *("retriever", "text_embedder", "top_k", "config", "client"),
    *("reranker", "redact", "observers", "on_retrieval", "clock"),
)
_PLAIN: Final = ("top_k", "config")
_OF_MIDDLEWARE: Final = _FIELDS[3:]
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
    """What a call may say beside the query; `QueryTransformRetriever` tells what each means."""

    filters: dict[str, Any] | None
    top_k: int | None
    history: Iterable[Any] | None
    retriever_kwargs: dict[str, Any] | None
    qtm_config: Mapping[str, Any] | None


@component
class QueryTransformRetriever:
    """Finds better documents with the *retriever* you have, and is a text retriever itself.

    *retriever* is a component that takes a ``query`` and returns ``documents``, or one that takes a
    ``query_embedding`` with the *text_embedder* it belongs to; a `SuperComponent` of a whole
    pipeline; a function of a query, plain or async; or a function that is wrapped already, which
    brings its own options. What it returns that is no document, as a match of Pinecone, becomes
    one.

    *top_k* is how many documents to return, by default the retriever's own number; that of a call
    goes before it. The retriever is asked for more, so that there is something to weigh; one that
    takes no ``top_k`` should return more by itself (some 50). *client* is a chat generator of
    Haystack or what else `QueryMiddleware` takes, and *config*,
    *reranker*, *redact*, *observers*, *on_retrieval* and *clock* are those of `QueryMiddleware`. None can be
    set later.

    A call takes *filters*, which go to *retriever* as *retriever_kwargs* do; *history*, the
    conversation so far as `ChatMessage` objects or what else `Wrapped.retrieve` takes; and
    *qtm_config*, settings for the call.

    Saved with a pipeline are components, functions that a module holds by their name, and settings;
    keys never are. Raises `ConfigError` for a *retriever* that is none and for bad settings.
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
        self.retriever, self.text_embedder, self.top_k = retriever, text_embedder, top_k
        self.config, self.client, self.reranker = config, client, reranker
        self.redact, self.observers, self.on_retrieval = redact, observers, on_retrieval
        self.clock = clock
        if top_k is not None and (type(top_k) is not int or top_k < 1):
            raise ConfigError(
                f"top_k must be a whole number of at least 1, not {top_k!r}",
                path="top_k",
                allowed="1 or more",
            )
        self._is_warm = False
        self._search, self._asearch = self._wrap()
        self._usual_top_k = _find_usual_top_k(retriever)

    @_outputs
    def run(
        self,
        query: str,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        history: list[ChatMessage] | None = None,
        retriever_kwargs: dict[str, Any] | None = None,
        qtm_config: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The best ``documents``, and how they were found.

        Those are the retriever's own, each with its score for the *query*, or with ours where
        ``scores`` is set to ``fused``. ``status`` is ``full`` or ``degraded``, ``variants`` the
        texts that were searched (``kind``, ``text`` and ``weight``), ``degradations`` what did not
        go as asked (``stage``, ``reason`` and ``detail``) and ``trace`` the account in numbers.
        ``confidence`` says how sure the result looks beside earlier ones. Raises what the retriever
        raises, `ConfigError` for bad settings, and `WrapError` around an asynchronous function.
        """
        self._warm_up_inner()
        with _trace(SPAN) as span:
            given = AskOptions(
                filters=filters,
                top_k=top_k,
                history=history,
                retriever_kwargs=retriever_kwargs,
                qtm_config=qtm_config,
            )
            return self._report(self.retrieve(query, **given), span)

    @_outputs
    async def run_async(
        self,
        query: str,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
        history: list[ChatMessage] | None = None,
        retriever_kwargs: dict[str, Any] | None = None,
        qtm_config: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """`run` without blocking the running loop; a component without a ``run_async`` runs in a thread."""
        await self._warm_up_inner_async()
        with _trace(SPAN) as span:
            given = AskOptions(
                filters=filters,
                top_k=top_k,
                history=history,
                retriever_kwargs=retriever_kwargs,
                qtm_config=qtm_config,
            )
            return self._report(await self.aretrieve(query, **given), span)

    def retrieve(self, query: str, **options: Unpack[AskOptions]) -> Retrieval:
        """What `run` returns as a `Retrieval`: ``matches`` with all their scores, and the account of how it was found.

        The *options* are those of `run`, and raise the same. A match's ``raw`` is the document that
        was found.
        """
        if self._search.is_async:
            raise WrapError(f"{self._search!r} is asynchronous: use `run_async` or `aretrieve`")
        return self._cut(self._search.retrieve(query, **self._arguments(options)), options)

    async def aretrieve(self, query: str, **options: Unpack[AskOptions]) -> Retrieval:
        """`retrieve` without blocking the running loop."""
        return self._cut(await self._asearch.aretrieve(query, **self._arguments(options)), options)

    @property
    def search(self) -> Any:
        """The wrapped function behind `run`: its ``check(question)``, ``answer(...)`` and ``middleware``."""
        return self._search  # a `Wrapped`, or the method that a wrapped one is on its object

    def warm_up(self) -> None:
        """Warm up retriever, embedder and chat generator, and load what the first question needs; sends nothing."""
        self._warm_up_inner()
        if not self._is_warm:
            self._search.middleware.warm_up()
            self._is_warm = True

    async def warm_up_async(self) -> None:
        """`warm_up`, of components that can on the running loop."""
        await self._warm_up_inner_async()
        if not self._is_warm:
            await in_thread(self._search.middleware.warm_up)
            self._is_warm = True

    def close(self) -> None:
        """Release what retriever, embedder and chat generator hold, and the clients the middleware made itself."""
        for inner in self._inner:
            _call(inner, "close")
        if not isinstance(self.retriever, Wrapped | Bound):
            self._search.middleware.close()
            self._is_warm = False

    async def close_async(self) -> None:
        """`close`, of clients of the running loop too."""
        for inner in self._inner:
            await _acall(inner, "close")
        if not isinstance(self.retriever, Wrapped | Bound):
            await self._search.middleware.aclose()
            self._is_warm = False

    def to_dict(self) -> dict[str, Any]:
        """What a file holds of this; raises Haystack's `SerializationError` for an object that a file cannot hold."""
        given = {name: getattr(self, name) for name in _FIELDS}
        saved = {
            name: _save(name, value)
            for name, value in given.items()
            if value is not None and value != ()
        }
        return default_to_dict(self, **saved)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> QueryTransformRetriever:
        """The retriever that `to_dict` saved; raises Haystack's `DeserializationError` where that cannot be made again.

        That names the parameter, and the function or component that is not there any more.
        """
        saved = data.get("init_parameters", {})
        if unknown := sorted(set(saved) - set(_FIELDS)):
            said = (
                f"{cls.__name__} has no option {', '.join(unknown)}; the options are"
                f" {', '.join(_FIELDS)}"
            )
            raise DeserializationError(f"{said}. Was it saved by a newer version of qtmiddleware?")
        loaded = {
            name: value if name in _PLAIN else _load(name, value) for name, value in saved.items()
        }
        made: QueryTransformRetriever = default_from_dict(cls, {**data, "init_parameters": loaded})
        return made

    @property
    def _inner(self) -> list[Any]:
        return [it for it in (self.text_embedder, self.retriever, self.client) if _is_component(it)]

    def _warm_up_inner(self) -> None:
        for inner in self._inner:
            _call(inner, "warm_up")

    async def _warm_up_inner_async(self) -> None:
        for inner in self._inner:
            await _acall(inner, "warm_up")

    def _wrap(self) -> tuple[Any, Any]:
        """Wrap what *retriever* is searched with, once for blocking and once for awaiting calls."""
        inner, embedder = self.retriever, self.text_embedder
        if isinstance(inner, Wrapped | Bound):
            if set_too := [
                name for name in ("text_embedder", *_OF_MIDDLEWARE) if getattr(self, name)
            ]:
                raise _refuse(
                    f"retriever is already wrapped; set {', '.join(set_too)} where you wrap it",
                    inner,
                )
            return inner, inner
        given = {name: getattr(self, name) for name in _OF_MIDDLEWARE}
        if _is_component(self.client):
            given["client"] = _ChatModel(self.client)
        functions: tuple[Callable[..., Any], ...]
        if _is_component(inner):
            functions = (search := _Search(inner, embedder),)
            if any(hasattr(it, "run_async") for it in (inner, embedder)):
                functions = (search, _AsyncSearch(inner, embedder))
        elif not callable(inner) or isinstance(inner, type) or hasattr(inner, "run"):
            hint = "; decorate its class with @component" if hasattr(inner, "run") else ""
            raise _refuse(f"retriever must be {_ACCEPTED}, not {_name_type(inner)}{hint}", inner)
        elif embedder is not None:
            raise _refuse(
                "a function takes the query as text; leave text_embedder out",
                inner,
                "text_embedder",
            )
        else:
            functions = (inner,)
        middleware = QueryMiddleware(**given)
        return middleware.wrap(functions[0]), middleware.wrap(functions[-1])

    def _find_wanted(self, options: AskOptions) -> int | None:
        """How many documents are wanted of a call with *options*."""
        return next(
            (it for it in (options.get("top_k"), self.top_k, self._usual_top_k) if it is not None),
            None,
        )

    def _arguments(self, options: AskOptions) -> dict[str, Any]:
        """What the function is called with beside the query."""
        check_options(self.retrieve, options, AskOptions.__optional_keys__)
        history, filters, wanted = (
            options.get("history"),
            options.get("filters"),
            self._find_wanted(options),
        )
        given = dict(options.get("retriever_kwargs") or {})
        if filters is not None:
            given["filters"] = filters
        if (name := self._search.top_k_argument) is not None and wanted is not None:
            given.setdefault(name, wanted)
        if isinstance(history, list | tuple):
            history = [_read_message(it) for it in history]
        return {**given, "history": history, "qtm_config": options.get("qtm_config")}

    def _cut(self, found: Retrieval, options: AskOptions) -> Retrieval:
        """The best of what was *found* by a function that cannot be told how many are wanted."""
        wanted = self._find_wanted(options) if self._search.top_k_argument is None else None
        return (
            found
            if type(wanted) is not int or wanted < 1
            else replace(found, matches=found.matches[:wanted])
        )

    def _report(self, found: Retrieval, span: Span) -> dict[str, Any]:
        """The outputs, of which *span* gets what holds no text, and with content tracing the whole record."""
        if is_tracing_enabled():
            told = [f"{it.stage}: {it.reason}" for it in found.degradations]
            tags = {
                "status": found.status,
                "variants": [it.kind for it in found.variants],
                "degradations": told,
            }
            counts = {
                name: getattr(found.trace, name) for name in ("query_id", "searches", "llm_calls")
            }
            span.set_tags(
                {f"qtmiddleware.{name}": value for name, value in (tags | counts).items()}
            )
            span.set_content_tag(
                "qtmiddleware.record", build_record(found, TextWriter(self.redact))
            )
        return {
            "documents": _read_documents(found),
            "status": found.status,
            "variants": [asdict(it) for it in found.variants],
            "degradations": [asdict(it) for it in found.degradations],
            "trace": found.trace.to_dict(),
            "confidence": found.standing.to_dict(),
        }


# --- components as functions ----------------------------------------------------------------------


class _Search:
    """Calls *retriever* as a function of a query, embedded by *embedder* where that is one, and *top_k*.

    What *embedder* returns as ``embedding`` goes to ``query_embedding``, a ``sparse_embedding``
    likewise.
    """

    def __init__(self, retriever: Any, embedder: Any) -> None:
        self.retriever, self.embedder = retriever, embedder
        inputs = _read_sockets(retriever, "input")
        self.takes_query, self.takes_top_k = "query" in inputs, "top_k" in inputs
        embedded = _list_embeddings(embedder)
        self.embedded = {name: f"query_{name}" for name in embedded if f"query_{name}" in inputs}
        kind, filled = _name_type(retriever), {"query", *self.embedded.values()}
        missing = [
            name for name, socket in inputs.items() if socket.is_mandatory and name not in filled
        ]
        if (
            missing
            or "documents" not in _read_sockets(retriever, "output")
            or not (self.takes_query or self.embedded)
        ):
            hint = (
                f"{kind} needs {', '.join(missing)}"
                if missing
                else f"{kind} does not return documents for a query"
            )
            raise _refuse(f"retriever must be {_ACCEPTED}; {hint}", retriever)
        if embedder is not None and not self.embedded:
            message = f"{kind} takes no output of {_name_type(embedder)}; leave text_embedder out"
            raise _refuse(message, embedder, "text_embedder")

    def __call__(self, query: Any, top_k: int | None = None, **more: Any) -> Any:
        made = {} if self.embedder is None else _run("text_embedder", self.embedder, text=query)
        return self.read(
            _run("retriever", self.retriever, **self.give(query, made, top_k, more)), top_k
        )

    def give(
        self, query: Any, made: Mapping[str, Any], top_k: int | None, more: dict[str, Any]
    ) -> dict[str, Any]:
        """What the retriever is run with, where the embedder has *made* something."""
        given = more | {
            socket: made[name] for name, socket in self.embedded.items() if name in made
        }
        if self.takes_query:
            given["query"] = query
        return given if top_k is None or not self.takes_top_k else given | {"top_k": top_k}

    def read(self, found: Mapping[str, Any], top_k: int | None) -> Any:
        """The documents, no more than were asked for, of a retriever that cannot be asked."""
        documents = found["documents"]
        return documents if self.takes_top_k or top_k is None or top_k < 1 else documents[:top_k]

    def __repr__(self) -> str:
        return f"{type(self.retriever).__name__}.run"


class _AsyncSearch(_Search):
    """The same, to be awaited."""

    async def __call__(self, query: Any, top_k: int | None = None, **more: Any) -> Any:
        made = (
            {} if self.embedder is None else await _arun("text_embedder", self.embedder, text=query)
        )
        return self.read(
            await _arun("retriever", self.retriever, **self.give(query, made, top_k, more)), top_k
        )


class _ChatModel:
    """A chat generator with the methods of a chat model that the middleware knows."""

    def __init__(self, generator: Any) -> None:
        if "messages" not in _read_sockets(generator, "input") or "replies" not in _read_sockets(
            generator, "output"
        ):
            allowed = "a chat generator of Haystack, or what client= of QueryMiddleware takes"
            said = (
                f"client must be {allowed}; {_name_type(generator)} must take messages and return"
                " replies"
            )
            raise ConfigError(said, path="client", value=_name_type(generator), allowed=allowed)
        self.generator = generator
        self.model = getattr(generator, "model", None)
        self.__qualname__ = type(generator).__name__  # what degradations and logs call it

    def invoke(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """The first reply to *messages*, with what it tells of its tokens."""
        return self.read(_run("chat_generator", self.generator, messages=self.write(messages)))

    async def ainvoke(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """`invoke` without blocking the running loop."""
        return self.read(
            await _arun("chat_generator", self.generator, messages=self.write(messages))
        )

    def write(self, messages: list[dict[str, str]]) -> list[ChatMessage]:
        """*messages* as Haystack's."""
        make = {"system": ChatMessage.from_system, "user": ChatMessage.from_user}
        return [make[it["role"]](it["content"]) for it in messages]

    def read(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """The first of the replies."""
        reply = next(iter(made.get("replies") or ()), None)
        known = (
            {}
            if reply is None
            else {name: reply.meta.get(name) for name in ("usage", "model", "finish_reason")}
        )
        return {"content": "\n".join(reply.texts) if reply is not None else "", **known}


def _run(role: str, inner: Any, **inputs: Any) -> Any:
    """What *inner* returns, under a span of its own."""
    with _trace_run(role, inner, inputs) as span:
        made = inner.run(**inputs)
        span.set_content_tag("haystack.component.output", made)
    return made


async def _arun(role: str, inner: Any, **inputs: Any) -> Any:
    with _trace_run(role, inner, inputs) as span:
        can_await = hasattr(inner, "run_async")
        made = await (
            inner.run_async(**inputs) if can_await else in_thread(partial(inner.run, **inputs))
        )
        span.set_content_tag("haystack.component.output", made)
    return made


@contextmanager
def _trace_run(role: str, inner: Any, inputs: Mapping[str, Any]) -> Iterator[Span]:
    tags = {"haystack.component.name": role, "haystack.component.type": type(inner).__name__}
    with _trace(f"haystack.{role}.run", tags) as span:
        span.set_content_tag("haystack.component.input", inputs)
        yield span


@contextmanager
def _trace(name: str, tags: dict[str, Any] | None = None) -> Iterator[Span]:
    # A search may run in a thread of ours, to which the context is carried along.
    with tracer.trace(name, tags=tags, parent_span=tracer.current_span()) as span:
        yield span


def _call(inner: Any, name: str) -> None:
    if hasattr(inner, name):
        getattr(inner, name)()


async def _acall(inner: Any, name: str) -> None:
    if hasattr(inner, f"{name}_async"):
        await getattr(inner, f"{name}_async")()
    else:
        _call(inner, name)


def _is_component(given: Any) -> bool:
    return not isinstance(given, type) and hasattr(given, "__haystack_input__")


def _read_sockets(inner: Any, way: str) -> dict[str, Any]:
    sockets: dict[str, Any] = getattr(inner, f"__haystack_{way}__")._sockets_dict
    return sockets


def _list_embeddings(embedder: Any) -> tuple[str, ...]:
    """What *embedder* makes of a text; raises `ConfigError` where it takes none."""
    if embedder is None:
        return ()
    if not _is_component(embedder) or "text" not in _read_sockets(embedder, "input"):
        allowed = "a component that embeds a text, such as a TextEmbedder"
        message = f"text_embedder must be {allowed}, not {_name_type(embedder)}"
        raise ConfigError(
            message, path="text_embedder", value=_name_type(embedder), allowed=allowed
        )
    return tuple(_read_sockets(embedder, "output"))


def _find_usual_top_k(retriever: Any) -> int | None:
    """How many documents *retriever*, or the one within it, returns by itself, where it tells."""
    while _is_component(retriever):
        if type(found := getattr(retriever, "top_k", None)) is int:
            return found
        retriever = getattr(retriever, "retriever", None)
    return None


# --- what comes in and goes out -------------------------------------------------------------------


def _read_message(message: Any) -> Any:
    """*message* with all its texts; tool calls and pictures have none."""
    if not isinstance(message, ChatMessage):
        return message
    return {"role": message.role.value, "content": "\n".join(message.texts)}


def _read_documents(found: Retrieval) -> list[Document]:
    """The documents of *found* as it shows them; raises `ResponseShapeError` where there are none to be read."""
    if any((it.stage, it.reason) == _UNREADABLE for it in found.degradations):
        shape = _name_type(found.response)
        message = (
            f"retriever must return documents, (document, score) pairs or passages, not {shape}"
        )
        raise ResponseShapeError(message, shape=shape)
    try:
        # A passage that a variant alone found has another score there than it had for that variant.
        ranking = read_response(Variant("original", ""), found.response).ranking
        shown = [*zip(ranking.items, ranking.scores, strict=True)]
    except ResponseShapeError:  # Of a function that is read by `read`.
        shown = [(match.raw, match.score) for match in found.matches]
    return [
        _make_document(match, item, match.score if score is None else score)
        for match, (item, score) in zip(found.matches, shown, strict=False)
    ]


def _make_document(match: Match, item: Any, score: float | None) -> Document:
    document = item[0] if isinstance(item, tuple | list) and item else item
    if isinstance(document, Document):
        return (
            document if score is None or document.score == score else replace(document, score=score)
        )
    if match.text is None:
        shape = _name_type(document)
        message = (
            f"retriever returned {shape} without text; set keywordEvidence.textField to the field"
            " that holds it"
        )
        raise ResponseShapeError(message, shape=shape)
    meta = {name: value for name, value in match.metadata.items() if value is not match.text}
    return Document(id=match.id or "", content=match.text, meta=meta, score=score)


# --- what a pipeline's file holds -----------------------------------------------------------------


def _save(name: str, value: Any) -> Any:
    """The parameter *name* as a file holds it: a component as Haystack does, a function by its name."""
    if name == "config":
        value = (
            value
            if isinstance(value, str | os.PathLike | Mapping)
            else Config.load(value).to_dict()
        )
        return os.fspath(value) if isinstance(value, os.PathLike) else _copy_plain(value)
    if name in _PLAIN:
        return value
    if _is_component(value):
        return component_to_dict(value, name)
    if not callable(value) or find_import_name(value, value) is None:
        raise SerializationError(
            f"{name}={_name_type(value)} cannot be saved: a file can hold components and functions"
            " that can be imported from a module, but no lambdas, methods or other objects, which"
            " may hold a key."
            + (
                " Name a model in config and set its key in the environment."
                if name == "client"
                else ""
            )
        )
    return serialize_callable(value)


def _copy_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copy_plain(it) for name, it in value.items()}
    return [_copy_plain(it) for it in value] if isinstance(value, list | tuple) else value


def _load(name: str, saved: Any) -> Any:
    """The parameter *name* as it was before it was saved."""
    kind = saved.get("type") if isinstance(saved, Mapping) else None
    try:
        if isinstance(saved, str):
            return deserialize_callable(saved)
        return (
            component_from_dict(_import_component(str(kind)), dict(saved), name) if kind else saved
        )
    except (DeserializationError, ImportError, AttributeError) as error:
        what = f"the component {kind}" if kind else f"the function {saved}"
        raise DeserializationError(
            f"{name}: {what}, named in the file, cannot be loaded: {error}"
        ) from error


def _import_component(kind: str) -> type[Any]:
    """Return the component class named *kind*; another class could do anything when an object of it is made."""
    found: Any = import_class_by_name(kind)
    if f"{found.__module__}.{found.__qualname__}" not in component.registry:
        raise DeserializationError("it is not a component")
    return found  # type: ignore[no-any-return]


def _refuse(message: str, value: Any, path: str = "retriever") -> ConfigError:
    return ConfigError(message, path=path, value=_name_type(value), allowed=_ACCEPTED)


def _name_type(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
