"""Build what the calls of one configuration share: models, reranker, glossary, log and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack
from weakref import WeakValueDictionary

from qtmiddleware.config import Config, Layers
from qtmiddleware.config.settings import Settings, to_camel_case
from qtmiddleware.errors import ConfigError, MissingExtra, ModelError, WrapError
from qtmiddleware.protocols import (
    Cache,
    Clock,
    FuseFunction,
    Observer,
    Reranker,
    RetrievalHook,
    Store,
)
from qtmiddleware.providers.llms import (
    find_address,
    has_language_model,
    make_language_model,
    read_api_key,
)
from qtmiddleware.providers.rerankers import make_reranker
from qtmiddleware.retrieval.learned import ReplyRelevance
from qtmiddleware.runtime.cache import SharedCache, TransformationCache
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.concurrency import Bulkhead
from qtmiddleware.runtime.forking import make_lock
from qtmiddleware.runtime.logs import LogSampler
from qtmiddleware.runtime.observing import make_root_observation
from qtmiddleware.wrapping.shadow import ShadowRuns

if TYPE_CHECKING:
    from qtmiddleware.providers.llms.governed import GovernedModel
    from qtmiddleware.retrieval.glossary import Glossary
    from qtmiddleware.wrapping.query_log import QueryLog, Redact

MOST_KEPT: Final = 32
"""How many engines for calls that override settings are kept."""

# The settings of what the calls of one middleware share.
_SHARED: Final = (
    *("embedding_model", "embedding_dimensions", "index_path", "hybrid", "store"),
    *("breaker", "budget", "cache.ttl_seconds"),
)

T = TypeVar("T")


class MiddlewareOptions(TypedDict, total=False):
    """The options of `QueryMiddleware`, which describes them."""

    client: Any
    reranker: Any
    store: Store | None
    embedder: Any
    redact: Redact | None
    observers: Sequence[Observer]
    on_retrieval: RetrievalHook | None
    fuse: FuseFunction | None
    clock: Clock | None
    cache: Cache | None


def check_options(name: str, options: Iterable[str], known_names: Iterable[str]) -> None:
    """Raise `WrapError` if one of the *options* of the function *name* is not a known name."""
    allowed = sorted(known_names)
    for option in options:
        if option not in allowed:
            raise WrapError(
                f"{name}() has no option {option!r}; its options are {', '.join(allowed)}"
            )


def require_functions(**options: object) -> None:
    """Raise `ConfigError` if one of the *options* is neither a function nor ``None``."""
    for name, option in options.items():
        if option is not None and not callable(option):
            kind = type(option).__name__
            raise ConfigError(f"{name} must be a function, not {kind}", path=name)


def override_config(config: Config, layers: Layers) -> Config:
    """Return *config*, overridden by each of *layers*: mappings, or names of presets.

    Raises `ConfigError` for invalid settings, and for settings that a single call cannot change.
    """
    if not layers:
        return config
    overridden = config.overridden(*layers)
    for name in _SHARED:
        read = attrgetter(name)
        if read(overridden.settings) != read(config.settings):
            key = to_camel_case(name)
            message = f"{key} cannot be set for one call; set it in the config of QueryMiddleware"
            raise ConfigError(message, path=key, source="call")
    return overridden


class Engine:
    """What is built from one `Settings`, and used by every call with these settings.

    Engines for calls with settings of their own share the middleware's threads, cache and circuit
    breakers, and the models, rerankers and glossaries that their settings name alike. What no
    engine uses any more is garbage-collected. After a reload, the middleware has a new engine.
    *is_off* says that the settings change nothing, and nobody is to be told of a retrieval.
    """

    config: Config
    settings: Settings
    glossary: Glossary | None
    log: QueryLog | None
    reranker: Reranker | None
    is_off: bool

    def __init__(self, config: Config, **options: Unpack[MiddlewareOptions]) -> None:
        self._client = options.get("client")
        self._reranker = options.get("reranker")
        self.redact = options.get("redact")
        self.hook = options.get("on_retrieval")
        self.fuse = options.get("fuse")
        self.clock = options.get("clock")
        require_functions(on_retrieval=self.hook, fuse=self.fuse, clock=self.clock)
        self.observation = make_root_observation(options.get("observers", ()))
        cache, shared = options.get("cache"), None
        if cache is not None:
            seconds = config.settings.cache.ttl_seconds, config.settings.breaker.seconds
            shared = SharedCache(cache, *seconds)
        self.cache = TransformationCache(config.settings.cache, shared)
        self.bulkhead = Bulkhead()
        self.sampler = LogSampler()
        self.shadow_runs = ShadowRuns()
        self._made: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()
        self._making = make_lock()
        self._overridden: list[Engine] = []
        self._overriding = make_lock()
        # A caller with little time must not open the breaker for all others, so the middleware's
        # own limits say which call was late.
        self._limits = config.settings.limits
        self._build(config)

    def override(self, layers: Layers) -> Engine:
        """Return the engine for this engine's settings, overridden by each of *layers* in turn."""
        config = override_config(self.config, layers)
        if config is self.config:
            return self
        # Building under the lock lets two threads that need the same engine share one.
        with self._overriding:
            known = [it for it in self._overridden if it.settings == config.settings]
            engine = known[0] if known else copy(self)
            if not known:
                engine._overridden = []
                for name in ("model", "chat_model"):
                    vars(engine).pop(name, None)
                engine._build(config)
            # The engine that was used last comes first.
            others = [other for other in self._overridden if other is not engine]
            self._overridden = [engine, *others[: MOST_KEPT - 1]]
        return engine

    def _build(self, config: Config) -> None:
        """Build what *config* names now, so that invalid settings fail here."""
        self.config = config
        self.settings = settings = config.settings
        if (
            self._client is not None
            or settings.transformation_type != "none"
            or settings.budget.max_usd is not None
        ):
            # Reading makes them.
            _ = self.model, self.chat_model
        self.reranker = self.log = None
        if settings.rerank.enabled:
            key = "reranker", settings.rerank.model
            self.reranker = self._share(key, partial(make_reranker, self._reranker, settings))
        if settings.log.path is not None:
            from qtmiddleware.wrapping.query_log import QueryLog

            self.log = QueryLog(settings.log.path, texts=settings.log.texts, redact=self.redact)
        self.glossary = None
        if settings.glossary.path is not None or settings.glossary.terms:
            from qtmiddleware.retrieval.glossary import load_glossary

            key = "glossary", repr(settings.glossary)
            self.glossary = self._share(key, partial(load_glossary, settings.glossary))
        self.is_off = (
            settings.transformation_type == "none"
            and not settings.keyword_evidence.enabled
            and not settings.rerank.enabled
            and (not settings.preprocess.enabled or settings.preprocess.apply_to == "keywords")
            and settings.scores == "backend"
            and settings.log.path is None
            and not self.observation.observers
            and self.hook is None
        )

    def _share(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Return what another engine has made under *key*, or what *make* returns."""
        # Making under the lock lets two threads that need the same model share one.
        with self._making:
            if (made := self._made.get(key)) is None:
                made = make()
                # An object of the user's own may allow no weak references; it is the same anyway.
                with suppress(TypeError):
                    self._made[key] = made
        return made

    @property
    def has_model(self) -> bool:
        """Whether a language model is configured: a client, an API key or an address."""
        return self._client is not None or has_language_model(self.settings)

    @cached_property
    def model(self) -> GovernedModel:
        """The model that transforms questions: the user's client, or what the settings name."""
        return self._make_model(self.settings)

    @cached_property
    def chat_model(self) -> GovernedModel:
        """The model that writes answers: ``chatModel``, with the answers' token limit."""
        settings = self.settings
        llm = replace(settings.llm, max_tokens=settings.answer.max_tokens)
        return self._make_model(
            replace(settings, transformation_model=settings.chat_model, llm=llm)
        )

    def _make_model(self, settings: Settings) -> GovernedModel:
        # Imported here so that the free tier does not pay for these modules.
        from qtmiddleware.providers.llms.governed import GovernedModel

        # A number that identifies the service's address and the key, which is stored nowhere else.
        account = None
        if self._client is None:
            account = hash((find_address(settings.llm.base_url), read_api_key()))
        inner = self._share(
            ("model", settings.transformation_model, repr(settings.llm), account),
            lambda: make_language_model(self._client, settings),
        )
        limits = settings.breaker.failures, settings.breaker.seconds
        # One circuit breaker per service, key and model, and one memory of its replies.
        breaker = self._share(
            ("breaker", inner.name, account), lambda: Breaker(*limits, name=inner.name)
        )
        relevance = self._share(("relevance", inner.name, account), ReplyRelevance)
        return GovernedModel(
            inner, replace(settings, limits=self._limits), breaker, relevance=relevance
        )

    def load(self) -> None:
        """Load the packages of model and reranker, so that no question waits. Never raises."""
        settings = self.settings
        if settings.transformation_type != "none" and settings.escalation.mode != "never":
            # The code of a model's calls, which the free tier does without.
            import_module("qtmiddleware.retrieval.transform_stage")
            inner: Any = self.model.inner
            with suppress(Exception):
                inner.warm_up()
        reranker: Any = self.reranker
        if reranker is not self._reranker and hasattr(reranker, "load"):
            with suppress(MissingExtra, ModelError):
                reranker.load()

    def close(self) -> None:
        """Close the models and rerankers of all engines. What the user passed stays open."""
        with self._making:
            made = list(self._made.items())
        for key, part in made:
            is_ours = key[0] in ("model", "reranker") and part is not self._reranker
            if is_ours and part is not self._client and hasattr(part, "close"):
                part.close()
