"""Merge the lists that were found, let a reranker rank them, and build the result."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import is_
from typing import Any, Final

from qtmiddleware.errors import ModelError, QtMiddlewareError, is_raised_by_package
from qtmiddleware.retrieval.call import Call
from qtmiddleware.retrieval.fusion import (
    FusedList,
    FusedPassage,
    FuseError,
    FusionResult,
    find_score_direction,
    fuse_by_function,
    fuse_rankings,
    has_usable_scores,
    make_chunk_keys_unique,
    select_rankings,
)
from qtmiddleware.retrieval.question_words import LEADING
from qtmiddleware.retrieval.responses import (
    SearchResult,
    convert_to_float,
    describe_missing_text,
    has_text,
    read_response,
    replace_score,
)
from qtmiddleware.retrieval.signals import measure_confidence_signals, measure_leading_coverage
from qtmiddleware.retrieval.state import State
from qtmiddleware.runtime.concurrency import Outcome
from qtmiddleware.runtime.logs import format_error, get_logger
from qtmiddleware.runtime.services import Services
from qtmiddleware.types import (
    Degradation,
    Evidence,
    Key,
    Match,
    Passage,
    Ranking,
    Standing,
    Variant,
)

logger: Final = get_logger("qtmiddleware")


def fuse_lists(
    state: State, own_result: SearchResult, other_results: Sequence[SearchResult]
) -> FusionResult:
    """Fuse the rankings of all results; only the question's own if the user's function fails."""
    began, options = state.trace.measure_elapsed(), state.settings.fusion
    selected_rankings = select_rankings(
        own_result.ranking, [result.ranking for result in other_results], options
    )
    own_ranking, *rankings = make_chunk_keys_unique([own_result.ranking, *selected_rankings])
    direction = find_score_direction(rankings)
    # Remembered for lists whose order does not show the direction, such as a single passage.
    if direction and has_usable_scores(rankings):
        state.learned.lower_is_better = direction > 0
    fuse, lower_is_better = state.call.engine.fuse, state.learned.lower_is_better
    if fuse is None:
        fused = fuse_rankings(
            rankings, options.method, rrf_k=options.rrf_k, lower_is_better=lower_is_better
        )
    else:
        try:
            fused = fuse_by_function(
                rankings, fuse, rrf_k=options.rrf_k, lower_is_better=lower_is_better
            )
        except FuseError as error:
            _record_failed_fusion(state, error)
            # Go on with the question's own list, as if no variant had found anything.
            rankings = [own_ranking]
            fused = fuse_by_function(rankings, fuse, lower_is_better=lower_is_better)
    if fused.method != state.call.fusion_row.name and other_results:
        state.trace.note(
            "fusion",
            f"scores are missing or do not match the order; {fused.method} is used instead",
        )
    state.trace.record_stage("fuse", state.trace.measure_elapsed() - began)
    return FusionResult(fused, tuple(rankings), own_ranking)


def _record_failed_fusion(state: State, error: FuseError) -> None:
    state.degradations.append(Degradation("fusion", "failed", str(error)))
    # The text of the error may quote a passage.
    if logger.isEnabledFor(logging.DEBUG):
        query_id, message = state.trace.query_id, format_error(error.__cause__ or error)
        logger.debug("fuse= failed: %s", message, event="fusion_failed", query_id=query_id)


def measure_confidence(
    state: State,
    fusion: FusionResult,
    evidence: Evidence | None,
    question_keywords: str,
) -> Standing:
    """Return the confidence in the result, by comparison with results of earlier questions."""
    if state.call.page:
        return Standing(None, problem="the scores of a page tell nothing about the question")
    ranking = fusion.question_ranking or fusion.own_ranking
    coverage = None if evidence is None else evidence.coverage
    if coverage is None and state.call.uses_keywords:
        texts = [passage.text for passage in ranking.passages[:LEADING]]
        coverage = measure_leading_coverage(question_keywords, texts, state.query.language)
    signals = measure_confidence_signals(
        ranking.scores, coverage, lower_is_better=state.learned.lower_is_better
    )
    return state.learned.standings.measure_confidence(
        signals, passage_count=len(ranking.keys), scores=ranking.scores
    )


def record_text_presence(state: State, fusion: FusionResult, ranked: FusedList) -> None:
    """Remember whether the function's passages contain texts, which keywords and rerankers need."""
    if state.learned.holds_text or not (state.call.uses_keywords or state.call.uses_reranker):
        return
    passages = [fused.passage for fused in fusion.fused.items]
    if ranked is not fusion.fused or any(map(has_text, passages)):
        state.learned.holds_text = True
    # One passage without a text proves little about the others.
    elif len(passages) > 1:
        state.learned.holds_text = False
        text_field = state.settings.keyword_evidence.fields.get("text")
        problem, advice = describe_missing_text(passages, text_field)
        state.learned.record_problem(f"{problem}, so keywords cannot rerank them; {advice}")


