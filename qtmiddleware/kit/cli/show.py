"""Show the outcome of a question as text: the answer, its sources and how they were found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from qtmiddleware.catalogue import JOINED, TEXT_CLAUSE, TEXT_FIELDS
from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.cli.asking import Outcome
from qtmiddleware.kit.cli.output import notes, out
from qtmiddleware.kit.documents.place import describe_chunk_location
from qtmiddleware.preprocessing.text import format_count, shorten_text
from qtmiddleware.retrieval.movement import explain_movement
from qtmiddleware.retrieval.searching import IN_ONE_TEXT, NOT_SEARCHED, PASSAGE_LEADS
from qtmiddleware.types import Degradation, Key, Match, Retrieval, Trace

_EXPLAINED: Final = 5
"""The maximum number of passages per list in an explanation."""
LABELS: Final = {
    "original": "original",
    **{field.variant: field.label for field in TEXT_FIELDS.values() if field.variant},
    JOINED: "one text with the question",
    TEXT_CLAUSE: "keywords in a text clause",
}


@contextmanager
def open_piece_writer() -> Iterator[Callable[[str], None]]:
    """Yield a function that writes each piece of an answer to stdout.

    A terminal shows a spinner until the first piece arrives.
    """
    has_written = False
    # A spinner in ASCII, because some terminals have no other characters.
    with notes.status("working", spinner="line") as status:

        def write_piece(piece: str) -> None:
            nonlocal has_written
            if piece:
                status.stop()
                has_written = True
                out.print(piece, end="", soft_wrap=True)

        try:
            yield write_piece
        finally:
            status.stop()
            if has_written:
                out.write()


def show_outcome(outcome: Outcome) -> None:
    """Show the answer to a question with the answer's sources, or the passages without an answer.

    Errors go to stderr. An answer that was streamed before is not shown again.
    """
    answer, retrieval = outcome.answer, outcome.retrieval
    if outcome.error is not None:
        problem = "The answer was cut off" if outcome.streamed else "No answer"
        notes.write(f"{'qtm' if retrieval is None else problem}: {outcome.error}")
    if answer is not None and outcome.streamed != answer.text:
        # The texts differ if the answer broke off and a sub-answer replaced it.
        if outcome.streamed:
            notes.write("The answer was cut off; one sub-answer is shown instead:")
        out.write(answer.text)
    if retrieval is None:
        return
    for line in _list_passages(outcome):
        out.write(line)
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
    trace = retrieval.trace
    phrases = [f"{outcome.seconds:.2f} s", _format_searches(trace)]
    if trace.cache_hits:
        phrases.append("transformation remembered")
    if trace.llm_calls:
        phrases.append(format_count(trace.llm_calls, "LLM call"))
        phrases.append(f"{trace.input_tokens:,} + {trace.output_tokens:,} tokens")
        phrases.append("cost unknown" if trace.cost_usd is None else f"${trace.cost_usd:.6f}")
    else:
        phrases.append("no LLM calls")
    reasons = "; ".join(f"{entry.stage} {entry.reason}" for entry in outcome.degradations)
    out.write(f"({', '.join(phrases)})" + (f" degraded: {reasons}" if reasons else ""))


def explain_outcome(outcome: Outcome, settings: Settings) -> Iterator[str]:
    """Yield lines that explain how a search with *settings* found the passages in *outcome*."""
    retrieval = outcome.retrieval
    if retrieval is None:
        yield f"Nothing was retrieved: {outcome.error}"
        return
    trace, evidence = retrieval.trace, retrieval.evidence
    yield f"Question   {shorten_text(outcome.question)}"
    yield f"Gate       {_explain_model_decision(trace)}"
    yield "Searched"
    for ranking in retrieval.rankings:
        variant = ranking.variant
        pairs = zip(ranking.keys[:_EXPLAINED], ranking.scores, strict=False)
        found = ", ".join(f"{_format_id(key)} {_format_score(score)}" for key, score in pairs)
        yield (
            f"  {LABELS.get(variant.kind, variant.kind)}, weight {variant.weight:.2f}:"
            f" {shorten_text(variant.text, 160)}"
        )
        yield f"    found {len(ranking.keys)}: {found or 'nothing'}"
    searched = {ranking.variant.text for ranking in retrieval.rankings}
    for variant in retrieval.variants:
        if variant.text not in searched:
            yield (
                f"  {LABELS.get(variant.kind, variant.kind)}: not used in the fusion:"
                f" {shorten_text(variant.text, 100)}"
            )
    yield f"Fusion     {settings.fusion.method}: {_join_ids(retrieval.fused)}"
    if not settings.keyword_evidence.enabled:
        yield "Keywords   off"
    elif evidence is None:
        yield "Keywords   order kept"
    else:
        (words, _), *variants = evidence.keywords
        yield (
            f"Keywords   weight {evidence.weight:.2f} over {len(evidence.keys)} candidates:"
            f" {shorten_text(words, 160)}"
            + (f", and those of {len(variants)} variants" if variants else "")
        )
    if settings.rerank.enabled:
        order = _join_ids(retrieval.reranked) if retrieval.reranked else "order kept"
        yield f"Rerank     {settings.rerank.model}: {order}"
    else:
        yield "Rerank     off"
    yield from _explain_ranks(retrieval)
    for entry in outcome.degradations:
        yield f"Degraded   {describe_degradation(entry)}"
    for subject, remark in trace.notes:
        yield f"Note       {subject}: {remark}"
    for answer in outcome.answer.sub_answers if outcome.answer is not None else ():
        yield (
            f"Sub-answer {shorten_text(answer.question, 80)}:"
            f" {answer.reason or shorten_text(answer.text, 160)}"
        )
    yield "Stages"
    for stage in sorted(trace.stages, key=lambda stage: stage.started_ms):
        status = "" if stage.status == "ok" else f"  {stage.status}"
        detail = f"  {stage.detail}" if stage.detail else ""
        yield f"  {stage.name:<24} {stage.ms:9.1f} ms from {stage.started_ms:.1f}{status}{detail}"
    yield (
        f"  {'total':<24} {outcome.seconds * 1e3:9.1f} ms, {_format_searches(trace)},"
        f" {trace.llm_calls} LLM calls"
    )


def _list_passages(outcome: Outcome) -> Iterator[str]:
    """Yield a line per cited passage. Without an answer, yield each passage and its text."""
    answer, passages = outcome.answer, dict(enumerate(outcome.passages, start=1))
    cited = {} if answer is None else {entry.number: entry.match for entry in answer.citations}
    if not passages and answer is None:
        yield "No passage was found."
    elif passages:
        yield "\nSources:" if cited else "Passages:" if answer is None else "\nPassages used:"
    for number, match in sorted((cited or passages).items()):
        score = _get_score(match)
        store_score = f", store score {_format_score(match.score)}"
        store_score = "" if match.score in (None, score) else store_score
        source = describe_passage_source(match)
        yield f"  [{number}] {source} (score {_format_score(score)}{store_score})"
        if answer is None and match.text:
            yield f"      {shorten_text(match.text)}"


def list_variant_texts(retrieval: Retrieval) -> Iterator[str]:
    """Yield one line per variant of the question.

    Variants with a separate search come first. Each line on another variant says why that variant
    had no separate search.
    """
    searched = [
        variant for variant in retrieval.variants if variant.kind not in ("original", JOINED)
    ]
    for variant in searched:
        yield f"{LABELS.get(variant.kind, variant.kind)}: {shorten_text(variant.text)}"
    shown = {variant.text for variant in searched}
    unsearched = {
        kind: reason
        for kind, reason in retrieval.trace.notes
        if reason in (IN_ONE_TEXT, NOT_SEARCHED, PASSAGE_LEADS)
    }
    for name, row in TEXT_FIELDS.items():
        if row.variant in unsearched:
            for text in retrieval.transformation.texts(name):
                if text not in shown:
                    yield f"{row.label} ({unsearched[row.variant]}): {shorten_text(text)}"


def describe_degradation(entry: Degradation) -> str:
    """Return the stage and the reason of *entry*, with the detail if there is one."""
    return f"{entry.stage} {entry.reason}" + (f" ({entry.detail})" if entry.detail else "")


def describe_passage_source(match: Match) -> str:
    """Return one line with a passage's title, source, and page, slide or rows.

    If the metadata name no source, the line contains the passage's id instead.
    """
    metadata = match.metadata
    place = str(metadata.get("source") or metadata.get("url") or match.id or "a passage without id")
    title = metadata.get("title")
    if isinstance(title, str) and title and title not in place:
        place = f"{title} ({place})"
    if part := describe_chunk_location(metadata):
        place += f", {part}"
    return " ".join(place.split())


def _format_searches(trace: Trace) -> str:
    """Return the number of searches, and their read units and cost if they say more."""
    text = format_count(trace.searches, "search", "searches")
    if trace.read_units != trace.searches:
        text += f" of {trace.read_units:g} read units"
    return text if trace.read_cost_usd is None else f"{text} for ${trace.read_cost_usd:.6f}"


def _explain_model_decision(trace: Trace) -> str:
    decision = trace.decision
    if decision is None:
        return "not reached"
    numbers = ", ".join(f"{name} {value:g}" for name, value in decision.signals.items())
    verb = "called" if decision.call else "did not call"
    return f"{verb} the model: {decision.reason}" + (f" ({numbers})" if numbers else "")


def _explain_ranks(retrieval: Retrieval) -> Iterator[str]:
    """Yield two lines per passage: the rank and the scores, then the reason for the rank.

    Passages that dropped out of the result come last.
    """
    movements = explain_movement(retrieval)
    yield "Result"
    for movement in (*movements.passages, *movements.dropped):
        match = movement.match
        scores = {
            "score": match.score,
            "fused": movement.fused_score,
            "keywords": movement.evidence,
            "reranked": movement.rerank_score,
        }
        shown = ", ".join(
            f"{name} {_format_score(score)}" for name, score in scores.items() if score is not None
        )
        place = "-" if movement.place is None else f"{movement.place}."
        yield f"  {place} {match.id or shorten_text(match.text or '', 40)}  {shown}"
        yield f"     {movement.why}"


def _join_ids(keys: Iterable[Key]) -> str:
    """Join the ids of the first `_EXPLAINED` passages with commas, and count the others."""
    all_ids = [_format_id(key) for key in keys]
    more = len(all_ids) - _EXPLAINED
    return (", ".join(all_ids[:_EXPLAINED]) or "nothing") + (
        f" and {more} more" if more > 0 else ""
    )


def _format_id(key: Key) -> str:
    # In a key, the passage's text may follow the id after a NUL.
    return key[1].partition("\0")[0] or "(no id)"


def _get_score(match: Match) -> float | None:
    """Return the fused score of *match* or, without a fused score, the store's score."""
    return match.score if match.fused_score is None else match.fused_score


def _format_score(score: float | None) -> str:
    return "-" if score is None else f"{score:.3f}"
