"""From the responses of several searches to one result in the wrapped function's own shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.retrieval.fusion import Fused, direction, fuse, has_scores
from qtmiddleware.retrieval.keyword_evidence import keyword_evidence, weighed
from qtmiddleware.retrieval.request import Request
from qtmiddleware.retrieval.responses import Shape, columns_of, shape_of, text_of
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Key, Match, Ranking, Trace, Variant, VariantKind

logger: Final = get_logger("qtmiddleware")


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
    """*fused* with its leading candidates weighed by the *keywords* over their text, if they have any."""
    options = settings.keyword_evidence
    count = min(len(fused.keys), options.candidates)
    if count < 2:
        return fused
    head = fused.scores[:count]
    texts = [text_of(shape, item, options.text_field) for item in fused.items[:count]]
    if not any(texts):
        trace.note("keyword_evidence", "no text in the metadata; order kept")
        return fused
    evidence = keyword_evidence(keywords(), texts)
    if evidence is None:
        trace.note("keyword_evidence", "no keyword in any candidate; order kept")
        return fused
    # What follows the candidates has no evidence, and no score above theirs: it stays behind them, in its order.
    rest = range(count, len(fused.keys))
    spread = max(head) - min(head) if fused.spread is None else fused.spread
    scores = weighed(fused.scores, [*evidence, *(0.0 for _ in rest)], options.weight, spread=spread)
    order = [*sorted(range(count), key=scores.__getitem__, reverse=True), *rest]
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


def tell_chunks_apart(rankings: Sequence[Ranking], shape: Shape, text_field: str | None) -> list[Ranking]:
    """*rankings* in which texts that share an id, as the chunks of one document may, are passages of their own."""
    texts: dict[Key, set[str | None]] = {}
    for ranking in rankings:
        if len(set(ranking.keys)) < len(ranking.keys):
            repeated = {key for key, count in Counter(ranking.keys).items() if count > 1}
            for key, item in zip(ranking.keys, ranking.items, strict=True):
                if key in repeated:
                    texts.setdefault(key, set()).add(text_of(shape, item, text_field))
    shared = {key for key, found in texts.items() if len(found) > 1}
    if not shared:
        return list(rankings)

    def rekeyed(key: Key, item: Any) -> Key:
        return (key[0], f"{key[1]}\0{text_of(shape, item, text_field) or ''}") if key in shared else key

    return [replace(it, keys=list(map(rekeyed, it.keys, it.items))) for it in rankings]


@dataclass(frozen=True, slots=True)
class Combined:
    """Several lists as one, best first: *keys* in the order of the fusion, *candidates* in the final one.

    *own* is the list of the query as it was asked, whether or not it took part. *judged* holds the reranker's scores of
    the leading candidates, ``None`` for one it did not see.
    """

    candidates: Fused = field(repr=False)
    keys: tuple[Key, ...]
    rankings: tuple[Ranking, ...]
    shape: Shape
    own: Ranking
    judged: tuple[float | None, ...] = ()

    @property
    def question(self) -> Ranking | None:
        """The list whose scores are those for the user's question: the standalone form's in a conversation.

        ``None`` where the question itself has no say, and where lists stand as they were found.
        """
        if not self.candidates.is_merged:
            return None
        asked = {it.variant.kind: it for it in self.rankings if it.variant.kind in ("original", "standalone")}
        alone = asked.get("standalone")
        return alone if alone is not None and alone.keys else asked.get("original")


def combined(first: Found, others: Sequence[Found], *, request: Request, keywords: Keywords, trace: Trace) -> Combined:
    """The original's list and the *others* as one, its candidates weighed by the *keywords* if *request* asks so."""
    settings, memory = request.settings, request.memory
    shape = next((entry.shape for entry in (first, *others) if entry.ranking.keys), first.shape)
    own, *rankings = tell_chunks_apart(
        [first.ranking, *voices([first, *others], settings)], shape, settings.keyword_evidence.text_field
    )
    shown = direction(rankings)
    if shown and (shown > 0) is not memory.rising and has_scores(rankings):
        memory.rising = shown > 0
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
    return Combined(ordered, tuple(fused.keys), tuple(rankings), shape, own)


