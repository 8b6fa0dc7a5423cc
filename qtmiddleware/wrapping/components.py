"""The models, rerankers, logs and glossaries of a middleware, each made once per setting."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from qtmiddleware.config import Config, Layers
from qtmiddleware.config.keys import find_marked_keys, read_marked_values
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, MissingExtra, ModelError
from qtmiddleware.protocols import Clock, LanguageModel, Reranker, RetrievalHook
from qtmiddleware.providers.llms import as_language_model, clients_of, has_language_model
from qtmiddleware.providers.rerankers import as_reranker
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.drivers import Bulkhead
from qtmiddleware.runtime.forking import Draining, ForkLock
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.runtime.observing import NOT_OBSERVED, Observation
from qtmiddleware.wrapping.shadow import ShadowRuns

if TYPE_CHECKING:
    from qtmiddleware.providers.llms.governed import GovernedModel
    from qtmiddleware.providers.llms.openai.clients import Clients
    from qtmiddleware.retrieval.glossary import Glossary
    from qtmiddleware.wrapping.query_log import QueryLog, Redact

logger: Final = get_logger("qtmiddleware")

MOST_KEPT: Final = 32
"""The number of components of each kind that are kept for overridden settings."""

T = TypeVar("T")


class ComponentCache(Generic[T]):
    """A thread-safe cache of components such as models. The keys are the settings they depend on.

    Components for the middleware's own settings are always kept. Of the components for calls that
    override settings, the `MOST_KEPT` most recently used are kept. A dropped component is closed as
    soon as no call is using it.
    """

    def __init__(self, previous: ComponentCache[T] | None = None) -> None:
        self._previous = previous
        self._lock = ForkLock()
        self._own: dict[Hashable, T] = {}
        self._recent: dict[Hashable, T] = {}

    def get(self, key: Hashable, make: Callable[[], T], *, is_own: bool = False) -> T:
        """Return the component for *key*, made by *make* if there is none yet.

        *is_own* says that *key* is made from the middleware's own settings. Such a component is
        taken from the previous cache if possible.
        """
        with self._lock.free:
            if key in self._own:
                return self._own[key]
            component = self._recent.pop(key, None)
            if component is None and is_own and self._previous is not None:
                component = self._previous._own.get(key, self._previous._recent.get(key))
            if component is None:
                component = make()
            (self._own if is_own else self._recent)[key] = component
            dropped = (
                self._recent.pop(next(iter(self._recent)))
                if len(self._recent) > MOST_KEPT
                else None
            )
        drain(dropped)
        return component

    def values(self) -> list[T]:
        """Return all components, each once even if it belongs to several keys."""
        with self._lock.free:
            return list(
                {
                    id(component): component
                    for component in (*self._own.values(), *self._recent.values())
                }.values()
            )

    def drain_previous(self) -> None:
        """Close the components that only the previous cache holds, once no call is using them."""
        previous, self._previous = self._previous, None
        kept_ids = {id(component) for component in self.values()}
        for component in previous.values() if previous is not None else ():
            if id(component) not in kept_ids:
                drain(component)


def drain(component: object) -> None:
    """Close *component* as soon as no call is using it.

    A component whose ``in_use`` is not a `Draining` has nothing to close and is ignored.
    """
    if isinstance(in_use := getattr(component, "in_use", None), Draining):
        in_use.retire()


class Components:
    """Makes and keeps the models, rerankers, logs and threads of one middleware.

    The components serve the middleware's own settings and any overrides.

    *previous* holds the components before a reload. The new components take over the threads, the
    circuit breakers, and every client, model and reranker whose settings stay the same. The
    previous components do not change until `replace_previous` is called.
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
        previous: Components | None = None,
    ) -> None:
        self.config = config
        self._client = client
        self._reranker = reranker
        self.redact = redact
        self.observation = observation
        self.hook = hook
        self.clock = clock
        self.bulkhead: Bulkhead = (
            previous.bulkhead if previous else Bulkhead(config.settings.limits.max_threads)
        )
        self.shadow_runs: ShadowRuns = previous.shadow_runs if previous else ShadowRuns()
        self._breakers: ComponentCache[Breaker] = (
            previous._breakers if previous else ComponentCache()
        )
        self._clients: ComponentCache[Clients | None] = ComponentCache(
            previous._clients if previous else None
        )
        self._inner_models: ComponentCache[LanguageModel] = ComponentCache(
            previous._inner_models if previous else None
        )
        self._models: ComponentCache[GovernedModel] = ComponentCache()
        self._rerankers: ComponentCache[Reranker] = ComponentCache(
            previous._rerankers if previous else None
        )
        self._logs: ComponentCache[QueryLog] = ComponentCache()
        self._glossaries: ComponentCache[Glossary | None] = ComponentCache()
        # The account of the own models, set as soon as one is made.
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
        self.get_log(settings)
        self.get_glossary(settings)

    def with_config(self, config: Config) -> Components:
        """Return new components for *config*; call their `replace_previous` to complete a reload.

        Returns this object if nothing would change: the settings are equal and name no glossary
        file, and the environment has the same key and address. Raises `ConfigError` if *config* is
        invalid.
        """
        is_same = config.settings == self.config.settings
        # A glossary's file may have changed while its name stayed the same.
        if (
            is_same
            and config.settings.glossary.path is None
            and self._account in (None, self._read_account(config.settings))
        ):
            return self
        constructor_arguments = (
            self._client,
            self._reranker,
            self.redact,
            self.observation,
            self.hook,
            self.clock,
        )
        return Components(config, *constructor_arguments, previous=self)

    def replace_previous(self) -> None:
        """Apply the new limits, and close what only the previous components use.

        Each client, model and reranker is closed as soon as no call is using it.
        """
        settings = self.config.settings
        self.bulkhead.limit = settings.limits.max_threads
        for breaker in self._breakers.values():
            breaker.change(*_read_breaker_limits(settings))
        for cache in (self._clients, self._inner_models, self._rerankers):
            cache.drain_previous()

    @property
    def has_model(self) -> bool:
        """Whether there is a language model to ask: the user's client, or a key or an address."""
        return self._client is not None or has_language_model(self.config.settings)

    def resolve_settings(self, layers: Layers) -> Settings:
        """Return the middleware's settings, overridden by each of *layers* in turn.

        Raises `ConfigError` for invalid layers, and for a setting that one call cannot change.
        """
        config = self.config
        for layer in layers:
            config = config.overridden(layer)
        own_settings, resolved = self.config.settings, config.settings
        if resolved is own_settings:
            return own_settings
        for key in find_marked_keys("middleware"):
            if key.read(resolved) != key.read(own_settings):
                message = (
                    f"{key.name} cannot be set for one call; set it in the config of"
                    " QueryMiddleware"
                )
                raise ConfigError(message, path=key.name, source="call")
        return resolved

    def get_model(self, settings: Settings) -> GovernedModel:
        """Return the model that transforms questions.

        The user's own client is used even if *settings* name another model.
        """
        return self._get_model(settings, is_own=settings is self.config.settings)

    def get_chat_model(self, settings: Settings) -> GovernedModel:
        """Return the model that writes answers: ``chatModel`` with the token limit for answers."""
        llm = replace(settings.llm, max_tokens=settings.answer.max_tokens)
        # Swap the two names and keep both: a user who names a vendor's model in one setting means
        # that vendor for both.
        chat_name, transformation_name = settings.chat_model, settings.transformation_model
        chat_settings = replace(
            settings, transformation_model=chat_name, chat_model=transformation_name, llm=llm
        )
        return self._get_model(chat_settings, is_own=settings is self.config.settings)

    def _get_model(self, settings: Settings, *, is_own: bool) -> GovernedModel:
        key = read_marked_values(settings, "model")
        if is_own and self._account is None:
            self._account = self._read_account(settings)
        account = self._account if is_own else self._read_account(settings)
        # Look up the clients with every model: this marks them as recently used, so that they are
        # not dropped before the models that use them.
        clients = self._clients.get(
            account, lambda: clients_of(self._client, settings), is_own=is_own
        )

        def make() -> GovernedModel:
            # Imported here so that the free tier does not pay for these modules.
            from qtmiddleware.providers.llms.governed import GovernedModel

            client = self._client if clients is None else clients
            inner = self._inner_models.get(
                (key, account), lambda: as_language_model(client, settings), is_own=is_own
            )
            # One circuit breaker per service, key and model.
            breaker = self._breakers.get(
                (inner.name, account),
                lambda: Breaker(*_read_breaker_limits(settings), name=inner.name),
                is_own=is_own,
            )
            return GovernedModel(inner, settings, breaker)

        return self._models.get(key, make, is_own=is_own)

    def _read_account(self, settings: Settings) -> int | None:
        """Return a number that identifies the address and key of the clients made here.

        Returns ``None`` if the user gave a client.
        """
        if self._client is not None:
            return None
        from qtmiddleware.providers.llms.openai.clients import hash_account

        return hash_account(settings.llm.base_url)

    def get_reranker(self, settings: Settings) -> Reranker | None:
        """Return the reranker that *settings* ask for, or ``None`` if reranking is off.

        The user's own reranker is used even if *settings* name another model.
        """
        options = settings.rerank
        if not options.enabled:
            return None
        key = (options.model, options.trust_remote_code) if self._reranker is None else None
        return self._rerankers.get(
            key,
            lambda: as_reranker(self._reranker, settings),
            is_own=settings is self.config.settings,
        )

    def get_log(self, settings: Settings) -> QueryLog | None:
        """Return the query log that *settings* ask for, or ``None`` if there is none."""
        options = settings.log
        if (path := options.path) is None:
            return None
        from qtmiddleware.wrapping.query_log import QueryLog

        query_text, passage_text = options.query_text, options.passage_text
        return self._logs.get(
            (path, query_text, passage_text),
            lambda: QueryLog(
                path, query_text=query_text, passage_text=passage_text, redact=self.redact
            ),
            is_own=settings is self.config.settings,
        )

    def get_glossary(self, settings: Settings) -> Glossary | None:
        """Return the glossary that *settings* name, or ``None`` if they name none.

        Each glossary is read once. Raises `ConfigError` if a glossary is invalid.
        """
        options = settings.glossary
        if options.path is None and not options.terms:
            return None
        from qtmiddleware.retrieval.glossary_file import load_glossary

        key = (options.path, tuple(options.terms.items()))
        return self._glossaries.get(
            key, lambda: load_glossary(options), is_own=settings is self.config.settings
        )

    def load_reranker(self) -> None:
        """Load the reranker of the middleware's own settings, so that no question waits for it.

        If loading fails, a warning is logged and nothing is raised.
        """
        reranker: Any = self.get_reranker(self.config.settings)
        if reranker is not self._reranker and hasattr(reranker, "load"):
            try:
                reranker.load()
            except (MissingExtra, ModelError) as error:
                logger.warning("results will not be reranked: %s", error, event="reranker_missing")

    def can_ask_slow_model(self) -> bool:
        """Return whether the middleware's own settings use a model with a ``warm_up`` method.

        Such a model takes time to load.
        """
        settings = self.config.settings
        return (
            settings.transformation_type != "none"
            and settings.escalation.mode != "never"
            and hasattr(self.get_model(settings).inner, "warm_up")
        )

    def close(self) -> None:
        """Close the clients that were made here; the user's own clients stay open."""
        model: Any
        for model in self._inner_models.values():
            if hasattr(model, "close"):
                model.close()
        self._close_rerankers()

    async def aclose(self) -> None:
        """Do what `close` does, and also close the clients of the running event loop."""
        model: Any
        for model in self._inner_models.values():
            if hasattr(model, "aclose"):
                await model.aclose()
        self._close_rerankers()

    def _close_rerankers(self) -> None:
        reranker: Any
        for reranker in self._rerankers.values():
            if isinstance(getattr(reranker, "in_use", None), Draining):
                # A client that was given to the reranker stays open.
                reranker.close()


def _read_breaker_limits(settings: Settings) -> tuple[int, float]:
    options = settings.breaker
    return options.failures if options.enabled else 0, options.seconds
