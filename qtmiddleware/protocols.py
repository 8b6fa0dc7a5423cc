"""The interfaces for your own models, embedders, stores and observers.

They are protocols: your class needs these methods but no base class.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeGuard, runtime_checkable

from qtmiddleware.catalogue import FieldShape
from qtmiddleware.types import Deadline, Message, Noun, Operation, Retrieval


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ReplyField(Noun):
    """One field of the JSON reply that the model is asked for.

    Attributes:
        name: the field's name in the reply.
        shape: ``line``, ``passage`` or ``list``.
        description: the field's meaning, as the prompt explains it.
        min_items: the fewest items of a list.
        max_items: the most items of a list; 0 for no limit.
    """

    name: str
    shape: FieldShape
    description: str
    min_items: int = 0
    max_items: int = 0


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Prompt(Noun):
    """One prompt to a language model.

    Attributes:
        mode: the prompt's name; part of every cache key.
        version: the prompt's version; part of every cache key.
        system: the instructions, without any text of the user.
        user: the query and the history, as data.
        fields: the fields that the reply must have; empty for a reply in plain text.
        query: the query in *user*, for models that look up stored replies.
        history: the conversation in *user*, for models that look up stored replies.
        max_tokens: the most tokens of the reply.
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
class Reply(Noun):
    """A language model's reply, with its cost.

    Attributes:
        text: the reply's text.
        input_tokens: tokens that the model read.
        output_tokens: tokens that the model wrote.
        calls: requests that were sent; more than one if the provider first rejected a parameter.
        cost_usd: the cost in US dollars; ``None`` if the model's price is not known.
        truncated: whether the model stopped at its token limit.
        seconds: for a replayed reply, how long it took originally; 0 for a new reply.
        model: the service's own name of the model that replied; ``""`` if it gives none.
        id: the service's own id of this completion; ``""`` if it gives none.
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
    """A language model: returns replies to prompts.

    Both methods raise only `ModelError`. They should return or raise before the deadline passes.
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
    """A language model that can also send its reply in pieces.

    A stream may yield a first `Reply` as soon as the text is complete, and a second one when the
    cost is known.
    """

    def stream(self, prompt: Prompt, deadline: Deadline) -> Iterator[str | Reply]:
        """Yield the pieces of the reply as they arrive, then the whole `Reply`.

        Raises `ModelError` if the model fails.
        """

    def astream(self, prompt: Prompt, deadline: Deadline) -> AsyncIterator[str | Reply]:
        """Yield the pieces of the reply as they arrive, then the whole `Reply`.

        Raises `ModelError` if the model fails.
        """


@runtime_checkable
class Embedder(Protocol):
    """An embedding model: turns texts into vectors of equal length."""

    @property
    def name(self) -> str:
        """The embedding model's name, which is stored with an index."""

    @property
    def dimension(self) -> int:
        """The length of every vector."""

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*."""


def is_embedder(candidate: object) -> TypeGuard[Embedder]:
    """Return whether *candidate* has a method ``embed`` and is not a class.

    The dimension is not read, because reading it may load a model or call a server.
    """
    return callable(getattr(candidate, "embed", None)) and not isinstance(candidate, type)


@runtime_checkable
class Reranker(Protocol):
    """A model that scores how well passages answer a question."""

    @property
    def name(self) -> str:
        """The model's name."""

    def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """Return one score per text, in the order of *texts*; higher is better.

        If this method raises an exception, the order of the passages stays as it was.
        """


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Passage(Noun):
    """One text to store.

    Attributes:
        id: the passage's id. A passage that is written later with the same id replaces this one.
        text: the text.
        metadata: the fields that a filter can refer to.
    """

    id: str
    text: str = field(repr=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)


Filter = Mapping[str, Any]
"""A condition on metadata in Pinecone's filter language.

Examples: ``{"source": "a.txt"}``, ``{"page": {"$gte": 3}}``.
"""

Record = dict[str, Any]
"""One passage that was found: ``{"id", "score", "text", "metadata"}``."""


@runtime_checkable
class Store(Protocol):
    """Keeps passages with their vectors and finds the nearest passages. Raises `StoreError`.

    If `embeds` is true, the store embeds texts itself: it gets empty vectors and is searched by
    text.
    """

    @property
    def embeds(self) -> bool:
        """Whether the store itself embeds passages and queries."""

    @property
    def atomic(self) -> bool:
        """Whether a reader sees either all changes of a `write` or none of them."""

    @property
    def identity(self) -> str:
        """A unique name of the store, which stays the same when the store is opened again."""

    def write(
        self, passages: Iterable[tuple[Passage, Sequence[float]]], *, delete: Sequence[str] = ()
    ) -> None:
        """Write *passages* and remove the ids in *delete*, as one change.

        A passage with the same id is replaced.

        Args:
            passages: the passages with their vectors; they may be more than fits in memory.
            delete: the ids to remove. An id that is also in *passages* is written, not removed.
        """

    def upsert(self, passages: Sequence[Passage], vectors: Sequence[Sequence[float]]) -> None:
        """Write *passages*; a passage with the same id is replaced.

        An atomic store writes all passages or none.
        """

    def delete(self, ids: Sequence[str]) -> None:
        """Remove the passages with these *ids*; unknown ids are not an error."""

    def search(
        self,
        query: Sequence[float] | str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """Return the nearest passages that meet *filter*, best first.

        *query* is a vector, or a text if the store embeds texts itself.
        """

    def count(self) -> int:
        """Return the number of passages."""

    def close(self) -> None:
        """Release files and connections. A store may be closed more than once."""


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
        """Return the passages that share the most important words with *text*, best first.

        Only passages that meet *filter* are returned; a higher score is better.
        """


@runtime_checkable
class Observer(Protocol):
    """Receives every operation when it starts and when it ends.

    An observer must be quick and thread-safe, because it is called in the thread or task that
    performs the operation. An exception that it raises is logged once and changes nothing else.

    - An operation starts after its parent.
    - Each operation ends once. An abandoned operation ends when it is abandoned, in the thread or
      task that waited for it, even if the call itself goes on.
    - If `on_start` sets a context variable for a search, embedding, model call or reranking, the
      code that performs the operation sees the variable. The reader of a stream never sees it.
    """

    def on_start(self, operation: Operation) -> None:
        """Handle the start of *operation*."""

    def on_end(self, operation: Operation) -> None:
        """Handle the end of *operation*, which has the same ``id`` as at its start."""


Clock = Callable[[], datetime]
"""A function that returns the present time with its time zone, for phrases like "last year"."""

RetrievalHook = Callable[[Retrieval], object]
"""A plain or asynchronous function, called with every `Retrieval` before the caller gets it.

An awaitable result is awaited; any other result is ignored. An exception is logged and becomes a
degradation of the caller's result; it changes nothing else.
"""
