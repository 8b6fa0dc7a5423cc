"""The middleware itself: a configuration, a language model, and the functions wrapped with them."""

from __future__ import annotations

import json
import os
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread, current_thread
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from qtmiddleware.config import Config, current_overrides
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import WrapError
from qtmiddleware.preprocessing import preprocess
from qtmiddleware.protocols import (
    Clock,
    LanguageModel,
    Observer,
    Prompt,
    Record,
    Reply,
    RetrievalHook,
    Store,
)
from qtmiddleware.retrieval.history import History, read_history
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.retrieval.pipeline import transform_flow
from qtmiddleware.retrieval.request import Request, validate_clock, validate_query
from qtmiddleware.retrieval.responses import Shape
from qtmiddleware.runtime.cache import TransformationCache
from qtmiddleware.runtime.drivers import ModelOnly, arun, run
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.runtime.logs import LogSampler, get_logger
from qtmiddleware.runtime.observing import observe, validate_hook
from qtmiddleware.runtime.steps import Flow, gather_flows
from qtmiddleware.runtime.warming import finish_loading, is_warming, load_in_background
from qtmiddleware.types import Answer, Deadline, Transformation
from qtmiddleware.wrapping.call_context import ContextSource
from qtmiddleware.wrapping.components import Components
from qtmiddleware.wrapping.options import check_options
from qtmiddleware.wrapping.own_search import OwnSearch, StoreSearch
from qtmiddleware.wrapping.paging import PageArgument
from qtmiddleware.wrapping.pickling import check_picklable, modules_by_value
from qtmiddleware.wrapping.signatures import read_signature, returns_awaitable
from qtmiddleware.wrapping.wrapped import AsyncWrapped, Wrapped, WrappedClassMethod

if TYPE_CHECKING:
    from qtmiddleware.answering import AnswerStream, AsyncAnswerStream
    from qtmiddleware.providers.llms.governed import GovernedModel
    from qtmiddleware.runtime.pace import Pace
    from qtmiddleware.wrapping.health import Health, Readiness
    from qtmiddleware.wrapping.query_log import Redact
    from qtmiddleware.wrapping.transform_stream import Q, Transformed

P = ParamSpec("P")
R = TypeVar("R")
ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | Config | Settings | None

logger: Final = get_logger("qtmiddleware")


class AskOptions(TypedDict, total=False):
    """The conversation so far, oldest first, and settings overridden for this call."""

    history: Iterable[Any] | None
    config: Mapping[str, Any] | None


class ReadOptions(TypedDict, total=False):
    """How a function is to be read, whatever it takes: `WrapOptions` without *embed*."""

    query_arg: str | None
    top_k_arg: str | None
    page_arg: PageArgument
    read: Callable[[Any], Sequence[Any]] | None
    write: Callable[[Any, Sequence[Any]], Any] | None
    kind: Literal["sync", "async"] | None
    on_retrieval: RetrievalHook | None


class WrapOptions(ReadOptions, total=False):
    """How a function is to be read; `QueryMiddleware.wrap` says what each means."""

    embed: Any


_REHEARSED: Final = "What does Nike sell in Europe since 2020?"
_NO_HURRY_MS: Final = 600_000


class _Rehearsal:
    """A model that replies at once, in whatever fields it is asked for."""

    name = "rehearsal"

    def complete(self, prompt: Prompt, _: Deadline) -> Reply:
        """The same for every prompt."""
        return Reply(
            json.dumps(
                {
                    it.name: [_REHEARSED] if it.shape == "list" else _REHEARSED
                    for it in prompt.fields
                }
            )
        )

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """`complete`."""
        return self.complete(prompt, deadline)


@dataclass(eq=False, repr=False, slots=True)
class _Question:
    """One of many, all within the same *history*."""

    text: str
    history: History


