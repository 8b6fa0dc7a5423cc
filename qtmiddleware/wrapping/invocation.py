"""One call of a wrapped function, made as often as the flow asks, each time with another text."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.config.overrides import Layers
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import WrapError, is_outage
from qtmiddleware.protocols import Reranker
from qtmiddleware.providers.llms.governed import GovernedModel
from qtmiddleware.retrieval.request import Memory
from qtmiddleware.retrieval.responses import Shape, wait_for_response
from qtmiddleware.runtime.cache import TransformationCache
from qtmiddleware.runtime.drivers import Bulkhead, in_thread
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.runtime.steps import Rerank, Search
from qtmiddleware.types import Retrieval
from qtmiddleware.wrapping.calls import CallShape
from qtmiddleware.wrapping.equipment import Equipment
from qtmiddleware.wrapping.query_log import QueryLog, Redact, Writing

if TYPE_CHECKING:
    from qtmiddleware.providers.embedders import CallableEmbedder

Vectors = Sequence[Sequence[float]]

logger: Final = get_logger("qtmiddleware")


@dataclass(frozen=True, slots=True)
class Outfit:
    """What one call of a wrapped function works with, all of it under the same settings."""

    settings: Settings
    model: GovernedModel
    chat: GovernedModel
    memory: Memory
    bulkhead: Bulkhead
    shape: Shape | None = None
    embedder: CallableEmbedder | None = None
    log: QueryLog | None = None
    reranker: Reranker | None = None
    redact: Redact | None = None

    @property
    def is_off(self) -> bool:
        """Whether nothing these settings ask for could change a result."""
        settings = self.settings
        return (
            settings.transformation_type == "none"
            and not settings.keyword_evidence.enabled
            and not settings.rerank.enabled
            and (not settings.preprocess.enabled or settings.preprocess.apply_to == "keywords")
            and settings.scores == "backend"
            and settings.log.path is None
        )


class Outfits:
    """The outfits of one wrapped function, under whatever *middleware* is set to when a call begins.

    *equipment* answers what is in force; it is asked once a call, so that a reload is seen by a call as a whole or not
    at all. *memory*, *shape* and *embedder* are the function's own and stay. *below* are layers of settings that lie
    over the middleware's for good; *options* are those the function was wrapped with, ``None`` where it was not.
    """

    def __init__(
        self,
        middleware: Any,
        equipment: Callable[[], Equipment],
        memory: Memory,
        *,
        shape: Shape | None = None,
        embedder: CallableEmbedder | None = None,
        below: Layers = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.middleware = middleware
        self.options = options
        self._equipment = equipment
        self._memory = memory
        self._shape = shape
        self._embedder = embedder
        self.below = below
        equipped = equipment()
        self._made = equipped, self._outfit(equipped, ())

    def current(self, layers: Layers = ()) -> Outfit:
        """The outfit with *layers* on top of all; raises `ConfigError` where they are impossible."""
        equipment = self._equipment()
        if layers:
            return self._outfit(equipment, layers)
        made_of, outfit = self._made
        if made_of is not equipment:
            outfit = self._outfit(equipment, ())
            self._made = equipment, outfit
        return outfit

    def under(self, config: Mapping[str, Any]) -> Outfits:
        """Outfits with the settings of *config* laid over these for good, and a memory of their own."""
        cache = TransformationCache(self._outfit(self._equipment(), (config,)).settings)
        memory = Memory(cache, self._memory.sampler)
        return Outfits(
            self.middleware,
            self._equipment,
            memory,
            shape=self._shape,
            embedder=self._embedder,
            below=(*self.below, config),
            options=self.options,
        )

    def _outfit(self, equipment: Equipment, layers: Layers) -> Outfit:
        settings = equipment.settings((*self.below, *layers))
        if self.below:
            # A memory of its own, which the middleware does not know of.
            self._memory.cache.change(settings)
        return Outfit(**equipment.parts(settings), memory=self._memory, shape=self._shape, embedder=self._embedder)


def awaitable(value: Any) -> Awaitable[Any]:
    """*value* itself where it can be awaited, else something that gives it.

    A wrapper may make an asynchronous function synchronous and still look like it.
    """
    return value if hasattr(value, "__await__") else _ready(value)


def _may_narrow(step: Search, error: Exception) -> bool:
    return step.may_narrow and step.top_k is not None and not is_outage(error)


async def _ready(value: Any) -> Any:
    return value


class _Running:
    """One call of a wrapped function by us, while it runs; threads and tasks of ours have it in their context."""

    __slots__ = ("_before", "fn")

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn: Callable[..., Any] | None = fn

    def __enter__(self) -> None:
        self._before = _running.set((*_running.get(), self))

    def __exit__(self, *_: object) -> None:
        # A task that the function began, and that outlives its call, is none of its calls any more.
        self.fn = None
        # A coroutine that is thrown away may be closed in another context than it ran in.
        with suppress(ValueError):
            _running.reset(self._before)


_running: Final[ContextVar[tuple[_Running, ...]]] = ContextVar("running", default=())


def is_within(fn: Callable[..., Any]) -> bool:
    """Whether we are called from within a call of *fn* that we made: a function that searches through itself."""
    running = _running.get()
    return bool(running) and any(it.fn is fn for it in running)


class Invocation:
    """One call of the wrapped function, ready to be made again with other texts."""

    __slots__ = (
        "_args",
        "_call_shape",
        "_fn",
        "_is_async",
        "_kwargs",
        "_original",
        "_outfit",
        "bulkhead",
        "chat",
        "model",
        "native_async",
    )

    def __init__(
        self,
        fn: Callable[..., Any],
        call_shape: CallShape,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        original: Any,
        outfit: Outfit,
        *,
        native_async: bool,
    ) -> None:
        self._fn = fn
        self._call_shape = call_shape
        self._args = args
        self._kwargs = kwargs
        self._original = original
        self._outfit = outfit
        self.model = outfit.model
        self.chat = outfit.chat
        self.bulkhead = outfit.bulkhead
        self._is_async = native_async
        # Embedding is awaited in the caller's own loop, where the connections of its client are, whatever follows.
        self.native_async = native_async or self._embeds

    @property
    def _embeds(self) -> bool:
        return self._outfit.embedder is not None

    def _made(self, query: Any, top_k: int | None) -> Any:
        if query is None or (top_k is None and query is self._original):
            return self._fn(*self._args, **self._kwargs)
        args, kwargs = self._call_shape.replaced(self._args, self._kwargs, query=query, top_k=top_k)
        return self._fn(*args, **kwargs)

    def search(self, step: Search) -> Any:
        """The function's response to one text.

        A function that refuses as many passages as the step asks for is called as the caller called it, if the step
        allows it, and will be from then on. What it raises then passes through.
        """
        query: Any = step.text
        if self._embeds and query is not None:
            query = step.vector if step.vector is not None else self.embed((query,))[0]
        try:
            return self._settled(query, step.top_k)
        except Exception as error:
            if not _may_narrow(step, error):
                raise
        response = self._settled(query, None)
        self._outfit.memory.refuses_widening = True
        return response

    def _settled(self, query: Any, top_k: int | None) -> Any:
        with _Running(self._fn):
            return wait_for_response(self._made(query, top_k))

    async def asearch(self, step: Search) -> Any:
        """`search`, to be awaited."""
        query: Any = step.text
        if self._embeds and query is not None:
            query = step.vector if step.vector is not None else (await self.aembed((query,)))[0]
        try:
            return await self._amade(query, step.top_k)
        except Exception as error:
            if not _may_narrow(step, error):
                raise
        response = await self._amade(query, None)
        self._outfit.memory.refuses_widening = True
        return response

    async def _amade(self, query: Any, top_k: int | None) -> Any:
        if self._is_async:
            with _Running(self._fn):
                return await awaitable(self._made(query, top_k))
        return await in_thread(lambda: self._settled(query, top_k))

    def embed(self, texts: Sequence[str]) -> Vectors:
        """A vector a text; an asynchronous embed runs in the background loop."""
        return self._embedder.embed(texts, self._outfit.settings.limits.max_concurrency)

    async def aembed(self, texts: Sequence[str]) -> Vectors:
        """A vector a text; a synchronous embed runs in a thread."""
        return await self._embedder.aembed(texts, self._outfit.settings.limits.max_concurrency)

    @property
    def _embedder(self) -> CallableEmbedder:
        if self._outfit.embedder is None:
            raise WrapError("there is no embed= to make vectors of texts")
        return self._outfit.embedder

    def rerank(self, step: Rerank) -> Sequence[float]:
        """A score a text."""
        if self._outfit.reranker is None:
            raise WrapError("no reranker is configured")
        return self._outfit.reranker.rerank(step.query, step.texts)

    def finished(self, retrieval: Retrieval) -> Retrieval:
        """*retrieval*, written to the log; that the log cannot be written is part of it then."""
        log = self._outfit.log
        if log is not None:
            trouble = log.append(retrieval)
            if trouble is not None:
                retrieval = replace(retrieval, status="degraded", degradations=(*retrieval.degradations, trouble))
        if logger.isEnabledFor(logging.DEBUG):
            shown = Writing(self._outfit.redact).shown
            texts = [(it.kind, shown(it.text)) for it in retrieval.variants]
            query: Any = retrieval.original_query
            asked = shown(query) if isinstance(query, str) else type(query).__name__
            logger.debug("query %s %r searched %s", retrieval.trace.query_id, asked, texts)
        return retrieval
