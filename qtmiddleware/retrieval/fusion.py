"""Fuse several rankings into one list.

================  ==================================================================================
``anchored``      The weighted mean of the backend's scores. The lowest score of each list is
                  subtracted, and the list is stretched to the mean spread of all lists. A passage
                  missing from a list gets that list's lowest score. A variant can therefore lift
                  the passages that it found, but never lower the others.
``rrf``           Reciprocal rank fusion: the sum of 1 / (k + rank), with ranks from 1 (Cormack,
                  Clarke and Büttcher, 2009).
``weighted_rrf``  Reciprocal rank fusion with the gain of each list multiplied by its weight.
``max``           A passage keeps its best score.
``concat``        All lists one after the other, unchanged and unmerged.
================  ==================================================================================

Passages with equal keys are the same passage. If a list holds a passage several times, only its
best place counts. If scores are missing, ``anchored`` and ``max`` fall back on ranks
(``weighted_rrf``). Lists are always best first, so their order shows whether lower scores are
better (as with distances).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, repeat
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.catalogue import FUSION_METHODS
from qtmiddleware.config.settings import FusionSettings
from qtmiddleware.retrieval.responses import read_text
from qtmiddleware.types import Evidence, Key, Ranking, Variant

if TYPE_CHECKING:
    from qtmiddleware.plugins import FoundFusion


@dataclass(eq=False, repr=False, slots=True)
class FusedPassage:
    """One passage of a fused list.

    Attributes:
        key: Identifies the passage.
        item: The passage as returned by the first list that holds it; with ``max``, by the list in
            which its score is best.
        score: The fused score. Higher is always better.
        sources: The rankings that found the passage: bit i is set for ranking i.
    """

    key: Key
    item: Any
    score: float
    sources: int


@dataclass(eq=False, repr=False, slots=True)
class FusedList:
    """A list that was merged from several rankings, best first.

    Attributes:
        items: The passages.
        method: The method that was really used, which may be a fallback.
        spread: How far apart the backend's scores usually lie; ``None`` if the scores of this list
            are not the backend's.
        gains: For each ranking, the amount that each of its places added to a passage's score.
            Empty if the method does not add.
        evidence: The changes that keywords made later; ``None`` if there are none.
    """

    items: Sequence[FusedPassage]
    method: str
    spread: float | None = None
    gains: Sequence[Sequence[float]] = ()
    evidence: Evidence | None = None

    @property
    def keys(self) -> list[Key]:
        """The keys of the passages, in order."""
        return [passage.key for passage in self.items]

    @property
    def scores(self) -> list[float]:
        """The scores of the passages, in order; higher is better."""
        return [passage.score for passage in self.items]

    @property
    def is_merged(self) -> bool:
        """Whether each passage occurs once. With ``concat`` a passage may occur several times."""
        row = FUSION_METHODS.get(self.method)
        # A method of an installed package is not in the catalogue, and always merges.
        return row is None or row.merges


@dataclass(eq=False, repr=False, slots=True)
class FusionResult:
    """A fused list and the rankings that it was made from.

    Attributes:
        fused: The list after the fusion, before any evidence.
        rankings: The rankings that took part in the fusion.
        original_ranking: The ranking for the query as the user asked it, even if it took no part.
    """

    fused: FusedList
    rankings: tuple[Ranking, ...]
    original_ranking: Ranking

    @property
    def offsets(self) -> tuple[int, ...]:
        """The place in the fused list where each ranking begins; empty for merged rankings."""
        if self.fused.is_merged:
            return ()
        return tuple(accumulate((len(ranking.keys) for ranking in self.rankings[:-1]), initial=0))

    @property
    def question_ranking(self) -> Ranking | None:
        """The ranking whose scores were computed for the user's question.

        In a conversation this is the ranking of the standalone form, unless that ranking is empty.
        ``None`` if the question takes no part in the fusion, or if the lists are not merged.
        """
        if not self.fused.is_merged:
            return None
        by_kind = {
            ranking.variant.kind: ranking
            for ranking in self.rankings
            if ranking.variant.kind in ("original", "standalone")
        }
        standalone = by_kind.get("standalone")
        return standalone if standalone is not None and standalone.keys else by_kind.get("original")


# --- the lists that take part ---------------------------------------------------------------------


def select_rankings(
    original: Ranking, others: Sequence[Ranking], options: FusionSettings
) -> list[Ranking]:
    """Return the rankings that take part in the fusion, with their final weights, original first.

    - Variants of weight 0 are left out.
    - The original is left out if its weight is 0 or the settings exclude it. It stays if no variant
      found anything.
    """
    weight = options.weights.original
    if "standalone" in [ranking.variant.kind for ranking in others if ranking.keys]:
        weight = options.weights.original_in_conversation
    weighted = [ranking for ranking in others if ranking.variant.weight > 0]
    if (weight <= 0 or not options.include_original) and any(ranking.keys for ranking in weighted):
        return weighted
    variant = Variant(original.variant.kind, original.variant.text, weight or 1.0)
    return [
        Ranking(variant, original.keys, original.scores, original.items, original.initial),
        *weighted,
    ]


def separate_chunks(rankings: Sequence[Ranking], text_field: str | None) -> list[Ranking]:
    """Return *rankings* with a separate key for each chunk of a document.

    If passages with the same id have different texts, the text becomes part of their keys.
    """
    texts: dict[Key, set[str | None]] = {}
    for ranking in rankings:
        if len(set(ranking.keys)) == len(ranking.keys):
            continue
        repeated = {key for key, count in Counter(ranking.keys).items() if count > 1}
        for key, item in zip(ranking.keys, ranking.items, strict=True):
            if key in repeated:
                texts.setdefault(key, set()).add(read_text(item, text_field))
    shared = {key for key, id_texts in texts.items() if len(id_texts) > 1}
    if not shared:
        return list(rankings)

    def add_text_to_key(key: Key, item: Any) -> Key:
        return (key[0], f"{key[1]}\0{read_text(item, text_field) or ''}") if key in shared else key

    return [
        replace(ranking, keys=list(map(add_text_to_key, ranking.keys, ranking.items)))
        for ranking in rankings
    ]


# --- reading scores -------------------------------------------------------------------------------

WHOLE_TO_TAIL: Final = 2.65
"""How many times as wide as its lower 70 % a list of scores usually is."""
MOST_SPREADS: Final = 4.0
"""A list of scores is at most this many spreads wide."""


def find_direction(rankings: Sequence[Ranking]) -> int:
    """Return 1 if lower scores are better in these rankings, -1 if higher scores are better.

    The rankings are best first, so their scores show the direction. Returns 0 if it is unclear.
    """
    up = down = 0
    for ranking in rankings:
        scores = ranking.scores
        if len(scores) > 1 and scores[0] is not None and scores[-1] is not None:
            up += scores[0] < scores[-1]
            down += scores[0] > scores[-1]
    return (up > down) - (down > up)


def has_scores(rankings: Iterable[Ranking]) -> bool:
    """Return whether the scores of every ranking are complete and sorted.

    A function may rerank and still return the scores of its first search. Using those scores would
    undo its order.
    """
    return all(map(_are_scores_usable, [ranking.scores for ranking in rankings]))


def _are_scores_usable(scores: Sequence[float | None]) -> bool:
    """Return whether no score is missing and *scores* are in ascending or descending order."""
    if None in scores:
        return False
    falls = not scores or scores[0] >= scores[-1]  # type: ignore[operator]
    return list(scores) == sorted(scores, reverse=falls)  # type: ignore[type-var]


def measure_spread(scores: Sequence[float]) -> float:
    """Return how far apart the *scores* of one list, best first, usually lie; 0 if all are equal.

    spread = max(`WHOLE_TO_TAIL` x width of the lower 70 %, whole width / `MOST_SPREADS`). With
    fewer than five scores it is the whole width. The best passages are not measured: a clear winner
    is then more spreads ahead than the first of many similar passages.
    """
    last = len(scores) - 1
    if last < 1:
        return 0.0
    width, tail_start = abs(scores[0] - scores[last]), 3 * last // 10
    if not tail_start:
        return width
    return max(WHOLE_TO_TAIL * abs(scores[tail_start] - scores[last]), width / MOST_SPREADS)


# --- the fusion -----------------------------------------------------------------------------------


def fuse(
    rankings: Sequence[Ranking],
    method: str = "anchored",
    *,
    rrf_k: int = 60,
    lower_is_better: bool = False,
    are_scored: bool | None = None,
) -> FusedList:
    """Merge *rankings* into one list, best first.

    Ties are broken as follows:

    - If the method counts ranks, by the better rank in any list, then by the smaller key.
    - If the method uses scores, by the first list that holds the passage, then by the order in that
      list. The original's list comes first.

    Args:
        rankings: The lists, each best first.
        method: A fusion method of the catalogue or of an installed package.
        rrf_k: The constant k of reciprocal rank fusion.
        lower_is_better: Used if the order of the lists does not show the direction of the scores.
        are_scored: The result of `has_scores` for these lists, if it is known.

    Raises:
        OwnFusionFailed: A method of an installed package failed.
    """
    # Scores are multiplied by the sign, so that higher is better afterwards.
    sign = -(find_direction(rankings) or (1 if lower_is_better else -1))
    row = FUSION_METHODS.get(method) or _find_own_method(method).row
    if len(rankings) == 1 and row.merges:
        return _keep_order(rankings[0], method, sign)
    if row.needs_scores and not (has_scores(rankings) if are_scored is None else are_scored):
        method = "weighted_rrf"
    merge = _MERGES.get(method) or partial(_merge_by_own_method, method)
    return merge(rankings, sign, rrf_k)


def sum_weighted(
    rankings: Sequence[Ranking], method: str = "weighted", *, rrf_k: int = 60
) -> list[tuple[Key, float]]:
    """Return each passage's key with the weighted sum of its gains, best first.

    ``weighted``  The scores of each list, scaled from 0 to 1 (min-max; all 1 if they are equal).
                  A passage missing from a list gets 0, the list's lowest.
    ``rrf``       1 / (k + rank), with ranks from 1. Also used if scores are missing or do not
                  follow the order.

    Sums are rounded to 12 digits, since further digits would put equal passages in a random order.
    Ties are broken by the smaller key.
    """
    if method == "weighted" and has_scores(rankings):
        gains = [
            [ranking.variant.weight * gain for gain in _scale_scores(ranking.scores)]  # type: ignore[arg-type]
            for ranking in rankings
        ]
    else:
        gains = [
            _list_reciprocal_ranks(ranking, ranking.variant.weight, rrf_k) for ranking in rankings
        ]
    sums = [(key, round(passage.score, 12)) for key, passage in _add_gains(rankings, gains).items()]
    return sorted(sums, key=lambda pair: (-pair[1], pair[0]))


def merge_anchored(rankings: Sequence[Ranking], sign: int, _rrf_k: int) -> FusedList:
    """Merge by the weighted mean of the scores, with each list stretched to the mean spread."""
    lists: list[Sequence[float]] = [ranking.scores for ranking in rankings]  # type: ignore[misc]
    lowest_scores = [(min if sign > 0 else max)(scores, default=0.0) for scores in lists]
    total_weight = sum([ranking.variant.weight for ranking in rankings if ranking.keys]) or 1.0
    weights = [
        sign * ranking.variant.weight / total_weight if ranking.keys else 0.0
        for ranking in rankings
    ]
    spreads = list(map(measure_spread, lists))
    mean = _average_spreads(rankings, spreads)
    gains = [
        [
            (weight * mean / spread if spread else weight) * (score - lowest_score)
            for score in scores
        ]
        for scores, lowest_score, weight, spread in zip(
            lists, lowest_scores, weights, spreads, strict=True
        )
    ]
    # The score of a passage that is the lowest of every list. Each list adds the difference between
    # the passage's score and that list's lowest score.
    floor = sum(
        [weight * lowest_score for weight, lowest_score in zip(weights, lowest_scores, strict=True)]
    )
    return FusedList(_sort_by_score(_add_gains(rankings, gains, floor)), "anchored", mean, gains)


def merge_rrf(rankings: Sequence[Ranking], _sign: int, rrf_k: int) -> FusedList:
    """Merge by the sum of 1 / (k + rank)."""
    return _merge_by_rank("rrf", rankings, [1.0] * len(rankings), rrf_k)


def merge_weighted_rrf(rankings: Sequence[Ranking], _sign: int, rrf_k: int) -> FusedList:
    """Merge by the sum of weight / (k + rank)."""
    return _merge_by_rank(
        "weighted_rrf", rankings, [ranking.variant.weight for ranking in rankings], rrf_k
    )


def merge_max(rankings: Sequence[Ranking], sign: int, _rrf_k: int) -> FusedList:
    """Merge by the best score of each passage in any list."""
    merged: dict[Key, FusedPassage] = {}
    for passage in _list_items(rankings, sign):
        merged_passage = merged.setdefault(passage.key, passage)
        merged_passage.sources |= passage.sources
        if passage.score > merged_passage.score:
            merged_passage.score, merged_passage.item = passage.score, passage.item
    return FusedList(_sort_by_score(merged), "max")


def merge_concat(rankings: Sequence[Ranking], sign: int, _rrf_k: int) -> FusedList:
    """Put all lists one after the other, without changes."""
    return FusedList(_list_items(rankings, sign), "concat")


_Merge = Callable[[Sequence[Ranking], int, int], FusedList]
_MERGES: Final[Mapping[str, _Merge]] = {name: globals()[f"merge_{name}"] for name in FUSION_METHODS}
"""The function for each method of the catalogue: ``merge_`` and the method's name."""


