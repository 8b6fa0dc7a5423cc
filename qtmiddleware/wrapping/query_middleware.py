"""Wrap retrieval functions with a configuration and a language model, or by a decorator."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import (
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import WrapError
from qtmiddleware.preprocessing import preprocess
from qtmiddleware.protocols import Observer, Record, RetrievalHook
from qtmiddleware.retrieval.call import Call, validate_query
from qtmiddleware.retrieval.flow import transform
from qtmiddleware.retrieval.history import read_history
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.retrieval.responses import Shape
from qtmiddleware.runtime.concurrency import Bulkhead, gather_results, run_in_thread
from qtmiddleware.runtime.forking import make_lock
from qtmiddleware.runtime.services import Flow, Services, arun, run
from qtmiddleware.types import Transformation
from qtmiddleware.wrapping.binding import Binding, PageArgument, should_await_calls
from qtmiddleware.wrapping.calling import Function
from qtmiddleware.wrapping.engine import (
    Engine,
    MiddlewareOptions,
    check_options,
    override_config,
    require_functions,
)
from qtmiddleware.wrapping.wrapped import (
    AsyncWrapped,
    CopiedAsItself,
    Wrapped,
    WrappedClassMethod,
    refuse_to_pickle,
)

P = ParamSpec("P")
R = TypeVar("R")
ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | Config | Settings | None


class AskOptions(TypedDict, total=False):
    """The keyword arguments of `QueryMiddleware.transform`: the conversation, and settings."""

    history: Iterable[Any] | None
    config: Mapping[str, Any] | str | None


class ReadOptions(TypedDict, total=False):
    """The options of `QueryMiddleware.wrap` except *embed* and *embed_many*."""

    query_arg: str | None
    top_k_arg: str | None
    page_arg: PageArgument
    read: Callable[[Any], Sequence[Any]] | None
    write: Callable[[Any, Sequence[Any]], Any] | None
    kind: Literal["sync", "async"] | None
    on_retrieval: RetrievalHook | None


class WrapOptions(ReadOptions, total=False):
    """The options of `QueryMiddleware.wrap`."""

    embed: Any
    embed_many: Any


class QueryMiddleware(CopiedAsItself):
    """Wraps retrieval functions and improves their results according to its configuration.

    Many threads and event loops may use one `QueryMiddleware` at once.

    Args:
        config: a file's path, a preset's name (such as ``"auto"``), a mapping or a `Config`. By
            default, the settings come from the environment and the built-in defaults.
        client: the language model: an ``openai.OpenAI`` or ``AsyncOpenAI`` client, a chat model of
            LangChain or LlamaIndex, a function that takes messages, or an object with ``name``,
            ``complete`` and ``acomplete``. By default, a client is created when it is first needed,
            with the key and address from the environment.
        reranker: scores candidates if ``rerank`` is on: an object with ``rerank`` and ``name``, a
            cross-encoder of sentence-transformers, or a function of a question and texts. By
            default, the model named in ``rerank.model``.
        store: replaces the store in the configuration.
        embedder: replaces the store's embedding model: a function from a list of texts to their
            vectors, or an object as for *embed* of `wrap`.
        redact: redacts a query's text before it is written to the query log and to `logging`
            records at DEBUG. If it fails, a hash is written instead.
        observers: receive every retrieval, answer, search and model call, as `Observer` describes.
        on_retrieval: is called with every `Retrieval`, as `RetrievalHook` describes.
        fuse: merges the rankings in place of ``fusion.method``, as `FuseFunction` describes. If it
            fails, the question's own ranking is used.
        clock: returns the current time as an aware `datetime`, for phrases such as "last year".
        cache: a cache that several processes share, as `Cache` describes, such as a
            ``redis.Redis``.

    Attributes:
        engine: What is built from the current settings. A reload replaces it as a whole.
    """

    def __init__(self, config: ConfigSource = None, **options: Unpack[MiddlewareOptions]) -> None:
        check_options("QueryMiddleware", options, MiddlewareOptions.__optional_keys__)
        self._options = options
        self._is_quiet = False
        self.engine = Engine(Config.load(config, origin="QueryMiddleware"), **options)
        self._opening = make_lock()
        self._opened: Any = None
        self._retriever: Wrapped[..., list[Record]] | None = None

    @property
    def config(self) -> Config:
        """The configuration: the settings, and where each value comes from."""
        return self.engine.config

    @property
    def settings(self) -> Settings:
        """The current settings."""
        return self.config.settings

    def with_config(
        self,
        *layers: Mapping[str, Any] | str,
        observers: Sequence[Observer] = (),
        is_quiet: bool = False,
    ) -> QueryMiddleware:
        """Return a new middleware with other settings, for tests and measurements.

        It shares the client, reranker, store, functions and query log, and the budget of the
        process, but not the cache and the circuit breaker. No hook hears of its calls. Close it if
        it opens a client.

        Args:
            *layers: settings as for a single call; a later layer overrides an earlier one.
            observers: the observers of the new middleware.
            is_quiet: whether to issue no `SetupWarning`, because you report such problems yourself.

        Raises:
            ConfigError: for invalid settings, and for settings that a single call cannot change.
        """
        config = override_config(self.config, layers)
        options: MiddlewareOptions = {**self._options, "observers": observers}
        options.pop("on_retrieval", None)
        options.pop("cache", None)
        copy = QueryMiddleware(config, **options)
        copy._is_quiet = is_quiet
        return copy

    @overload
    def wrap(self, fn: Callable[P, R], /, **options: Unpack[ReadOptions]) -> Wrapped[P, R]: ...
    # With *embed*, the caller passes a text where the function takes a vector, so the function's
    # own parameter types do not apply.
    @overload
    def wrap(
        self, fn: Callable[..., R], /, *, embed: Any, **options: Unpack[ReadOptions]
    ) -> Wrapped[..., R]: ...
    @overload
    def wrap(
        self, fn: Callable[..., R], /, *, embed_many: Any, **options: Unpack[ReadOptions]
    ) -> Wrapped[..., R]: ...

    @overload
    def wrap(self, /, **options: Unpack[ReadOptions]) -> Decorator: ...
    @overload
    def wrap(self, /, **options: Unpack[WrapOptions]) -> EmbeddingDecorator: ...

    def wrap(self, fn: Any = ..., /, **options: Any) -> Any:
        """Return *fn* wrapped with the middleware, with the same signature and return type.

        *fn* may be a function, method, partial or callable object, synchronous or asynchronous.
        Without it, `wrap` returns a decorator. All options are keyword arguments:

        - *query_arg*, *top_k_arg*: the parameters for the query and the number of passages. By
          default, common names such as ``query`` and ``top_k``. A name with a dot, such as
          ``request.text``, is a field of an argument.
        - *page_arg*: the parameter that selects a page of results; ``False`` if there is none. By
          default, eight common names, such as ``page`` and ``offset``, and names that begin with
          ``pag``.
        - *embed*: if *fn* takes a vector, a function from one text to its vector, or an object of
          LangChain, LlamaIndex, Chroma or sentence-transformers that embeds texts.
        - *embed_many*: a function from a list of texts to their vectors, instead of *embed*.
        - *read*, *write*: for an unknown response type. *read* returns the matches in a response;
          *write* returns a copy of the response with other matches.
        - *kind*: ``sync`` or ``async``, if qtmiddleware does not detect it rightly.
        - *on_retrieval*: is called with every `Retrieval` of the function, as `RetrievalHook`
          describes.

        Raises:
            WrapError: if no parameter of *fn* can be the query, or if an option is unknown.
        """
        check_options("wrap", options, WrapOptions.__optional_keys__)
        if fn is ...:
            return partial(self.wrap, **options)
        if isinstance(fn, classmethod | staticmethod):
            method_kind = WrappedClassMethod if isinstance(fn, classmethod) else staticmethod
            return method_kind(self.wrap(fn.__func__, **options))
        is_async = should_await_calls(fn, options.get("kind"))
        hook = options.get("on_retrieval")
        require_functions(on_retrieval=hook)
        embed, embed_many = options.get("embed"), options.get("embed_many")
        read, write = options.get("read"), options.get("write")
        if embed is not None and embed_many is not None:
            raise WrapError("embed= and embed_many= exclude each other: pass one of them")
        if (read is None) != (write is None):
            raise WrapError(
                "read= and write= must be passed together: read= takes the matches out, write= puts"
                " them back"
            )
        takes_list = embed_many is not None
        embedding = embed_many if takes_list else embed
        names = ("query_arg", "top_k_arg", "page_arg")
        binding = Binding(
            fn,
            takes_vector=embedding is not None,
            **{name: options.get(name) for name in names},
        )
        embedder = None
        if embedding is not None:
            # Imported here so that wrapping a function that takes a text does not pay for these
            # modules.
            from qtmiddleware.providers.embedding import query_embedder

            embedder = query_embedder(embedding, takes_list=takes_list)
        function = Function(
            fn=fn,
            binding=binding,
            is_async=is_async,
            shape=None if read is None or write is None else Shape(read, write),
            embedder=embedder,
            hook=hook,
            told={"pages", "question", "problem"} if self._is_quiet else set(),
        )
        return (AsyncWrapped if is_async else Wrapped)(function, self, options)

    def reload(self, config: ConfigSource) -> None:
        """Replace the configuration. *config* may be anything that `QueryMiddleware` accepts.

        Calls that began before keep the old settings; later ones, even of functions wrapped before,
        use the new ones. The API key is read again, the cache is empty and the circuit breaker
        closed; the spent budget is kept. Read `retriever` again if *config* names another store.

        Thread-safe, but let a signal handler wake a thread that reloads.

        Raises:
            ConfigError: if *config* is invalid. The old configuration then stays in use.
            MissingExtra: if the new settings need a package that is not installed.
        """
        loaded = Config.load(config, origin="reload")
        engine = Engine(loaded, **self._options)
        # Load the slow parts first, so that no call waits for them.
        engine.load()
        with self._opening:
            self.engine = engine
            # Callers that hold the former search may still use it, so it stays open.
            if self._opened is not None and not self._opened.serves(loaded.settings):
                self._opened = self._retriever = None

    def health(self) -> dict[str, dict[str, Any]]:
        """Return what past calls tell about the middleware, without contacting a service.

        Returns:
            A dict of dicts, ready for JSON:

            - ``model`` and ``chat_model``: the ``name``; whether it ``is_configured`` with a
              client, a key or an address; the state of its circuit ``breaker``; the ``failures`` in
              a row and the ``allowed_failures`` (0: the breaker never opens); the seconds to
              ``retry_in``; and ``kept``, the mean fraction of their questions' words that its
              replies keep (``None`` before 20 replies; below 0.5, they are not used).
            - ``threads``: how many are ``in_use``, their ``limit``, and the ``refused`` calls.
            - ``shadow``: the ``running``, ``finished``, ``failed`` and ``dropped`` retrievals.
            - ``cache``: whether it ``is_enabled``, ``entries``, ``limit``, ``hits``, ``misses``.
            - ``budget``: ``spent`` and ``limit`` of all middlewares of this process: model
              ``calls`` in the last minute, ``tokens`` and ``usd`` in the last 24 hours.
        """
        # Imported here so that a user who never asks does not pay for these modules.
        from qtmiddleware.wrapping.health import read_health

        return read_health(self.engine)

    def warm_up(self) -> None:
        """Load what the first question needs: packages, word lists, prompts, client, reranker.

        No model is called. Never raises: the first question reports what cannot be loaded.
        """
        self.engine.load()
        # Reads the word lists of the rules.
        self.preprocess("")

    @property
    def retriever(self) -> Wrapped[..., list[Record]]:
        """The configured store's wrapped search, which takes ``(query, top_k, filter)``.

        Raises:
            StoreError: if there is no index yet, or one of another embedding model.
        """
        from qtmiddleware import open_retriever

        # Two threads may ask at once: the second one waits for the store that the first one opens.
        with self._opening:
            if self._retriever is None:
                self.engine.load()
                self._opened = opened = open_retriever(
                    self.settings,
                    store=self._options.get("store"),
                    embedder=self._options.get("embedder"),
                    must_exist=True,
                )
                self._retriever = self.wrap(
                    opened.search,
                    query_arg="query",
                    top_k_arg="top_k",
                    embed=opened.query_embedder,
                )
            return self._retriever

    def preprocess(self, query: str) -> str:
        """Return the keywords that this configuration's rules extract from *query*."""
        options = self.settings.preprocess
        return preprocess(
            query,
            language=options.language,
            keep_words=options.keep_words,
            extra_words=options.extra_words,
        )

    @overload
    def transform(self, query: str, **options: Unpack[AskOptions]) -> Transformation: ...  # type: ignore[overload-overlap]
    @overload
    def transform(
        self, query: Iterable[str], **options: Unpack[AskOptions]
    ) -> list[Transformation]: ...

    def transform(
        self,
        query: str | Iterable[str],
        *,
        history: Any = None,
        config: Any = None,
    ) -> Any:
        """Return the model's transformation of *query*, or a list of them for a list of queries.

        If the model fails for a query, its transformation is empty, and its ``notes`` say why. For
        many queries, `qtmiddleware.kit.bulk.transform_file` keeps to the service's rate limits.

        Raises:
            InvalidQuery: for an invalid query.
        """
        return run(*self._prepare_transform(query, history, config))

    @overload
    async def atransform(  # type: ignore[overload-overlap]
        self, query: str, **options: Unpack[AskOptions]
    ) -> Transformation: ...
    @overload
    async def atransform(
        self, query: Iterable[str], **options: Unpack[AskOptions]
    ) -> list[Transformation]: ...

    async def atransform(
        self,
        query: str | Iterable[str],
        *,
        history: Any = None,
        config: Any = None,
    ) -> Any:
        """Transform as `transform` does, without blocking the event loop."""
        return await arun(*self._prepare_transform(query, history, config))

    def _prepare_transform(
        self, query: str | Iterable[str], history: Any, config: Any
    ) -> tuple[Flow[Any], Bulkhead]:
        conversation = read_history(history)
        engine = self.engine.override((config,) if config else ())
        # Check all queries before the first model call, so that an invalid one costs nothing.
        is_one = isinstance(query, str) or not isinstance(query, Iterable)
        texts = [validate_query(text, "query") for text in ([query] if is_one else query)]
        calls = [
            Call(
                original=text,
                history=conversation.messages,
                history_problem=conversation.problem,
                settings=engine.settings,
                learned=Learned(),
                engine=engine,
                model=engine.model,
                observation=engine.observation,
            )
            for text in texts
        ]

        async def transform_all(services: Services) -> list[Transformation]:
            works = [partial(transform, call, services) for call in calls]
            limit = engine.settings.limits.max_concurrency
            return await gather_results(services.io, works, limit)

        flow: Flow[Any] = partial(transform, calls[0]) if is_one else transform_all
        return flow, engine.bulkhead

    def close(self) -> None:
        """Close the clients and the store that this middleware opened, not those you passed."""
        # Closing may take long. Other threads can already open the store again.
        with self._opening:
            opened = self._opened
            self._opened = self._retriever = None
        if opened is not None:
            opened.close()
        self.engine.close()

    async def aclose(self) -> None:
        """Close as `close` does, without blocking the running event loop."""
        await run_in_thread(self.close)

    def __reduce__(self) -> Any:
        # Options may hold connections or keys.
        if any(option is not None and option != () for option in self._options.values()):
            raise refuse_to_pickle(self)
        return QueryMiddleware, (self.config,)

    def __enter__(self) -> QueryMiddleware:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> QueryMiddleware:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class DecoratorOptions(ReadOptions, MiddlewareOptions, total=False):
    """The options of `middleware` except *embed* and *embed_many*."""

    config: ConfigSource


