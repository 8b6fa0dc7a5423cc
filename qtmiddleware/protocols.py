"""The interfaces for your own models, embedders, stores and observers. No base class is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeGuard, runtime_checkable

from qtmiddleware.catalogue import FieldShape
from qtmiddleware.types import (
    Deadline,
    FrozenDataclass,
    Key,
    Message,
    Operation,
    Ranking,
    Retrieval,
)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ReplyField(FrozenDataclass):
    """One field of the JSON object that the model is asked to return.

    Attributes:
        name: The field's name in the reply.
        shape: ``line``, ``passage`` or ``list``.
        description: The explanation of the field in the prompt.
        min_items, max_items: How many items a list may have; 0 for no limit.
    """

    name: str
    shape: FieldShape
    description: str
    min_items: int = 0
    max_items: int = 0


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Prompt(FrozenDataclass):
    """One prompt to a language model.

    Attributes:
        mode, version: The prompt's name and version, parts of every cache key.
        system: The instructions, without any text of the user.
        user: The query and the history.
        fields: The fields that the reply must have; empty for a reply in plain text.
        query, history: Those in *user*, for models that look up stored replies.
        max_tokens: The maximum number of tokens in the reply.
    """

    mode: str
    version: str
    system: str = field(repr=False)
    user: str = field(repr=False)
    fields: tuple[ReplyField, ...]
    query: str = field(repr=False)
    history: tuple[Message, ...] = field(default=(), repr=False)
    max_tokens: int = 800


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Reply(FrozenDataclass):
    """A language model's reply, with its cost.

    Attributes:
        text: The reply's text.
        input_tokens, output_tokens: The tokens that the model read and wrote.
        calls: The requests that were sent: more than one if the provider rejected a parameter
            first.
        cost_usd: The cost in US dollars; ``None`` if the model's price is not known.
        truncated: Whether the model stopped at its token limit.
        seconds: For a replayed reply, how long the original reply took; 0 for a new reply.
        model, id: What the service calls the model and this completion; ``""`` if not known.
    """

    text: str = field(repr=False)
    input_tokens: int = 0
    output_tokens: int = 0
    calls: int = 1
    cost_usd: float | None = None
    truncated: bool = False
    seconds: float = 0.0
    model: str = ""
    id: str = ""


@runtime_checkable
class LanguageModel(Protocol):
    """A language model that returns replies to prompts.

    `complete` and `acomplete` raise only `ModelError`. They should return or raise before the
    deadline passes.
    """

    @property
    def name(self) -> str:
        """The model's name; part of every cache key."""

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt*."""

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt* without blocking the event loop."""


@runtime_checkable
class StreamingModel(LanguageModel, Protocol):
    """A language model that can also stream its reply.

    A stream yields the pieces of the reply, then the whole `Reply`.
    """

    def stream(self, prompt: Prompt, deadline: Deadline) -> Iterator[str | Reply]:
        """Yield the pieces of the reply as they arrive, then the `Reply`. Raises `ModelError`."""

    def astream(self, prompt: Prompt, deadline: Deadline) -> AsyncIterator[str | Reply]:
        """Yield the pieces of the reply as they arrive, then the `Reply`. Raises `ModelError`."""


@runtime_checkable
class Embedder(Protocol):
    """An embedding model, which turns texts into vectors of equal length."""

    @property
    def name(self) -> str:
        """The embedding model's name, which is stored with an index."""

    @property
    def dimension(self) -> int:
        """The length of every vector."""

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*."""


def is_embedder(candidate: object) -> TypeGuard[Embedder]:
    """Return whether *candidate* is an object with a method ``embed``, and not a class."""
    return callable(getattr(candidate, "embed", None)) and not isinstance(candidate, type)


@runtime_checkable
class Reranker(Protocol):
    """A model that scores how well passages answer a question."""

    @property
    def name(self) -> str:
        """The model's name."""

    def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """Return one score per text; higher is better. If it raises, the order stays."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Passage(FrozenDataclass):
    """One text to store; *metadata* are the fields that a filter can refer to.

    A passage with the same *id* that is written later replaces this one.
    """

    id: str
    text: str = field(repr=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)


Filter = Mapping[str, Any]
"""A condition on metadata in Pinecone's filter language.

Examples: ``{"source": "a.txt"}``, ``{"page": {"$gte": 3}}``.
"""

Record = dict[str, Any]
"""One passage in a search result, a dict with the keys id, score, text and metadata."""


@runtime_checkable
class Store(Protocol):
    """Stores passages with their vectors, and finds the nearest. Methods raise `StoreError`."""

    @property
    def identity(self) -> str:
        """A unique name for the store. It stays the same when the store is opened again."""

    def write(
        self, passages: Iterable[tuple[Passage, Sequence[float]]], *, delete: Sequence[str] = ()
    ) -> None:
        """Write *passages* with their vectors, and delete those with the ids in *delete*.

        A passage replaces an earlier one with the same id, and is written if *delete* names it too.
        There may be more passages than fit in memory. The next ingest repeats a write that fails.
        """

    def search(
        self,
        query: Sequence[float],
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """Return the *top_k* passages nearest to the vector *query* that match *filter*."""

    def count(self) -> int:
        """Return the number of passages."""

    def close(self) -> None:
        """Release files and connections. Closing a store again has no effect."""


@runtime_checkable
class KeywordStore(Protocol):
    """A store that can also search passages by their words."""

    def keyword_search(
        self,
        text: str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """Return the *top_k* passages that match *filter* with the best scores, best first."""


@runtime_checkable
class Observer(Protocol):
    """Receives every operation when it starts and when it ends.

    It must be fast and thread-safe: it is called in the thread or task of the operation. What it
    raises is logged at most once a minute, and otherwise ignored.

    - An operation starts after its parent, and ends once. If the caller stops waiting for it, it
      ends at this moment, in the caller's thread or task, even if the call continues.
    - If `on_start` sets a context variable for a search, embedding, model call or reranking, the
      code that performs the operation sees it. Code that reads a stream never does.
    """

    def on_start(self, operation: Operation) -> None:
        """Handle the start of *operation*."""

    def on_end(self, operation: Operation) -> None:
        """Handle the end of *operation*. Its ``id`` is the same as at its start."""


class Cache(Protocol):
    """A cache that several processes share, such as a Redis client. Pass it as ``cache=``.

    Both methods may be asynchronous, and must be thread-safe. One that raises or is slow changes no
    result.
    """

    def get(self, key: str, /) -> Any:
        """Return the text stored under *key*; ``None`` if there is none."""

    def set(self, key: str, value: str, seconds: int, /) -> Any:
        """Store *value* under *key* for *seconds* seconds. The result is ignored."""


Clock = Callable[[], datetime]
"""A function that returns the current time with its time zone, for phrases like "last year"."""

RetrievalHook = Callable[[Retrieval], object]
"""A function that is called with every `Retrieval` before the caller gets the result.

The function may be asynchronous. Its result is ignored. If it raises an exception, the exception is
logged, and the `Retrieval` gets a degradation.
"""

FuseFunction = Callable[[Sequence[Ranking], int, int], Iterable[tuple[Key, float]]]
"""A function that merges rankings: ``fuse(rankings, sign, rrf_k)``.

It returns a ``(key, score)`` pair for each passage, in any order. Higher scores are better.
Passages without a pair come last.

Each of *rankings* is a `qtmiddleware.types.Ranking`, best first. Its ``variant`` has the weight.
*sign* is 1 if higher scores are better in the rankings, and -1 if lower scores are better. *rrf_k*
is ``fusion.rrfK``.
"""