class OwnFusionFailed(Exception):
    """A fusion method of an installed package raised an error or returned unusable scores."""


def _find_own_method(method: str) -> FoundFusion:
    # Imported here so that only those who use a method from outside load the module.
    """Return the fusion *method* that an installed package provides."""
    from qtmiddleware.plugins import find_fusion

    return find_fusion(method)


def _merge_by_own_method(
    method: str, rankings: Sequence[Ranking], sign: int, rrf_k: int
) -> FusedList:
    """Merge *rankings* by a *method* of an installed package.

    Passages that the method leaves out are added at the end, in the order of the lists.
    """
    passages: dict[Key, FusedPassage] = {}
    for passage in _list_items(rankings, sign):
        passages.setdefault(passage.key, passage).sources |= passage.sources
    # Tuples, so that the function cannot change the lists.
    copies = [
        replace(
            ranking,
            keys=tuple(ranking.keys),
            scores=tuple(ranking.scores),
            items=tuple(ranking.items),
        )
        for ranking in rankings
    ]
    try:
        scores = {
            key: float(score) for key, score in _find_own_method(method).merge(copies, sign, rrf_k)
        }
        if not all(map(isfinite, scores.values())):
            raise ValueError("a score must be a finite number")
        if unknown := scores.keys() - passages.keys():
            raise ValueError(f"{len(unknown)} keys belong to no passage")
    except Exception as error:
        raise OwnFusionFailed(type(error).__name__) from error
    lowest = min(scores.values(), default=0.0)
    for passage in passages.values():
        passage.score = scores.get(passage.key, lowest)
    ordered = sorted(scores, key=lambda key: -scores[key])
    left_out = [key for key in passages if key not in scores]
    return FusedList([passages[key] for key in (*ordered, *left_out)], method)


