"""One question put to the own store, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from qtmiddleware.errors import ModelError, QtMiddlewareError
from qtmiddleware.kit.documents.place import describe_place
from qtmiddleware.retrieval.request import validate_query
from qtmiddleware.types import NOT_JUDGED, Answer, Degradation, Match, Retrieval
from qtmiddleware.wrapping.query_middleware import QueryMiddleware


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a *question*: an *answer*, or only a *retrieval*, or neither; *error* says why not.

    *seconds* is the whole time. *retrieval* is the answer's where there is one. *streamed* is what
    was given out of an answer while it came; it is all of it, unless that broke off.
    """

    question: str = field(repr=False)
    retrieval: Retrieval | None
    answer: Answer | None = None
    error: Exception | None = None
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
        return tuple(
            dict.fromkeys((*found, *(self.answer.degradations if self.answer is not None else ())))
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: the answer (``null`` where there is none), its citations, the passages, the trace.

        ``found`` is false where the passages do not hold the answer and ``null`` where none was
        given. ``start`` and ``end`` of a citation are places in the answer's text.
        """
        answer, retrieval, error = self.answer, self.retrieval, self.error
        reason = error.reason if isinstance(error, ModelError) else "failed"
        return {
            "question": self.question,
            "answer": None if answer is None else answer.text,
            "found": None if answer is None else answer.found,
            "transformation": None if answer is None else answer.transformation_type,
            "citations": [
                {"number": it.number, **_describe(it.match), "start": it.start, "end": it.end}
                for it in (() if answer is None else answer.citations)
            ],
            "passages": [
                {
                    "number": number,
                    **_describe(match),
                    "found_by": list(match.found_by),
                    "text": match.text,
                }
                for number, match in enumerate(self.passages, start=1)
            ],
            "keywords": "" if retrieval is None else retrieval.keywords,
            "variants": [
                {"kind": it.kind, "weight": round(it.weight, 4), "text": it.text}
                for it in (() if retrieval is None else retrieval.variants)
            ],
            **(NOT_JUDGED if retrieval is None else retrieval.standing).to_dict(),
            "seconds": round(self.seconds, 3),
            "trace": None if retrieval is None else retrieval.trace.to_dict(),
            "degradations": [
                {"stage": it.stage, "reason": it.reason, "detail": it.detail}
                for it in self.degradations
            ],
            "error": None if error is None else {"reason": reason, "message": str(error)},
        }


def ask(
    middleware: QueryMiddleware,
    question: str,
    *,
    kind: str,
    answers: bool,
    history: Sequence[Mapping[str, str]] = (),
    write: Callable[[str], None] | None = None,
    **options: Any,
) -> Outcome:
    """Ask the middleware's own store, with the transformation *kind*; without *answers* only for passages.

    *write* is given the pieces of the answer as they come. *options* are ``top_k`` and ``filter``;
    those that are ``None`` are as configured. Raises none of this package's errors: what goes wrong
    is in the `Outcome`.
    """
    given = {name: value for name, value in options.items() if value is not None}
    given |= {"history": list(history), "config": {"transformationType": kind}}
    began = perf_counter()
    retrieval: Retrieval | None = None
    answer: Answer | None = None
    error: Exception | None = None
    pieces: list[str] = []
    try:
        validate_query(question, "query", middleware.settings)
        if not answers:
            retrieval = middleware.retriever.retrieve(question, **given)
        elif write is None:
            answer = middleware.answer(question, **given)
        else:
            with middleware.stream_answer(question, **given) as stream:
                for piece in stream:
                    pieces.append(piece)
                    write(piece)
                answer = stream.answer
    except QtMiddlewareError as failure:
        error, retrieval = failure, getattr(failure, "retrieval", None)
    return Outcome(
        question=question,
        retrieval=retrieval if answer is None else answer.retrieval,
        answer=answer,
        error=error,
        seconds=perf_counter() - began,
        streamed="".join(pieces),
    )


def _describe(match: Match) -> dict[str, Any]:
    scores = {
        "score": match.score,
        "fused_score": match.fused_score,
        "rerank_score": match.rerank_score,
    }
    return {
        "id": match.id,
        **{name: match.metadata.get(name) for name in ("source", "title", "page")},
        "place": describe_place(match.metadata),
        **{
            name: None if score is None else round(float(score), 6)
            for name, score in scores.items()
        },
    }
