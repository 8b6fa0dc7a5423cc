"""What settings ask for: language models, a reranker and a log, made once for each way they are set."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from qtmiddleware.config import Config, Layers
from qtmiddleware.config.keys import key_of, keys_with
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
"""How many models, clients, rerankers and logs of overridden settings are kept, each."""

T = TypeVar("T")


class ComponentCache(Generic[T]):
    """Components by what they are made with. Thread-safe.

    Those of the middleware's own settings stay. Of those that calls override settings for, the
    least recently used is dropped where there are more than `MOST_KEPT`, and closed once no call is
    inside it.
    """

    def __init__(self, former: ComponentCache[T] | None = None) -> None:
        self._former = former
        self._lock = ForkLock()
        self._own: dict[Hashable, T] = {}
        self._recent: dict[Hashable, T] = {}

    def get(self, key: Hashable, make: Callable[[], T], *, is_own: bool = False) -> T:
        """Returns the component for *key*, made where there is none; an own one may be the *former*'s."""
        with self._lock.free:
            if key in self._own:
                return self._own[key]
            component = self._recent.pop(key, None)
            if component is None and is_own and self._former is not None:
                component = self._former._own.get(key, self._former._recent.get(key))
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
        """Returns each component once, though it may serve several keys."""
        with self._lock.free:
            return list(
                {id(it): it for it in (*self._own.values(), *self._recent.values())}.values()
            )

    def drain_former(self) -> None:
        """Close what only the former cache has, each once no call is inside it."""
        former, self._former = self._former, None
        kept = {id(it) for it in self.values()}
        for it in former.values() if former is not None else ():
            if id(it) not in kept:
                drain(it)


def drain(component: object) -> None:
    """Close *component* once no call is inside it, if it holds anything open."""
    if isinstance(in_use := getattr(component, "in_use", None), Draining):
        in_use.retire()


