"""Create and cache the models, rerankers, logs and glossaries of a middleware."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from qtmiddleware.config import Config, Layers
from qtmiddleware.config.keys import read_marked_values
from qtmiddleware.config.settings import Mark, Settings
from qtmiddleware.errors import ConfigError, MissingExtra, ModelError
from qtmiddleware.protocols import Clock, FuseFunction, LanguageModel, Reranker, RetrievalHook
from qtmiddleware.providers.llms import has_language_model, make_language_model, make_shared_clients
from qtmiddleware.providers.rerankers import make_reranker
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.drivers import Bulkhead
from qtmiddleware.runtime.forking import make_lock
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.runtime.observing import NOT_OBSERVED, Observation
from qtmiddleware.wrapping.shadow import ShadowRuns

if TYPE_CHECKING:
    from qtmiddleware.providers.llms.governed import GovernedModel
    from qtmiddleware.providers.openai_client import Clients
    from qtmiddleware.retrieval.glossary import Glossary
    from qtmiddleware.wrapping.query_log import QueryLog, Redact

logger: Final = get_logger("qtmiddleware")

MOST_KEPT: Final = 32
"""The largest number of cached components per type for calls that override settings."""

T = TypeVar("T")


class ComponentCache(Generic[T]):
    """A thread-safe cache of components, such as models. The key is a component's settings.

    The cache always keeps the components for the middleware's settings. For calls that override
    settings, it keeps the `MOST_KEPT` most recently used components. A dropped component is
    garbage-collected, and its connections with it, as soon as no call is using the component.
    """

    def __init__(self, previous_cache: ComponentCache[T] | None = None) -> None:
        self._previous = previous_cache
        self._lock = make_lock()
        self._default: dict[Hashable, T] = {}
        self._recent: dict[Hashable, T] = {}

    def get_or_create_component(
        self,
        key: Hashable,
        create_component: Callable[[], T],
        *,
        has_default_settings: bool = False,
    ) -> T:
        """Return the component for *key*. If there is none yet, create it.

        Args:
            key: the settings of the component.
            create_component: returns a new component.
            has_default_settings: whether *key* comes from the middleware's settings, and not from a
                call that overrides them. If true, the cache before a reload may provide the
                component.
        """
        # Creating under the lock lets two threads that need the same model share one.
        with self._lock:
            if key in self._default:
                return self._default[key]
            # Removing the component and adding it again makes it the most recently used one.
            component = self._recent.pop(key, None)
            if component is None and has_default_settings and self._previous is not None:
                component = self._previous._default.get(key, self._previous._recent.get(key))
            if component is None:
                component = create_component()
            (self._default if has_default_settings else self._recent)[key] = component
            if len(self._recent) > MOST_KEPT:
                del self._recent[next(iter(self._recent))]
        return component

    def list_components(self) -> list[T]:
        """Return all components. A component that belongs to several keys is returned once."""
        with self._lock:
            return list(
                {
                    id(component): component
                    for component in (*self._default.values(), *self._recent.values())
                }.values()
            )

    def drop_previous_cache(self) -> None:
        """Drop the components that only the cache before a reload holds."""
        self._previous = None


def override_config(config: Config, layers: Layers) -> Config:
    """Return *config*, overridden by each of *layers* in turn.

    A layer is a mapping or the name of a preset. Raises `ConfigError` for invalid settings, and for
    settings that a single call cannot change.
    """
    overridden = config
    for layer in layers:
        overridden = overridden.overridden(layer)
    if overridden is config:
        return config
    # Imported here so that the free tier does not pay for this module.
    from qtmiddleware.config.keys import find_marked_keys

    for key in find_marked_keys(Mark.MIDDLEWARE):
        if key.read_value(overridden.settings) != key.read_value(config.settings):
            message = (
                f"{key.name} cannot be set for one call; set it in the config of QueryMiddleware"
            )
            raise ConfigError(message, path=key.name, source="call")
    return overridden


class Components:
    """Creates and caches the models, rerankers, logs and threads of one middleware.

    Calls that use the middleware's settings and calls that override settings share this object.

    In a reload, the new components take over from *previous_components* the threads, the circuit
    breakers, and every client, model and reranker whose settings stay the same. The previous
    components do not change until `replace_previous_components` is called.
    """

    def __init__(
        self,
        config: Config,
        client: Any,
        reranker: Any = None,
        redact: Redact | None = None,
        observation: Observation = NOT_OBSERVED,
        hook: RetrievalHook | None = None,
        clock: Clock | None = None,
        fuse: FuseFunction | None = None,
        previous_components: Components | None = None,
    ) -> None:
        self.config = config
        self._client = client
        self._reranker = reranker
        self.redact = redact
        self.observation = observation
        self.hook = hook
        self.clock = clock
        self.fuse = fuse
        self.bulkhead: Bulkhead = (
            previous_components.bulkhead if previous_components else Bulkhead()
        )
        self.shadow_runs: ShadowRuns = (
            previous_components.shadow_runs if previous_components else ShadowRuns()
        )
        self._breakers: ComponentCache[Breaker] = (
            previous_components._breakers if previous_components else ComponentCache()
        )
        self._clients: ComponentCache[Clients | None] = ComponentCache(
            previous_components._clients if previous_components else None
        )
        self._inner_models: ComponentCache[LanguageModel] = ComponentCache(
            previous_components._inner_models if previous_components else None
        )
        self._models: ComponentCache[GovernedModel] = ComponentCache()
        self._rerankers: ComponentCache[Reranker] = ComponentCache(
            previous_components._rerankers if previous_components else None
        )
        self._logs: ComponentCache[QueryLog] = ComponentCache()
        self._glossaries: ComponentCache[Glossary | None] = ComponentCache()
        # The account of the models for the middleware's settings, set when the first one is made.
        self._account: int | None = None
        # Make the components now, so that invalid settings fail here and not at the first question.
        # A model is made only if the settings ask for one.
        settings = config.settings
        if (
            client is not None
            or settings.transformation_type != "none"
            or settings.budget.max_usd is not None
        ):
            # Import the module of the first question now: greenlets that import the same module
            # would wait for each other.
            import_module("qtmiddleware.retrieval.question")
            self.get_model(settings)
            self.get_chat_model(settings)
        self.get_reranker(settings)
        self.get_query_log(settings)
        self.get_glossary(settings)

    def copy_with_config(self, config: Config) -> Components:
        """Return new components for *config*, to reload the middleware.

        To complete the reload, call `replace_previous_components` on the new components.

        Returns this object if nothing changes: the settings are equal and name no glossary file,
        and the environment holds the same API key and address. Raises `ConfigError` if *config* is
        invalid.
        """
        is_same = config.settings == self.config.settings
        # A glossary's file may have changed while its name stayed the same.
        if (
            is_same
            and config.settings.glossary.path is None
            and self._account in (None, self._compute_account_id(config.settings))
        ):
            return self
        constructor_arguments = (
            self._client,
            self._reranker,
            self.redact,
            self.observation,
            self.hook,
            self.clock,
            self.fuse,
        )
        return Components(config, *constructor_arguments, previous_components=self)

    def replace_previous_components(self) -> None:
        """Apply the new limits, and drop the clients, models and rerankers of the old settings."""
        settings = self.config.settings
        for breaker in self._breakers.list_components():
            breaker.change_limits(*_read_breaker_limits(settings))
        for cache in (self._clients, self._inner_models, self._rerankers):
            cache.drop_previous_cache()

    @property
    def has_model(self) -> bool:
        """Whether a language model is configured: a client, an API key or an address."""
        return self._client is not None or has_language_model(self.config.settings)

    def resolve_settings(self, layers: Layers) -> Settings:
        """Return the middleware's settings, overridden by each of *layers* in turn.

        A layer is a mapping or the name of a preset.

        Raises `ConfigError` for invalid settings, and for settings that a single call cannot
        change.
        """
        return override_config(self.config, layers).settings

    def get_model(self, settings: Settings) -> GovernedModel:
        """Return the model that transforms questions.

        A client that the user passed takes precedence over the model that *settings* name.
        """
        return self._get_cached_model(
            settings, has_default_settings=settings is self.config.settings
        )

    def get_chat_model(self, settings: Settings) -> GovernedModel:
        """Return the model that writes answers: ``chatModel``, with the answers' token limit."""
        llm = replace(settings.llm, max_tokens=settings.answer.max_tokens)
        chat_settings = replace(settings, transformation_model=settings.chat_model, llm=llm)
        return self._get_cached_model(
            chat_settings, has_default_settings=settings is self.config.settings
        )

    def _get_cached_model(self, settings: Settings, *, has_default_settings: bool) -> GovernedModel:
        key = read_marked_values(settings, Mark.MODEL)
        # The account is read once, so that a key that changes in the environment is used only after
        # a reload.
        if has_default_settings and self._account is None:
            self._account = self._compute_account_id(settings)
        account = self._account if has_default_settings else self._compute_account_id(settings)
        # Look up the clients with every model: this marks them as recently used, so that they are
        # not dropped before the models that use them.
        clients = self._clients.get_or_create_component(
            account,
            lambda: make_shared_clients(self._client, settings),
            has_default_settings=has_default_settings,
        )

        def create_model() -> GovernedModel:
            # Imported here so that the free tier does not pay for these modules.
            from qtmiddleware.providers.llms.governed import GovernedModel

            client = self._client if clients is None else clients
            inner = self._inner_models.get_or_create_component(
                (key, account),
                lambda: make_language_model(client, settings),
                has_default_settings=has_default_settings,
            )
            # One circuit breaker per service, key and model.
            breaker = self._breakers.get_or_create_component(
                (inner.name, account),
                lambda: Breaker(*_read_breaker_limits(settings), name=inner.name),
                has_default_settings=has_default_settings,
            )
            return GovernedModel(inner, settings, breaker)

        return self._models.get_or_create_component(
            key, create_model, has_default_settings=has_default_settings
        )

    def _compute_account_id(self, settings: Settings) -> int | None:
        """Return a number that identifies the model service's address and the API key.

        Returns ``None`` if the user passed a client.
        """
        if self._client is not None:
            return None
        from qtmiddleware.providers.openai_client import hash_address_and_key

        return hash_address_and_key(settings.llm.base_url)

    def get_reranker(self, settings: Settings) -> Reranker | None:
        """Return the reranker, or ``None`` if *settings* do not enable reranking.

        A reranker that the user passed takes precedence over the model that *settings* name.
        """
        options = settings.rerank
        if not options.enabled:
            return None
        key = (options.model, options.trust_remote_code) if self._reranker is None else None
        return self._rerankers.get_or_create_component(
            key,
            lambda: make_reranker(self._reranker, settings),
            has_default_settings=settings is self.config.settings,
        )

    def get_query_log(self, settings: Settings) -> QueryLog | None:
        """Return the query log, or ``None`` if *settings* name no log file."""
        options = settings.log
        if (path := options.path) is None:
            return None
        from qtmiddleware.wrapping.query_log import QueryLog

        return self._logs.get_or_create_component(
            (path, options.texts),
            lambda: QueryLog(path, texts=options.texts, redact=self.redact),
            has_default_settings=settings is self.config.settings,
        )

    def get_glossary(self, settings: Settings) -> Glossary | None:
        """Return the glossary, or ``None`` if *settings* name none.

        Each glossary is read once. Raises `ConfigError` if a glossary is invalid.
        """
        options = settings.glossary
        if options.path is None and not options.terms:
            return None
        from qtmiddleware.retrieval.glossary_file import load_glossary

        key = (options.path, tuple(options.terms.items()))
        return self._glossaries.get_or_create_component(
            key,
            lambda: load_glossary(options),
            has_default_settings=settings is self.config.settings,
        )

    def load_reranker(self) -> None:
        """Load the reranker that the middleware's settings name, so that no question waits for it.

        A failure is logged as a warning and not raised.
        """
        reranker: Any = self.get_reranker(self.config.settings)
        if reranker is not self._reranker and hasattr(reranker, "load"):
            try:
                reranker.load()
            except (MissingExtra, ModelError) as error:
                logger.warning("results will not be reranked: %s", error, event="reranker_missing")

    def should_warm_up_model(self) -> bool:
        """Return whether the middleware's settings use a model that takes time to load.

        Such a model has a ``warm_up`` method.
        """
        settings = self.config.settings
        return (
            settings.transformation_type != "none"
            and settings.escalation.mode != "never"
            and hasattr(self.get_model(settings).inner, "warm_up")
        )

    def close(self) -> None:
        """Close the models and rerankers that this object created.

        Clients that the user passed stay open.
        """
        model: Any
        for model in self._inner_models.list_components():
            if hasattr(model, "close"):
                model.close()
        self._close_rerankers()

    async def aclose(self) -> None:
        """Close the models and rerankers as `close` does, and the running event loop's clients."""
        model: Any
        for model in self._inner_models.list_components():
            if hasattr(model, "aclose"):
                await model.aclose()
        self._close_rerankers()

    def _close_rerankers(self) -> None:
        reranker: Any
        for reranker in self._rerankers.list_components():
            if reranker is not self._reranker and hasattr(reranker, "close"):
                reranker.close()


def _read_breaker_limits(settings: Settings) -> tuple[int, float]:
    """Return how many failures in a row open the circuit breaker, and the breaker's pause.

    The pause is in seconds.
    """
    return settings.breaker.failures, settings.breaker.seconds