async def rerank_candidates(fused: FusedList, state: State, services: Services) -> FusedList:
    """Return *fused* with its first candidates reranked.

    - No candidate is removed. A candidate without text keeps its position and has the score
      ``None``.
    - If the reranker fails or is late, *fused* is returned unchanged.
    """
    candidates = fused.items[: state.settings.rerank.rerank_top_k]
    texts = [candidate.passage.text for candidate in candidates]
    places = [place for place, text in enumerate(texts) if text]
    if len(places) < 2:
        if len(candidates) > 1:
            state.trace.note("rerank", "no candidate has a text; order kept")
        return fused
    candidate_texts = [texts[place] or "" for place in places]
    call = state.call
    work = partial(services.rerank, call.engine.reranker, call.original, candidate_texts)
    (outcome,) = await services.gather([work], state.deadline)
    scores = _read_rerank_scores(outcome, len(places), state)
    if scores is None:
        return fused
    items = list(fused.items)
    rerank_scores: list[float | None] = [None] * len(candidates)
    # Only candidates with a text trade places. The others stay where they are.
    best_first = sorted(zip(scores, places, strict=True), key=lambda pair: -pair[0])
    for place, (score, best_place) in zip(places, best_first, strict=True):
        items[place] = fused.items[best_place]
        rerank_scores[place] = score
    return replace(fused, items=items, rerank_scores=rerank_scores)


def _read_rerank_scores(outcome: Outcome[Any], count: int, state: State) -> list[float] | None:
    """Return the reranker's scores: a list, tuple or array of *count* finite numbers."""
    if outcome.has_succeeded:
        value: Any = outcome.value
        scores = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(scores, list | tuple) and len(scores) == count:
            numbers = [number for number in map(convert_to_float, scores) if number is not None]
            if len(numbers) == count:
                state.trace.record_stage("rerank", outcome.seconds, began=outcome.began)
                return numbers
        detail = f"the reranker must return one finite number for each of {count} passages"
        outcome.error = ModelError("unparsable", detail)
        state.trace.note("rerank", detail)
    elif isinstance(outcome.error, QtMiddlewareError) and is_raised_by_package(outcome.error):
        # The package's own errors say how to fix the problem, such as which package to install.
        detail = str(outcome.error)
        state.trace.note("rerank", detail)
    else:
        detail = outcome.detail
    state.record_failed_stage("rerank", outcome, detail)
    return None


# --- the result -----------------------------------------------------------------------------------


@dataclass(eq=False, repr=False, slots=True)
class _Passage(FusedPassage):
    """A passage of the result.

    *shown* is the item as the result shows it, perhaps with another score. If *answers_question*,
    the score of *passage* was computed for the user's question.
    """

    shown: Any
    answers_question: bool = True


def build_result(
    results: Sequence[SearchResult],
    fusion: FusionResult,
    ranked: FusedList,
    call: Call,
) -> tuple[Any, tuple[Match, ...]]:
    """Return a response with the best passages of *ranked*, and these as matches.

    The response has the type of the function's own response. It has as many passages as the caller
    asked for, or, if this number is unknown, as the longest list. The response never has fewer
    passages than the unchanged call.
    """
    own_result = results[0]
    settings = call.settings
    shows_fused_scores = settings.scores == "fused"
    if len(results) == 1 and not (call.uses_keywords or call.uses_reranker or shows_fused_scores):
        # Nothing changes the list: return the function's own response, repeated passages included.
        response = own_result.response
        return response, read_matches(own_result.ranking.variant, response, call)
    # A page keeps everything that its search returned, even more than was asked for.
    top_k = None if call.page else call.top_k
    longest = max(len(result.ranking.keys) for result in results)
    passages = _choose_passages(ranked, fusion.own_ranking, top_k, longest)
    if (question_ranking := fusion.question_ranking) is not None:
        _show_question_scores(passages, question_ranking)
    if shows_fused_scores:
        for passage in passages:
            passage.shown = replace_score(passage.passage, passage.score)
    response = _rebuild_response(results, [passage.shown for passage in passages])
    kinds = [ranking.variant.kind for ranking in fusion.rankings]
    rerank_scores = dict(zip(ranked.keys, ranked.rerank_scores, strict=False))
    matches: list[Match] = []
    for passage in passages:
        found_by = dict.fromkeys(
            kind for bit, kind in enumerate(kinds) if passage.sources >> bit & 1
        )
        matches.append(_build_match(passage, tuple(found_by) or ("original",), rerank_scores))
    return response, tuple(matches)