def _add_gains(
    rankings: Sequence[Ranking], gains: Sequence[Sequence[float]], floor: float = 0.0
) -> dict[Key, FusedPassage]:
    """Return the passages by key. The score of a passage is *floor* plus its gain in each list.

    If a list holds a passage several times, only the best place counts.
    """
    merged: dict[Key, FusedPassage] = {}
    for position, (ranking, ranking_gains) in enumerate(zip(rankings, gains, strict=True)):
        bit = 1 << position
        for key, gain, item in zip(ranking.keys, ranking_gains, ranking.items, strict=True):
            passage = merged.get(key)
            if passage is None:
                merged[key] = FusedPassage(key, item, floor + gain, bit)
            # A list that holds a passage several times has one vote: its best place counts.
            elif not passage.sources & bit:
                passage.score += gain
                passage.sources |= bit
    return merged


def _list_items(rankings: Sequence[Ranking], sign: int) -> list[FusedPassage]:
    """Return the passages of all lists, one list after the other.

    Scores are multiplied by *sign*, so that higher is better.
    """
    return [
        FusedPassage(key, item, 0.0 if score is None else sign * score, 1 << position)
        for position, ranking in enumerate(rankings)
        for key, score, item in zip(ranking.keys, ranking.scores, ranking.items, strict=True)
    ]


