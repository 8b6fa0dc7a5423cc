"""Show the outcome of a question as text: the answer, its sources and how they were found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from qtmiddleware.catalogue import JOINED, TEXT_CLAUSE, TEXT_FIELDS
from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.cli.asking import Outcome
from qtmiddleware.kit.cli.console import notes
from qtmiddleware.kit.cli.terminal import LineWrapper, write_note, write_output
from qtmiddleware.kit.documents.place import describe_chunk_location
from qtmiddleware.preprocessing.text import format_count, shorten_text
from qtmiddleware.retrieval.searching import IN_ONE_TEXT, NOT_SEARCHED, PASSAGE_LEADS
from qtmiddleware.runtime.control_characters import escape_hidden
from qtmiddleware.types import Decision, Key, Match, Ranking, Retrieval, Trace

EXPLAINED: Final = 5
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
    wrapper = LineWrapper(sys.stdout)
    # A spinner in ASCII, because some terminals have no other characters.
    with notes.status("working", spinner="line") as status:

        def write_piece(piece: str) -> None:
            nonlocal has_written
            if piece:
                status.stop()
                has_written = True
                write_output(wrapper.add_piece(escape_hidden(piece)), end="", should_wrap=False)

        try:
            yield write_piece
        finally:
            status.stop()
            # The last word may still be in the wrapper, and the line needs its end.
            if has_written:
                write_output(wrapper.flush(), should_wrap=False)


def show_outcome(outcome: Outcome) -> None:
    """Show the answer to a question with the answer's sources, or the passages without an answer.

    Errors go to stderr. An answer that was streamed before is not shown again.
    """
    answer, retrieval = outcome.answer, outcome.retrieval
    if outcome.error is not None:
        problem = "The answer was cut off" if outcome.streamed else "No answer"
        write_note(
            f"{problem}: {outcome.error}" if retrieval is not None else f"qtm: {outcome.error}"
        )
    # The texts differ if the answer broke off and a sub-answer replaced it.
    elif answer is not None and outcome.streamed not in ("", answer.text):
        write_note("The answer was cut off; one sub-answer is shown instead:")
    if answer is not None and outcome.streamed != answer.text:
        write_output(answer.text)
    if retrieval is None:
        return
    lines = _list_sources(outcome) if answer is not None else _list_passages(retrieval)
    for line in (*lines, *_describe_variants(retrieval)):
        write_output(line)
    if answer is not None and outcome.passages:
        scores = [
            f"[{number}] {_format_score(_get_score(match))}"
            for number, match in enumerate(outcome.passages, start=1)
        ]
        write_output(f"Scores: {', '.join(scores)}")
    write_output(_summarize_outcome(outcome, retrieval.trace))


def explain_outcome(outcome: Outcome, settings: Settings) -> Iterator[str]:
    """Yield lines that explain how a search with *settings* found the passages in *outcome*."""
    retrieval = outcome.retrieval
    if retrieval is None:
        yield f"Nothing was retrieved: {outcome.error}"
        return
    yield f"Question   {shorten_text(outcome.question)}"
    yield f"Gate       {_explain_model_decision(retrieval.trace.decision)}"
    yield "Searched"
    for ranking in retrieval.rankings:
        yield from _explain_search(ranking)
    for variant in retrieval.variants:
        if all(variant.text != ranking.variant.text for ranking in retrieval.rankings):
            yield (
                f"  {LABELS.get(variant.kind, variant.kind)}: not used in the fusion:"
                f" {shorten_text(variant.text, 100)}"
            )
    yield f"Fusion     {settings.fusion.method}: {_join_passage_ids(retrieval.fused)}"
    yield f"Keywords   {_explain_keyword_evidence(retrieval, settings)}"
    yield f"Rerank     {_explain_rerank(retrieval, settings)}"
    yield from _explain_ranks(retrieval)
    for entry in outcome.degradations:
        yield f"Degraded   {entry.stage}: {entry.reason}" + (
            f" ({entry.detail})" if entry.detail else ""
        )
    for subject, remark in retrieval.trace.notes:
        yield f"Note       {subject}: {remark}"
    for answer in outcome.answer.sub_answers if outcome.answer is not None else ():
        yield (
            f"Sub-answer {shorten_text(answer.question, 80)}:"
            f" {answer.reason or shorten_text(answer.text, 160)}"
        )
    yield "Stages"
    for stage in sorted(retrieval.trace.stages, key=lambda stage: stage.started_ms):
        details = " ".join(
            filter(None, ("" if stage.status == "ok" else stage.status, stage.detail))
        )
        yield f"  {stage.name:<24} {stage.ms:9.1f} ms from {stage.started_ms:.1f}" + (
            f"  {details}" if details else ""
        )
    trace = retrieval.trace
    total = (
        f"{outcome.seconds * 1e3:9.1f} ms, {_format_searches(trace)}, {trace.llm_calls} LLM calls"
    )
    yield f"  {'total':<24} {total}"


def _list_sources(outcome: Outcome) -> Iterator[str]:
    """Yield one line per cited passage. If the answer cites no passage, yield a line for each."""
    answer = outcome.answer
    cited_matches = (
        {}
        if answer is None
        else dict(sorted((citation.number, citation.match) for citation in answer.citations))
    )
    sources = cited_matches or dict(enumerate(outcome.passages, start=1))
    if not sources:
        return
    yield "\nSources:" if cited_matches else "\nPassages used:"
    for number, match in sources.items():
        yield f"  [{number}] {_format_source(match)}"


def _list_passages(retrieval: Retrieval) -> Iterator[str]:
    if not retrieval.matches:
        yield "No passage was found."
        return
    yield "Passages:"
    for number, match in enumerate(retrieval.matches, start=1):
        yield f"  [{number}] {_format_source(match)}"
        if match.text:
            yield f"      {shorten_text(match.text)}"


def _describe_variants(retrieval: Retrieval) -> Iterator[str]:
    """Yield one line per variant of the question, then a line with the keywords."""
    lines = list(list_variant_texts(retrieval))
    if retrieval.transformation.keywords:
        lines.append(f"keywords: {', '.join(retrieval.transformation.keywords)}")
    if lines:
        yield "\nTransformed:"
        for line in lines:
            yield f"  {line}"


def list_variant_texts(retrieval: Retrieval) -> Iterator[str]:
    """Yield one line per variant of the question.

    Variants with a separate search come first. Each line on another variant says why that variant
    had no separate search.
    """
    searched_variants = [
        variant for variant in retrieval.variants if variant.kind not in ("original", JOINED)
    ]
    for variant in searched_variants:
        yield f"{LABELS.get(variant.kind, variant.kind)}: {shorten_text(variant.text)}"
    unsearched = dict(
        entry
        for entry in retrieval.trace.notes
        if entry[1] in (IN_ONE_TEXT, NOT_SEARCHED, PASSAGE_LEADS)
    )
    for name, row in TEXT_FIELDS.items():
        if row.variant in unsearched:
            texts = [
                text
                for text in retrieval.transformation.texts(name)
                if all(text != variant.text for variant in searched_variants)
            ]
            for text in texts:
                yield f"{row.label} ({unsearched[row.variant]}): {shorten_text(text)}"


def _summarize_outcome(outcome: Outcome, trace: Trace) -> str:
    """Return one line on *outcome*: time, searches, model calls, tokens, cost and degradations."""
    phrases = [f"{outcome.seconds:.2f} s", _format_searches(trace)]
    if trace.cache_hits:
        phrases.append("transformation remembered")
    if trace.llm_calls:
        phrases.append(format_count(trace.llm_calls, "LLM call"))
        phrases.append(f"{trace.input_tokens:,} + {trace.output_tokens:,} tokens")
        phrases.append("cost unknown" if trace.cost_usd is None else f"${trace.cost_usd:.6f}")
    else:
        phrases.append("no LLM calls")
    reasons = [f"{entry.stage} {entry.reason}" for entry in outcome.degradations]
    return f"({', '.join(phrases)})" + (f" degraded: {'; '.join(reasons)}" if reasons else "")


def _format_searches(trace: Trace) -> str:
    """Return the number of searches, with read units and cost, as text such as ``2 searches``.

    The text omits the read units if each search used one unit, and omits an unknown cost.
    """
    text = format_count(trace.searches, "search", "searches")
    if trace.read_units != trace.searches:
        text += f" of {trace.read_units:g} read units"
    return text if trace.read_cost_usd is None else f"{text} for ${trace.read_cost_usd:.6f}"


def _explain_model_decision(decision: Decision | None) -> str:
    if decision is None:
        return "not reached"
    numbers = ", ".join(f"{name} {value:g}" for name, value in decision.signals.items())
    return ("called the model: " if decision.call else "did not call the model: ") + " ".join(
        filter(None, (decision.reason, f"({numbers})" if numbers else ""))
    )


def _explain_search(ranking: Ranking) -> Iterator[str]:
    variant = ranking.variant
    yield (
        f"  {LABELS.get(variant.kind, variant.kind)}, weight {variant.weight:.2f}:"
        f" {shorten_text(variant.text, 160)}"
    )
    pairs = zip(ranking.keys[:EXPLAINED], ranking.scores, strict=False)
    entries = ", ".join(f"{_format_passage_id(key)} {_format_score(score)}" for key, score in pairs)
    yield f"    found {len(ranking.keys)}: {entries or 'nothing'}"


def _explain_keyword_evidence(retrieval: Retrieval, settings: Settings) -> str:
    if not settings.keyword_evidence.enabled:
        return "off"
    if retrieval.evidence is None:
        return "order kept"
    (words, _), *variant_words = retrieval.evidence.keywords
    suffix = f", and those of {len(variant_words)} variants" if variant_words else ""
    count = len(retrieval.evidence.keys)
    return (
        f"weight {retrieval.evidence.weight:.2f} over {count} candidates:"
        f" {shorten_text(words, 160)}{suffix}"
    )


def _explain_rerank(retrieval: Retrieval, settings: Settings) -> str:
    if not settings.rerank.enabled:
        return "off"
    return (
        f"{settings.rerank.model}:"
        f" {_join_passage_ids(retrieval.reranked) if retrieval.reranked else 'order kept'}"
    )


def _explain_ranks(retrieval: Retrieval) -> Iterator[str]:
    """Yield two lines per passage: the rank and the scores, then the reason for the rank.

    Passages that dropped out of the result come last.
    """
    # Imported here, because a question without an explanation does not need this module.
    from qtmiddleware.retrieval.movement import explain_movement

    movements = explain_movement(retrieval)
    yield "Result"
    for movement in (*movements.passages, *movements.dropped):
        match, place_mark = movement.match, "-" if movement.place is None else f"{movement.place}."
        scores = [
            ("score", match.score),
            ("fused", movement.fused_score),
            ("keywords", movement.evidence),
            ("reranked", movement.rerank_score),
        ]
        score_text = ", ".join(
            f"{name} {_format_score(score)}" for name, score in scores if score is not None
        )
        yield f"  {place_mark} {match.id or shorten_text(match.text or '', 40)}  {score_text}"
        yield f"     {movement.why}"


def _join_passage_ids(keys: Iterable[Key]) -> str:
    """Join the ids of the first `EXPLAINED` passages with commas, and add how many more follow."""
    all_keys = list(keys)
    suffix = f" and {len(all_keys) - EXPLAINED} more" if len(all_keys) > EXPLAINED else ""
    return (
        ", ".join(map(_format_passage_id, all_keys[:EXPLAINED])) + suffix if all_keys else "nothing"
    )


def _format_passage_id(key: Key) -> str:
    """Return the passage id in *key*, or ``(no id)``."""
    # In a key, the passage's text may follow the id after a NUL.
    return key[1].partition("\0")[0] or "(no id)"


def _format_source(match: Match) -> str:
    score = _get_score(match)
    store_score = (
        f", store score {_format_score(match.score)}" if match.score not in (None, score) else ""
    )
    return f"{describe_passage_source(match)} (score {_format_score(score)}{store_score})"


def describe_passage_source(match: Match) -> str:
    """Return one line with a passage's title, source, and page, slide or rows.

    If the metadata name no source, the line contains the passage's id instead.
    """
    metadata = match.metadata
    source = str(
        metadata.get("source") or metadata.get("url") or match.id or "a passage without an id"
    )
    title = metadata.get("title")
    place = (
        f"{title} ({source})"
        if isinstance(title, str) and title and title not in source
        else source
    )
    if part := describe_chunk_location(metadata):
        place += f", {part}"
    return " ".join(place.split())


def _get_score(match: Match) -> float | None:
    """Return the fused score of *match* or, without a fused score, the store's score."""
    return match.score if match.fused_score is None else match.fused_score


def _format_score(score: float | None) -> str:
    """Return *score* with three decimals, or ``-`` for ``None``."""
    return "-" if score is None else f"{score:.3f}"
