"""Remember facts about a wrapped function and a model, learned from their earlier calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Final

from qtmiddleware.retrieval.responses import describe_missing_text, has_text
from qtmiddleware.retrieval.signals import Gate, Standings
from qtmiddleware.types import Passage

AGAIN_SECONDS: Final = 600.0
"""How many seconds a search for more passages waits after it brought less than the caller's own."""

LEAST_REPLIES: Final = 20
"""How many replies are needed to judge a model."""
MOST_REPLIES: Final = 50
"""How many of the latest replies count."""
LEAST_KEPT: Final = 0.5
"""A model is off topic if its replies keep a smaller mean fraction of their questions' words.

In the recordings of seven large and six small sets, 20 replies of one set keep at least 0.61, and
20 rewrites in German, French, Spanish, Italian, Dutch or Portuguese at least 0.70. 20 replies to
other questions of the same set keep at most 0.50, and usually 0.1.
"""


@dataclass(repr=False, slots=True)
class Widening:
    """What is known about searches of one function for more passages than the caller asks for.

    Attributes:
        again_at: When to try such a search again, on the monotonic clock.
        is_proven: Whether such a search has brought as much as the caller's own would have.
        is_compared: Whether a response with more passages than the caller asked for has no field
            that depends on their number.
        confirmed: Numbers of passages, fewer than the caller asked for, of which the caller's own
            search brought no more: the collection, or what a filter leaves of it, is small.
    """

    again_at: float = 0.0
    is_proven: bool = False
    is_compared: bool = False
    confirmed: frozenset[int] = frozenset()

    @property
    def is_allowed(self) -> bool:
        """Whether a search may ask for more passages than the caller."""
        return monotonic() >= self.again_at

    def is_enough(self, count: int, top_k: int) -> bool:
        """Return whether a search that brought *count* for *top_k* needs no repetition."""
        self.is_proven |= count >= top_k
        return count >= top_k or count in self.confirmed

    def stop(self) -> None:
        """Ask for no more passages than the caller for `AGAIN_SECONDS`."""
        self.again_at = monotonic() + AGAIN_SECONDS
        self.is_proven = self.is_compared = False
        self.confirmed = frozenset()

    def confirm(self, passage_count: int) -> None:
        """Remember that the caller's own search brought no more than *passage_count* either."""
        # Nothing at all proves nothing, unless this function has brought something before.
        if passage_count or self.is_proven:
            self.is_proven = True
            self.confirmed |= {passage_count}


@dataclass(eq=False, repr=False, slots=True)
class Learned:
    """Facts about one function, learned from its responses and errors.

    Attributes:
        gate: Decides whether to ask the model, by comparison with earlier questions.
        standings: Computes the confidence in a result, by comparison with earlier questions.
        is_unreadable: Whether the last response could not be read.
        is_new: Whether no response of the function has been read yet.
        fails_alone: Whether the last search that failed beside others failed alone too.
        widening: Whether searches may ask for more passages than the caller.
        lower_is_better: Whether lower scores are better.
        holds_text: Whether the passages contain texts; ``None`` if unknown.
        page: The name of the argument with which a call asked for a page of results; ``""`` if no
            call asked for a page.
        problem: Why results cannot be improved, and how to fix it; ``""`` if there is no problem.
    """

    gate: Gate = field(default_factory=Gate)
    standings: Standings = field(default_factory=Standings)
    is_unreadable: bool = False
    is_new: bool = True
    fails_alone: bool = False
    widening: Widening = field(default_factory=Widening)
    lower_is_better: bool = False
    holds_text: bool | None = None
    page: str = ""
    problem: str = ""

    def copy(self) -> Learned:
        """Return the same facts, to which later calls of the function add nothing."""
        return replace(
            self,
            gate=self.gate.copy(),
            standings=self.standings.copy(),
            widening=replace(self.widening),
        )

    def record_problem(self, problem: str) -> None:
        """Remember *problem*, unless one is known: the first is the likely cause of later ones."""
        self.problem = self.problem or problem

    def record_texts(self, passages: Sequence[Passage], text_field: str | None) -> None:
        """Remember whether *passages* contain texts, which keywords and rerankers need.

        The user named *text_field* as the field with the text.
        """
        if any(map(has_text, passages)):
            self.holds_text = True
        # One passage without a text proves little about the others.
        elif len(passages) > 1:
            self.holds_text = False
            problem, advice = describe_missing_text(passages, text_field)
            self.record_problem(f"{problem}, so keywords cannot rerank them; {advice}")


class ReplyRelevance:
    """The fractions of their questions' words that the latest replies of one model keep.

    Only replies to questions in a language with a word list count.

    A fluent text on another topic passes every check of a single reply, because a good text may use
    other words than its question. Many replies tell the two apart. Thread-safe.
    """

    def __init__(self) -> None:
        self._kept = deque[float](maxlen=MOST_REPLIES)

    def record(self, kept: float) -> None:
        """Remember the fraction *kept* of one reply."""
        self._kept.append(kept)

    @property
    def mean(self) -> float | None:
        """The mean fraction; ``None`` before `LEAST_REPLIES` replies."""
        kept = tuple(self._kept)
        return sum(kept) / len(kept) if len(kept) >= LEAST_REPLIES else None

    @property
    def is_low(self) -> bool:
        """Whether the model is off topic, so that its texts should not be used."""
        mean = self.mean
        return mean is not None and mean < LEAST_KEPT