class QueryMiddleware:
    """Makes the results of retrieval functions better, as its configuration says.

    *config* is a file's path, the name of a preset (``"auto"``), a mapping, a `Config` or nothing.
    *client* is the language model: an ``openai.OpenAI`` or ``AsyncOpenAI`` client or a pair of
    both, a chat model of LangChain or LlamaIndex, any function of messages, plain or async, or an
    object with ``name``, ``complete`` and ``acomplete``; each serves blocking and awaiting calls.
    Without one a client is made when it is first needed, with the key and address from the
    environment. *reranker* judges candidates where the configuration asks for that: an object with
    ``rerank`` and ``name``, a cross-encoder of sentence-transformers or a function of a question
    and texts; without one ``rerank.model`` is loaded. *store* and *embedder* stand in for those the
    configuration names, for questions to the own store; *embedder* is whatever `CallableEmbedder`
    takes. *redact* makes of every text of a query what may be written of it, to the query log and
    to the records of `logging` at DEBUG; where it fails, a hash is written. *on_retrieval* is
    called with every `Retrieval` of every function wrapped with this, as `RetrievalHook` says, and
    *observers* hear of every retrieval, answer, search and model call, as `Observer` says. *clock*
    returns the time that words such as "last year" lean on, an aware `datetime`; by default that of
    this machine. Safe with many threads and event loops.
    """

    def __init__(
        self,
        config: ConfigSource = None,
        *,
        client: Any = None,
        reranker: Any = None,
        store: Store | None = None,
        embedder: Any = None,
        redact: Redact | None = None,
        observers: Sequence[Observer] = (),
        on_retrieval: RetrievalHook | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._given = {
            "client": client, "reranker": reranker, "store": store, "embedder": embedder, "redact": redact,
            "observers": tuple(observers), "on_retrieval": validate_hook(on_retrieval),
            "clock": validate_clock(clock),
        }  # fmt: skip
        loaded = Config.load(config, origin="QueryMiddleware")
        # All that a call is to see of one configuration hangs on this, which is replaced as a
        # whole.
        given = (client, reranker, redact, observe(observers), on_retrieval, clock)
        self._components = Components(loaded, *given)
        self._cache = TransformationCache(self.settings)
        self._sampler = LogSampler()
        self._own_search = OwnSearch(self.settings, store=store, embedder=embedder)
        self._reloading = ForkLock()
        self._is_closed = False
        # The threads that are inside `warm_up`.
        self._warming: list[Thread] = []
        if self._components.asks_slow_model() and self._components.has_model:
            load_in_background(self._load, self._rehearse)

    @property
    def config(self) -> Config:
        """What is set, and where each value came from."""
        return self._components.config

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.config.settings

    @property
    def model(self) -> LanguageModel:
        """The language model of this middleware's own settings."""
        return self._components.model(self.settings)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **given: Any) -> QueryMiddleware:
        """A middleware configured by the file at *path*; raises `ConfigError` that names what is wrong in it.

        *given* is what else `QueryMiddleware` takes.
        """
        return cls(Config.from_file(path), **given)

    # With *embed* a text stands where the function takes a vector, so its own types do not hold.
    @overload
    def wrap(
        self,
        fn: Callable[..., Coroutine[Any, Any, R]],
        /,
        *,
        embed: Any,
        **options: Unpack[ReadOptions],
    ) -> AsyncWrapped[..., R]: ...
    @overload
    def wrap(
        self, fn: Callable[..., R], /, *, embed: Any, **options: Unpack[ReadOptions]
    ) -> Wrapped[..., R]: ...
    @overload
    def wrap(
        self, fn: Callable[P, Coroutine[Any, Any, R]], /, **options: Unpack[WrapOptions]
    ) -> AsyncWrapped[P, R]: ...
    @overload
    def wrap(self, fn: Callable[P, R], /, **options: Unpack[WrapOptions]) -> Wrapped[P, R]: ...

    def wrap(self, fn: Any, /, **options: Unpack[WrapOptions]) -> Any:
        """*fn* with the middleware around it: the same signature, the same return type and shape.

        *fn* may be a function, method, partial or callable object, synchronous or not. Options, all
        by name:

        *query_arg*, *top_k_arg*: its parameters, if they do not have the usual names;
        ``request.text`` reaches into an object or a mapping.
        *page_arg*: the parameter that asks for a page, if it does not have a usual name; ``False``
        if none does.
        *embed*: turns texts into vectors for a function that takes a vector: a function of a text
        or of a list of texts, or an object of LangChain, LlamaIndex or sentence-transformers.
        *read*, *write*: take the matches out of a response of an own shape, and put others back in.
        *kind*: ``sync`` or ``async``, where that cannot be seen.
        *on_retrieval*: called with every `Retrieval` of the function, as `RetrievalHook` says.

        Raises `WrapError` if the query cannot be found in *fn*'s signature, and for an option that
        there is not.
        """
        check_options(self.wrap, options, WrapOptions.__optional_keys__)
        if isinstance(fn, classmethod | staticmethod):
            method_kind = WrappedClassMethod if isinstance(fn, classmethod) else staticmethod
            return method_kind(self.wrap(fn.__func__, **options))
        kind = AsyncWrapped if returns_awaitable(fn, options.get("kind")) else Wrapped
        embed = options.get("embed")
        signature = read_signature(
            fn,
            query_arg=options.get("query_arg"),
            top_k_arg=options.get("top_k_arg"),
            page_arg=options.get("page_arg"),
            takes_vector=embed is not None,
        )
        source = self._context_source(
            embed=embed,
            read=options.get("read"),
            write=options.get("write"),
            hook=validate_hook(options.get("on_retrieval")),
            options=options,
        )
        return kind(fn, signature, source)

    def reload(self, config: ConfigSource) -> None:
        """Go on under another *config*, given as to `QueryMiddleware`; raises `ConfigError` and changes nothing then.

        Calls that began before end under the settings they began with, all later ones, also of
        functions that are wrapped already, have the new ones. What the new settings need is loaded
        first, so this may take a while, and where that is a store's search, `StoreError` and
        `MissingExtra` may be raised. What is remembered and spent stays, and so do a circuit
        breaker where model and service are the same, and clients where address and key are; others
        are closed after the last call in them. The key is read from the environment anew. A
        function taken from `retriever` keeps the store it was opened with; take it again where the
        config names another.

        Thread-safe, but not for signal handlers: let those wake a thread that reloads.
        """
        loaded = Config.load(config, origin="reload")
        with self._reloading.free:
            former = self._components
            components = former.with_config(loaded)
            if components is former:
                self._cache.change(loaded.settings)
                return
            # What is wrong with the shared cache, or needs time, is known before anything has
            # changed.
            TransformationCache(loaded.settings).close()
            own_search = self._own_search.with_settings(loaded.settings)
            self._load(components)
            components.load_reranker()
            self._cache.change(loaded.settings)
            self._own_search, self._components = own_search, components
            components.succeed()
        if self._is_closed:
            components.close()
        before = {name: value for name, value, _ in former.config.rows()}
        changed = [name for name, value, _ in loaded.rows() if value != before[name]]
        what = ", ".join(changed) or "no setting"
        logger.info(
            "the config was reloaded; changed: %s", what, event="config_reloaded", changed=changed
        )

    def health(self) -> Health:
        """How this middleware is, as far as it knows without asking anybody; instant, and raises nothing."""
        # Those who never ask do not wait for its modules.
        from qtmiddleware.wrapping.health import read_health

        return read_health(self._components, self._cache)

    def ready(self) -> Readiness:
        """Whether questions should come here, as a readiness probe asks it; instant, and raises nothing.

        Ready is who answers within the deadline: not while something is being loaded, at most ten
        seconds where that began by itself, and not after `close`, until `warm_up` or a ``with``
        block. A model, Redis or reranker that is down never counts: the results are then those of
        the rules.
        """
        from qtmiddleware.wrapping.health import NotReady, Readiness

        is_loading = is_warming() or any(thread.is_alive() for thread in tuple(self._warming))
        reasons = {NotReady.CLOSED: self._is_closed, NotReady.LOADING: is_loading}
        return Readiness(tuple(reason for reason, holds in reasons.items() if holds))

    def warm_up(self) -> None:
        """Load now what the first question needs, and return when that is done.

        Packages are imported, word lists and prompts read, the model's client made, and the
        reranker's model read where one is configured. Nothing is sent and nothing costs money.
        Where the configuration asks a model, most of this happens in the background as soon as the
        middleware is made, and is waited for here. Raises nothing: what cannot be loaded, as for
        want of a key, is told by the first question.
        """
        # A thread that is gone, as in a forked process, warms nothing up any more.
        self._warming.append(thread := current_thread())
        self._is_closed = False
        try:
            finish_loading()
            self._load()
            self._rehearse()
            self._components.load_reranker()
        finally:
            self._warming.remove(thread)

    def _load(self, components: Components | None = None) -> None:
        """Load the model's packages and make its client; a question that is asked meanwhile waits for that."""
        components = components or self._components
        if components.asks_slow_model():
            model: Any = components.model(components.config.settings).inner
            with suppress(Exception):
                model.warm_up()

    def _rehearse(self) -> None:
        """Ask one question of nobody, so that rules, prompts and checks are read."""
        settings = replace(
            self.settings,
            escalation=replace(self.settings.escalation, mode="always"),
            limits=replace(
                self.settings.limits, llm_timeout_ms=_NO_HURRY_MS, deadline_ms=_NO_HURRY_MS
            ),
            cache=replace(self.settings.cache, enabled=False, redis_url=None),
        )
        request = Request(_REHEARSED, (), settings, Learned(), TransformationCache(settings))
        run(transform_flow(request), ModelOnly(_Rehearsal()))

    def _context_source(
        self,
        *,
        embed: Any = None,
        read: Any = None,
        write: Any = None,
        hook: RetrievalHook | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> ContextSource:
        if (read is None) != (write is None):
            raise WrapError(
                "read= and write= must be passed together: read= takes the matches out, write= puts"
                " them back"
            )
        embedder = None
        if embed is not None:
            # Those who wrap functions of texts do not wait for its modules.
            from qtmiddleware.providers.embedders import query_embedder

            embedder = query_embedder(embed)
        return ContextSource(
            self,
            lambda: self._components,
            self._cache,
            self._sampler,
            shape=None if read is None or write is None else Shape(read, write),
            embedder=embedder,
            hook=hook,
            options=None if options is None else dict(options),
        )

    @property
    def retriever(self) -> Wrapped[..., list[Record]]:
        """The search of the own store, ``(query, top_k, filter)``, with the middleware around it; opened on first use.

        Raises `StoreError` where there is no index yet or it was made with another embedding model.
        """
        return self._own_search.get(self._wrap_store)

    def _wrap_store(self, opened: StoreSearch) -> Wrapped[..., list[Record]]:
        embedder = opened.query_embedder
        signature = read_signature(
            opened.search, query_arg="query", top_k_arg="top_k", takes_vector=embedder is not None
        )
        self._components.load_reranker()
        return Wrapped(opened.search, signature, self._context_source(embed=embedder))

    def answer(self, question: str, **options: Any) -> Answer:
        """The answer to *question* from the own store; *options* are those of `retriever`'s `answer`.

        They are *top_k*, *filter*, *history* and *config*. Raises `ModelError` where the model
        gives no answer; what was retrieved for it is the error's ``retrieval`` then.
        """
        return self.retriever.answer(question, **options)

    async def aanswer(self, question: str, **options: Any) -> Answer:
        """`answer` without blocking the running loop."""
        return await self.retriever.aanswer(question, **options)

    def stream_answer(self, question: str, **options: Any) -> AnswerStream:
        """`answer` piece by piece: iterate over the pieces, then take the whole from ``.answer``."""
        return self.retriever.stream_answer(question, **options)

    def astream_answer(self, question: str, **options: Any) -> AsyncAnswerStream:
        """`stream_answer` without blocking the running loop."""
        return self.retriever.astream_answer(question, **options)

    def preprocess(self, query: str) -> str:
        """The keywords of *query* under this configuration."""
        options = self._components.settings(current_overrides()).preprocess
        return preprocess(
            query,
            language=options.language,
            keep_words=options.keep_words,
            extra_words=options.extra_words,
        )

    # A str is itself a Sequence[str], so the overloads overlap; the first one wins, as it should.
    @overload
    def transform(self, query: str, **options: Unpack[AskOptions]) -> Transformation: ...  # type: ignore[overload-overlap]
    @overload
    def transform(  # type: ignore[overload-overlap]
        self, query: Collection[str], **options: Unpack[AskOptions]
    ) -> list[Transformation]: ...
    @overload
    def transform(
        self, query: Iterable[str], **options: Unpack[AskOptions]
    ) -> Iterator[Transformation]: ...

    def transform(
        self, query: Iterable[str], **options: Unpack[AskOptions]
    ) -> Transformation | list[Transformation] | Iterator[Transformation]:
        """What the model makes of *query*, or of each of a list of queries, in their number and order.

        What could not be had is empty, and ``notes`` says why; nothing is raised for it.

        Of an iterator, or whatever else has no length, queries are taken as the results are,
        ``limits.maxConcurrency`` and a few more at a time. Nobody waits for a single one then: a
        call may take a minute, unless ``limits`` says otherwise, and what a busy service refuses is
        asked again at one pace that all share. Raises `InvalidQuery` where it meets a bad one, and
        `ModelError` where the key is refused, a budget is spent or the model answers nothing for
        ten minutes.
        """
        check_options(self.transform, options, AskOptions.__optional_keys__)
        if not isinstance(query, Collection):
            history = read_history(options.get("history"))
            questions = (_Question(text, history) for text in query)
            transformed = self.transform_stream(
                questions, config=options.get("config"), in_order=True
            )
            return (it.transformation for it in transformed)
        result: Transformation | list[Transformation] = run(*self._transform_flow(query, options))
        return result

    def transform_stream(
        self,
        questions: Iterable[Q],
        *,
        config: Mapping[str, Any] | None = None,
        concurrency: int | None = None,
        pace: Pace | None = None,
        in_order: bool = False,
    ) -> Generator[Transformed[Q]]:
        """What comes of each of *questions*, which have a ``text`` and a ``history``: `transform` of an iterator.

        Results come with their questions and what they cost, as they are done, or *in_order*. At
        most *concurrency* calls of the model are under way, by default ``limits.maxConcurrency``,
        at a *pace* of their own where none is given that others keep too. Raises as `transform` of
        an iterator does.
        """
        # Who has one question does not wait for its modules.
        from qtmiddleware.runtime.pace import Pace
        from qtmiddleware.wrapping.transform_stream import TransformStream, be_patient

        components, settings, model = self._for_call(config)
        patient, seconds = be_patient(components.config, settings)
        most = concurrency or settings.limits.max_concurrency

        def build_request(question: Q) -> Request:
            text = validate_query(question.text, "query", settings)
            # How long the model is left alone the pace decides.
            return self._build_request(
                components, patient, model, text, question.history, waits=False
            )

        stream = TransformStream(
            model,
            build_request,
            seconds=seconds,
            settings=settings,
            pace=pace or Pace(most),
            concurrency=most,
        )
        return stream.run(questions, in_order=in_order)

    @overload
    async def atransform(  # type: ignore[overload-overlap]
        self, query: str, **options: Unpack[AskOptions]
    ) -> Transformation: ...
    @overload
    async def atransform(
        self, query: Collection[str], **options: Unpack[AskOptions]
    ) -> list[Transformation]: ...

    async def atransform(
        self, query: str | Collection[str], **options: Unpack[AskOptions]
    ) -> Transformation | list[Transformation]:
        """`transform` of a query or a list without blocking the running loop."""
        check_options(self.atransform, options, AskOptions.__optional_keys__)
        return await arun(*self._transform_flow(query, options))

    def _for_call(
        self, config: Mapping[str, Any] | None
    ) -> tuple[Components, Settings, GovernedModel]:
        """Returns what one call works with, with *config* over the settings in force."""
        components = self._components
        settings = components.settings(
            (*current_overrides(), config) if config else current_overrides()
        )
        return components, settings, components.model(settings)

    def _build_request(
        self,
        components: Components,
        settings: Settings,
        model: GovernedModel,
        text: str,
        history: History,
        *,
        shares: bool = True,
        waits: bool = True,
    ) -> Request:
        return Request(
            original=text,
            history=history.messages,
            history_problem=history.problem,
            settings=settings,
            learned=Learned(),
            cache=self._cache,
            sampler=self._sampler,
            model=model.name,
            models={"model": model},
            shares=shares,
            reason_to_wait=model.reason_to_wait if waits else lambda: None,
            bulkhead=components.bulkhead,
            glossary=components.glossary(settings),
            observation=components.observation,
            clock=components.clock,
        )

    def _transform_flow(
        self, query: str | Collection[str], options: AskOptions
    ) -> tuple[Flow[Any], ModelOnly]:
        """Returns the flow for one query or many, and what it is run with; raises `InvalidQuery` for a bad one."""
        components, settings, model = self._for_call(options.get("config"))
        history = read_history(options.get("history"))
        build_request = partial(self._build_request, components, settings, model)
        performer = ModelOnly(model, components.bulkhead)
        if isinstance(query, str):
            return (
                transform_flow(build_request(validate_query(query, "query", settings), history)),
                performer,
            )
        # All of them before the first is asked: a bad one costs nothing.
        texts = [validate_query(it, "query", settings) for it in query]
        # Each distinct one once: those that run side by side must not wait for each other.
        requests = {text: build_request(text, history, shares=False) for text in texts}
        return _transform_many(texts, requests, settings.limits.max_concurrency), performer

    def close(self) -> None:
        """Close the clients and the store this middleware opened; those it was given stay open."""
        self._close_all_but_clients()
        self._components.close()

    async def aclose(self) -> None:
        """`close` for the clients of the running loop too."""
        self._close_all_but_clients()
        await self._components.aclose()

    def _close_all_but_clients(self) -> None:
        self._is_closed = True
        self._sampler.flush(logger)
        finish_loading()
        self._own_search.close()
        self._cache.close()

    def __copy__(self) -> QueryMiddleware:
        return self

    def __deepcopy__(self, memo: Any) -> QueryMiddleware:
        return self

    def __getstate__(self) -> tuple[Config, dict[str, Any]]:
        """What it is made of, which is all that is pickled: no client, key, cache or lock.

        Raises `PicklingError` where it was given an object, which may hold one of these.
        """
        for name, given in self._given.items():
            for it in given if isinstance(given, tuple) else (given,):
                check_picklable(f"{name}=", it, by_value=modules_by_value() is not None)
        return self.config, self._given

    def __setstate__(self, made_of: tuple[Config, dict[str, Any]]) -> None:
        config, given = made_of
        QueryMiddleware.__init__(self, config, **given)

    def __enter__(self) -> QueryMiddleware:
        self._is_closed = False
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> QueryMiddleware:
        self._is_closed = False
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _transform_many(
    texts: Sequence[str], requests: Mapping[str, Request], limit: int
) -> Flow[list[Transformation]]:
    """The flow that transforms each of *texts*, at most *limit* at once."""
    distinct = list(requests)
    transformations: dict[str, Transformation] = {}
    for start in range(0, len(distinct), limit):
        batch = distinct[start : start + limit]
        results = yield from gather_flows(
            [transform_flow(requests[text]) for text in batch], limit=limit
        )
        transformations.update(zip(batch, results, strict=True))
    return [transformations[text] for text in texts]
