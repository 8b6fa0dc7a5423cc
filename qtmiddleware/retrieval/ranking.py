"""Merge the lists that were found, let a reranker order the first candidates, and judge them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from qtmiddleware.errors import ModelError, QtMiddlewareError, is_raised_by_package
from qtmiddleware.retrieval.fusion import (
    FusedList,
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
from qtmiddleware.retrieval.responses import SearchResult, convert_to_float
from qtmiddleware.retrieval.signals import measure_confidence_signals, measure_leading_coverage
from qtmiddleware.retrieval.state import State
from qtmiddleware.runtime.concurrency import Outcome
from qtmiddleware.runtime.logs import format_error, get_logger
from qtmiddleware.runtime.services import Services
from qtmiddleware.types import Degradation, Evidence, Standing

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
            state.degradations.append(Degradation("fusion", "failed", str(error)))
            # The text of the error may quote a passage.
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug(
                    "fuse= failed: %s",
                    format_error(error.__cause__ or error),
                    event="fusion_failed",
                    query_id=state.trace.query_id,
                )
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


def measure_confidence(
    state: State,
    fusion: FusionResult,
    evidence: Evidence | None,
    question_keywords: str,
) -> Standing:
    """Return the confidence in the result, by comparison with results of earlier questions."""
    learned = state.learned
    if state.call.page:
        return Standing(None, problem="the scores of a page tell nothing about the question")
    ranking = fusion.question_ranking or fusion.own_ranking
    coverage = None if evidence is None else evidence.coverage
    if coverage is None and state.call.uses_keywords:
        texts = [passage.text for passage in ranking.passages[:LEADING]]
        coverage = measure_leading_coverage(question_keywords, texts, state.query.language)
    signals = measure_confidence_signals(
        ranking.scores, coverage, lower_is_better=learned.lower_is_better
    )
    return learned.standings.measure_confidence(
        signals, passage_count=len(ranking.keys), scores=ranking.scores
    )


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
