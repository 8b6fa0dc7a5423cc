"""Explain in a sentence why a passage moved, and list the keywords that moved the passage up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qtmiddleware.catalogue import JOINED, TEXT_CLAUSE
from qtmiddleware.kit.evaluation.movement import (
    Movement,
    Movements,
    build_search_labels,
    format_ordinal,
)
from qtmiddleware.kit.playground.drawing import Segment, mark_words
from qtmiddleware.retrieval.question_words import find_stem, load_word_rules
from qtmiddleware.types import Retrieval

MOST_WORDS: Final = 4
"""The maximum number of keywords shown after the reason for a movement."""


def explain_rank_change(movement: Movement, retrieval: Retrieval, *, has_keyword_list: bool) -> str:
    """Return one sentence on why a passage moved; empty if the passage keeps its rank.

    Args:
        movement: How the ranks of the passage changed.
        retrieval: The result that contains the passage, or from which the passage dropped out.
        has_keyword_list: Whether the page lists the keywords that moved the passage up. If
            false, the sentence says that none of the keywords is distinctive.
    """
    if movement.place is None:
        last = movement.reranked_place or movement.weighed_place or movement.fused_place
        fall = (
            "No search of this tier finds it"
            if last is None
            else f"Falls to {format_ordinal(last)}"
        )
        return f"{fall}, so it is not among the {len(retrieval.matches)} shown."
    if movement.before == movement.place:
        return ""
    if movement.before is not None and movement.place > movement.before:
        return _explain_fall(movement, retrieval)
    if movement.rerank_score is not None and _has_moved_up(
        movement.weighed_place or movement.fused_place, movement.reranked_place
    ):
        return f"The reranker puts it {format_ordinal(movement.reranked_place or 0)}."
    # A variant's search explains the rise only if merging the lists put the passage above its rank
    # in the question's list.
    variant_hits = [hit for hit in movement.hits if hit.kind != "original"]
    if variant_hits and (
        _find_question_rank(movement) is None
        or _has_moved_up(_find_question_rank(movement), movement.fused_place)
    ):
        best = min(variant_hits, key=lambda hit: hit.place)
        remark = "" if len(variant_hits) == 1 else f", and found by {len(variant_hits) - 1} more"
        return (
            f"{format_ordinal(best.place)} in the search with"
            f" {_describe_search_text(best.search, retrieval)}{remark}."
        )
    if is_raised_by_keywords(movement, retrieval):
        return (
            "It holds more of"
            f" {_describe_keywords(retrieval)}"
            f"{'' if has_keyword_list else ', none of which says much'}."
        )
    return "Passages above it fell."


def is_raised_by_keywords(movement: Movement, retrieval: Retrieval) -> bool:
    """Return whether keyword evidence moved a passage above its rank in the plain search."""
    if (
        retrieval.evidence is None
        or not retrieval.evidence.weight
        or not movement.evidence
        or movement.evidence <= 0.0
    ):
        return False
    is_higher = movement.place is not None and (
        movement.before is None or movement.place < movement.before
    )
    return is_higher and _has_moved_up(movement.fused_place, movement.weighed_place)


def list_rarest_keywords(
    movement: Movement,
    movements: Movements,
    question_words: str,
    model_words: str,
    language: str = "",
) -> list[Segment]:
    """Return the rarest keywords in a passage, each with its owner: the question or the model.

    - The question's keywords come before the model's, and each group begins with the rarest.
    - The list contains at most `MOST_WORDS` keywords.
    - The list contains only the first of several forms of a word.
    - The list omits keywords that occur in every passage, unless all keywords do.

    Args:
        movement: The movement of the passage to explain.
        movements: The movements of all passages.
        question_words: The question's keywords, separated by spaces.
        model_words: The model's keywords, separated by spaces.
        language: The language whose word forms are recognised; none by default.
    """
    endings = load_word_rules(language).endings
    texts = [
        (passage.match.text or "").casefold()
        for passage in (*movements.passages, *movements.dropped)
    ]
    words: dict[str, Segment] = {}
    for piece, owner in mark_words(
        movement.match.text or "", question_words, model_words, language
    ):
        if owner:
            words.setdefault(find_stem(piece.casefold(), endings), (piece, owner))
    # A keyword that all passages contain does not explain why one of them moved.
    counts = {key: sum(key in text for text in texts) for key in words}
    distinctive = [key for key in words if counts[key] < len(texts)] or list(words)
    rarest = sorted(distinctive, key=lambda key: (words[key][1] != "question", counts[key]))[
        :MOST_WORDS
    ]
    return [words[key] for key in rarest]


def _explain_fall(movement: Movement, retrieval: Retrieval) -> str:
    """Return one sentence on why a passage moved down: how other passages overtook the passage."""
    passing = "Other passages pass it"
    if movement.passed_by:
        count = len(movement.passed_by)
        places = " and ".join(map(format_ordinal, movement.passed_by))
        passers = (
            f"{count} passages"
            if count > 2
            else f"the {'passages' if count == 2 else 'passage'} now {places}"
        )
        passing = f"Passed by {passers}"
    return f"{passing}{''.join(_explain_overtaking(movement, retrieval))}."


def _explain_overtaking(movement: Movement, retrieval: Retrieval) -> Iterator[str]:
    """Yield one clause on how other passages overtook a passage, such as ", by the reranker".

    Yields nothing if the cause is not known.
    """
    verb = "hold" if len(movement.passed_by) != 1 else "holds"
    original_place = _find_question_rank(movement)
    if _has_moved_up(movement.reranked_place, movement.weighed_place or movement.fused_place):
        yield ", by the reranker"
    elif (
        retrieval.evidence is not None
        and retrieval.evidence.weight
        and _has_moved_up(movement.weighed_place, movement.fused_place)
    ):
        yield f", which {verb} more of {_describe_keywords(retrieval)}"
    elif _has_moved_up(movement.fused_place, original_place):
        yield ", which the model’s search raises"


def _describe_search_text(search_index: int, retrieval: Retrieval) -> str:
    """Return a phrase for the searched text, such as "the model’s rewrite"."""
    variant = retrieval.rankings[search_index].variant
    if variant.kind in (JOINED, TEXT_CLAUSE):
        return "the model’s text" if variant.kind == JOINED else "the question’s words"
    labels = build_search_labels(ranking.variant for ranking in retrieval.rankings)
    return f"the model’s {labels[search_index].removeprefix('the ')}"


def _describe_keywords(retrieval: Retrieval) -> str:
    """Return a phrase for the keywords of the question and, if they counted, of the model."""
    is_models = retrieval.evidence is not None and len(retrieval.evidence.keywords) > 1
    return "the question’s and the model’s words" if is_models else "the question’s words"


def _find_question_rank(movement: Movement) -> int | None:
    """Return the passage's rank in the tier's search for the question.

    If the tier's search did not find the passage, returns the rank in the plain search.
    """
    return next((hit.place for hit in movement.hits if hit.kind == "original"), movement.before)


def _has_moved_up(old_rank: int | None, new_rank: int | None) -> bool:
    """Return whether *new_rank* is better than *old_rank*; ``False`` if a rank is ``None``."""
    return old_rank is not None and new_rank is not None and new_rank < old_rank
