"""Collect the settings and components that one call of a wrapped function uses."""

from __future__ import annotations

from collections.abc import Callable
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
    from qtmiddleware.providers.embedding import CallableEmbedder
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

    *learned* holds the facts that qtmiddleware has learned from earlier calls. All calls of one
    function share *learned* and *issued_warnings*. All functions of one middleware share *cache*
    and *sampler*.
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
        """The thread pool for all work except the search for the original query."""
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
        """The hooks to call with each `Retrieval`: the function's hook, then the middleware's."""
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
        """Whether this call only needs to call the plain function.

        True if no setting changes the result, no log, observer or hook needs the retrieval, and the
        function takes texts.
        """
        settings = self.settings
        return (
            self.embedder is None
            and settings.transformation_type == "none"
            and not settings.keyword_evidence.enabled
            and not settings.rerank.enabled
            and (not settings.preprocess.enabled or settings.preprocess.apply_to == "keywords")
            and settings.scores == "backend"
            and settings.log.path is None
            and not self.observation.is_observed
            and not self.hooks
        )


class ContextSource:
    """Creates the `CallContext` for each call of one wrapped function.

    A context holds the middleware's settings at the moment the call begins. *shape*, *embedder* and
    *hook* belong to the function. *cache* and *sampler* belong to the middleware.

    Args:
        middleware: the `QueryMiddleware` that wraps the function.
        get_components: returns the middleware's current `Components`. Each call of the wrapped
            function asks once, so that no call mixes settings from before and after a reload.
        is_quiet: whether to issue no `SetupWarning`.
    """

    def __init__(
        self,
        middleware: Any,
        get_components: Callable[[], Components],
        cache: TransformationCache,
        sampler: LogSampler,
        *,
        shape: Shape | None = None,
        embedder: CallableEmbedder | None = None,
        hook: RetrievalHook | None = None,
        is_quiet: bool = False,
    ) -> None:
        self.middleware = middleware
        self._get_components = get_components
        self._learned = Learned()
        self._issued_warnings = IssuedWarnings(about_pages=is_quiet, about_problem=is_quiet)
        self._cache = cache
        self._sampler = sampler
        self._shape = shape
        self._embedder = embedder
        self._hook = hook
        # The context is made once per configuration, and kept with the components it was made from.
        self._latest = (current := get_components()), self._build_context(current, ())

    def get_context(self, overrides: Layers = ()) -> CallContext:
        """Return the context for a call that begins now. *overrides* override the settings.

        Raises `ConfigError` if *overrides* are invalid.
        """
        components = self._get_components()
        # A context with overrides is not kept, because each call may override other settings.
        if overrides:
            return self._build_context(components, overrides)
        # Reading the pair in one step is safe while another thread replaces it.
        made_by, context = self._latest
        if made_by is not components:
            context = self._build_context(components, ())
            self._latest = components, context
        return context

    def _build_context(self, components: Components, overrides: Layers) -> CallContext:
        settings = components.resolve_settings(overrides)
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
            log=components.get_query_log(settings),
            reranker=components.get_reranker(settings),
            glossary=components.get_glossary(settings),
        )
