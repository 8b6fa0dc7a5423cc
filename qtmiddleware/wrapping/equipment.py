"""What the settings in force ask for: language models, a reranker and a log, made once for each way they are set."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from qtmiddleware.config import Config
from qtmiddleware.config.keys import dotted
from qtmiddleware.config.overrides import Layers
from qtmiddleware.config.settings import Settings, key_of, marked
from qtmiddleware.errors import ConfigError, MissingExtra, ModelError
from qtmiddleware.protocols import LanguageModel, Reranker
from qtmiddleware.providers.llms import as_language_model, clients_of, has_language_model
from qtmiddleware.providers.llms.governed import GovernedModel
from qtmiddleware.providers.llms.openai.clients import Clients, account_of
from qtmiddleware.providers.rerankers import as_reranker
from qtmiddleware.providers.rerankers.cross_encoder import CrossEncoderReranker
from qtmiddleware.providers.rerankers.pinecone import PineconeReranker
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.drivers import Bulkhead
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.wrapping.query_log import QueryLog, Redact

logger: Final = get_logger("qtmiddleware")

# How many differently set models, rerankers and logs are kept; per-call settings are few, but they may come from users.
MOST_KEPT: Final = 32

T = TypeVar("T")


class _Kept(Generic[T]):
    """Things made once for each key; the first one stays, the second oldest goes where there are too many.

    What *former* has is taken over when it is asked for, until `settle`.
    """

    __slots__ = ("_former", "_lock", "_made")

    def __init__(self, former: _Kept[T] | None = None) -> None:
        self._former = former
        self._lock = ForkLock()
        self._made: dict[Hashable, T] = {}

    def settle(self) -> list[T]:
        """Take nothing over any more; answers what was not taken."""
        former, self._former = self._former, None
        kept = {id(it) for it in self.all()}
        return [] if former is None else [it for it in former.all() if id(it) not in kept]

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock.free:
            found = self._made.get(key)
            if found is None:
                if len(self._made) >= MOST_KEPT:
                    # The first is that of the middleware's own settings.
                    del self._made[list(self._made)[1]]
                known = None if self._former is None else self._former._made.get(key)
                found = self._made[key] = make() if known is None else known
        return found

    def all(self) -> list[T]:
        """Each once, though it may serve several keys."""
        with self._lock.free:
            return list({id(made): made for made in self._made.values()}.values())


class Equipment:
    """The models, rerankers, logs and threads of one middleware, for its own settings and for those of single calls.

    One made *after* another for the same middleware goes on with its threads, breakers and whatever else it makes in
    the same way. Nothing of the other changes before `succeed`.
    """

    def __init__(
        self,
        config: Config,
        client: Any,
        reranker: Any = None,
        redact: Redact | None = None,
        after: Equipment | None = None,
    ) -> None:
        self.config = config
        self._client = client
        self._reranker = reranker
        self._redact = redact
        self.bulkhead: Bulkhead = after.bulkhead if after else Bulkhead(config.settings.limits.max_threads)
        self._breakers: _Kept[Breaker] = after._breakers if after else _Kept()
        self._clients: _Kept[Clients | None] = _Kept(after._clients if after else None)
        self._inner: _Kept[LanguageModel] = _Kept(after._inner if after else None)
        self._models: _Kept[GovernedModel] = _Kept()
        self._rerankers: _Kept[Reranker] = _Kept(after._rerankers if after else None)
        self._logs: _Kept[QueryLog] = _Kept()
        self._account = self._account_for(config.settings)

    def under(self, config: Config) -> Equipment:
        """The equipment that `succeed` can put in the place of this one; raises `ConfigError`.

        This one where it would be the same: an equal *config*, and the same key and address in the environment.
        """
        if config == self.config and self._account == self._account_for(config.settings):
            return self
        made = Equipment(config, self._client, self._reranker, self._redact, after=self)
        made.parts(config.settings)
        return made

    def succeed(self) -> None:
        """Take the place of the one before: what only that had is closed, once no call is inside it."""
        settings = self.config.settings
        self.bulkhead.limit = settings.limits.max_threads
        for breaker in self._breakers.all():
            breaker.change(*_breaker_limits(settings))
        self._inner.settle()
        for it in (*self._clients.settle(), *self._rerankers.settle()):
            if isinstance(it, Clients | PineconeReranker):
                it.in_use.retire()

    def _account_for(self, settings: Settings) -> int | None:
        """What clients of our own are made with; nothing where one was given."""
        return account_of(settings.llm.base_url) if self._client is None else None

    @property
    def has_model(self) -> bool:
        """Whether there is a language model to ask: one that was given, or a key or an address."""
        return self._client is not None or has_language_model(self.config.settings)

    def settings(self, layers: Layers) -> Settings:
        """The settings with *layers* laid over them, the last on top; raises `ConfigError` for impossible ones."""
        config = self.config
        for layer in layers:
            config = config.overridden(layer)
        own, asked = self.config.settings, config.settings
        if asked is own:
            return own
        for name in marked(Settings, "middleware"):
            if attrgetter(name)(asked) != attrgetter(name)(own):
                key = dotted(tuple(name.split(".")))
                raise ConfigError(
                    f"{key} belongs to the whole middleware; one call cannot change it", path=key, source="call"
                )
        return asked

    def model(self, settings: Settings) -> GovernedModel:
        """The model of the transformations; one that was given as such is asked whatever *settings* say."""
        key = key_of(settings, "model")
        return self._models.get(key, lambda: self._governed(key, settings))

    def _governed(self, key: tuple[Hashable, ...], settings: Settings) -> GovernedModel:
        """The model with the breaker of all that ask the same service, as the same client, for the same model."""
        account = self._account_for(settings)
        clients = self._clients.get(account, lambda: clients_of(self._client, settings))
        client = self._client if clients is None else clients
        model = self._inner.get((*key, account), lambda: as_language_model(client, settings))
        breaker = self._breakers.get(
            (model.name, account), lambda: Breaker(*_breaker_limits(settings), name=model.name)
        )
        return GovernedModel(model, settings, breaker)

    def chat(self, settings: Settings) -> GovernedModel:
        """The model that answers: ``chatModel`` with the answers' own limit."""
        return self.model(
            replace(
                settings,
                transformation_model=settings.chat_model,
                llm=replace(settings.llm, max_tokens=settings.answer.max_tokens),
            )
        )

    def reranker(self, settings: Settings) -> Reranker | None:
        """The reranker that *settings* ask for; one that was given is asked whatever they name."""
        options = settings.rerank
        if not options.enabled:
            return None
        key = (options.model, options.trust_remote_code)
        return self._rerankers.get(key, lambda: as_reranker(self._reranker, settings))

    def prepare(self, settings: Settings) -> None:
        """Read the reranker's model, so that no question waits for it; where it cannot be had, that is warned of."""
        reranker = self.reranker(settings)
        if isinstance(reranker, CrossEncoderReranker):
            try:
                reranker.load()
            except (MissingExtra, ModelError) as error:
                logger.warning("nothing will be reranked: %s", error)

    def asks(self, settings: Settings) -> bool:
        """Whether *settings* may ask a model that takes something to load, which it has a ``warm_up`` for."""
        return (
            settings.transformation_type != "none"
            and settings.escalation.mode != "never"
            and hasattr(self.model(settings).inner, "warm_up")
        )

    def log(self, settings: Settings) -> QueryLog | None:
        """The log that *settings* ask for."""
        path, query_text = settings.log.path, settings.log.query_text
        if path is None:
            return None
        made = partial(QueryLog, path, query_text=query_text, redact=self._redact)
        return self._logs.get((path, query_text), made)

    def parts(self, settings: Settings) -> dict[str, Any]:
        """What a wrapped function is given of all this under *settings*."""
        return {
            "settings": settings,
            "model": self.model(settings),
            "chat": self.chat(settings),
            "log": self.log(settings),
            "reranker": self.reranker(settings),
            "redact": self._redact,
            "bulkhead": self.bulkhead,
        }

    def close(self) -> None:
        """Close the clients that were made here; those that were given stay open."""
        model: Any
        for model in self._inner.all():
            if hasattr(model, "close"):
                model.close()
        self._close_rerankers()

    async def aclose(self) -> None:
        """`close` for the clients of the running loop too."""
        model: Any
        for model in self._inner.all():
            if hasattr(model, "aclose"):
                await model.aclose()
        self._close_rerankers()

    def _close_rerankers(self) -> None:
        for reranker in self._rerankers.all():
            if isinstance(reranker, PineconeReranker):
                # A client that was given to it stays open.
                reranker.close()


def _breaker_limits(settings: Settings) -> tuple[int, float]:
    options = settings.breaker
    return options.failures if options.enabled else 0, options.seconds
