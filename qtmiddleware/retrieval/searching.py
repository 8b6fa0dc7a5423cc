"""The variants of a question: which texts are searched, with what weight, and their searches; each may fail alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

from qtmiddleware.catalogue import NOTHING, TEXT_FIELDS
from qtmiddleware.config.settings import FusionSettings
from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.retrieval.request import Request
from qtmiddleware.retrieval.responses import SearchResult, read_response
from qtmiddleware.runtime.steps import Embed, Flow, Outcome, Search, Together
from qtmiddleware.types import Deadline, Degradation, Ranking, Trace, Transformation, Variant


def build_variants(
    transformation: Transformation, original: str, options: FusionSettings
) -> tuple[tuple[Variant, ...], tuple[tuple[str, str], ...]]:
    """Returns the variants to search beside *original*, and a note on each that says the same as another.

    All texts of one kind share its weight. One that says the same as the original is searched where the
    original takes no part in the fusion.
    """
    if transformation is NOTHING:
        return (), ()
    # The free tier does not wait for its modules.
    from qtmiddleware.transforms import ORIGINAL, SAME, find_repeats

    if not options.include_original:
        if ("rewrite", SAME) in transformation.notes:
            transformation = replace(transformation, rewrite=original)
        original = ""
    candidates = [
        Variant(row.variant, text, getattr(options.weights, name))
        for name, row in TEXT_FIELDS.items()
        if row.variant
        for text in transformation.texts(name)
        if text and not text.isspace()
    ]
    variants: list[Variant] = []
    notes: list[tuple[str, str]] = []
    repeats = find_repeats([candidate.text for candidate in candidates], original=original)
    for candidate, other in zip(candidates, repeats, strict=True):
        if other is None:
            variants.append(candidate)
        else:
            repeated = "original" if other == ORIGINAL else candidates[other].kind
            notes.append((candidate.kind, f"not searched: says the same as the {repeated}"))
    kinds = [variant.kind for variant in variants]
    return tuple(replace(it, weight=it.weight / kinds.count(it.kind)) for it in variants), tuple(notes)


def select_parts(transformation: Transformation) -> Transformation:
    """Returns of *transformation* what an answer put together from sub-answers reads; all without two sub-queries.

    A follow-up's standalone form stays, as it is what is answered where too few of the parts are.
    """
    if len(transformation.sub_queries) < 2:
        return transformation
    return Transformation(standalone=transformation.standalone, sub_queries=transformation.sub_queries)


def search_variants(
    variants: Sequence[Variant],
    request: Request,
    *,
    width: int | None,
    deadline: Deadline,
    trace: Trace,
    degradations: list[Degradation],
) -> Flow[list[SearchResult]]:
    """Returns what the variants found, without those that could not be searched in time, which are noted.

    Where the wrapped function takes vectors all variants are embedded in one batch first.
    """
    if not variants:
        return []
    limit = request.settings.limits.max_concurrency
    vectors: Sequence[Any] = [None] * len(variants)
    if request.embeds:
        (embedded,) = yield Together((Embed([variant.text for variant in variants]),), deadline, limit)
        if not embedded.ok:
            degradations.append(_note_failure("embed", embedded, trace))
            return []
        trace.stage("embed", embedded.seconds, detail="variants")
        vectors = embedded.value
        if not hasattr(vectors, "__len__") or len(vectors) != len(variants):
            degradations.append(Degradation("embed", "failed", "wrong number of vectors"))
            return []
    began = trace.clock()
    widths = {"sub_query": request.settings.fusion.sub_query_top_k or width}
    steps = [
        Search(it.text, widths.get(it.kind, width), vector, kind=it.kind, weight=it.weight)
        for it, vector in zip(variants, vectors, strict=True)
    ]
    outcomes = yield Together(steps, deadline, limit)
    trace.searches += len(steps)
    if seconds := max((it.embed_seconds for it in steps), default=0.0):
        trace.stage("embed", seconds, detail="variants", began=began)
    trace.stage("search.variants", trace.clock() - began)
    results: list[SearchResult] = []
    for variant, step, outcome in zip(variants, steps, outcomes, strict=True):
        if outcome.ok:
            try:
                results.append(read_response(variant, outcome.value, request.shape, initial=step.initial))
                continue
            except ResponseShapeError as error:
                outcome.error = error
        degradations.append(_note_failure(f"search.{variant.kind}", outcome, trace))
    return results


def _note_failure(stage: str, outcome: Outcome, trace: Trace) -> Degradation:
    trace.stage(stage, outcome.seconds, "degraded", outcome.reason)
    return Degradation(stage, outcome.reason, outcome.detail)


_under_way: Final[ContextVar[Search | None]] = ContextVar("under_way", default=None)


@contextmanager
def searching(step: Search) -> Iterator[None]:
    """Let the function that is called within write down in *step* how it searched; an earlier try does not count."""
    step.initial.clear()
    token = _under_way.set(step)
    try:
        yield
    finally:
        # A coroutine that is thrown away may be closed in another context than it ran in.
        with suppress(ValueError):
            _under_way.reset(token)


def note_embedding(seconds: float) -> None:
    """Note that embedding the text of the search under way took so long."""
    if (step := _under_way.get()) is not None:
        step.embed_seconds += seconds


def note_initial_list(name: str, ranking: Ranking) -> None:
    """Note *ranking* as one of those the response to the search under way is merged from; several are one list."""
    step = _under_way.get()
    if step is None:
        return
    if (before := step.initial.get(name)) is not None:
        ranking = replace(
            ranking,
            keys=[*before.keys, *ranking.keys],
            scores=[*before.scores, *ranking.scores],
            items=[*before.items, *ranking.items],
        )
    step.initial[name] = ranking
