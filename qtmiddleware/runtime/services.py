"""Call what is not ours in a flow: the wrapped function, the embedder, the models and the hooks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import copy_context
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from qtmiddleware.errors import WrapError
from qtmiddleware.protocols import LanguageModel, Prompt, Reply, RetrievalHook
from qtmiddleware.runtime.concurrency import (
    IO,
    Bulkhead,
    Outcome,
    Threads,
    Work,
    drive,
    make_async_io,
    on_abandon,
)
from qtmiddleware.runtime.observing import NOT_OBSERVED, Observation, is_inside_hook
from qtmiddleware.types import Deadline, Ranking, Retrieval, VariantKind

T = TypeVar("T")

HOOK_SECONDS: Final = 1.0
"""The time limit in seconds for a hook that is awaited or runs in another thread."""


@dataclass(eq=False, repr=False, slots=True)
class Search:
    """A search for one text by the wrapped function, and what is known of it afterwards.

    Attributes:
        text: The text; ``None`` repeats the caller's call unchanged, as its question is no text.
        top_k: How many passages to request; ``None`` for as many as the caller did.
        vector: The text's vector, if it is already known.
        narrow_by: Until when a failed search may be repeated with the caller's number of passages.
        kind, weight: For observers.
        embed_seconds: How many seconds embedding the text took.
        calls: How often the function was called.
        initial: The rankings that the backend merged into the response, by name.
    """

    text: str | None
    top_k: int | None = None
    vector: Sequence[float] | None = None
    _: KW_ONLY
    narrow_by: Deadline | None = None
    kind: VariantKind = "original"
    weight: float = 1.0
    embed_seconds: float = 0.0
    calls: int = 0
    initial: dict[str, Ranking] = field(default_factory=dict)


Searcher = Callable[[Search, "Services"], Awaitable[Any]]
"""A coroutine function that returns the wrapped function's response to a `Search`."""


async def refuse_search(*_: Any) -> Any:
    """Raise `WrapError`, because there is no wrapped function."""
    raise WrapError("there is no wrapped function to search")


@dataclass(eq=False, repr=False, slots=True)
class Services:
    """What a flow can have done for it.

    Attributes:
        limit: The maximum number of calls at once.
        observation: The operation that the calls are parts of.
        busy: How many calls run beside those that are gathered.
    """

    io: IO
    searcher: Searcher = refuse_search
    limit: int = 1
    observation: Observation = NOT_OBSERVED
    busy: int = 0

    def within(self, observation: Observation, limit: int) -> Services:
        """Return these services for the operation of *observation*, whose parts the calls are."""
        return Services(self.io, self.searcher, limit, observation)

    async def gather(self, works: Sequence[Work[T]], deadline: Deadline) -> list[Outcome[T]]:
        """Do *works* and return their outcomes, with at most `limit` calls at once in all."""
        return await self.io.gather(works, deadline, max(1, self.limit - self.busy))

    async def search(self, search: Search) -> Any:
        """Return the wrapped function's response to *search*."""
        with self.observation.make_child(
            "search",
            search.kind,
            weight=search.weight,
            top_k=search.top_k,
            content=search.text,
        ) as observation:
            services = self.within(observation, self.limit)
            return observation.keep_result(await self.searcher(search, services))

    async def embed(self, embedder: Any, texts: Sequence[str]) -> Any:
        """Return one vector of *embedder* per text."""
        with self.observation.make_child("embedding", "", embedder, content=texts) as observation:
            # A loop awaits all embeddings, because the embedder's connections belong to it.
            if self.io.has_loop:
                return observation.keep_result(await embedder.aembed(texts, self.limit))
            return observation.keep_result(embedder.embed(texts, self.limit))

    async def ask(self, prompt: Prompt, deadline: Deadline, model: Any) -> Reply:
        """Return the reply of *model* to *prompt*."""
        # A deadline of its own, because a model that nobody waits for any more has to know.
        deadline = Deadline(deadline.at)
        on_abandon(lambda _: deadline.cancel())
        with self.observe_model(prompt, model) as observation:
            if can_await(model, self.io):
                reply: Reply = await model.acomplete(prompt, deadline)
            else:
                reply = await self.io.blocking(partial(model.complete, prompt, deadline))
            return observation.keep_result(reply)

    def observe_model(self, prompt: Prompt, model: LanguageModel) -> Observation:
        """Return the observation of a call of *model* with *prompt*. It has not started yet."""
        return self.observation.make_child("model", prompt.mode, model, content=prompt)

    async def rerank(self, reranker: Any, query: str, texts: Sequence[str]) -> Any:
        """Return one score of *reranker* per text; higher is better."""
        with self.observation.make_child("rerank", "", reranker, content=texts) as observation:
            call = partial(reranker.rerank, query, texts)
            return observation.keep_result(await self.io.blocking(call))

    async def tell(self, hook: RetrievalHook, retrieval: Retrieval) -> Outcome[None]:
        """Call *hook* with *retrieval*, for at most `HOOK_SECONDS` if it does not block."""

        async def call_hook() -> None:
            is_inside_hook.set(True)
            await self.io.call(partial(hook, retrieval), HOOK_SECONDS)

        if self.io.has_loop:
            (outcome,) = await self.io.gather([call_hook], Deadline.after(HOOK_SECONDS), 1)
            return outcome
        # In the caller's own thread, as many frameworks keep the current request there.
        try:
            copy_context().run(drive, call_hook())
        except TimeoutError:
            return Outcome(late=True)
        except Exception as error:
            return Outcome(error=error)
        return Outcome()


Flow = Callable[[Services], Coroutine[Any, Any, T]]
"""A coroutine function that does its work through `Services`, and returns a final result."""


def can_await(model: object, io: IO) -> bool:
    """Return whether *model* can be awaited. Not so if the user passed a synchronous client."""
    return io.has_loop and getattr(model, "can_async", True)


def run(flow: Flow[T], bulkhead: Bulkhead, searcher: Searcher = refuse_search) -> T:
    """Run *flow* to its end and return its result. Blocks the calling thread."""
    return drive(flow(Services(Threads(bulkhead), searcher)))


async def arun(flow: Flow[T], bulkhead: Bulkhead, searcher: Searcher = refuse_search) -> T:
    """Run *flow* to its end and return its result, without blocking the running loop."""
    return await flow(Services(make_async_io(bulkhead), searcher))