def _list_reciprocal_ranks(ranking: Ranking, weight: float, k: int) -> list[float]:
    """Return *weight* / (*k* + rank) for each place of *ranking*."""
    return [weight / (k + rank) for rank in range(1, len(ranking.keys) + 1)]


def _scale_scores(scores: Sequence[float]) -> list[float]:
    """Return *scores*, best first, scaled from 1 (best) to 0 (worst); all 1 if they are equal."""
    width = scores[0] - scores[-1] if scores else 0.0
    return [(score - scores[-1]) / width if width else 1.0 for score in scores]


def _average_spreads(rankings: Sequence[Ranking], spreads: Sequence[float]) -> float:
    """Return the weighted mean of the lists' *spreads*. Lists with spread 0 are left out."""
    weighted = [
        (ranking.variant.weight, spread)
        for ranking, spread in zip(rankings, spreads, strict=True)
        if spread
    ]
    total_weight = sum([weight for weight, _ in weighted])
    return (
        sum([weight / total_weight * spread for weight, spread in weighted])
        if total_weight
        else 0.0
    )


def _sort_by_score(merged: Mapping[Key, FusedPassage]) -> list[FusedPassage]:
    """Return the passages sorted by score, highest first. Equal scores keep their order."""
    return sorted(merged.values(), key=attrgetter("score"), reverse=True)


