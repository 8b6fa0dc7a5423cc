"""Merge the lists that were found, and rank their passages by words, dates and metadata."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from qtmiddleware.retrieval.call import collect_weighted_keywords
from qtmiddleware.retrieval.confidence import (
    LATER_PAGE,
    measure_confidence_signals,
    measure_leading_coverage,
)
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
from qtmiddleware.retrieval.keyword_evidence import rerank_by_keywords
from qtmiddleware.retrieval.metadata_evidence import collect_metadata_evidence
from qtmiddleware.retrieval.plan import Plan
from qtmiddleware.retrieval.question_words import LEADING, load_word_rules
from qtmiddleware.retrieval.responses import SearchResult, describe_missing_text, has_text
from qtmiddleware.retrieval.searching import Found
from qtmiddleware.runtime.logs import format_error, get_logger
from qtmiddleware.types import Degradation, Evidence, Standing

logger: Final = get_logger("qtmiddleware")


def fuse_lists(
    plan: Plan, original_result: SearchResult, other_results: Sequence[SearchResult]
) -> FusionResult:
    """Fuse the rankings of all results; only the question's own if the user's function fails."""
    began, options = plan.trace.measure_elapsed(), plan.settings.fusion
    selected_rankings = select_rankings(
        original_result.ranking, [result.ranking for result in other_results], options
    )
    original_ranking, *rankings = make_chunk_keys_unique(
        [original_result.ranking, *selected_rankings]
    )
    direction, are_scores_usable = find_score_direction(rankings), has_usable_scores(rankings)
    # Remembered for lists whose order does not show the direction, such as a single passage.
    if direction and are_scores_usable:
        plan.learned.lower_is_better = direction > 0
    fuse, lower_is_better = plan.call.engine.fuse, plan.learned.lower_is_better
    if fuse is None:
        fused = fuse_rankings(
            rankings,
            options.method,
            rrf_k=options.rrf_k,
            lower_is_better=lower_is_better,
            are_scores_usable=are_scores_usable,
        )
    else:
        try:
            fused = fuse_by_function(
                rankings, fuse, rrf_k=options.rrf_k, lower_is_better=lower_is_better
            )
        except FuseError as error:
            _record_failed_fusion(plan, error)
            # Go on with the question's own list, as if no variant had found anything.
            rankings = [original_ranking]
            fused = fuse_by_function(rankings, fuse, lower_is_better=lower_is_better)
    if fused.method != plan.call.fusion_row.name and other_results:
        plan.trace.note(
            "fusion",
            f"scores are missing or do not match the order; {fused.method} is used instead",
        )
    plan.trace.record_stage("fuse", plan.trace.measure_elapsed() - began)
    return FusionResult(fused, tuple(rankings), original_ranking)


def _record_failed_fusion(plan: Plan, error: FuseError) -> None:
    plan.degradations.append(Degradation("fusion", "failed", str(error)))
    # The text of the error may quote a passage.
    if logger.isEnabledFor(logging.DEBUG):
        query_id, message = plan.trace.query_id, format_error(error.__cause__ or error)
        logger.debug("fuse= failed: %s", message, event="fusion_failed", query_id=query_id)


def weigh_words(plan: Plan, fusion_result: FusionResult, found: Found) -> FusedList:
    """Return the fused list, reranked by keywords and by the candidates' metadata."""
    began, call, trace = plan.trace.measure_elapsed(), plan.call, plan.trace
    transformation, language = found.transformation, plan.query.language
    times, terms = plan.read_times(transformation), plan.glossary_terms
    if transformation.standalone:
        terms = plan.find_glossary_terms(transformation.standalone)
    ranked = rerank_by_keywords(
        fusion_result.fused,
        collect_weighted_keywords(
            found.question_keywords, transformation, found.evidence_variants, plan.settings
        ),
        plan.settings.keyword_evidence,
        fusion_result.original_ranking.scores,
        trace,
        language=language,
        search_width=call.search_width or call.top_k,
        top_k=call.top_k,
        glossary_terms=terms,
        score_metadata=lambda metadata: collect_metadata_evidence(
            times,
            metadata,
            load_word_rules(language),
            plan.get_today() if times.newest else None,
        ),
        date_words=times.words,
    )
    if times.needs_today and times.periods and (today := plan.get_today()) is not None:
        trace.note("dates", f"{', '.join(map(str, times.periods))}, as today is {today}")
    trace.record_stage("keyword_evidence", trace.measure_elapsed() - began)
    return ranked


def measure_confidence(
    plan: Plan, fusion_result: FusionResult, evidence: Evidence | None, question_keywords: str
) -> Standing:
    """Return the confidence in the result, by comparison with results of earlier questions."""
    if plan.call.page:
        return LATER_PAGE
    ranking = fusion_result.question_ranking or fusion_result.original_ranking
    coverage = None if evidence is None else evidence.coverage
    if coverage is None and plan.call.uses_keyword_evidence:
        texts = [passage.text for passage in ranking.passages[:LEADING]]
        coverage = measure_leading_coverage(question_keywords, texts, plan.query.language)
    signals = measure_confidence_signals(
        ranking.scores, coverage, lower_is_better=plan.learned.lower_is_better
    )
    return plan.learned.standings.measure_confidence(
        signals, passage_count=len(ranking.keys), scores=ranking.scores
    )


def record_text_presence(plan: Plan, fusion_result: FusionResult, ranked_list: FusedList) -> None:
    """Remember whether the function's passages contain texts, which keywords and rerankers need."""
    if plan.learned.holds_text or not (plan.call.uses_keyword_evidence or plan.call.uses_reranker):
        return
    passages = [fused.passage for fused in fusion_result.fused.items]
    if ranked_list is not fusion_result.fused or any(map(has_text, passages)):
        plan.learned.holds_text = True
    # One passage without a text proves little about the others.
    elif len(passages) > 1:
        plan.learned.holds_text = False
        text_field = plan.settings.keyword_evidence.fields.get("text")
        problem, advice = describe_missing_text(passages, text_field)
        plan.learned.record_problem(f"{problem}, so keywords cannot rerank them; {advice}")
