"""Show the outcome of a question: the answer, its sources and how they were found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from qtmiddleware.catalogue import JOINED, TEXT_FIELDS
from qtmiddleware.errors import ModelError
from qtmiddleware.kit.cli.output import notes, out
from qtmiddleware.kit.documents.pieces import describe_chunk_location
from qtmiddleware.preprocessing.text import format_count, shorten_text
from qtmiddleware.retrieval.variants import IN_ONE_TEXT, NOT_SEARCHED, PASSAGE_LEADS
from qtmiddleware.types import (
    NOT_JUDGED,
    Answer,
    Degradation,
    Match,
    Retrieval,
    Trace,
)

_LABELS: Final = {
    **{row.variant: row.label for row in TEXT_FIELDS.values() if row.variant},
    JOINED: "one text with the question",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of asking a question, after *seconds*. Without *retrieval* the search failed."""

    question: str = field(repr=False)
    retrieval: Retrieval | None
    answer: Answer | None = None
    error: Exception | None = None
    seconds: float = 0.0

    @property
    def passages(self) -> tuple[Match, ...]:
        """The passages of the answer or, without an answer, of the search."""
        source = self.answer or self.retrieval
        return () if source is None else source.matches

    @property
    def degradations(self) -> tuple[Degradation, ...]:
        """The steps that failed or were skipped, without duplicates."""
        sources = [source for source in (self.retrieval, self.answer) if source]
        return tuple(dict.fromkeys(fault for one in sources for fault in one.degradations))

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
            "answer": answer and answer.text,
            "found": answer and answer.found,
            "transformation": answer and answer.transformation_type,
            "citations": [
                {
                    "number": citation.number,
                    **_build_match_dict(citation.match),
                    "start": citation.start,
                    "end": citation.end,
                }
                for citation in (answer.citations if answer else ())
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
            "keywords": retrieval.keywords if retrieval else "",
            "variants": [
                {"kind": variant.kind, "weight": round(variant.weight, 4), "text": variant.text}
                for variant in (retrieval.variants if retrieval else ())
            ],
            **(retrieval.standing if retrieval else NOT_JUDGED).to_dict(),
            "seconds": round(self.seconds, 3),
            "trace": retrieval and retrieval.trace.to_dict(),
            "degradations": [asdict(entry) for entry in self.degradations],
            "error": error and {"reason": reason, "message": str(error)},
        }


def _build_match_dict(match: Match) -> dict[str, Any]:
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


def show_outcome(outcome: Outcome) -> None:
    """Show the answer with its sources, or the passages without an answer."""
    answer, retrieval = outcome.answer, outcome.retrieval
    if outcome.error is not None:
        notes.write(f"{'qtm' if retrieval is None else 'No answer'}: {outcome.error}")
    if answer is not None:
        out.write(answer.text)
    if retrieval is None:
        return
    _show_passages(outcome)
    lines = list(list_variant_texts(retrieval))
    if retrieval.transformation.keywords:
        lines.append(f"keywords: {', '.join(retrieval.transformation.keywords)}")
    if lines:
        out.write("\n  ".join(["\nTransformed:", *lines]))
    if answer is not None and outcome.passages:
        scores = [
            f"[{number}] {_format_score(_get_score(match))}"
            for number, match in enumerate(outcome.passages, start=1)
        ]
        out.write(f"Scores: {', '.join(scores)}")
    phrases = [f"{outcome.seconds:.2f} s", *_list_costs(retrieval.trace)]
    line = f"({', '.join(phrases)})"
    if outcome.degradations:
        reasons = [f"{entry.stage} {entry.reason}" for entry in outcome.degradations]
        line += f" degraded: {'; '.join(reasons)}"
    out.write(line)


def _list_costs(trace: Trace) -> Iterator[str]:
    yield format_count(trace.searches, "search", "searches")
    if trace.cache_hits:
        yield "transformation remembered"
    if not trace.llm_calls:
        yield "no LLM calls"
        return
    yield format_count(trace.llm_calls, "LLM call")
    yield f"{trace.input_tokens:,} + {trace.output_tokens:,} tokens"
    if trace.cost_usd is None:
        yield "cost unknown"
    else:
        yield f"${trace.cost_usd:.6f}"


def _show_passages(outcome: Outcome) -> None:
    answer = outcome.answer
    passages = dict(enumerate(outcome.passages, start=1))
    cited = {entry.number: entry.match for entry in answer.citations} if answer else {}
    if passages:
        heading = "Passages:" if answer is None else "\nSources:" if cited else "\nPassages used:"
        out.write(heading)
    elif answer is None:
        out.write("No passage was found.")
    for number, match in sorted((cited or passages).items()):
        score = _get_score(match)
        out.write(f"  [{number}] {describe_passage_source(match)} (score {_format_score(score)})")
        if answer is None and match.text:
            out.write(f"      {shorten_text(match.text)}")


def list_variant_texts(retrieval: Retrieval) -> Iterator[str]:
    """Yield a line per variant. If a variant had no search of its own, its line says why."""
    shown: set[str] = set()
    for variant in retrieval.variants:
        if variant.kind not in ("original", JOINED):
            shown.add(variant.text)
            label = _LABELS.get(variant.kind, variant.kind)
            yield f"{label}: {shorten_text(variant.text)}"
    reasons = {
        kind: reason
        for kind, reason in retrieval.trace.notes
        if reason in (IN_ONE_TEXT, NOT_SEARCHED, PASSAGE_LEADS)
    }
    for name, row in TEXT_FIELDS.items():
        for text in retrieval.transformation.texts(name) if row.variant in reasons else ():
            if text not in shown:
                yield f"{row.label} ({reasons[row.variant]}): {shorten_text(text)}"


def describe_degradation(entry: Degradation) -> str:
    """Return the stage and the reason of *entry*, with the detail if there is one."""
    text = f"{entry.stage} {entry.reason}"
    if entry.detail:
        text += f" ({entry.detail})"
    return text


def describe_passage_source(match: Match) -> str:
    """Return one line with a passage's title, source (or else its id) and place in the source."""
    metadata = match.metadata
    place = str(metadata.get("source") or metadata.get("url") or match.id or "a passage without id")
    title = metadata.get("title")
    if isinstance(title, str) and title and title not in place:
        place = f"{title} ({place})"
    if part := describe_chunk_location(metadata):
        place += f", {part}"
    return " ".join(place.split())


def _get_score(match: Match) -> float | None:
    return match.fused_score if match.score is None else match.score


def _format_score(score: float | None) -> str:
    return "-" if score is None else f"{score:.3f}"