def _merge_by_rank(
    method: str, rankings: Sequence[Ranking], weights: Sequence[float], k: int
) -> FusedList:
    """Merge by the weighted sum of reciprocal ranks.

    Ties are broken by the better rank in any list, then by the smaller key.
    """
    gains = list(map(_list_reciprocal_ranks, rankings, weights, repeat(k)))
    merged = _add_gains(rankings, gains)
    best_ranks: dict[Key, int] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking.keys):
            best_ranks[key] = min(rank, best_ranks.get(key, rank))
    # Rounded, since the last digits of a sum depend on the order of the lists.
    items = sorted(
        merged.values(),
        key=lambda passage: (-round(passage.score, 12), best_ranks[passage.key], passage.key),
    )
    return FusedList(items, method, gains=gains)


def _keep_order(ranking: Ranking, method: str, sign: int) -> FusedList:
    """Return a single *ranking* as a fused list in its own order, without repeated passages.

    If its scores cannot be used, the score of a passage is 1 / rank.
    """
    scored_passages: dict[Key, tuple[FusedPassage, float | None]] = {}
    for passage, score in zip(_list_items([ranking], sign), ranking.scores, strict=True):
        scored_passages.setdefault(passage.key, (passage, score))
    passages = [passage for passage, _ in scored_passages.values()]
    if _are_scores_usable([score for _, score in scored_passages.values()]):
        return FusedList(passages, method, measure_spread([passage.score for passage in passages]))
    for rank, passage in enumerate(passages, start=1):
        passage.score = 1.0 / rank
    return FusedList(passages, method)