class EmbeddingDecoratorOptions(WrapOptions, DecoratorOptions, total=False):
    """The options of `middleware`."""


class Decorator(Protocol):
    """The type of the decorator that `middleware` returns; the function keeps its signature."""

    def __call__(self, fn: Callable[P, R], /) -> Wrapped[P, R]:
        """Return *fn* wrapped with the middleware."""


class EmbeddingDecorator(Protocol):
    """As `Decorator`, with *embed* or *embed_many*: callers pass a text in place of the vector."""

    def __call__(self, fn: Callable[..., R], /) -> Wrapped[..., R]:
        """Return *fn* wrapped with the middleware."""


@overload
def middleware(fn: Callable[P, R], /) -> Wrapped[P, R]: ...
@overload
def middleware(fn: None = None, /, **options: Unpack[DecoratorOptions]) -> Decorator: ...
@overload
def middleware(
    fn: None = None, /, **options: Unpack[EmbeddingDecoratorOptions]
) -> EmbeddingDecorator: ...


def middleware(fn: Any = None, /, **options: Any) -> Any:
    """Wrap a retrieval function. Use ``@middleware`` with or without parentheses.

    The options are *config*, and those of `QueryMiddleware` and of `QueryMiddleware.wrap`.

    Raises:
        WrapError: if an option is unknown, or if *fn* is not a function.
        ConfigError: for invalid settings.
    """
    check_options("middleware", options, EmbeddingDecoratorOptions.__optional_keys__)
    # `@middleware("auto")` passes the preset in place of the function.
    if isinstance(fn, str | os.PathLike | Mapping | Config | Settings):
        raise WrapError(
            f"middleware() must be given a function, not {type(fn).__name__}; pass it as config="
        )
    if fn is None:
        return partial(middleware, **options)
    names = WrapOptions.__optional_keys__
    wrap_options: Any = {name: options.pop(name) for name in names & options.keys()}
    config = Config.load(options.pop("config", None), origin="decorator")
    return QueryMiddleware(config, **options).wrap(fn, **wrap_options)
