"""Several rankings become one.

==============  =====================================================================================================
``anchored``    Weighted mean of the backend's scores. A passage missing from a list takes that list's lowest score,
                so that a variant can lift what it found and never bury what only the original found.
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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

from qtmiddleware.settings import FusionMethod
from qtmiddleware.types import Key, Ranking


@dataclass(frozen=True, slots=True)
class Fused:
    """One list made of several, best first, as columns of one length.

    *scores* are higher-is-better whatever the backend's direction. *sources* holds, as bits, the positions of the
    rankings that found each passage. *method* is the one that was really used; *offsets* is filled by ``concat`` alone.
    """

    keys: Sequence[Key]
    scores: Sequence[float]
    items: Sequence[Any] = field(repr=False)
    sources: Sequence[int]
    method: FusionMethod
    offsets: tuple[int, ...] = ()


# One passage while it is being merged: [score, item, sources, best rank].
_Entry = list[Any]
_UNHEARD: Final = 1 << 40
_Merge = Callable[[Sequence[Ranking], float, int], dict[Key, _Entry]]


def lower_is_better(rankings: Sequence[Ranking]) -> bool:
    """Whether the lists, which are best first, have rising scores."""
    rising = falling = 0
    for ranking in rankings:
        scores = ranking.scores
        if len(scores) > 1 and scores[0] is not None and scores[-1] is not None:
            rising += scores[0] < scores[-1]
            falling += scores[0] > scores[-1]
    return rising > falling


def has_scores(rankings: Sequence[Ranking]) -> bool:
    """Whether every passage of every list has a usable number."""
    try:
        return all(None not in it.scores and isfinite(4.0 * sum(map(abs, it.scores))) for it in rankings)  # type: ignore[arg-type]
    except OverflowError:
        return False


def _anchored(rankings: Sequence[Ranking], sign: float, _: int) -> dict[Key, _Entry]:
    merged: dict[Key, _Entry] = {}
    total = sum(ranking.variant.weight for ranking in rankings if ranking.keys) or 1.0
    floor = 0.0
    for position, ranking in enumerate(rankings):
        if not ranking.keys:
            continue
        bit = 1 << position
        weight = sign * ranking.variant.weight / total
        lowest = (min if sign > 0 else max)(ranking.scores)  # type: ignore[type-var]
        floor += weight * lowest  # type: ignore[operator]
        for rank, (key, score, item) in enumerate(zip(ranking.keys, ranking.scores, ranking.items, strict=True)):
            entry = merged.get(key)
            if entry is None:
                merged[key] = [weight * (score - lowest), item, bit, rank]  # type: ignore[operator]
            elif not entry[2] & bit:
                entry[0] += weight * (score - lowest)  # type: ignore[operator]
                entry[2] |= bit
    for entry in merged.values():
        entry[0] += floor
    return merged


def _reciprocal(rankings: Sequence[Ranking], k: int, weights: Sequence[float]) -> dict[Key, _Entry]:
    merged: dict[Key, _Entry] = {}
    for position, (ranking, weight) in enumerate(zip(rankings, weights, strict=True)):
        bit = 1 << position
        for rank, (key, item) in enumerate(zip(ranking.keys, ranking.items, strict=True), start=1):
            # A list nobody listens to breaks no ties either.
            place = rank if weight else _UNHEARD + rank
            entry = merged.get(key)
            if entry is None:
                merged[key] = [weight / (k + rank), item, bit, place]
            elif not entry[2] & bit:
                entry[0] += weight / (k + rank)
                entry[2] |= bit
                entry[3] = min(entry[3], place)
    return merged


def _rrf(rankings: Sequence[Ranking], _: float, k: int) -> dict[Key, _Entry]:
    return _reciprocal(rankings, k, [1.0] * len(rankings))


def _weighted_rrf(rankings: Sequence[Ranking], _: float, k: int) -> dict[Key, _Entry]:
    return _reciprocal(rankings, k, [ranking.variant.weight for ranking in rankings])


def _max(rankings: Sequence[Ranking], sign: float, _: int) -> dict[Key, _Entry]:
    merged: dict[Key, _Entry] = {}
    for position, ranking in enumerate(rankings):
        bit = 1 << position
        for rank, (key, score, item) in enumerate(zip(ranking.keys, ranking.scores, ranking.items, strict=True)):
            better = sign * score  # type: ignore[operator]
            entry = merged.get(key)
            if entry is None:
                merged[key] = [better, item, bit, rank]
            else:
                entry[2] |= bit
                if better > entry[0]:
                    entry[0], entry[1], entry[3] = better, item, rank
    return merged


def _concatenated(rankings: Sequence[Ranking]) -> Fused:
    keys: list[Key] = []
    scores: list[float] = []
    items: list[Any] = []
    sources: list[int] = []
    offsets: list[int] = []
    rising = lower_is_better(rankings)
    for position, ranking in enumerate(rankings):
        offsets.append(len(keys))
        keys.extend(ranking.keys)
        items.extend(ranking.items)
        scores.extend(0.0 if score is None else -score if rising else score for score in ranking.scores)
        sources.extend([1 << position] * len(ranking.keys))
    return Fused(keys, scores, items, sources, "concat", tuple(offsets))


def _alone(ranking: Ranking, method: FusionMethod) -> Fused:
    """One list, in its own order, whatever its scores say."""
    if has_scores([ranking]):
        sign = -1.0 if lower_is_better([ranking]) else 1.0
        scores = [sign * score for score in ranking.scores]  # type: ignore[operator]
    else:
        scores = [1.0 / rank for rank in range(1, len(ranking.keys) + 1)]
    return Fused(ranking.keys, scores, ranking.items, [1] * len(scores), method)


_MERGES: dict[FusionMethod, _Merge] = {
    "anchored": _anchored,
    "rrf": _rrf,
    "weighted_rrf": _weighted_rrf,
    "max": _max,
}
_BY_SCORE: frozenset[FusionMethod] = frozenset({"anchored", "max"})


def fuse(rankings: Sequence[Ranking], method: FusionMethod = "anchored", *, rrf_k: int = 60) -> Fused:
    """Merge *rankings* into one list, best first.

    Ties go to the better rank in any list, then to the smaller key for the rank-based methods; for the score-based
    ones to the list that stands first (the original's), then to its order there.
    """
    if method == "concat":
        return _concatenated(rankings)
    if len(rankings) == 1:
        return _alone(rankings[0], method)
    if method in _BY_SCORE and not has_scores(rankings):
        method = "weighted_rrf"
    by_score = method in _BY_SCORE
    sign = -1.0 if by_score and lower_is_better(rankings) else 1.0
    merged = _MERGES[method](rankings, sign, rrf_k)
    if by_score:
        ordered = sorted(merged.items(), key=lambda pair: pair[1][0], reverse=True)
    else:
        ordered = sorted(merged.items(), key=lambda pair: (-round(pair[1][0], 12), pair[1][3], pair[0]))
    return Fused(
        keys=[key for key, _ in ordered],
        scores=[entry[0] for _, entry in ordered],
        items=[entry[1] for _, entry in ordered],
        sources=[entry[2] for _, entry in ordered],
        method=method,
    )
