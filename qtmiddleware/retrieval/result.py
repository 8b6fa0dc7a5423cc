"""Build the result of a retrieval: the matches, and a response of the function's own type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, Final

from qtmiddleware.retrieval.call import Call
from qtmiddleware.retrieval.fusion import FusedList, FusedPassage, FusionResult
from qtmiddleware.retrieval.responses import (
    SearchResult,
    read_response,
    replace_score,
)
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Key, Match, Passage, Ranking, Variant

logger: Final = get_logger("qtmiddleware")


@dataclass(eq=False, repr=False, slots=True)
class _Passage(FusedPassage):
    """A passage of the result.

    Attributes:
        shown: The item as the result shows it. Its score may differ from that of *passage*.
        answers_question: Whether the search for the user's question found the passage. If true, the
            score of *passage* was computed for this question.
    """

    shown: Any
    answers_question: bool = True


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Result:
    """What the caller gets: the *response*, and its passages as *matches*."""

    response: Any
    matches: tuple[Match, ...]


def build_result(
    results: Sequence[SearchResult],
    fusion_result: FusionResult,
    ranked_list: FusedList,
    call: Call,
) -> Result:
    """Return a result with the best passages of *ranked_list*.

    The response has the type of the function's own response. It has as many passages as the caller
    asked for, or, if this number is unknown, as the longest list. The response never has fewer
    passages than the unchanged call.
    """
    original_result = results[0]
    settings = call.settings
    shows_fused_scores = settings.scores == "fused"
    if len(results) == 1 and not (
        call.uses_keyword_evidence or call.uses_reranker or shows_fused_scores
    ):
        # Nothing changes the list: return the function's own response, repeated passages included.
        response = original_result.response
        return Result(response, read_matches(original_result.ranking.variant, response, call))
    longest = max(len(result.ranking.keys) for result in results)
    # A page keeps everything that its search returned, even more than was asked for.
    top_k = None if call.page else call.top_k
    passages = _choose_passages(
        ranked_list, fusion_result.original_ranking, longest if top_k is None else top_k, top_k
    )
    if (question_ranking := fusion_result.question_ranking) is not None:
        _show_question_scores(passages, question_ranking)
    if shows_fused_scores:
        for passage in passages:
            passage.shown = replace_score(passage.passage, passage.score)
    response = _rebuild_response(
        _choose_template_result(results), [passage.shown for passage in passages]
    )
    kinds = [ranking.variant.kind for ranking in fusion_result.rankings]
    rerank_scores = dict(zip(ranked_list.keys, ranked_list.rerank_scores, strict=False))
    matches = [
        _build_match(passage, _select_variant_kinds(kinds, passage.sources), rerank_scores)
        for passage in passages
    ]
    return Result(response, tuple(matches))


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
    ranked_list: FusedList, original_ranking: Ranking, passage_count: int, top_k: int | None
) -> list[_Passage]:
    """Return the best passages of *ranked_list*, and add missing passages of *original_ranking*."""
    own_keys, ranked = original_ranking.keys, ranked_list.items
    # Three cases: without a number, all of the question's own passages and the best ones stay;
    # with room for more than the own ones, those and the best others; else only the best.
    all_own_fit = top_k is None or len(own_keys) < top_k
    kept = set(own_keys if all_own_fit else ())
    if top_k is None or not all_own_fit:
        kept.update(passage.key for passage in ranked[:passage_count])
    else:
        others = [passage.key for passage in ranked if passage.key not in kept]
        kept.update(others[: top_k - len(kept)])
    chosen = [passage for passage in ranked if passage.key in kept]
    # The original's list may have taken no part in the fusion. Its passages then have no fused
    # score, just like the repeated ones, which only fill up.
    ranked_keys = set(ranked_list.keys)
    seen: set[Key] = set()
    unranked: list[int] = []
    repeated: list[int] = []
    for place, key in enumerate(own_keys):
        if key in seen:
            repeated.append(place)
        elif key not in ranked_keys:
            unranked.append(place)
        seen.add(key)
    unscored = unranked if all_own_fit else unranked[: max(0, passage_count - len(chosen))]
    plain_count = len(own_keys) if top_k is None else min(top_k, len(own_keys))
    unscored += repeated[: max(0, plain_count - len(chosen) - len(unscored))]
    lowest = min((passage.score for passage in chosen), default=0.0)
    chosen += [
        FusedPassage(own_keys[place], original_ranking.passages[place], lowest, 0)
        for place in unscored
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


def _select_variant_kinds(variant_kinds: Sequence[str], source_bits: int) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(kind for bit, kind in enumerate(variant_kinds) if source_bits >> bit & 1)
    ) or ("original",)


def _choose_template_result(results: Sequence[SearchResult]) -> SearchResult:
    first = results[0]
    if first.response is None or (type(first.response) in (list, tuple) and not first.response):
        return next((result for result in results if result.ranking.keys), first)
    return first


def _rebuild_response(template: SearchResult, items: Sequence[Any]) -> Any:
    template_items = [passage.item for passage in template.ranking.passages]
    if len(items) == len(template_items) and all(map(is_, items, template_items)):
        return template.response
    return template.shape.rebuild(template.response, items)
