"""Several rankings become one.

==============  =====================================================================================================
``anchored``    Weighted mean of the backend's scores, each list stretched over its lowest score to the mean `spread` of
                all. A passage missing from a list takes that list's lowest score, so that a variant can lift what it
                found and never bury what only the original found.
``rrf``         Reciprocal rank fusion, sum of 1 / (k + rank), ranks from 1 (Cormack, Clarke and Büttcher, 2009).
``weighted_rrf``  The same, each list times its weight.
``max``         A passage keeps its best score.
``concat``      Every list as it is, one after the other, nothing merged.
==============  =====================================================================================================

The keys decide what is the same passage; one list has one vote a passage, its best-placed one. Where scores are
missing, ``anchored`` and ``max`` fall back on ranks (``weighted_rrf``). Whether lower scores are better (Euclidean
distance) is read off the order of the lists, which is always best first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import isfinite
from operator import attrgetter
from typing import Any, Final

from qtmiddleware.catalogue import FUSION_METHODS
from qtmiddleware.types import Key, Ranking


@dataclass(frozen=True, slots=True)
class Fused:
    """One list made of several, best first, as columns of one length.

    *scores* are higher-is-better whatever the backend's direction. *sources* holds, as bits, the positions of the
    rankings that found each passage. *method* is the one that was really used; *offsets* is filled by ``concat`` alone.
    *spread* is how far apart such scores usually lie, ``None`` where they are not the backend's.
    """

    keys: Sequence[Key]
    scores: Sequence[float]
    items: Sequence[Any] = field(repr=False)
    sources: Sequence[int]
    method: str
    offsets: tuple[int, ...] = ()
    spread: float | None = None

    @property
    def is_merged(self) -> bool:
        """Whether each passage is there once; with ``concat`` every list stands as it was."""
        return FUSION_METHODS[self.method].merges


@dataclass(slots=True)
class _Entry:
    """One passage while it is being merged; *rank* is its best one, and *sources* the lists it is in, as bits."""

    key: Key
    item: Any
    score: float
    sources: int
    rank: int = 0


_UNHEARD: Final = 1 << 40
_NOTHING: Final = 1e-100  # the share of the mean spread below which a list has none
WHOLE_TO_TAIL: Final = 2.65
MOST_SPREADS: Final = 4.0
_Merge = Callable[[Sequence[Ranking], int, int], Fused]


def direction(rankings: Sequence[Ranking]) -> int:
    """Which way the scores of the lists run, which are best first: 1 rising, -1 falling, 0 where none shows it."""
    rising = falling = 0
    for ranking in rankings:
        scores = ranking.scores
        if len(scores) > 1 and scores[0] is not None and scores[-1] is not None:
            rising += scores[0] < scores[-1]
            falling += scores[0] > scores[-1]
    return (rising > falling) - (falling > rising)


def has_scores(rankings: Sequence[Ranking]) -> bool:
    """Whether every list has usable numbers: none missing or beyond all measure, and in the order of the list.

    A function that reranks and returns the scores of its first search has an order that these scores would undo.
    """
    return all(_is_usable(ranking.scores) for ranking in rankings)


def _is_usable(scores: Sequence[float | None]) -> bool:
    if None in scores:
        return False
    numbers: Sequence[float] = scores  # type: ignore[assignment]
    if not numbers:
        return True
    first, last = numbers[0], numbers[-1]
    # Sorting what is sorted is one comparison an item. Where it is, its ends are its extremes; a sum shows what is no
    # number, which no comparison does.
    if list(numbers) != sorted(numbers, reverse=first >= last):
        return False
    try:
        return isfinite(sum(numbers)) and isfinite(4.0 * len(numbers) * max(abs(first), abs(last)))
    except OverflowError:
        return False


def spread(scores: Sequence[float]) -> float:
    """How far apart the scores of one list, in its order, usually lie; 0 where all are equal.

    max(`WHOLE_TO_TAIL` x width of the lower 70 %, whole width / `MOST_SPREADS`); with fewer than five scores the whole
    width. Measured below the best passages, so that a clear winner has more over the rest than the first of many.
    """
    last = len(scores) - 1
    if last < 1:
        return 0.0
    width, first = abs(scores[0] - scores[last]), 3 * last // 10
    if not first:
        return width
    return max(WHOLE_TO_TAIL * abs(scores[first] - scores[last]), width / MOST_SPREADS)


def _mean_spread(rankings: Sequence[Ranking]) -> float:
    """The weighted mean of the lists' spreads, of those that have one."""
    found = [(ranking.variant.weight, spread(ranking.scores)) for ranking in rankings]  # type: ignore[arg-type]
    whole = sum(weight for weight, own in found if own)
    return sum(weight / whole * own for weight, own in found if own) if whole else 0.0


def merge_anchored(rankings: Sequence[Ranking], sign: int, _rrf_k: int) -> Fused:
    """The weighted mean of the scores, each list stretched to the mean spread of all."""
    merged: dict[Key, _Entry] = {}
    whole = sum(ranking.variant.weight for ranking in rankings if ranking.keys) or 1.0
    lowest = [(min if sign > 0 else max)(ranking.scores, default=0.0) for ranking in rankings]  # type: ignore[type-var]
    weights = [sign * ranking.variant.weight / whole if ranking.keys else 0.0 for ranking in rankings]
    mean = _mean_spread(rankings)
    # What a passage would have that is the lowest of every list; each list adds what it has over that.
    floor = sum(weight * (least or 0.0) for weight, least in zip(weights, lowest, strict=True))
    for position, (ranking, weight, least) in enumerate(zip(rankings, weights, lowest, strict=True)):
        bit = 1 << position
        own = spread(ranking.scores)  # type: ignore[arg-type]
        stretch = weight * mean / own if own > _NOTHING * mean else weight
        gains = [stretch * (score - least) for score in ranking.scores]  # type: ignore[operator]
        for key, gain, item in zip(ranking.keys, gains, ranking.items, strict=True):
            entry = merged.get(key)
            if entry is None:
                merged[key] = _Entry(key, item, floor + gain, bit)
            elif not entry.sources & bit:
                entry.score += gain
                entry.sources |= bit
    return _by_score("anchored", merged, mean)


