"""What came of a question, as plain values for JSON."""

from __future__ import annotations

from math import isfinite
from typing import Any

from qtmiddleware.cli.asked import Asked
from qtmiddleware.errors import ModelError
from qtmiddleware.types import Match


def record(asked: Asked) -> dict[str, Any]:
    """*asked* by name: the answer (``null`` where there is none), its citations, the passages and how they were found.

    ``found`` is false where the passages do not hold the answer and ``null`` where none was given. ``start`` and
    ``end`` of a citation are places in the answer's text.
    """
    answer, retrieval, error = asked.answer, asked.retrieval, asked.error
    return {
        "question": asked.question,
        "answer": None if answer is None else answer.text,
        "found": None if answer is None else answer.found,
        "citations": [
            {"number": it.number, **_named(it.match), "start": it.start, "end": it.end}
            for it in (() if answer is None else answer.citations)
        ],
        "passages": [
            {"number": number, **_named(match), "found_by": list(match.found_by), "text": match.text}
            for number, match in enumerate(asked.passages, start=1)
        ],
        "variants": [
            {"kind": it.kind, "weight": round(it.weight, 4), "text": it.text}
            for it in (() if retrieval is None else retrieval.variants)
        ],
        "seconds": round(asked.seconds, 3),
        "trace": None if retrieval is None else retrieval.trace.to_dict(),
        "degradations": [{"stage": it.stage, "reason": it.reason, "detail": it.detail} for it in asked.degradations],
        "error": None
        if error is None
        else {"reason": error.reason if isinstance(error, ModelError) else "failed", "message": str(error)},
    }


def _named(match: Match) -> dict[str, Any]:
    held = match.metadata
    return {
        "id": match.id,
        "source": _plain(held.get("source")),
        "title": _plain(held.get("title")),
        "page": _plain(held.get("page")),
        "score": _number(match.score),
        "fused_score": _number(match.fused_score),
        "rerank_score": _number(match.rerank_score),
    }


def _plain(value: Any) -> str | int | float | None:
    return value if isinstance(value, str | int) else _number(value) if isinstance(value, float) else None


def _number(value: float | None) -> float | None:
    # JSON has no word for infinity.
    return round(float(value), 6) if value is not None and isfinite(value) else None
