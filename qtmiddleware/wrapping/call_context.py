"""The objects that one call of a wrapped function uses, such as its settings and components."""

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
class IssuedWarnings:
    """The warnings that were already issued for one wrapped function.

    Attributes:
        about_pages: whether the user was warned that the function returns pages.
        about_problem: whether the user was warned that the function's results cannot be improved.
    """

    about_pages: bool = False
    about_problem: bool = False


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class CallContext:
    """The settings and components for one call of a wrapped function.

    All calls of the function share *learned*, the facts learned from earlier calls, and
    *issued_warnings*. All functions of the middleware share *cache* and *sampler*.
    """

    components: Components
    settings: Settings
    learned: Learned
    issued_warnings: IssuedWarnings
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
        """The threads that do all work except the original query's own search."""
        return self.components.bulkhead

    @property
    def redact(self) -> Redact | None:
        """The user's function that redacts a text before it is written to a log."""
        return self.components.redact

    @property
    def observation(self) -> Observation:
        """The object that reports the call's operations to the observers."""
        return self.components.observation

    @property
    def hooks(self) -> tuple[RetrievalHook, ...]:
        """The hooks to call with the `Retrieval`: the function's hook, then the middleware's."""
        return tuple(hook for hook in (self.hook, self.components.hook) if hook is not None)

    @property
    def model(self) -> GovernedModel:
        """The model that transforms questions, created when it is first needed."""
        return self.components.get_model(self.settings)

    @property
    def chat(self) -> GovernedModel:
        """The model that writes answers, created when it is first needed."""
        return self.components.get_chat_model(self.settings)

    @property
    def is_off(self) -> bool:
        """Whether the middleware can skip the call: nothing changes the result or observes it."""
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
    """Provides the `CallContext` of each call of one wrapped function.

    A context uses the middleware's settings at the moment the call begins. *shape*, *embedder* and
    *hook* belong to the function; *cache* and *sampler* belong to the middleware.

    Args:
        middleware: the `QueryMiddleware`.
        components: a function that returns the middleware's current `Components`. It is called once
            per call, so that a call sees a reload as a whole or not at all.
        layers: settings that override the middleware's settings in every call.
        options: the options that the user wrapped the function with; ``None`` if the user did not
            wrap it.
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
        self._issued_warnings = IssuedWarnings()
        self._cache = cache
        self._sampler = sampler
        self._shape = shape
        self._embedder = embedder
        self._hook = hook
        # The context is made once per configuration, and kept with the components it was made from.
        self._latest = (current := components()), self._make_context(current, ())

    def current(self, overrides: Layers = ()) -> CallContext:
        """Return the context of a call that begins now, with settings overridden by *overrides*.

        Raises `ConfigError` if the overrides are invalid.
        """
        components = self._components()
        if overrides:
            return self._make_context(components, overrides)
        made_by, context = self._latest
        if made_by is not components:
            context = self._make_context(components, ())
            self._latest = components, context
        return context

    def with_config(self, config: Mapping[str, Any]) -> ContextSource:
        """Return a new source for the same function, with settings overridden by *config*.

        The new source starts with an empty cache and without learned facts.
        """
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

    def _make_context(self, components: Components, overrides: Layers) -> CallContext:
        settings = components.resolve_settings((*self.layers, *overrides))
        if self.layers:
            # This source has a cache of its own, which a reload of the middleware does not change.
            self._cache.apply_settings(settings)
        return CallContext(
            components=components,
            settings=settings,
            learned=self._learned,
            issued_warnings=self._issued_warnings,
            cache=self._cache,
            sampler=self._sampler,
            shape=self._shape,
            embedder=self._embedder,
            hook=self._hook,
            log=components.get_log(settings),
            reranker=components.get_reranker(settings),
            glossary=components.get_glossary(settings),
        )