def merge_rrf(rankings: Sequence[Ranking], _sign: int, rrf_k: int) -> Fused:
    """The sum of 1 / (k + rank)."""
    return _reciprocal("rrf", rankings, rrf_k, [1.0] * len(rankings))


def merge_weighted_rrf(rankings: Sequence[Ranking], _sign: int, rrf_k: int) -> Fused:
    """The sum of weight / (k + rank)."""
    return _reciprocal("weighted_rrf", rankings, rrf_k, [ranking.variant.weight for ranking in rankings])


def merge_max(rankings: Sequence[Ranking], sign: int, _rrf_k: int) -> Fused:
    """The best score a passage has in any list."""
    merged: dict[Key, _Entry] = {}
    for position, ranking in enumerate(rankings):
        bit = 1 << position
        for key, score, item in zip(ranking.keys, ranking.scores, ranking.items, strict=True):
            better = sign * score  # type: ignore[operator]
            entry = merged.get(key)
            if entry is None:
                merged[key] = _Entry(key, item, better, bit)
            else:
                entry.sources |= bit
                if better > entry.score:
                    entry.score, entry.item = better, item
    return _by_score("max", merged)


def merge_concat(rankings: Sequence[Ranking], sign: int, _rrf_k: int) -> Fused:
    """Every list as it is, one after the other."""
    entries = [
        _Entry(key, item, 0.0 if score is None else sign * score, 1 << position)
        for position, ranking in enumerate(rankings)
        for key, score, item in zip(ranking.keys, ranking.scores, ranking.items, strict=True)
    ]
    lengths = [len(ranking.keys) for ranking in rankings]
    return replace(_fused("concat", entries), offsets=tuple(accumulate(lengths[:-1], initial=0))[: len(rankings)])


def _reciprocal(method: str, rankings: Sequence[Ranking], k: int, weights: Sequence[float]) -> Fused:
    merged: dict[Key, _Entry] = {}
    for position, (ranking, weight) in enumerate(zip(rankings, weights, strict=True)):
        bit = 1 << position
        for rank, (key, item) in enumerate(zip(ranking.keys, ranking.items, strict=True), start=1):
            # A list of weight 0 breaks no ties either.
            place = rank if weight else _UNHEARD + rank
            entry = merged.get(key)
            if entry is None:
                merged[key] = _Entry(key, item, weight / (k + rank), bit, place)
            elif not entry.sources & bit:
                entry.score += weight / (k + rank)
                entry.sources |= bit
                entry.rank = min(entry.rank, place)
    # Rounded, for sums of the same parts differ in their last digits by the order of the lists.
    return _fused(method, sorted(merged.values(), key=lambda it: (-round(it.score, 12), it.rank, it.key)))


def _by_score(method: str, merged: Mapping[Key, _Entry], mean_spread: float | None = None) -> Fused:
    return _fused(method, sorted(merged.values(), key=attrgetter("score"), reverse=True), mean_spread)


def _fused(method: str, entries: Sequence[_Entry], mean_spread: float | None = None) -> Fused:
    return Fused(
        keys=[entry.key for entry in entries],
        scores=[entry.score for entry in entries],
        items=[entry.item for entry in entries],
        sources=[entry.sources for entry in entries],
        method=method,
        spread=mean_spread,
    )


def _alone(ranking: Ranking, method: str, sign: int) -> Fused:
    """One list, in its own order, each passage once."""
    ranking = _once_each(ranking)
    if has_scores([ranking]):
        scores = [sign * score for score in ranking.scores]  # type: ignore[operator]
        return Fused(ranking.keys, scores, ranking.items, [1] * len(scores), method, spread=spread(scores))
    scores = [1.0 / rank for rank in range(1, len(ranking.keys) + 1)]
    return Fused(ranking.keys, scores, ranking.items, [1] * len(scores), method)


def _once_each(ranking: Ranking) -> Ranking:
    if len(set(ranking.keys)) == len(ranking.keys):
        return ranking
    first: dict[Key, int] = {}
    for place, key in enumerate(ranking.keys):
        first.setdefault(key, place)
    places = first.values()
    return Ranking(
        ranking.variant,
        list(first),
        [ranking.scores[place] for place in places],
        [ranking.items[place] for place in places],
    )


_MERGES: Final[Mapping[str, _Merge]] = {name: globals()[f"merge_{name}"] for name in FUSION_METHODS}
"""The function of each method of the catalogue is the one of its name above."""


def fuse(rankings: Sequence[Ranking], method: str = "anchored", *, rrf_k: int = 60, rising: bool = False) -> Fused:
    """Merge *rankings* into one list, best first.

    Whether lower scores are better is read off the lists; *rising* decides where they do not show it.

    Ties go to the better rank in any list, then to the smaller key for the rank-based methods; for the score-based
    ones to the list that stands first (the original's), then to its order there.
    """
    sign = -(direction(rankings) or (1 if rising else -1))
    row = FUSION_METHODS[method]
    if len(rankings) == 1 and row.merges:
        return _alone(rankings[0], method, sign)
    if row.needs_scores and not has_scores(rankings):
        method = "weighted_rrf"
    return _MERGES[method](rankings, sign, rrf_k)
