"""From the responses of several searches to one result in the wrapped function's own shape."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from qtmiddleware.fusion import Fused, direction, fuse, has_scores
from qtmiddleware.keywords import keyword_evidence, weighed
from qtmiddleware.request import Request
from qtmiddleware.responses import Shape, columns_of, shape_of, text_of
from qtmiddleware.settings import Settings
from qtmiddleware.trace import Trace
from qtmiddleware.types import Key, Match, Ranking, Variant

logger: Final = logging.getLogger("qtmiddleware")


@dataclass(frozen=True, slots=True)
class Found:
    """One variant's response, read."""

    ranking: Ranking
    shape: Shape
    response: Any = field(repr=False)


def found(variant: Variant, response: Any, custom: Shape | None) -> Found:
    """Read *response*; raises `ResponseShapeError` where it is of no known shape."""
    shape = custom or shape_of(response)
    items = shape.items(response)
    return Found(Ranking(variant, *columns_of(shape, response, items), items), shape, response)


Keywords = Callable[[], Sequence[tuple[str, float]]]
"""The words that count as evidence, each group with its weight; made only where there are texts to look for them in."""


def with_evidence(fused: Fused, shape: Shape, keywords: Keywords, settings: Settings, trace: Trace) -> Fused:
    """The leading candidates of *fused*, weighed by the *keywords* over their text, if they have any."""
    options = settings.keyword_evidence
    count = min(len(fused.keys), options.candidates)
    if count < 2:
        return fused
    texts = [text_of(shape, item, options.text_field) for item in fused.items[:count]]
    if not any(texts):
        trace.note("keyword_evidence", "no text in the metadata; order kept")
        return fused
    evidence = keyword_evidence(keywords(), texts)
    if evidence is None:
        trace.note("keyword_evidence", "no keyword in any candidate; order kept")
        return fused
    scores = weighed(fused.scores[:count], evidence, options.weight, spread=fused.spread)
    order = sorted(range(count), key=scores.__getitem__, reverse=True)
    return picked(fused, order, [scores[i] for i in order])


def picked(fused: Fused, order: Sequence[int], scores: Sequence[float]) -> Fused:
    """The passages of *fused* at the positions *order*, with new *scores*."""
    return Fused(
        keys=[fused.keys[i] for i in order],
        scores=scores,
        items=[fused.items[i] for i in order],
        sources=[fused.sources[i] for i in order],
        method=fused.method,
        offsets=fused.offsets,
    )


def voices(lists: Sequence[Found], settings: Settings) -> list[Ranking]:
    """The rankings that take part in the fusion, with their final weights; the original's comes first."""
    original, *others = [entry.ranking for entry in lists]
    options = settings.fusion
    weight = options.weights.original
    if any(ranking.variant.kind == "standalone" and ranking.keys for ranking in others):
        weight = options.weights.original_in_conversation
    heard = [ranking for ranking in others if ranking.variant.weight > 0]
    if any(ranking.keys for ranking in heard) and (weight <= 0 or not options.include_original):
        return heard
    if original.variant.weight == weight > 0:
        return [original, *heard]
    variant = Variant(original.variant.kind, original.variant.text, weight or 1.0)
    return [Ranking(variant, original.keys, original.scores, original.items), *heard]


@dataclass(frozen=True, slots=True)
class Combined:
    """Several lists as one, best first: *keys* in the order of the fusion, *candidates* in the final one.

    *judged* holds the reranker's scores of the leading candidates, ``None`` for one it did not see.
    """

    candidates: Fused = field(repr=False)
    keys: tuple[Key, ...]
    rankings: tuple[Ranking, ...]
    shape: Shape
    judged: tuple[float | None, ...] = ()


