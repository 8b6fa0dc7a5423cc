"""What the flow may ask of the world; a driver performs it and sends back what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from qtmiddleware.protocols import LanguageModel, Prompt
from qtmiddleware.runtime.single_flight import Flight
from qtmiddleware.types import Deadline


class Search:
    """Search for one text. Performed by the wrapped function; answers its response, whatever that is.

    *text* ``None`` is the caller's own call as it was made, for what is no text.
    *top_k* is how many passages to ask for, ``None`` for what the caller's own call says; *may_narrow* lets a function
    that refuses so many be asked as the caller asked. *vector* stands in for the text where it was embedded before.
    """

    __slots__ = ("may_narrow", "text", "top_k", "vector")

    def __init__(
        self,
        text: str | None,
        top_k: int | None = None,
        vector: Sequence[float] | None = None,
        *,
        may_narrow: bool = False,
    ) -> None:
        self.text = text
        self.top_k = top_k
        self.vector = vector
        self.may_narrow = may_narrow


class Embed:
    """Turn *texts* into vectors, all in one batch; answers a list of vectors."""

    __slots__ = ("texts",)

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts


class Ask:
    """Put *prompt* to *model* and wait no longer than *deadline*; answers a `Reply`.

    Without a *model* the one of the transformations is asked. *heard* is called with the `Outcome` as soon as it is
    there, from whichever thread that happens in, where this is one of several steps.
    """

    __slots__ = ("deadline", "heard", "model", "prompt")

    def __init__(self, prompt: Prompt, deadline: Deadline, model: LanguageModel | None = None) -> None:
        self.prompt = prompt
        self.deadline = deadline
        self.model = model
        self.heard: Callable[[Outcome], None] | None = None


class Rerank:
    """Judge *texts* against *query*; answers a score a text, greater is better."""

    __slots__ = ("query", "texts")

    def __init__(self, query: str, texts: Sequence[str]) -> None:
        self.query = query
        self.texts = texts


class Join:
    """Wait for what somebody else is doing; answers what *flight* lands with. Only within `Together`."""

    __slots__ = ("flight",)

    def __init__(self, flight: Flight) -> None:
        self.flight = flight


class Recall:
    """Perform *call*, which speaks with a shared cache and blocks; answers what it returns."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call


Leaf = Search | Embed | Ask | Rerank | Join | Recall


@dataclass(frozen=True, slots=True)
class Together:
    """Perform *steps* at the same time, at most *limit* of them at once; answers an `Outcome` each, in their order.

    The first *essential* steps are waited for however long they take; the others only until *deadline*, after which
    they are given up and come back as late.
    """

    steps: Sequence[Leaf]
    deadline: Deadline
    limit: int
    essential: int = 0


class Outcome:
    """What came of one step: a *value*, or the *error* that was raised, or neither where it was *late*.

    *seconds* is how long it took.
    """

    __slots__ = ("error", "late", "seconds", "value")

    def __init__(
        self, value: Any = None, error: BaseException | None = None, seconds: float = 0.0, *, late: bool = False
    ) -> None:
        self.value = value
        self.error = error
        self.seconds = seconds
        self.late = late

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.error is None and not self.late

    @property
    def reason(self) -> str:
        """Why there is no value, in one word: ``timeout``, ``overloaded`` (no thread was free) or ``failed``."""
        if self.late:
            return "timeout"
        return "overloaded" if getattr(self.error, "reason", "") == "overloaded" else "failed"

    @property
    def detail(self) -> str:
        """What else may be told of why there is no value: of a foreign error its kind alone, which quotes nobody."""
        if self.error is None:
            return ""
        return str(self.error) if self.reason == "overloaded" else type(self.error).__name__


Step = Leaf | Together

T = TypeVar("T")
Flow = Generator[Step, Any, T]
"""A flow: it yields what it wants done and is sent what came of it."""


Asked = TypeVar("Asked")


def converse(talk: Generator[Asked, Any, T], send: Callable[[Asked], Any]) -> T:
    """What *talk* returns: it is sent what *send* returns for each thing it yields, or has the error thrown in."""
    try:
        asked = next(talk)
        while True:
            try:
                answer = send(asked)
            except Exception as error:
                asked = talk.throw(error)
            else:
                asked = talk.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def aconverse(talk: Generator[Asked, Any, T], send: Callable[[Asked], Awaitable[Any]]) -> T:
    """`converse`, awaiting."""
    try:
        asked = next(talk)
        while True:
            try:
                answer = await send(asked)
            except Exception as error:
                asked = talk.throw(error)
            else:
                asked = talk.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
