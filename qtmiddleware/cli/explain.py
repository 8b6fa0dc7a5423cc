"""How the passages of a question came about, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from qtmiddleware.cli.asked import Asked
from qtmiddleware.cli.show import LABELS, number, short
from qtmiddleware.config.settings import Settings
from qtmiddleware.preprocessing import preprocess
from qtmiddleware.types import Decision, Key, Match, Ranking, Retrieval

SHOWN: Final = 5
"""Passages of a list that are shown."""


def explained(asked: Asked, settings: Settings) -> Iterator[str]:
    """The lines that explain *asked*, which was asked under *settings*."""
    found = asked.retrieval
    if found is None:
        yield f"Nothing was retrieved: {asked.error}"
        return
    yield f"Question   {short(asked.question)}"
    yield f"Gate       {_gate(found.trace.decision)}"
    yield "Searched"
    for ranking in found.rankings:
        yield from _searched(ranking)
    for variant in found.variants:
        if all(variant.text != ranking.variant.text for ranking in found.rankings):
            yield f"  {LABELS[variant.kind]}: no part in the fusion: {short(variant.text, 100)}"
    yield f"Fusion     {settings.fusion.method}: {_ids(found.fused)}"
    yield f"Keywords   {_evidence(found, settings)}"
    yield f"Rerank     {_rerank(found, settings)}"
    yield "Result"
    for at, match in enumerate(found.matches, start=1):
        yield f"  {at}. {_result(match)}"
    for it in asked.degradations:
        yield f"Degraded   {it.stage}: {it.reason}" + (f" ({it.detail})" if it.detail else "")
    for subject, what in found.trace.notes:
        yield f"Note       {subject}: {what}"
    for answer in asked.answer.sub_answers if asked.answer is not None else ():
        yield f"Sub-answer {short(answer.question, 80)}: {answer.reason or short(answer.text, 160)}"
    yield "Stages"
    for stage in found.trace.stages:
        how = " ".join(filter(None, ("" if stage.status == "ok" else stage.status, stage.detail)))
        yield f"  {stage.name:<24} {stage.ms:9.1f} ms from {stage.started_ms:.1f}" + (f"  {how}" if how else "")
    trace = found.trace
    yield f"  {'all of it':<24} {asked.seconds * 1e3:9.1f} ms, {trace.searches} searches, {trace.llm_calls} LLM calls"


def _gate(decision: Decision | None) -> str:
    if decision is None:
        return "not reached"
    numbers = ", ".join(f"{name} {value:g}" for name, value in decision.signals.items())
    return ("asked the model: " if decision.call else "did not ask the model: ") + " ".join(
        filter(None, (decision.reason, f"({numbers})" if numbers else ""))
    )


def _searched(ranking: Ranking) -> Iterator[str]:
    variant = ranking.variant
    yield f"  {LABELS[variant.kind]}, weight {variant.weight:.2f}: {short(variant.text, 160)}"
    pairs = zip(ranking.keys[:SHOWN], ranking.scores, strict=False)
    listed = ", ".join(f"{_id(key)} {number(score)}" for key, score in pairs)
    yield f"    found {len(ranking.keys)}: {listed or 'nothing'}"


def _evidence(found: Retrieval, settings: Settings) -> str:
    options, rules = settings.keyword_evidence, settings.preprocess
    if not options.enabled:
        return "off"
    own = found.transformation.standalone or found.original_query
    if rules.enabled:
        own = preprocess(own, language=rules.language, keep_words=rules.keep_words, extra_words=rules.extra_words)
    words = " ".join((own, *found.transformation.keywords))
    return f"weight {options.weight:.2f} over {options.candidates} candidates: {short(words, 160)}"


def _rerank(found: Retrieval, settings: Settings) -> str:
    if not settings.rerank.enabled:
        return "off"
    return f"{settings.rerank.model}: {_ids(found.reranked) if found.reranked else 'order kept'}"


def _result(match: Match) -> str:
    scores = [("score", match.score), ("fused", match.fused_score), ("reranked", match.rerank_score)]
    told = ", ".join(f"{name} {number(score)}" for name, score in scores if score is not None)
    by = f" by {', '.join(LABELS.get(kind, kind) for kind in match.found_by)}" if match.found_by else ""
    return f"{match.id or short(match.text or '', 40)}  {told}{by}"


def _ids(keys: Iterable[Key]) -> str:
    listed = list(keys)
    rest = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(map(_id, listed[:SHOWN])) + rest if listed else "nothing"


def _id(key: Key) -> str:
    # What follows a NUL in a key is the passage's text.
    return key[1].partition("\0")[0] or "(no id)"