@dataclass(frozen=True, slots=True)
class Merged:
    """The result in both forms."""

    response: Any = field(repr=False)
    matches: tuple[Match, ...]


def presented(lists: Sequence[Found], made: Combined, request: Request) -> Merged:
    """The best of *made* in the shape of the first of the *lists* it was made of: the original's.

    As many as the caller asked for or, where that is not known, as the longest list holds; the ``concat`` fusion keeps
    everything. Never fewer than the plain call gives, and all it gives where that is less than was asked for.
    """
    first = lists[0]
    fused_scores = request.settings.scores == "fused"
    if len(lists) == 1 and not request.weighs and not request.reranks and not fused_scores:
        # Nothing of ours has a say: what the function gave, passages it found twice and all.
        matches = () if request.brief else plain_matches(first.ranking.variant, first.response, request)
        return Merged(first.response, matches)
    longest = max(len(entry.ranking.keys) for entry in lists)
    count = longest if request.top_k is None else request.top_k
    if not made.candidates.is_merged:
        count = len(made.candidates.keys)
    chosen, known = _complete(made, count, request.top_k), None
    if (question := made.question) is not None:
        known = {key: place for place, key in reversed(list(enumerate(question.keys)))}
        chosen = _question_scores(chosen, question, known, made.shape)
    if fused_scores:
        chosen = replace(chosen, shown=list(map(made.shape.rescore, chosen.items, falling(chosen.scores))))
    matches = () if request.brief else _matches(made, chosen, known, request.settings.keyword_evidence.text_field)
    return Merged(_rebuilt(_pattern(lists), chosen.shown), matches)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The passages of a result as columns: the *items* as the searches gave them and as they are *shown*."""

    keys: Sequence[Key]
    scores: Sequence[float]
    items: Sequence[Any]
    sources: Sequence[int]
    shown: Sequence[Any]


def _complete(made: Combined, count: int, top_k: int | None) -> _Chosen:
    """The best *count* of *made*, and what the plain call gives beside them.

    Where the plain call gives fewer than *top_k*, or that is not known, all of its passages are there: behind the best
    ones, in place of the last of those that variants alone found where there would be too many. A passage it gives
    twice comes twice only where there would be fewer otherwise.
    """
    fused, own = made.candidates, made.own
    best = list(range(min(count, len(fused.keys))))
    absent, repeated = _missing(own.keys, {fused.keys[place] for place in best})
    plain = len(own.keys) if top_k is None else min(top_k, len(own.keys))
    if top_k is not None and len(own.keys) >= top_k:
        absent = absent[: max(0, top_k - len(best))]
    elif top_k is not None and fused.is_merged:
        given, surplus = set(own.keys), max(0, len(best) + len(absent) - top_k)
        least = [place for place in reversed(best) if fused.keys[place] not in given][:surplus]
        best = [place for place in best if place not in least]
    behind = {key: place for place, key in enumerate(fused.keys[count:], count)} if absent else {}
    best += sorted(behind[own.keys[place]] for place in absent if own.keys[place] in behind)
    # A list that took no part in the fusion has no scores there, and nor has a passage the second time.
    unheard = [place for place in absent if own.keys[place] not in behind]
    unheard += repeated[: max(0, plain - len(best) - len(unheard))]
    scores = [fused.scores[place] for place in best]
    scores += [min(scores, default=0.0)] * len(unheard)
    items = [fused.items[place] for place in best] + [own.items[place] for place in unheard]
    return _Chosen(
        keys=[fused.keys[place] for place in best] + [own.keys[place] for place in unheard],
        scores=falling(scores) if fused.is_merged else scores,
        items=items,
        sources=[fused.sources[place] for place in best] + [0] * len(unheard),
        shown=items,
    )


def _missing(own: Sequence[Key], here: Collection[Key]) -> tuple[list[int], list[int]]:
    """The places in *own* of passages that are not *here*, and of those that stand there once more."""
    seen: set[Key] = set()
    absent: list[int] = []
    repeated: list[int] = []
    for place, key in enumerate(own):
        if key in seen:
            repeated.append(place)
        elif key not in here:
            absent.append(place)
        seen.add(key)
    return absent, repeated


def falling(scores: Sequence[float]) -> list[float]:
    """*scores* handed out anew so that each is below the one before: greatest first, equal ones a millionth apart.

    A reranker, or passages that follow the candidates, may have put them in another order.
    """
    given: list[float] = []
    for score in sorted(scores, reverse=True):
        below = given[-1] - max(1e-6 * abs(given[-1]), 1e-9) if given else score
        given.append(min(score, below))
    return given


def _question_scores(chosen: _Chosen, question: Ranking, known: Mapping[Key, int], shape: Shape) -> _Chosen:
    """*chosen* as the list of the user's *question* holds it, which has each passage of *known* at that place.

    A passage that only variants found has no score for the question: it is shown with the lowest of the question's own
    list, since with a better one it would be in it. Where that list has no scores, items stay as they are.
    """
    scores = [score for score in question.scores if score is not None]
    lowest = None
    if scores and len(scores) == len(question.scores):
        lowest = min(scores) if scores[0] >= scores[-1] else max(scores)
    left = dict(known)
    items: list[Any] = []
    shown: list[Any] = []
    for key, found_item in zip(chosen.keys, chosen.items, strict=True):
        # The second time a passage comes it is another object.
        place = left.pop(key, None)
        items.append(found_item if place is None else question.items[place])
        shown.append(items[-1] if lowest is None or key in known else shape.rescore(found_item, lowest))
    return replace(chosen, items=items, shown=shown)


def plain_matches(variant: Variant, response: Any, request: Request) -> tuple[Match, ...]:
    """What *response* holds, in its own order, nothing weighed and no passage left out; nothing where it is unreadable.

    For when something of ours has failed: it raises nothing, and fuses nothing.
    """
    try:
        first = found(variant, response, request.shape)
        ranking, count = first.ranking, len(first.ranking.keys)
        places = [1.0 / rank for rank in range(1, count + 1)]
        rows = Fused(ranking.keys, places, ranking.items, [1] * count, request.settings.fusion.method)
        made = Combined(rows, tuple(ranking.keys), (ranking,), first.shape, ranking)
        chosen = _Chosen(ranking.keys, places, ranking.items, rows.sources, ranking.items)
        return _matches(made, chosen, None, request.settings.keyword_evidence.text_field)
    except Exception as error:
        logger.debug("nothing could be read of the response: %s", type(error).__name__)
        return ()


def _matches(
    made: Combined, chosen: _Chosen, known: Mapping[Key, int] | None, text_field: str | None
) -> tuple[Match, ...]:
    """*chosen* as matches; with *known*, a passage that is not among these has no score for the user's question."""
    kinds = [ranking.variant.kind for ranking in made.rankings]
    shape = made.shape
    judged = dict(zip(made.candidates.keys, made.judged, strict=False))
    rows = zip(chosen.keys, chosen.scores, chosen.items, chosen.sources, strict=True)
    return tuple(
        Match(
            id=shape.id(item),
            namespace=key[0],
            score=shape.score(item) if known is None or key in known else None,
            fused_score=score,
            text=text_of(shape, item, text_field),
            metadata=shape.metadata(item),
            found_by=_finders(kinds, sources),
            rerank_score=judged.get(key),
            raw=item,
        )
        for key, score, item, sources in rows
    )


def _finders(kinds: Sequence[VariantKind], sources: int) -> tuple[str, ...]:
    """The kinds of variant that found a passage; the question itself where its list took no part in the fusion."""
    return tuple(dict.fromkeys(kind for bit, kind in enumerate(kinds) if sources >> bit & 1)) or ("original",)


def _pattern(lists: Sequence[Found]) -> Found:
    """The list whose response the result is like: the first, unless ``None`` or an empty list says nothing of it."""
    first = lists[0]
    if first.response is None or (type(first.response) in (list, tuple) and not first.response):
        return next((entry for entry in lists if entry.ranking.keys), first)
    return first


def _rebuilt(first: Found, items: Sequence[Any]) -> Any:
    """The original's response with *items* in place of its own; the very object where they are the same ones."""
    own = first.ranking.items
    if len(items) == len(own) and all(a is b for a, b in zip(items, own, strict=True)):
        return first.response
    return first.shape.rebuild(first.response, items)