def read_matches(variant: Variant, response: Any, call: Call) -> tuple[Match, ...]:
    """Return the passages in *response* as matches, in their order; none if it cannot be read."""
    try:
        options = call.settings.keyword_evidence
        result = read_response(variant, response, call.shape, options=options)
        passages = [
            _Passage(passage.key, passage, 1.0 / rank, 1, passage.item)
            for rank, passage in enumerate(result.ranking.passages, start=1)
        ]
        return tuple(_build_match(passage, (variant.kind,), {}) for passage in passages)
    except Exception as error:
        error_type = type(error).__name__
        logger.debug(
            "the response could not be read: %s",
            error_type,
            event="response_unreadable",
            error=error_type,
        )
        return ()


def _choose_passages(
    ranked: FusedList, own_ranking: Ranking, top_k: int | None, longest: int
) -> list[_Passage]:
    """Return *top_k* passages, or fewer if there are not so many.

    If the question's own search found fewer, all of its passages stay, and the best of the others
    are added. Otherwise, the best passages of *ranked* are returned. If *top_k* is unknown, all own
    passages and the *longest* best ones are returned.
    """
    own_keys = own_ranking.keys
    if top_k is None:
        kept = {*own_keys, *ranked.keys[:longest]}
        top_k = max(len(kept), len(own_keys))
    else:
        kept = set(own_keys if len(own_keys) < top_k else ())
        others = [key for key in ranked.keys if key not in kept]
        kept.update(others[: top_k - len(kept)])
    chosen = [passage for passage in ranked.items if passage.key in kept]
    # The question's own list may have taken no part in the fusion. Its passages then have no fused
    # score, just like repeated passages, which are added only if there are too few others.
    unscored, repeated = [], []
    fused_keys, seen = set(ranked.keys), set[Key]()
    for place, key in enumerate(own_keys):
        if key in seen:
            repeated.append(place)
        elif key not in fused_keys:
            unscored.append(place)
        seen.add(key)
    del unscored[top_k - len(chosen) :]
    missing = min(top_k, len(own_keys)) - len(chosen) - len(unscored)
    unscored += repeated[: max(0, missing)]
    lowest = min((passage.score for passage in chosen), default=0.0)
    chosen += [
        FusedPassage(own_keys[place], own_ranking.passages[place], lowest, 0) for place in unscored
    ]
    scores = make_scores_strictly_decreasing([passage.score for passage in chosen])
    return [
        _Passage(passage.key, passage.passage, score, passage.sources, passage.passage.item)
        for passage, score in zip(chosen, scores, strict=True)
    ]


def make_scores_strictly_decreasing(scores: Sequence[float]) -> list[float]:
    """Sort *scores*, highest first, and lower equal ones by about a millionth."""
    falling: list[float] = []
    for score in sorted(scores, reverse=True):
        below = falling[-1] - max(1e-6 * abs(falling[-1]), 1e-9) if falling else score
        falling.append(min(score, below))
    return falling


def _show_question_scores(passages: Sequence[_Passage], question_ranking: Ranking) -> None:
    """Change *passages* in place to show the scores that were computed for the user's question."""
    scores = [score for score in question_ranking.scores if score is not None]
    lowest = None
    if scores and len(scores) == len(question_ranking.scores):
        lowest = min(scores) if scores[0] >= scores[-1] else max(scores)
    own_passages: dict[Key, Passage] = {}
    for key, own_passage in zip(question_ranking.keys, question_ranking.passages, strict=True):
        own_passages.setdefault(key, own_passage)
    shown: set[Key] = set()
    for passage in passages:
        passage.answers_question = passage.key in own_passages
        # If a passage occurs twice, the second object is another one and must not be replaced.
        if passage.answers_question and passage.key not in shown:
            shown.add(passage.key)
            passage.passage = own_passages[passage.key]
            passage.shown = passage.passage.item
        elif not passage.answers_question and lowest is not None:
            passage.shown = replace_score(passage.passage, lowest)


def _build_match(
    passage: _Passage,
    variant_kinds: tuple[str, ...],
    rerank_scores: Mapping[Key, float | None],
) -> Match:
    """Return *passage* as a match. Its score is ``None`` if only variants found the passage."""
    found = passage.passage
    return Match(
        id=found.id,
        namespace=passage.key[0],
        score=found.score if passage.answers_question else None,
        fused_score=passage.score,
        text=found.text,
        metadata=found.metadata,
        found_by=variant_kinds,
        rerank_score=rerank_scores.get(passage.key),
        raw=found.item,
        key=passage.key,
    )


def _rebuild_response(results: Sequence[SearchResult], items: Sequence[Any]) -> Any:
    """Return a response of the function's own type with *items* as its passages."""
    template, response = results[0], results[0].response
    # An empty list does not show what a passage looks like.
    if response is None or (type(response) in (list, tuple) and not response):
        template = next((result for result in results if result.ranking.keys), template)
    template_items = [passage.item for passage in template.ranking.passages]
    if len(items) == len(template_items) and all(map(is_, items, template_items)):
        return template.response
    return template.shape.rebuild(template.response, items)
