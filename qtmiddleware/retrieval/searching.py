"""The variants of a question: which texts are searched, with what weight, and their searches; each may fail alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qtmiddleware.catalogue import NOTHING, TEXT_FIELDS
from qtmiddleware.config.settings import FusionSettings
from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.retrieval.request import Request
from qtmiddleware.retrieval.responses import SearchResult, read_response
from qtmiddleware.runtime.steps import Embed, Flow, Outcome, Search, Together
from qtmiddleware.types import Deadline, Degradation, Trace, Transformation, Variant


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
    trace.stage("search.variants", trace.clock() - began)
    results: list[SearchResult] = []
    for variant, outcome in zip(variants, outcomes, strict=True):
        if outcome.ok:
            try:
                results.append(read_response(variant, outcome.value, request.shape))
                continue
            except ResponseShapeError as error:
                outcome.error = error
        degradations.append(_note_failure(f"search.{variant.kind}", outcome, trace))
    return results


def _note_failure(stage: str, outcome: Outcome, trace: Trace) -> Degradation:
    trace.stage(stage, outcome.seconds, "degraded", outcome.reason)
    return Degradation(stage, outcome.reason, outcome.detail)