class Components:
    """Makes and keeps the models, rerankers, logs and threads of one middleware, for its own settings and overrides.

    One that is made with a *former* one of the same middleware takes over its threads and breakers,
    and of its clients, models and rerankers those it would make in the same way. The former does
    not change before `succeed`.
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
        former: Components | None = None,
    ) -> None:
        self.config = config
        self._client = client
        self._reranker = reranker
        self.redact = redact
        self.observation = observation
        self.hook = hook
        self.clock = clock
        self.bulkhead: Bulkhead = (
            former.bulkhead if former else Bulkhead(config.settings.limits.max_threads)
        )
        self.shadow_runs: ShadowRuns = former.shadow_runs if former else ShadowRuns()
        self._breakers: ComponentCache[Breaker] = former._breakers if former else ComponentCache()
        self._clients: ComponentCache[Clients | None] = ComponentCache(
            former._clients if former else None
        )
        self._inner_models: ComponentCache[LanguageModel] = ComponentCache(
            former._inner_models if former else None
        )
        self._models: ComponentCache[GovernedModel] = ComponentCache()
        self._rerankers: ComponentCache[Reranker] = ComponentCache(
            former._rerankers if former else None
        )
        self._logs: ComponentCache[QueryLog] = ComponentCache()
        self._glossaries: ComponentCache[Glossary | None] = ComponentCache()
        # That of the own models, as soon as there are any.
        self._account: int | None = None
        # What is impossible is refused here, not at the first question. Without a model to ask none
        # is made.
        settings = config.settings
        if (
            client is not None
            or settings.transformation_type != "none"
            or settings.budget.max_usd is not None
        ):
            # What a question imports is there before the first one: greenlets that import the same
            # wait for each other.
            import_module("qtmiddleware.retrieval.question")
            self.model(settings)
            self.chat(settings)
        self.reranker(settings)
        self.log(settings)
        self.glossary(settings)

    def with_config(self, config: Config) -> Components:
        """Returns the components that `succeed` can put in the place of this one; raises `ConfigError`.

        That is this one where it would be the same: equal settings, the same key and address in the
        environment.
        """
        is_same = config.settings == self.config.settings
        # A glossary's file may have changed under the same name.
        if (
            is_same
            and config.settings.glossary.path is None
            and self._account in (None, self._account_for(config.settings))
        ):
            return self
        given = (self._client, self._reranker, self.redact, self.observation, self.hook, self.clock)
        return Components(config, *given, former=self)

    def succeed(self) -> None:
        """Take the place of the former: what only that had is closed, once no call is inside it."""
        settings = self.config.settings
        self.bulkhead.limit = settings.limits.max_threads
        for breaker in self._breakers.values():
            breaker.change(*_breaker_limits(settings))
        for cache in (self._clients, self._inner_models, self._rerankers):
            cache.drain_former()

    @property
    def has_model(self) -> bool:
        """Whether there is a language model to ask: one that was given, or a key or an address."""
        return self._client is not None or has_language_model(self.config.settings)

    def settings(self, layers: Layers) -> Settings:
        """Returns the settings with *layers* laid over them, the last on top; raises `ConfigError`."""
        config = self.config
        for layer in layers:
            config = config.overridden(layer)
        own, asked = self.config.settings, config.settings
        if asked is own:
            return own
        for key in keys_with("middleware"):
            if key.read(asked) != key.read(own):
                message = (
                    f"{key.name} cannot be set for one call; set it in the config of"
                    " QueryMiddleware"
                )
                raise ConfigError(message, path=key.name, source="call")
        return asked

    def model(self, settings: Settings) -> GovernedModel:
        """Returns the model of the transformations; a model that was given is asked whatever *settings* name."""
        return self._model(settings, is_own=settings is self.config.settings)

    def chat(self, settings: Settings) -> GovernedModel:
        """Returns the model that answers: ``chatModel`` with the answers' own limit of tokens."""
        llm = replace(settings.llm, max_tokens=settings.answer.max_tokens)
        # The other name stays in sight: who names a vendor's model once means both.
        first, other = settings.chat_model, settings.transformation_model
        chat_settings = replace(settings, transformation_model=first, chat_model=other, llm=llm)
        return self._model(chat_settings, is_own=settings is self.config.settings)

    def _model(self, settings: Settings, *, is_own: bool) -> GovernedModel:
        key = key_of(settings, "model")
        if is_own and self._account is None:
            self._account = self._account_for(settings)
        account = self._account if is_own else self._account_for(settings)
        # Asked for with every model, so that clients are not dropped before the models that use
        # them.
        clients = self._clients.get(
            account, lambda: clients_of(self._client, settings), is_own=is_own
        )

        def make() -> GovernedModel:
            # The free tier does not wait for its modules.
            from qtmiddleware.providers.llms.governed import GovernedModel

            client = self._client if clients is None else clients
            inner = self._inner_models.get(
                (key, account), lambda: as_language_model(client, settings), is_own=is_own
            )
            # One breaker for all that ask the same service, with the same key, for the same model.
            breaker = self._breakers.get(
                (inner.name, account),
                lambda: Breaker(*_breaker_limits(settings), name=inner.name),
                is_own=is_own,
            )
            return GovernedModel(inner, settings, breaker)

        return self._models.get(key, make, is_own=is_own)

    def _account_for(self, settings: Settings) -> int | None:
        """Returns what stands for the address and key of clients made here; ``None`` where a client was given."""
        if self._client is not None:
            return None
        from qtmiddleware.providers.llms.openai.clients import identify_account

        return identify_account(settings.llm.base_url)

    def reranker(self, settings: Settings) -> Reranker | None:
        """Returns the reranker that *settings* ask for; one that was given is asked whatever they name."""
        options = settings.rerank
        if not options.enabled:
            return None
        key = (options.model, options.trust_remote_code) if self._reranker is None else None
        return self._rerankers.get(
            key,
            lambda: as_reranker(self._reranker, settings),
            is_own=settings is self.config.settings,
        )

    def log(self, settings: Settings) -> QueryLog | None:
        """Returns the log that *settings* ask for."""
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

    def glossary(self, settings: Settings) -> Glossary | None:
        """Returns the glossary that *settings* name, read once; raises `ConfigError`."""
        options = settings.glossary
        if options.path is None and not options.terms:
            return None
        from qtmiddleware.retrieval.glossary_file import load_glossary

        key = (options.path, tuple(options.terms.items()))
        return self._glossaries.get(
            key, lambda: load_glossary(options), is_own=settings is self.config.settings
        )

    def load_reranker(self) -> None:
        """Read the own reranker's model, so that no question waits for it; a failure is logged."""
        reranker: Any = self.reranker(self.config.settings)
        if reranker is not self._reranker and hasattr(reranker, "load"):
            try:
                reranker.load()
            except (MissingExtra, ModelError) as error:
                logger.warning("results will not be reranked: %s", error, event="reranker_missing")

    def asks_slow_model(self) -> bool:
        """Whether the own settings may ask a model that takes something to load, which it has a ``warm_up`` for."""
        settings = self.config.settings
        return (
            settings.transformation_type != "none"
            and settings.escalation.mode != "never"
            and hasattr(self.model(settings).inner, "warm_up")
        )

    def close(self) -> None:
        """Close the clients that were made here; those that were given stay open."""
        model: Any
        for model in self._inner_models.values():
            if hasattr(model, "close"):
                model.close()
        self._close_rerankers()

    async def aclose(self) -> None:
        """`close` for the clients of the running loop too."""
        model: Any
        for model in self._inner_models.values():
            if hasattr(model, "aclose"):
                await model.aclose()
        self._close_rerankers()

    def _close_rerankers(self) -> None:
        reranker: Any
        for reranker in self._rerankers.values():
            if isinstance(getattr(reranker, "in_use", None), Draining):
                # A client that was given to it stays open.
                reranker.close()


def _breaker_limits(settings: Settings) -> tuple[int, float]:
    options = settings.breaker
    return options.failures if options.enabled else 0, options.seconds
