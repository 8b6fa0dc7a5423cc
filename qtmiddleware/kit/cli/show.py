"""What came of a question, for people to read: the answer, where it stands, and how it was found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from qtmiddleware.catalogue import GLOSSARY, JOINED, TEXT_CLAUSE, TEXT_FIELDS
from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.cli.asking import Outcome
from qtmiddleware.kit.cli.console import notes
from qtmiddleware.kit.cli.terminal import LineWrapper, note, say, strip_control_characters
from qtmiddleware.kit.documents.place import describe_place
from qtmiddleware.preprocessing.text import shorten
from qtmiddleware.retrieval.searching import IN_ONE_TEXT, NOT_SEARCHED, PASSAGE_LEADS
from qtmiddleware.types import Decision, Key, Match, Ranking, Retrieval, Trace

"""Characters of a passage, or of a hypothetical one, that are shown."""
EXPLAINED: Final = 5
"""Passages of a list that an explanation shows."""
LABELS: Final = {
    "original": "original",
    **{it.variant: it.label for it in TEXT_FIELDS.values() if it.variant},
    JOINED: "one text with the question",
    TEXT_CLAUSE: "keywords in a text clause",
    GLOSSARY: "with the glossary's forms",
}


@contextmanager
def show_pieces() -> Iterator[Callable[[str], None]]:
    """Show at a terminal that an answer is under way, until the first piece of it is written with what is yielded."""
    has_written = False
    # ASCII, for terminals that have nothing else.
    wrapper = LineWrapper(sys.stdout)
    with notes.status("working", spinner="line") as waiting:

        def write(piece: str) -> None:
            nonlocal has_written
            if piece:
                waiting.stop()
                has_written = True
                say(wrapper.feed(strip_control_characters(piece)), end="", wraps=False)

        try:
            yield write
        finally:
            waiting.stop()
            if has_written:
                say(wrapper.end(), wraps=False)


def present(outcome: Outcome) -> None:
    """Show what came of a question; what went wrong goes to stderr.

    Of an answer that was streamed only what stands below it is shown, and passages where there is
    no answer.
    """
    answer, retrieval = outcome.answer, outcome.retrieval
    if outcome.error is not None:
        what = "The answer was cut off" if outcome.streamed else "No answer"
        note(f"{what}: {outcome.error}" if retrieval is not None else f"qtm: {outcome.error}")
    elif answer is not None and outcome.streamed not in ("", answer.text):
        note("The answer was cut off; one sub-answer is shown instead:")
    if answer is not None and outcome.streamed != answer.text:
        say(answer.text)
    if retrieval is None:
        return
    rows = _list_sources(outcome) if answer is not None else _list_passages(retrieval)
    for row in (*rows, *_list_variants(retrieval)):
        say(row)
    if answer is not None and outcome.passages:
        scores = [
            f"[{at}] {_format_score(_find_score(match))}"
            for at, match in enumerate(outcome.passages, start=1)
        ]
        say(f"Scores: {', '.join(scores)}")
    say(_sum_up(outcome, retrieval.trace))


def explain(outcome: Outcome, settings: Settings) -> Iterator[str]:
    """The lines that explain how the passages of *outcome*, which was asked under *settings*, came about."""
    found = outcome.retrieval
    if found is None:
        yield f"Nothing was retrieved: {outcome.error}"
        return
    yield f"Question   {shorten(outcome.question)}"
    yield f"Gate       {_explain_gate(found.trace.decision)}"
    yield "Searched"
    for ranking in found.rankings:
        yield from _explain_search(ranking)
    for variant in found.variants:
        if all(variant.text != ranking.variant.text for ranking in found.rankings):
            yield (
                f"  {LABELS.get(variant.kind, variant.kind)}: not used in the fusion:"
                f" {shorten(variant.text, 100)}"
            )
    yield f"Fusion     {settings.fusion.method}: {_list_ids(found.fused)}"
    yield f"Keywords   {_explain_evidence(found, settings)}"
    yield f"Rerank     {_explain_rerank(found, settings)}"
    yield from _explain_result(found)
    for it in outcome.degradations:
        yield f"Degraded   {it.stage}: {it.reason}" + (f" ({it.detail})" if it.detail else "")
    for subject, what in found.trace.notes:
        yield f"Note       {subject}: {what}"
    for answer in outcome.answer.sub_answers if outcome.answer is not None else ():
        yield (
            f"Sub-answer {shorten(answer.question, 80)}:"
            f" {answer.reason or shorten(answer.text, 160)}"
        )
    yield "Stages"
    for stage in sorted(found.trace.stages, key=lambda stage: stage.started_ms):
        how = " ".join(filter(None, ("" if stage.status == "ok" else stage.status, stage.detail)))
        yield f"  {stage.name:<24} {stage.ms:9.1f} ms from {stage.started_ms:.1f}" + (
            f"  {how}" if how else ""
        )
    trace = found.trace
    all_of_it = (
        f"{outcome.seconds * 1e3:9.1f} ms, {_format_searches(trace)}, {trace.llm_calls} LLM calls"
    )
    yield f"  {'total':<24} {all_of_it}"


def _list_sources(outcome: Outcome) -> Iterator[str]:
    """The passages that are cited; all that the model was shown where it cited none."""
    answer = outcome.answer
    cited = {} if answer is None else dict(sorted((it.number, it.match) for it in answer.citations))
    listed = cited or dict(enumerate(outcome.passages, start=1))
    if not listed:
        return
    yield "\nSources:" if cited else "\nPassages used:"
    for at, match in listed.items():
        yield f"  [{at}] {_format_place(match)}"


def _list_passages(retrieval: Retrieval) -> Iterator[str]:
    if not retrieval.matches:
        yield "No passage was found."
        return
    yield "Passages:"
    for at, match in enumerate(retrieval.matches, start=1):
        yield f"  [{at}] {_format_place(match)}"
        if match.text:
            yield f"      {shorten(match.text)}"


def _list_variants(retrieval: Retrieval) -> Iterator[str]:
    """What was made of the question, and what of it had no search of its own."""
    rows = list(list_texts(retrieval))
    if retrieval.transformation.keywords:
        rows.append(f"keywords: {', '.join(retrieval.transformation.keywords)}")
    if rows:
        yield "\nTransformed:"
        for row in rows:
            yield f"  {row}"


def list_texts(retrieval: Retrieval) -> Iterator[str]:
    """The texts beside the question: those that were searched, and those that a budget of searches kept from it."""
    searched = [it for it in retrieval.variants if it.kind not in ("original", JOINED)]
    for variant in searched:
        yield f"{LABELS.get(variant.kind, variant.kind)}: {shorten(variant.text)}"
    without = dict(
        it for it in retrieval.trace.notes if it[1] in (IN_ONE_TEXT, NOT_SEARCHED, PASSAGE_LEADS)
    )
    for name, row in TEXT_FIELDS.items():
        if row.variant in without:
            texts = [
                text
                for text in retrieval.transformation.texts(name)
                if all(text != it.text for it in searched)
            ]
            for text in texts:
                yield f"{row.label} ({without[row.variant]}): {shorten(text)}"


def _sum_up(outcome: Outcome, trace: Trace) -> str:
    """Time, searches, calls, tokens, cost and what went wrong, on one line."""
    parts = [f"{outcome.seconds:.2f} s", _format_searches(trace)]
    if trace.cache_hits:
        parts.append("transformation remembered")
    if trace.llm_calls:
        parts.append(f"{trace.llm_calls} LLM call{'s' if trace.llm_calls != 1 else ''}")
        parts.append(f"{trace.input_tokens:,} + {trace.output_tokens:,} tokens")
        parts.append("cost unknown" if trace.cost_usd is None else f"${trace.cost_usd:.6f}")
    else:
        parts.append("no LLM calls")
    reasons = [f"{it.stage} {it.reason}" for it in outcome.degradations]
    return f"({', '.join(parts)})" + (f" degraded: {'; '.join(reasons)}" if reasons else "")


def _format_searches(trace: Trace) -> str:
    """How many searches were made, what they read where that is more, and what that cost where a price is set."""
    text = f"{trace.searches} search{'' if trace.searches == 1 else 'es'}"
    if trace.read_units != trace.searches:
        text += f" of {trace.read_units:g} read units"
    return text if trace.read_cost_usd is None else f"{text} for ${trace.read_cost_usd:.6f}"


def _explain_gate(decision: Decision | None) -> str:
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
        f" {shorten(variant.text, 160)}"
    )
    pairs = zip(ranking.keys[:EXPLAINED], ranking.scores, strict=False)
    listed = ", ".join(f"{_format_id(key)} {_format_score(score)}" for key, score in pairs)
    yield f"    found {len(ranking.keys)}: {listed or 'nothing'}"


def _explain_evidence(found: Retrieval, settings: Settings) -> str:
    if not settings.keyword_evidence.enabled:
        return "off"
    if found.evidence is None:
        return "order kept"
    (words, _), *others = found.evidence.keywords
    more = f", and those of {len(others)} variants" if others else ""
    count = len(found.evidence.keys)
    return (
        f"weight {found.evidence.weight:.2f} over {count} candidates: {shorten(words, 160)}{more}"
    )


def _explain_rerank(found: Retrieval, settings: Settings) -> str:
    if not settings.rerank.enabled:
        return "off"
    return (
        f"{settings.rerank.model}: {_list_ids(found.reranked) if found.reranked else 'order kept'}"
    )


def _explain_result(found: Retrieval) -> Iterator[str]:
    """Each passage with its scores and why it stands where it does, and those that made room."""
    # Measuring is not loaded for a question that nobody wants explained.
    from qtmiddleware.kit.evaluation.movement import explain_movement

    moved = explain_movement(found)
    yield "Result"
    for it in (*moved.passages, *moved.dropped):
        match, mark = it.match, "-" if it.place is None else f"{it.place}."
        scores = [
            ("score", match.score),
            ("fused", it.fused_score),
            ("keywords", it.evidence),
            ("reranked", it.rerank_score),
        ]
        listed = ", ".join(
            f"{name} {_format_score(score)}" for name, score in scores if score is not None
        )
        yield f"  {mark} {match.id or shorten(match.text or '', 40)}  {listed}"
        yield f"     {it.why}"


def _list_ids(keys: Iterable[Key]) -> str:
    listed = list(keys)
    rest = f" and {len(listed) - EXPLAINED} more" if len(listed) > EXPLAINED else ""
    return ", ".join(map(_format_id, listed[:EXPLAINED])) + rest if listed else "nothing"


def _format_id(key: Key) -> str:
    # What follows a NUL in a key is the passage's text.
    return key[1].partition("\0")[0] or "(no id)"


def _format_place(match: Match) -> str:
    score = _find_score(match)
    own = f", store score {_format_score(match.score)}" if match.score not in (None, score) else ""
    return f"{describe_match(match)} (score {_format_score(score)}{own})"


def describe_match(match: Match) -> str:
    """Where a passage stands, on one line: its document's title and source, and its page, slide or rows."""
    held = match.metadata
    source = str(held.get("source") or held.get("url") or match.id or "a passage without an id")
    title = held.get("title")
    place = (
        f"{title} ({source})"
        if isinstance(title, str) and title and title not in source
        else source
    )
    if where := describe_place(held):
        place += f", {where}"
    return " ".join(place.split())


def _find_score(match: Match) -> float | None:
    """The score that falls with the order: ours, or the store's where there is none of ours."""
    return match.score if match.fused_score is None else match.fused_score


def _format_score(score: float | None) -> str:
    """A score with three decimals, ``-`` where there is none."""
    return "-" if score is None else f"{score:.3f}"
