"""One question put to the own store, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from qtmiddleware.errors import QtMiddlewareError
from qtmiddleware.retrieval.request import validate_query
from qtmiddleware.types import Answer, Degradation, Match, Retrieval
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

Turns = Sequence[Mapping[str, str]]
Write = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What came of a *question*: an *answer*, or only a *retrieval*, or neither; *error* says why not.

    *seconds* is the whole time. *retrieval* is the answer's where there is one. *streamed* is what was given out of an
    answer while it came; it is all of it, unless that broke off.
    """

    question: str = field(repr=False)
    retrieval: Retrieval | None
    answer: Answer | None = None
    error: QtMiddlewareError | None = None
    seconds: float = 0.0
    streamed: str = field(default="", repr=False)

    @property
    def passages(self) -> tuple[Match, ...]:
        """The passages of the answer, or else those that were found."""
        if self.answer is not None:
            return self.answer.matches
        return () if self.retrieval is None else self.retrieval.matches

    @property
    def degradations(self) -> tuple[Degradation, ...]:
        """What did not go as asked, each once."""
        found = () if self.retrieval is None else self.retrieval.degradations
        return tuple(dict.fromkeys((*found, *(self.answer.degradations if self.answer is not None else ()))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Puts questions to a middleware's own store, with what all of them share.

    Without *answers* only passages are asked for.
    """

    middleware: QueryMiddleware
    answers: bool
    top_k: int | None = None
    filter: Mapping[str, Any] | None = field(default=None, repr=False)

    def ask(self, question: str, *, kind: str, history: Turns = (), write: Write | None = None) -> Asked:
        """Ask, with the transformation *kind*; *write* is given the pieces of the answer as they come.

        What goes wrong is in the `Asked`; nothing of this package's is raised.
        """
        options: dict[str, Any] = {"history": list(history), "config": {"transformationType": kind}}
        options |= {"top_k": self.top_k} if self.top_k is not None else {}
        options |= {"filter": self.filter} if self.filter is not None else {}
        began = perf_counter()
        retrieval: Retrieval | None = None
        answer: Answer | None = None
        error: QtMiddlewareError | None = None
        pieces: list[str] = []

        def given(piece: str) -> None:
            pieces.append(piece)
            if write is not None:
                write(piece)

        try:
            validate_query(question, "query", self.middleware.settings)
            if self.answers:
                answer = self._answer(question, options, given if write is not None else None)
                retrieval = answer.retrieval
            else:
                retrieval = self.middleware.retriever.retrieve(question, **options)
        except QtMiddlewareError as failure:
            error, retrieval = failure, getattr(failure, "retrieval", None)
        return Asked(
            question=question,
            retrieval=retrieval,
            answer=answer,
            error=error,
            seconds=perf_counter() - began,
            streamed="".join(pieces),
        )

    def _answer(self, question: str, options: Mapping[str, Any], write: Write | None) -> Answer:
        if write is None:
            return self.middleware.answer(question, **options)
        with self.middleware.stream_answer(question, **options) as stream:
            for piece in stream:
                write(piece)
            return stream.answer
