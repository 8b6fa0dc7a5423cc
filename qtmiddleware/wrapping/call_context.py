"""What a call of a wrapped function works with besides its arguments: settings, components, and what was learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qtmiddleware.config import Layers
from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import Reranker, RetrievalHook
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.retrieval.responses import Shape
from qtmiddleware.runtime.cache import TransformationCache
from qtmiddleware.runtime.drivers import Bulkhead
from qtmiddleware.runtime.logs import LogSampler
from qtmiddleware.runtime.observing import Observation
from qtmiddleware.wrapping.components import Components

if TYPE_CHECKING:
    from qtmiddleware.providers.embedders import CallableEmbedder
    from qtmiddleware.providers.llms.governed import GovernedModel
    from qtmiddleware.retrieval.glossary import Glossary
    from qtmiddleware.wrapping.query_log import QueryLog, Redact


@dataclass(eq=False, repr=False, slots=True)
class Warned:
    """What the user of one wrapped function was told already: *of_pages* and *of_problem*, each once."""

    of_pages: bool = False
    of_problem: bool = False


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class CallContext:
    """What one call of a wrapped function works with, all of it under the same settings.

    *learned* and *warned* belong to the function. *cache* and *sampler* belong to the middleware.
    """

    components: Components
    settings: Settings
    learned: Learned
    warned: Warned
    cache: TransformationCache
    sampler: LogSampler
    shape: Shape | None = None
    embedder: CallableEmbedder | None = None
    hook: RetrievalHook | None = None
    log: QueryLog | None = None
    reranker: Reranker | None = None
    glossary: Glossary | None = None

    @property
    def bulkhead(self) -> Bulkhead:
        """The threads for everything beside the original's own search."""
        return self.components.bulkhead

    @property
    def redact(self) -> Redact | None:
        """What may be written of a text, where the user said so."""
        return self.components.redact

    @property
    def observation(self) -> Observation:
        """What the call's operations are part of."""
        return self.components.observation

    @property
    def hooks(self) -> tuple[RetrievalHook, ...]:
        """Who is told of the call's retrieval: the function's own hook and then the middleware's."""
        return tuple(hook for hook in (self.hook, self.components.hook) if hook is not None)

    @property
    def model(self) -> GovernedModel:
        """The model of the transformations, made when it is first needed."""
        return self.components.model(self.settings)

    @property
    def chat(self) -> GovernedModel:
        """The model that answers, made when it is first needed."""
        return self.components.chat(self.settings)

    @property
    def is_off(self) -> bool:
        """Whether nothing these settings ask for could change a result, and nobody hears of it."""
        settings = self.settings
        return (
            settings.transformation_type == "none"
            and not settings.keyword_evidence.enabled
            and not settings.rerank.enabled
            and not (settings.glossary.search and self.glossary is not None)
            and (not settings.preprocess.enabled or settings.preprocess.apply_to == "keywords")
            and settings.scores == "backend"
            and settings.log.path is None
            and not self.observation.is_observed
            and not self.hooks
        )


class ContextSource:
    """The `CallContext` of each call of one wrapped function, under what *middleware* is set to when the call begins.

    *components* returns the middleware's current `Components`. It is asked once a call, so that a
    call sees a reload as a whole or not at all. *shape*, *embedder*, *hook* and what is learned
    belong to the function. *cache* and
    *sampler* belong to the middleware. *layers* are settings that override the middleware's in
    every call. *options* are those the function was wrapped with, ``None`` if the user did not wrap
    it.
    """

    def __init__(
        self,
        middleware: Any,
        components: Callable[[], Components],
        cache: TransformationCache,
        sampler: LogSampler,
        *,
        shape: Shape | None = None,
        embedder: CallableEmbedder | None = None,
        hook: RetrievalHook | None = None,
        layers: Layers = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.middleware = middleware
        self.layers = layers
        self.options = options
        self._components = components
        self._learned = Learned()
        self._warned = Warned()
        self._cache = cache
        self._sampler = sampler
        self._shape = shape
        self._embedder = embedder
        self._hook = hook
        # Made once for each configuration, together with the components that made it.
        self._latest = (current := components()), self._make(current, ())

    def current(self, overrides: Layers = ()) -> CallContext:
        """Returns the context with *overrides* on top of all; raises `ConfigError` where they are impossible."""
        components = self._components()
        if overrides:
            return self._make(components, overrides)
        made_by, context = self._latest
        if made_by is not components:
            context = self._make(components, ())
            self._latest = components, context
        return context

    def configured(self, config: Mapping[str, Any]) -> ContextSource:
        """Returns a source with the settings of *config* laid over these for good, which learns for itself."""
        cache = TransformationCache(self.current((config,)).settings)
        return ContextSource(
            self.middleware,
            self._components,
            cache,
            self._sampler,
            shape=self._shape,
            embedder=self._embedder,
            hook=self._hook,
            layers=(*self.layers, config),
            options=self.options,
        )

    def _make(self, components: Components, overrides: Layers) -> CallContext:
        settings = components.settings((*self.layers, *overrides))
        if self.layers:
            # Its cache is its own: a reload of the middleware does not reach it.
            self._cache.change(settings)
        return CallContext(
            components=components,
            settings=settings,
            learned=self._learned,
            warned=self._warned,
            cache=self._cache,
            sampler=self._sampler,
            shape=self._shape,
            embedder=self._embedder,
            hook=self._hook,
            log=components.log(settings),
            reranker=components.reranker(settings),
            glossary=components.glossary(settings),
        )
