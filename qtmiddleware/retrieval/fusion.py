"""Several rankings become one.

==============  =====================================================================================================
``anchored``    Weighted mean of the backend's scores, each list stretched over its lowest score to the mean spread of
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

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, repeat
from math import isfinite
from operator import attrgetter
from typing import Any, Final

from qtmiddleware.catalogue import FUSION_METHODS
from qtmiddleware.config.settings import FusionSettings
from qtmiddleware.retrieval.responses import read_text
from qtmiddleware.types import Key, Ranking


@dataclass(frozen=True, slots=True)
class Fused:
    """One list made of several, best first, as columns of one length.

    *scores* are higher-is-better whatever the backend's direction. *sources* holds, as bits, the positions of the
    rankings that found each passage. *method* is the one that was really used. *spread* is how far apart such scores
    usually lie, ``None`` where they are not the backend's.
    """

    keys: Sequence[Key]
    scores: Sequence[float]
    items: Sequence[Any] = field(repr=False)
    sources: Sequence[int]
    method: str
    spread: float | None = None

    @property
    def is_merged(self) -> bool:
        """Whether each passage is there once; with ``concat`` every list stands as it was."""
        return FUSION_METHODS[self.method].merges

    def reorder(self, order: Sequence[int], scores: Sequence[float]) -> Fused:
        """Returns the passages at the positions *order*, with new *scores*."""
        return Fused(
            keys=[self.keys[i] for i in order],
            scores=scores,
            items=[self.items[i] for i in order],
            sources=[self.sources[i] for i in order],
            method=self.method,
        )


@dataclass(frozen=True, slots=True)
class Fusion:
    """Several lists as one.

    *fused* is their order after the fusion, before any evidence. *rankings* are the lists that took part, and *own* is
    that of the query as it was asked, whether or not it did.
    """

    fused: Fused = field(repr=False)
    rankings: tuple[Ranking, ...]
    own: Ranking

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each list begins, where they stand one after the other; empty where they were merged."""
        if self.fused.is_merged:
            return ()
        return tuple(accumulate((len(ranking.keys) for ranking in self.rankings[:-1]), initial=0))

    @property
    def question(self) -> Ranking | None:
        """The list whose scores are those for the user's question: the standalone form's in a conversation.

        ``None`` where the question itself takes no part, and where lists stand as they were found.
        """
        if not self.fused.is_merged:
            return None
        by_kind = {it.variant.kind: it for it in self.rankings if it.variant.kind in ("original", "standalone")}
        standalone = by_kind.get("standalone")
        return standalone if standalone is not None and standalone.keys else by_kind.get("original")


# --- what takes part ----------------------------------------------------------------------------------------------


def weighted_rankings(original: Ranking, others: Sequence[Ranking], options: FusionSettings) -> list[Ranking]:
    """Returns the rankings that take part in the fusion, with their final weights; the original's comes first."""
    weight = options.weights.original
    if any(ranking.variant.kind == "standalone" and ranking.keys for ranking in others):
        weight = options.weights.original_in_conversation
    weighted = [ranking for ranking in others if ranking.variant.weight > 0]
    if any(ranking.keys for ranking in weighted) and (weight <= 0 or not options.include_original):
        return weighted
    return [replace(original, variant=replace(original.variant, weight=weight or 1.0)), *weighted]


def separate_chunks(rankings: Sequence[Ranking], text_field: str | None) -> list[Ranking]:
    """Returns *rankings* in which texts that share an id, as a document's chunks may, are passages of their own."""
    texts: dict[Key, set[str | None]] = {}
    for ranking in rankings:
        repeated = {key for key, count in Counter(ranking.keys).items() if count > 1}
        for key, item in zip(ranking.keys, ranking.items, strict=True):
            if key in repeated:
                texts.setdefault(key, set()).add(read_text(item, text_field))
    shared = {key for key, found in texts.items() if len(found) > 1}
    if not shared:
        return list(rankings)

    def add_text(key: Key, item: Any) -> Key:
        return (key[0], f"{key[1]}\0{read_text(item, text_field) or ''}") if key in shared else key

    return [replace(it, keys=list(map(add_text, it.keys, it.items))) for it in rankings]


# --- what scores say ----------------------------------------------------------------------------------------------

_NO_SPREAD: Final = 1e-100  # the share of the mean spread below which a list has none
WHOLE_TO_TAIL: Final = 2.65
MOST_SPREADS: Final = 4.0
_NO_RANK: Final = 1 << 40  # where the ranks of a list of weight 0 begin


def find_direction(rankings: Sequence[Ranking]) -> int:
    """Returns which way the scores of the lists, which are best first, run: 1 up, -1 down, 0 where none shows it."""
    up = down = 0
    for ranking in rankings:
        scores = ranking.scores
        if len(scores) > 1 and scores[0] is not None and scores[-1] is not None:
            up += scores[0] < scores[-1]
            down += scores[0] > scores[-1]
    return (up > down) - (down > up)


