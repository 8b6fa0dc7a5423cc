"""The result of a retrieval: as matches, and in the wrapped function's own shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, Final

from qtmiddleware.config.settings import KeywordEvidenceSettings
from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.retrieval.fusion import FusedList, FusedPassage, FusionResult
from qtmiddleware.retrieval.request import Request
from qtmiddleware.retrieval.responses import (
    SearchResult,
    Shape,
    find_shape,
    get_raw,
    read_id,
    read_metadata,
    read_response,
    read_score,
    read_text,
    remove_field,
    rescore,
)
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Key, Match, Ranking, Retrieval, Variant

logger: Final = get_logger("qtmiddleware")


@dataclass(eq=False, repr=False, slots=True)
class _Passage(FusedPassage):
    """A passage of the result: the item as a search gave it and as it is *shown*."""

    shown: Any
    answers_question: bool = True


def build_result(
    results: Sequence[SearchResult],
    fusion: FusionResult,
    candidates: FusedList,
    rerank_scores: Sequence[float | None],
    request: Request,
) -> tuple[Any, tuple[Match, ...]]:
    """Returns the best of *candidates* in the shape of the first of *results*, the original's, and as matches.

    As many as the caller asked for or, where that is not known, as the longest list holds; the
    ``concat`` fusion keeps everything. Never fewer than the plain call gives, and all it gives
    where that is less than was asked for.
    *rerank_scores* are those of the leading candidates.
    """
    first, settings = results[0], request.settings
    shows_fused_scores = settings.scores == "fused"
    if len(results) == 1 and not (
        request.uses_keyword_evidence or request.uses_reranker or shows_fused_scores
    ):
        # Nothing of ours changes anything: what the function gave, passages it found twice and all.
        matches = (
            ()
            if request.response_only
            else read_matches(first.ranking.variant, first.response, request)
        )
        return first.response, matches
    longest = max(len(result.ranking.keys) for result in results)
    # A page has all that its search gives, also what is more than was asked for.
    top_k = None if request.page else request.top_k
    passages = _choose(
        candidates, fusion.original_ranking, longest if top_k is None else top_k, top_k
    )
    if fusion.question_ranking is not None:
        _show_question_scores(
            passages, fusion.question_ranking, settings.keyword_evidence.score_field
        )
    if shows_fused_scores:
        falling = make_strictly_falling([passage.score for passage in passages])
        for passage, score in zip(passages, falling, strict=True):
            passage.shown = rescore(passage.item, score, settings.keyword_evidence.score_field)
    response = _rebuild(_find_model(results), [passage.shown for passage in passages])
    if request.response_only:
        return response, ()
    kinds = [ranking.variant.kind for ranking in fusion.rankings]
    reranked = dict(zip(candidates.keys, rerank_scores, strict=False))
    options = settings.keyword_evidence
    return response, tuple(
        _build_match(passage, _find_kinds(kinds, passage.sources), options, reranked)
        for passage in passages
    )


def read_matches(variant: Variant, response: Any, request: Request) -> tuple[Match, ...]:
    """Returns what *response* holds, in its own order and complete; nothing where it is unreadable. Raises nothing."""
    try:
        options = request.settings.keyword_evidence
        result = read_response(variant, response, request.shape, options=options)
        rows = zip(result.ranking.keys, result.ranking.items, strict=True)
        passages = [
            _Passage(key, item, 1.0 / rank, 1, item)
            for rank, (key, item) in enumerate(rows, start=1)
        ]
        return tuple(_build_match(passage, (variant.kind,), options, {}) for passage in passages)
    except Exception as error:
        kind = type(error).__name__
        logger.debug(
            "the response could not be read: %s", kind, event="response_unreadable", error=kind
        )
        return ()


def hide_field(
    retrieval: Retrieval, field: str, custom: Shape | None, options: KeywordEvidenceSettings
) -> Retrieval:
    """Return *retrieval* whose response lacks the document field *field*, which its caller did not ask for.

    What cannot be rebuilt stays as it is.
    """
    response = retrieval.response
    try:
        shape = custom or find_shape(response, options)
        items = shape.items(response)
        shown = [remove_field(item, field) for item in items]
        if all(a is b for a, b in zip(items, shown, strict=True)):
            return retrieval
        response = shape.rebuild(response, shown)
    except ResponseShapeError:
        return retrieval
    raws = {id(item): new for item, new in zip(items, shown, strict=True)}
    matches = tuple(
        replace(match, raw=raws.get(id(match.raw), match.raw)) for match in retrieval.matches
    )
    return replace(retrieval, response=response, matches=matches)


def _choose(candidates: FusedList, own: Ranking, count: int, top_k: int | None) -> list[_Passage]:
    """The best *count* of *candidates*, and what the plain call, whose list is *own*, gives beside them.

    Where the plain call gives fewer than *top_k*, or that is not known, all of its passages are
    there: behind the best ones, in place of the last of those that variants alone found where there
    would be too many. A passage it gives twice comes twice only where there would be fewer
    otherwise.
    """
    is_merged = candidates.is_merged
    if not is_merged:
        count = len(candidates.items)
    best, behind = list(candidates.items[:count]), candidates.items[count:]
    missing, repeated = _find_missing(own.keys, {it.key for it in best})
    if top_k is not None and len(own.keys) >= top_k:
        missing = missing[: max(0, top_k - len(best))]
    elif top_k is not None and is_merged:
        surplus, own_keys = max(0, len(best) + len(missing) - top_k), set(own.keys)
        replaceable = [it for it in reversed(best) if it.key not in own_keys][:surplus]
        best = [it for it in best if it not in replaceable]
    unscored: list[int] = []
    if missing:
        missing_keys = {own.keys[place] for place in missing}
        best += [it for it in behind if it.key in missing_keys]
        # A list that took no part in the fusion has no scores there, and nor has a passage the
        # second time.
        ranked_keys = set(candidates.keys)
        unscored = [place for place in missing if own.keys[place] not in ranked_keys]
    plain_count = len(own.keys) if top_k is None else min(top_k, len(own.keys))
    unscored += repeated[: max(0, plain_count - len(best) - len(unscored))]
    if unscored:
        lowest = min((it.score for it in best), default=0.0)
        best += [FusedPassage(own.keys[place], own.items[place], lowest, 0) for place in unscored]
    scores = [it.score for it in best]
    if is_merged:
        scores = make_strictly_falling(scores)
    return [
        _Passage(it.key, it.item, score, it.sources, it.item)
        for it, score in zip(best, scores, strict=True)
    ]


def _find_missing(own: Sequence[Key], chosen: set[Key]) -> tuple[list[int], list[int]]:
    """The places in *own* of passages that are not *chosen*, and of those that stand there once more."""
    seen: set[Key] = set()
    missing: list[int] = []
    repeated: list[int] = []
    for place, key in enumerate(own):
        if key in seen:
            repeated.append(place)
        elif key not in chosen:
            missing.append(place)
        seen.add(key)
    return missing, repeated


def make_strictly_falling(scores: Sequence[float]) -> list[float]:
    """Returns *scores* from the greatest down, equal ones a millionth apart, so that each is below the one before.

    A reranker, or passages that follow the candidates, may have put them in another order.
    """
    falling: list[float] = []
    for score in sorted(scores, reverse=True):
        below = falling[-1] - max(1e-6 * abs(falling[-1]), 1e-9) if falling else score
        falling.append(min(score, below))
    return falling


def _show_question_scores(
    passages: Sequence[_Passage], question: Ranking, score_field: str | None
) -> None:
    """Show each passage as the list of the user's *question* holds it.

    A passage that only variants found has no score for the question: it is shown with the lowest of
    the question's own list, since with a better one it would be in it. Where that list has no
    scores, items stay as they are.
    """
    scores = [score for score in question.scores if score is not None]
    lowest = None
    if scores and len(scores) == len(question.scores):
        lowest = min(scores) if scores[0] >= scores[-1] else max(scores)
    places = {key: place for place, key in reversed(list(enumerate(question.keys)))}
    unused = dict(places)
    for passage in passages:
        passage.answers_question = passage.key in places
        # The second time a passage comes it is another object.
        place = unused.pop(passage.key, None)
        if place is not None:
            passage.item = passage.shown = question.items[place]
        elif not passage.answers_question and lowest is not None:
            passage.shown = rescore(passage.item, lowest, score_field)


def _build_match(
    passage: _Passage,
    found_by: tuple[str, ...],
    options: KeywordEvidenceSettings,
    rerank_scores: Mapping[Key, float | None],
) -> Match:
    return Match(
        id=read_id(passage.item, options.id_field),
        namespace=passage.key[0],
        score=read_score(passage.item, options.score_field) if passage.answers_question else None,
        fused_score=passage.score,
        text=read_text(passage.item, options.text_field),
        metadata=read_metadata(passage.item),
        found_by=found_by,
        rerank_score=rerank_scores.get(passage.key),
        raw=get_raw(passage.item),
        key=passage.key,
    )


def _find_kinds(kinds: Sequence[str], sources: int) -> tuple[str, ...]:
    """The kinds of variant that found a passage; the question itself where its list took no part in the fusion."""
    return tuple(dict.fromkeys(kind for bit, kind in enumerate(kinds) if sources >> bit & 1)) or (
        "original",
    )


def _find_model(results: Sequence[SearchResult]) -> SearchResult:
    """The one whose response the result is like: the first, unless ``None`` or an empty list says nothing of it."""
    first = results[0]
    if first.response is None or (type(first.response) in (list, tuple) and not first.response):
        return next((result for result in results if result.ranking.keys), first)
    return first


def _rebuild(model: SearchResult, items: Sequence[Any]) -> Any:
    """The response of *model* with *items* in place of its own; the very object where they are the same ones."""
    own = model.ranking.items
    if len(items) == len(own) and all(map(is_, items, own)):
        return model.response
    return model.shape.rebuild(model.response, list(map(get_raw, items)))
