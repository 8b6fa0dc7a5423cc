"""Hold what came of a question: the passages, the answer and any error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from qtmiddleware.errors import ModelError
from qtmiddleware.kit.documents.place import describe_chunk_location
from qtmiddleware.types import NOT_JUDGED, Answer, Degradation, Match, Retrieval


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of asking a question.

    Attributes:
        question: The question that the user asked.
        retrieval: The search results; ``None`` if an error occurred before the search ended.
        answer: The answer, or ``None`` if there is no answer.
        error: The error of the search or the answer; ``None`` if both succeeded.
        seconds: The duration of the whole call, in seconds.
        streamed: The answer's text as it was streamed to the user. The text is incomplete if the
            stream broke off, and empty without streaming.
    """

    question: str = field(repr=False)
    retrieval: Retrieval | None
    answer: Answer | None = None
    error: Exception | None = None
    seconds: float = 0.0
    streamed: str = field(default="", repr=False)

    @property
    def passages(self) -> tuple[Match, ...]:
        """The passages of the answer or, without an answer, of the search."""
        source = self.answer or self.retrieval
        return () if source is None else source.matches

    @property
    def degradations(self) -> tuple[Degradation, ...]:
        """The steps that failed or were skipped, without duplicates."""
        return list_degradations(self.retrieval, self.answer)

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as a dict, ready for JSON.

        ``answer`` and ``found`` are ``None`` if there is no answer. ``found`` is ``False`` if the
        passages do not contain the answer. A citation's ``start`` and ``end`` are positions in the
        answer's text.
        """
        answer, retrieval, error = self.answer, self.retrieval, self.error
        reason = error.reason if isinstance(error, ModelError) else "failed"
        return {
            "question": self.question,
            "answer": None if answer is None else answer.text,
            "found": None if answer is None else answer.found,
            "transformation": None if answer is None else answer.transformation_type,
            "citations": [
                {
                    "number": citation.number,
                    **_build_match_dict(citation.match),
                    "start": citation.start,
                    "end": citation.end,
                }
                for citation in (() if answer is None else answer.citations)
            ],
            "passages": [
                {
                    "number": number,
                    **_build_match_dict(match),
                    "found_by": list(match.found_by),
                    "text": match.text,
                }
                for number, match in enumerate(self.passages, start=1)
            ],
            "keywords": "" if retrieval is None else retrieval.keywords,
            "variants": [
                {"kind": variant.kind, "weight": round(variant.weight, 4), "text": variant.text}
                for variant in (() if retrieval is None else retrieval.variants)
            ],
            **(NOT_JUDGED if retrieval is None else retrieval.standing).to_dict(),
            "seconds": round(self.seconds, 3),
            "trace": None if retrieval is None else retrieval.trace.to_dict(),
            "degradations": [
                {"stage": entry.stage, "reason": entry.reason, "detail": entry.detail}
                for entry in self.degradations
            ],
            "error": None if error is None else {"reason": reason, "message": str(error)},
        }


def list_degradations(*sources: Retrieval | Answer | None) -> tuple[Degradation, ...]:
    """Return the steps that failed or were skipped, without duplicates."""
    entries = (entry for source in sources if source for entry in source.degradations)
    return tuple(dict.fromkeys(entries))


def _build_match_dict(match: Match) -> dict[str, Any]:
    """Return the id, source, location and scores of the passage in *match* as a dict for JSON."""
    scores = {
        "score": match.score,
        "fused_score": match.fused_score,
        "rerank_score": match.rerank_score,
    }
    return {
        "id": match.id,
        **{name: match.metadata.get(name) for name in ("source", "title", "page")},
        "place": describe_chunk_location(match.metadata),
        **{
            name: None if score is None else round(float(score), 6)
            for name, score in scores.items()
        },
    }
