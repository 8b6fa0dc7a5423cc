"""The searches for a question's variants, each of which may fail alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.retrieval.merging import Found, found
from qtmiddleware.retrieval.request import Request
from qtmiddleware.runtime.steps import Embed, Flow, Outcome, Search, Together
from qtmiddleware.types import Deadline, Degradation, Trace, Variant


def search_variants(
    variants: Sequence[Variant],
    request: Request,
    *,
    width: int | None,
    budget: Deadline,
    trace: Trace,
    trouble: list[Degradation],
) -> Flow[list[Found]]:
    """What the variants found, without those that could not be searched in time, which are added to *trouble*.

    Where the wrapped function takes vectors all variants are embedded in one batch first.
    """
    if not variants:
        return []
    limit = request.settings.limits.max_concurrency
    vectors: Sequence[Any] = [None] * len(variants)
    if request.embeds:
        (embedded,) = yield Together((Embed([variant.text for variant in variants]),), budget, limit)
        if not embedded.ok:
            trouble.append(_trouble("embed", embedded, trace))
            return []
        vectors = embedded.value
        if not hasattr(vectors, "__len__") or len(vectors) != len(variants):
            trouble.append(Degradation("embed", "failed", "wrong number of vectors"))
            return []
    began = trace.clock()
    widths = {"sub_query": request.settings.fusion.sub_query_top_k or width}
    steps = [Search(it.text, widths.get(it.kind, width), vector) for it, vector in zip(variants, vectors, strict=True)]
    outcomes = yield Together(steps, budget, limit)
    trace.searches += len(steps)
    trace.stage("search.variants", trace.clock() - began)
    lists: list[Found] = []
    for variant, outcome in zip(variants, outcomes, strict=True):
        entry = _read(variant, outcome, request)
        if entry is not None:
            lists.append(entry)
        else:
            trouble.append(_trouble(f"search.{variant.kind}", outcome, trace))
    return lists


def _read(variant: Variant, outcome: Outcome, request: Request) -> Found | None:
    if not outcome.ok:
        return None
    try:
        return found(variant, outcome.value, request.shape)
    except ResponseShapeError as error:
        outcome.error = error
        return None


def _trouble(stage: str, outcome: Outcome, trace: Trace) -> Degradation:
    trace.stage(stage, outcome.seconds, "degraded", outcome.reason)
    return Degradation(stage, outcome.reason, outcome.detail)
