"""What the pipeline needs from outside, as protocols; any object with these methods will do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from qtmiddleware.deadline import Deadline
from qtmiddleware.types import Message

FieldShape = Literal["line", "passage", "list"]
"""What one field of a model's reply holds: one line, one longer passage, or a list of lines."""


@dataclass(frozen=True, slots=True)
class ReplyField:
    """One field the model is asked to fill: its *name* in the JSON reply, its shape and what it means."""

    name: str
    shape: FieldShape
    description: str
    min_items: int = 0
    max_items: int = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question to a language model.

    *system* holds the instructions and never a word of the user's. *user* holds the query (and history) as data.
    *mode* and *version* name the prompt; both are part of every cache key. *query* and *history* are what *user* was
    made of, for models that answer from a table instead of reading.
    """

    mode: str
    version: str
    system: str = field(repr=False)
    user: str = field(repr=False)
    fields: tuple[ReplyField, ...]
    query: str = field(repr=False)
    history: tuple[Message, ...] = field(default=(), repr=False)
    max_tokens: int = 800


@dataclass(frozen=True, slots=True)
class Reply:
    """What a language model answered, with what it cost.

    *calls* counts the requests that were sent (more than one where a provider first refused a parameter); *cost_usd*
    is ``None`` where the model's price is not known. *truncated* says the model stopped at its token limit.
    """

    text: str = field(repr=False)
    input_tokens: int = 0
    output_tokens: int = 0
    calls: int = 1
    cost_usd: float | None = None
    truncated: bool = False


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


@dataclass(frozen=True, slots=True)
class Passage:
    """One text to be stored, with its vector."""

    id: str
    text: str = field(repr=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)


@runtime_checkable
class Store(Protocol):
    """Keeps passages with their vectors and finds the nearest."""

    def upsert(self, passages: Sequence[Passage], vectors: Sequence[Sequence[float]]) -> None:
        """Write *passages*, replacing those of the same id; all of them or none."""

    def search(self, vector: Sequence[float], top_k: int) -> list[dict[str, Any]]:
        """The nearest passages, best first, as ``{"id", "score", "text", "metadata"}``."""