def combined(first: Found, others: Sequence[Found], *, request: Request, keywords: Keywords, trace: Trace) -> Combined:
    """The original's list and the *others* as one, its candidates weighed by the *keywords* if *request* asks so."""
    settings, memory = request.settings, request.memory
    rankings = voices([first, *others], settings)
    shown = direction(rankings)
    if shown and (shown > 0) is not memory.rising and has_scores(rankings):
        memory.rising = shown > 0
    shape = next((entry.shape for entry in (first, *others) if entry.ranking.keys), first.shape)
    began = trace.clock()
    fused = fuse(rankings, settings.fusion.method, rrf_k=settings.fusion.rrf_k, rising=memory.rising)
    if fused.method != settings.fusion.method and others:
        trace.note("fusion", f"scores are missing or do not follow the order; {fused.method} instead")
    fused_at = trace.clock()
    trace.stage("fuse", fused_at - began)
    ordered = fused
    if request.weighs:
        ordered = with_evidence(fused, shape, keywords, settings, trace)
        trace.stage("keyword_evidence", trace.clock() - fused_at)
    return Combined(ordered, tuple(fused.keys), tuple(rankings), shape)


@dataclass(frozen=True, slots=True)
class Merged:
    """The result in both forms."""

    response: Any = field(repr=False)
    matches: tuple[Match, ...]


def presented(lists: Sequence[Found], made: Combined, request: Request) -> Merged:
    """The best of *made* in the shape of the first of the *lists* it was made of: the original's.

    As many as the caller asked for or, where that is not known, as the longest list holds; the ``concat`` fusion keeps
    everything.
    """
    first, ordered = lists[0], made.candidates
    if len(lists) == 1 and not request.weighs and not request.reranks:
        # Nothing of ours has a say: what the function gave, passages it found twice and all.
        matches = () if request.brief else plain_matches(first.ranking.variant, first.response, request)
        return Merged(first.response, matches)
    longest = max(len(entry.ranking.keys) for entry in lists)
    count = longest if request.top_k is None else request.top_k
    if ordered.method == "concat":
        count = len(ordered.keys)
    return Merged(
        response=_rebuilt(first, ordered.items[:count]),
        matches=() if request.brief else _matches(made, count, request.settings.keyword_evidence.text_field),
    )


def plain_matches(variant: Variant, response: Any, request: Request) -> tuple[Match, ...]:
    """What *response* holds, in its own order, nothing weighed and no passage left out; nothing where it is unreadable.

    For when something of ours has failed: it raises nothing, and fuses nothing.
    """
    try:
        first = found(variant, response, request.shape)
        ranking, count = first.ranking, len(first.ranking.keys)
        places = [1.0 / rank for rank in range(1, count + 1)]
        rows = Fused(ranking.keys, places, ranking.items, [1] * count, request.settings.fusion.method)
        made = Combined(rows, tuple(ranking.keys), (ranking,), first.shape)
        return _matches(made, count, request.settings.keyword_evidence.text_field)
    except Exception as error:
        logger.debug("nothing could be read of the response: %s", type(error).__name__)
        return ()


def _matches(made: Combined, count: int, text_field: str | None) -> tuple[Match, ...]:
    kinds = [ranking.variant.kind for ranking in made.rankings]
    fused, shape = made.candidates, made.shape
    judged = made.judged + (None,) * (len(fused.keys) - len(made.judged))
    rows = zip(fused.keys[:count], fused.scores, fused.items, fused.sources, judged, strict=False)
    return tuple(
        Match(
            id=shape.id(item),
            namespace=key[0],
            score=shape.score(item),
            fused_score=score,
            text=text_of(shape, item, text_field),
            metadata=shape.metadata(item),
            found_by=tuple(dict.fromkeys(kind for bit, kind in enumerate(kinds) if sources >> bit & 1)),
            rerank_score=rerank_score,
            raw=item,
        )
        for key, score, item, sources, rerank_score in rows
    )


def _rebuilt(first: Found, items: Sequence[Any]) -> Any:
    """The original's response with *items* in place of its own; the very object where they are the same ones."""
    own = first.ranking.items
    if len(items) == len(own) and all(a is b for a, b in zip(items, own, strict=True)):
        return first.response
    return first.shape.rebuild(first.response, items)
