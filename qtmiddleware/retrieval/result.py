"""Build the result: a response of the function's own type, and its passages as matches."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, Final

from qtmiddleware.retrieval.call import Call
from qtmiddleware.retrieval.fusion import (
    FusedList,
    FusedPassage,
    FusionResult,
    make_scores_strictly_decreasing,
)
from qtmiddleware.retrieval.responses import (
    SearchResult,
    read_response,
    replace_score,
)
from qtmiddleware.runtime.concurrency import Outcome
from qtmiddleware.runtime.logs import format_error, get_logger
from qtmiddleware.types import (
    Degradation,
    Key,
    Match,
    Passage,
    Ranking,
    Retrieval,
    Variant,
    add_degradation,
)

logger: Final = get_logger("qtmiddleware")


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


def record_failed_hook(
    call: Call,
    retrieval: Retrieval,
    outcome: Outcome[None],
) -> Retrieval:
    """Return *retrieval* with the failure of a hook, the *outcome*, which is logged."""
    problem = Degradation("hook", outcome.reason, outcome.detail)
    retrieval = add_degradation(retrieval, problem)
    call.log_degradations(logger, "retrieval", retrieval.trace, [problem])
    # The text of the hook's error may quote the question.
    if outcome.error is not None and logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "on_retrieval failed: %s",
            format_error(outcome.error),
            event="hook_failed",
            query_id=retrieval.trace.query_id,
            error=outcome.detail,
        )
    return retrieval


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
    if response is None or (type(response) in (list, tuple, dict) and not response):
        template = next((result for result in results if result.ranking.keys), template)
    template_items = [passage.item for passage in template.ranking.passages]
    if len(items) == len(template_items) and all(map(is_, items, template_items)):
        return template.response
    return template.shape.rebuild(template.response, items)
