"""What the pipeline needs from outside, as protocols; any object with these methods will do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeGuard, runtime_checkable

from qtmiddleware.catalogue import FieldShape
from qtmiddleware.types import Deadline, Message, Noun, Operation, Retrieval


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ReplyField(Noun):
    """One field the model is asked to fill: its *name* in the JSON reply, its shape and what it means."""

    name: str
    shape: FieldShape
    description: str
    min_items: int = 0
    max_items: int = 0


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Prompt(Noun):
    """One question to a language model.

    *system* holds the instructions and never a word of the user's. *user* holds the query (and
    history) as data.
    *mode* and *version* name the prompt; both are part of every cache key. *query* and *history*
    are what *user* was made of, for models that answer from a table instead of reading.
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
    """What a language model answered, with what it cost.

    *calls* counts the requests that were sent (more than one where a provider first refused a
    parameter); *cost_usd* is ``None`` where the model's price is not known. *truncated* says the
    model stopped at its token limit. *seconds* is how long a replayed reply took when it was first
    had; 0 for one that was had just now. *model* and *id* are the service's own names of the model
    that answered and of this completion, empty where it gives none.
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
    """Answers prompts. Raises `ModelError` and nothing else; returns or raises by the deadline as far as it can."""

    @property
    def name(self) -> str:
        """The model's name; part of every cache key."""

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*."""

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*."""


@runtime_checkable
class StreamingModel(LanguageModel, Protocol):
    """A language model that can also say its reply piece by piece.

    A `Reply` before the last says that the answer has ended and only what it cost is still to come.
    """

    def stream(self, prompt: Prompt, deadline: Deadline) -> Iterator[str | Reply]:
        """The pieces of the reply as they come and, last, the whole `Reply`; raises `ModelError`."""

    def astream(self, prompt: Prompt, deadline: Deadline) -> AsyncIterator[str | Reply]:
        """The pieces of the reply as they come and, last, the whole `Reply`; raises `ModelError`."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors, all of one length."""

    @property
    def name(self) -> str:
        """The embedding model's name; stored beside an index."""

    @property
    def dimension(self) -> int:
        """The length of every vector."""

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in the texts' order."""


def is_embedder(given: object) -> TypeGuard[Embedder]:
    """Whether *given* embeds. Its dimension is not looked at: that may load a model or ask a server."""
    return callable(getattr(given, "embed", None)) and not isinstance(given, type)


@runtime_checkable
class Reranker(Protocol):
    """Judges how well passages answer a question."""

    @property
    def name(self) -> str:
        """The model's name."""

    def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """One score a text, in the texts' order; greater is better. May raise anything."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Passage(Noun):
    """One text to be stored, with its vector."""

    id: str
    text: str = field(repr=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)


Filter = Mapping[str, Any]
"""A condition on metadata in Pinecone's language: ``{"source": "a.txt"}``, ``{"page": {"$gte": 3}}``."""

Record = dict[str, Any]
"""One passage that was found: ``{"id", "score", "text", "metadata"}``."""


@runtime_checkable
class Store(Protocol):
    """Keeps passages with their vectors and finds the nearest.

    A store that *embeds* turns texts into vectors itself: it is written empty vectors and searched
    by text. An *atomic* one makes every `write` visible whole or not at all. Raises `StoreError`.
    """

    @property
    def embeds(self) -> bool:
        """Whether passages and queries are embedded by the store itself."""

    @property
    def atomic(self) -> bool:
        """Whether readers see all of a `write` or nothing of it."""

    @property
    def identity(self) -> str:
        """A name that no other store has and that stays the same when it is opened again."""

    def write(
        self, passages: Iterable[tuple[Passage, Sequence[float]]], *, delete: Sequence[str] = ()
    ) -> None:
        """Write *passages*, replacing those of the same id, and remove those of the ids *delete*, as one change.

        *passages* may be more than fits in memory. An id in both is written, not removed.
        """

    def upsert(self, passages: Sequence[Passage], vectors: Sequence[Sequence[float]]) -> None:
        """Write *passages*, replacing those of the same id; all of them or none where the store is atomic."""

    def delete(self, ids: Sequence[str]) -> None:
        """Remove the passages of these *ids*; unknown ones are no error."""

    def search(
        self,
        query: Sequence[float] | str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """The nearest passages that meet *filter*, best first. *query* is a text only where the store embeds."""

    def count(self) -> int:
        """How many passages there are."""

    def close(self) -> None:
        """Let go of files and connections; closing twice does no harm."""


@runtime_checkable
class KeywordStore(Protocol):
    """A store that also finds passages by their words."""

    def keyword_search(
        self,
        text: str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """The passages that share the weightiest words with *text* and meet *filter*, best first; greater is better."""


@runtime_checkable
class Observer(Protocol):
    """Hears of every operation twice, in the thread or task that performs it. Must be quick and thread-safe.

    An operation within another starts after it. Each ends once: one that is given up does so at
    that moment, in the thread or task of whoever waited, however long the call itself goes on. What
    is raised here is logged once and changes nothing else. What is set in a context variable at the
    start of a search, embedding, model call or reranking is seen by what performs it, and never by
    the reader of a stream.
    """

    def on_start(self, operation: Operation) -> None:
        """*operation* starts."""

    def on_end(self, operation: Operation) -> None:
        """*operation* has ended; the *id* is that of its start."""


Clock = Callable[[], datetime]
"""Returns the present time with its time zone, which words such as "last year" lean on."""

RetrievalHook = Callable[[Retrieval], object]
"""Gets every `Retrieval` once it is there, before the caller does; a plain function or an async one.

What it returns is awaited where it can be, and ignored. What it raises is logged and part of the
caller's result, and changes nothing else.
"""
