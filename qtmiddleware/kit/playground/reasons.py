"""Why a passage moved, in one short sentence and the words that moved it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qtmiddleware.catalogue import GLOSSARY, JOINED, TEXT_CLAUSE
from qtmiddleware.kit.evaluation.movement import Movement, Movements, format_place, label_searches
from qtmiddleware.kit.playground.drawing import Segment, mark_words
from qtmiddleware.retrieval.question_words import find_stem, load_word_rules
from qtmiddleware.types import Retrieval

MOST_WORDS: Final = 4
"""Words that stand beside a reason."""


def explain_move(moved: Movement, found: Retrieval, *, has_words: bool) -> str:
    """Return what moved a passage, as a sentence; empty for one that keeps its place.

    *has_words* says that there are words to name; words that raised it and say nothing are function
    words.
    """
    if moved.place is None:
        last = moved.reranked_place or moved.weighed_place or moved.fused_place
        fell = (
            "No search of this tier finds it" if last is None else f"Falls to {format_place(last)}"
        )
        return f"{fell}, so it is not among the {len(found.matches)} shown."
    if moved.before == moved.place:
        return ""
    if moved.before is not None and moved.place > moved.before:
        return _explain_fall(moved, found)
    if moved.rerank_score is not None and _is_up(
        moved.weighed_place or moved.fused_place, moved.reranked_place
    ):
        return f"The reranker puts it {format_place(moved.reranked_place or 0)}."
    others = [hit for hit in moved.hits if hit.kind != "original"]
    if others and (_find_start(moved) is None or _is_up(_find_start(moved), moved.fused_place)):
        best = min(others, key=lambda hit: hit.place)
        more = "" if len(others) == 1 else f", and found by {len(others) - 1} more"
        return (
            f"{format_place(best.place)} in the search with"
            f" {_name_search(best.search, found)}{more}."
        )
    if is_raised_by_words(moved, found):
        return (
            "It holds more of"
            f" {_name_words(found)}{'' if has_words else ', none of which says much'}."
        )
    return "Passages above it fell."


def is_raised_by_words(moved: Movement, found: Retrieval) -> bool:
    """Whether a passage stands higher than in the plain list, and words are what raised it from the merged one."""
    if (
        found.evidence is None
        or not found.evidence.weight
        or not moved.evidence
        or moved.evidence <= 0.0
    ):
        return False
    is_higher = moved.place is not None and (moved.before is None or moved.place < moved.before)
    return is_higher and _is_up(moved.fused_place, moved.weighed_place)


def list_words(
    moved: Movement, moves: Movements, own: str, models: str, language: str = ""
) -> list[Segment]:
    """Return the rarest few of the words in a passage, each in one form and with whose word it is.

    A word of every passage tells none apart, so it is left out if there are others.
    """
    endings = load_word_rules(language).endings
    texts = [(passage.match.text or "").casefold() for passage in (*moves.passages, *moves.dropped)]
    words: dict[str, Segment] = {}
    for piece, whose in mark_words(moved.match.text or "", own, models, language):
        if whose:
            words.setdefault(find_stem(piece.casefold(), endings), (piece, whose))
    counts = {key: sum(key in text for text in texts) for key in words}
    telling = [key for key in words if counts[key] < len(texts)] or list(words)
    chosen = sorted(telling, key=lambda key: (words[key][1] != "question", counts[key]))[
        :MOST_WORDS
    ]
    return [words[key] for key in chosen]


def _explain_fall(moved: Movement, found: Retrieval) -> str:
    passing = "Other passages pass it"
    if moved.passed_by:
        count = len(moved.passed_by)
        places = " and ".join(map(format_place, moved.passed_by))
        which = (
            f"{count} passages"
            if count > 2
            else f"the {'passages' if count == 2 else 'passage'} now {places}"
        )
        passing = f"Passed by {which}"
    return f"{passing}{''.join(_find_causes(moved, found))}."


def _find_causes(moved: Movement, found: Retrieval) -> Iterator[str]:
    verb = "hold" if len(moved.passed_by) != 1 else "holds"
    start = _find_start(moved)
    if _is_up(moved.reranked_place, moved.weighed_place or moved.fused_place):
        yield ", by the reranker"
    elif (
        found.evidence is not None
        and found.evidence.weight
        and _is_up(moved.weighed_place, moved.fused_place)
    ):
        yield f", which {verb} more of {_name_words(found)}"
    elif _is_up(moved.fused_place, start):
        yield ", which the model’s search raises"


def _name_search(number: int, found: Retrieval) -> str:
    variant = found.rankings[number].variant
    if variant.kind in (JOINED, TEXT_CLAUSE):
        return "the model’s text" if variant.kind == JOINED else "the question’s words"
    if variant.kind == GLOSSARY:
        return "the glossary’s form of the question"
    labels = label_searches(ranking.variant for ranking in found.rankings)
    return f"the model’s {labels[number].removeprefix('the ')}"


def _name_words(found: Retrieval) -> str:
    is_models = found.evidence is not None and len(found.evidence.keywords) > 1
    return "the question’s and the model’s words" if is_models else "the question’s words"


def _find_start(moved: Movement) -> int | None:
    """Return its place in the question's own search."""
    return next((hit.place for hit in moved.hits if hit.kind == "original"), moved.before)


def _is_up(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after < before