def has_scores(rankings: Iterable[Ranking]) -> bool:
    """Whether every list has usable numbers: none missing or beyond all measure, and in the order of the list.

    A function that reranks and returns the scores of its first search has an order that these scores would undo.
    """
    return all(_is_usable(ranking.scores) for ranking in rankings)


def _is_usable(scores: Sequence[float | None]) -> bool:
    try:
        numbers = [float(score) for score in scores if score is not None]
    except OverflowError:
        return False
    if len(numbers) < len(scores) or not all(map(isfinite, numbers)):
        return False
    # What overflows when it is added up cannot be fused.
    has_room = isfinite(4.0 * len(numbers) * max(map(abs, numbers), default=0.0))
    falls = not numbers or numbers[0] >= numbers[-1]
    return has_room and numbers == sorted(numbers, reverse=falls)


def measure_spread(scores: Sequence[float]) -> float:
    """Returns how far apart the scores of one list, in its order, usually lie; 0 where all are equal.

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


# --- the fusion ---------------------------------------------------------------------------------------------------


def fuse(
    rankings: Sequence[Ranking], method: str = "anchored", *, rrf_k: int = 60, lower_is_better: bool = False
) -> Fused:
    """Merge *rankings* into one list, best first.

    Whether lower scores are better is read off the lists; *lower_is_better* decides where they do not show it.

    Ties go to the better rank in any list, then to the smaller key for the rank-based methods; for the score-based
    ones to the list that stands first (the original's), then to its order there.
    """
    sign = -(find_direction(rankings) or (1 if lower_is_better else -1))
    row = FUSION_METHODS[method]
    if len(rankings) == 1 and row.merges:
        return _keep_order(rankings[0], method, sign)
    if row.needs_scores and not has_scores(rankings):
        method = "weighted_rrf"
    return _MERGES[method](rankings, sign, rrf_k)


def sum_weighted(rankings: Sequence[Ranking], method: str = "weighted", *, rrf_k: int = 60) -> list[tuple[Key, float]]:
    """Returns each passage with the weighted sum of what its places are worth, best first, equal ones by key.

    ``weighted``  The scores of each list brought to 0 to 1 (min-max; equal scores are 1 throughout). A passage missing
                  from a list takes 0, the list's lowest.
    ``rrf``       1 / (k + rank), ranks from 1; also where scores are missing or do not follow the order.

    Sums are rounded to 12 digits: the last ones are noise, which would put equal passages in a random order.
    """
    if method == "weighted" and has_scores(rankings):
        gains = [[it.variant.weight * worth for worth in _min_max(it.scores)] for it in rankings]  # type: ignore[arg-type]
    else:
        gains = [_reciprocal_ranks(it, it.variant.weight, rrf_k) for it in rankings]
    sums = [(key, round(entry.score, 12)) for key, entry in _add_up(rankings, gains).items()]
    return sorted(sums, key=lambda pair: (-pair[1], pair[0]))


def merge_anchored(rankings: Sequence[Ranking], sign: int, _rrf_k: int) -> Fused:
    """The weighted mean of the scores, each list stretched to the mean spread of all."""
    lists: list[Sequence[float]] = [ranking.scores for ranking in rankings]  # type: ignore[misc]
    lowest = [(min if sign > 0 else max)(scores, default=0.0) for scores in lists]
    whole = sum(ranking.variant.weight for ranking in rankings if ranking.keys) or 1.0
    weights = [sign * ranking.variant.weight / whole if ranking.keys else 0.0 for ranking in rankings]
    spreads = list(map(measure_spread, lists))
    mean = _weighted_mean_spread(rankings, spreads)
    stretches = [
        weight * mean / spread if spread > _NO_SPREAD * mean else weight
        for weight, spread in zip(weights, spreads, strict=True)
    ]
    gains = [
        [stretch * (score - least) for score in scores]
        for scores, least, stretch in zip(lists, lowest, stretches, strict=True)
    ]
    # What a passage would have that is the lowest of every list; each list adds what it has over that.
    floor = sum(weight * least for weight, least in zip(weights, lowest, strict=True))
    return _sort_by_score("anchored", _add_up(rankings, gains, floor), mean)


def merge_rrf(rankings: Sequence[Ranking], _sign: int, rrf_k: int) -> Fused:
    """The sum of 1 / (k + rank)."""
    return _merge_by_rank("rrf", rankings, [1.0] * len(rankings), rrf_k)


def merge_weighted_rrf(rankings: Sequence[Ranking], _sign: int, rrf_k: int) -> Fused:
    """The sum of weight / (k + rank)."""
    return _merge_by_rank("weighted_rrf", rankings, [ranking.variant.weight for ranking in rankings], rrf_k)


def merge_max(rankings: Sequence[Ranking], sign: int, _rrf_k: int) -> Fused:
    """The best score a passage has in any list."""
    merged: dict[Key, _Entry] = {}
    for entry in _list_entries(rankings, sign):
        known = merged.setdefault(entry.key, entry)
        known.sources |= entry.sources
        if entry.score > known.score:
            known.score, known.item = entry.score, entry.item
    return _sort_by_score("max", merged)


def merge_concat(rankings: Sequence[Ranking], sign: int, _rrf_k: int) -> Fused:
    """Every list as it is, one after the other."""
    return _to_columns("concat", _list_entries(rankings, sign))


_Merge = Callable[[Sequence[Ranking], int, int], Fused]
_MERGES: Final[Mapping[str, _Merge]] = {name: globals()[f"merge_{name}"] for name in FUSION_METHODS}
"""The function of each method of the catalogue is the one of its name above."""


@dataclass(slots=True)
class _Entry:
    """One passage while it is being merged; *sources* are the lists it is in, as bits."""

    key: Key
    item: Any
    score: float
    sources: int


def _add_up(rankings: Sequence[Ranking], gains: Sequence[Sequence[float]], floor: float = 0.0) -> dict[Key, _Entry]:
    """The sum of *floor* and what a passage gains in each list, from the best of its places there."""
    merged: dict[Key, _Entry] = {}
    for position, (ranking, own_gains) in enumerate(zip(rankings, gains, strict=True)):
        bit = 1 << position
        for key, gain, item in zip(ranking.keys, own_gains, ranking.items, strict=True):
            entry = merged.get(key)
            if entry is None:
                merged[key] = _Entry(key, item, floor + gain, bit)
            elif not entry.sources & bit:
                entry.score += gain
                entry.sources |= bit
    return merged


def _list_entries(rankings: Sequence[Ranking], sign: int) -> list[_Entry]:
    return [
        _Entry(key, item, 0.0 if score is None else sign * score, 1 << position)
        for position, ranking in enumerate(rankings)
        for key, score, item in zip(ranking.keys, ranking.scores, ranking.items, strict=True)
    ]


def _reciprocal_ranks(ranking: Ranking, weight: float, k: int) -> list[float]:
    return [weight / (k + rank) for rank in range(1, len(ranking.keys) + 1)]


def _min_max(scores: Sequence[float]) -> list[float]:
    """*scores*, best first whichever way they run, from 1 to 0; 1 throughout where all are equal."""
    width = scores[0] - scores[-1] if scores else 0.0
    return [(score - scores[-1]) / width if width else 1.0 for score in scores]


def _weighted_mean_spread(rankings: Sequence[Ranking], spreads: Sequence[float]) -> float:
    """The weighted mean of the lists' spreads, of those that have one."""
    weighted = [(it.variant.weight, spread) for it, spread in zip(rankings, spreads, strict=True) if spread]
    whole = sum(weight for weight, _ in weighted)
    return sum(weight / whole * spread for weight, spread in weighted) if whole else 0.0


def _sort_by_score(method: str, merged: Mapping[Key, _Entry], spread: float | None = None) -> Fused:
    return _to_columns(method, sorted(merged.values(), key=attrgetter("score"), reverse=True), spread)


def _merge_by_rank(method: str, rankings: Sequence[Ranking], weights: Sequence[float], k: int) -> Fused:
    merged = _add_up(rankings, list(map(_reciprocal_ranks, rankings, weights, repeat(k))))
    best: dict[Key, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        # A list of weight 0 breaks no ties either.
        first = 1 if weight else _NO_RANK
        for rank, key in enumerate(ranking.keys, start=first):
            best[key] = min(rank, best.get(key, rank))
    # Rounded, for sums of the same parts differ in their last digits by the order of the lists.
    return _to_columns(method, sorted(merged.values(), key=lambda it: (-round(it.score, 12), best[it.key], it.key)))


def _to_columns(method: str, entries: Sequence[_Entry], spread: float | None = None) -> Fused:
    return Fused(
        keys=[entry.key for entry in entries],
        scores=[entry.score for entry in entries],
        items=[entry.item for entry in entries],
        sources=[entry.sources for entry in entries],
        method=method,
        spread=spread,
    )


def _keep_order(ranking: Ranking, method: str, sign: int) -> Fused:
    """One list, in its own order, each passage once."""
    first_places: dict[Key, int] = {}
    for place, key in enumerate(ranking.keys):
        first_places.setdefault(key, place)
    places = first_places.values()
    numbers = [ranking.scores[place] for place in places]
    items, sources = [ranking.items[place] for place in places], [1] * len(places)
    if _is_usable(numbers):
        scores = [sign * score for score in numbers]  # type: ignore[operator]
        return Fused(list(first_places), scores, items, sources, method, measure_spread(scores))
    return Fused(list(first_places), [1.0 / rank for rank in range(1, len(places) + 1)], items, sources, method)
