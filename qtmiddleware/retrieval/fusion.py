"""Several rankings become one.

==============  =====================================================================================================
``anchored``    Weighted mean of the backend's scores, each list stretched over its lowest score to the mean spread of
                all. A passage missing from a list takes that list's lowest score, so that a variant
                can lift what it found and never bury what only the original found.
``rrf``         Reciprocal rank fusion, sum of 1 / (k + rank), ranks from 1 (Cormack, Clarke and Büttcher, 2009).
``weighted_rrf``  The same, each list times its weight.
``max``         A passage keeps its best score.
``concat``      Every list as it is, one after the other, nothing merged.
==============  =====================================================================================================

The keys decide what is the same passage; one list has one vote a passage, its best-placed one.
Where scores are missing, ``anchored`` and ``max`` fall back on ranks (``weighted_rrf``). Whether
lower scores are better (Euclidean distance) is read off the order of the lists, which is always
best first.
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
    """One passage of several lists, the *item* as the first of them holds it, or the one whose score it has.

    *score* is higher-is-better whatever the backend's direction. *sources* holds, as bits, the
    positions of the rankings that found the passage.
    """

    key: Key
    item: Any
    score: float
    sources: int


@dataclass(eq=False, repr=False, slots=True)
class FusedList:
    """One list made of several, best first.

    *method* is the one that was really used. *spread* is how far apart such scores usually lie,
    ``None`` where they are not the backend's. *gains* are what each place of each list added to a
    score, where they are added up; *evidence* is what keywords made of it afterwards.
    """

    items: Sequence[FusedPassage]
    method: str
    spread: float | None = None
    gains: Sequence[Sequence[float]] = ()
    evidence: Evidence | None = None

    @property
    def keys(self) -> list[Key]:
        """What makes each passage one of its own."""
        return [it.key for it in self.items]

    @property
    def scores(self) -> list[float]:
        """What each passage is worth, higher is better."""
        return [it.score for it in self.items]

    @property
    def is_merged(self) -> bool:
        """Whether each passage is there once; with ``concat`` every list stands as it was."""
        row = FUSION_METHODS.get(self.method)
        # A method of an installed package merges.
        return row is None or row.merges


@dataclass(eq=False, repr=False, slots=True)
class FusionResult:
    """Several lists as one.

    *fused* is their order after the fusion, before any evidence. *rankings* are the lists that took
    part, and *own* is that of the query as it was asked, whether or not it did.
    """

    fused: FusedList
    rankings: tuple[Ranking, ...]
    original_ranking: Ranking

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each list begins, where they stand one after the other; empty where they were merged."""
        if self.fused.is_merged:
            return ()
        return tuple(accumulate((len(ranking.keys) for ranking in self.rankings[:-1]), initial=0))

    @property
    def question_ranking(self) -> Ranking | None:
        """The list whose scores are those for the user's question: the standalone form's in a conversation.

        ``None`` where the question itself takes no part, and where lists stand as they were found.
        """
        if not self.fused.is_merged:
            return None
        by_kind = {
            it.variant.kind: it
            for it in self.rankings
            if it.variant.kind in ("original", "standalone")
        }
        standalone = by_kind.get("standalone")
        return standalone if standalone is not None and standalone.keys else by_kind.get("original")


# --- what takes part ------------------------------------------------------------------------------


def weighted_rankings(
    original: Ranking, others: Sequence[Ranking], options: FusionSettings
) -> list[Ranking]:
    """Returns the rankings that take part in the fusion, with their final weights; the original's comes first."""
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
    """Returns *rankings* in which texts that share an id, as a document's chunks may, are passages of their own."""
    texts: dict[Key, set[str | None]] = {}
    for ranking in rankings:
        if len(set(ranking.keys)) == len(ranking.keys):
            continue
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


# --- what scores say ------------------------------------------------------------------------------

WHOLE_TO_TAIL: Final = 2.65
MOST_SPREADS: Final = 4.0


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
    """Whether every list has usable numbers: none missing, and in the order of the list.

    A function that reranks and returns the scores of its first search has an order that these
    scores would undo.
    """
    return all(map(_is_usable, [ranking.scores for ranking in rankings]))


def _is_usable(scores: Sequence[float | None]) -> bool:
    if None in scores:
        return False
    falls = not scores or scores[0] >= scores[-1]  # type: ignore[operator]
    return list(scores) == sorted(scores, reverse=falls)  # type: ignore[type-var]


def measure_spread(scores: Sequence[float]) -> float:
    """Returns how far apart the scores of one list, in its order, usually lie; 0 where all are equal.

    max(`WHOLE_TO_TAIL` x width of the lower 70 %, whole width / `MOST_SPREADS`); with fewer than
    five scores the whole width. Measured below the best passages, so that a clear winner has more
    over the rest than the first of many.
    """
    last = len(scores) - 1
    if last < 1:
        return 0.0
    width, first = abs(scores[0] - scores[last]), 3 * last // 10
    if not first:
        return width
    return max(WHOLE_TO_TAIL * abs(scores[first] - scores[last]), width / MOST_SPREADS)


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

    Whether lower scores are better is read off the lists; *lower_is_better* decides where they do
    not show it.
    *are_scored* says what `has_scores` says of the lists, where that is known.

    Raises `OwnFusionFailed` if a method of an installed package fails.

    Ties go to the better rank in any list, then to the smaller key for the rank-based methods; for
    the score-based ones to the list that stands first (the original's), then to its order there.
    """
    sign = -(find_direction(rankings) or (1 if lower_is_better else -1))
    row = FUSION_METHODS.get(method) or _find_own(method).row
    if len(rankings) == 1 and row.merges:
        return _keep_order(rankings[0], method, sign)
    if row.needs_scores and not (has_scores(rankings) if are_scored is None else are_scored):
        method = "weighted_rrf"
    merge = _MERGES.get(method) or partial(_merge_by_own, method)
    return merge(rankings, sign, rrf_k)


def sum_weighted(
    rankings: Sequence[Ranking], method: str = "weighted", *, rrf_k: int = 60
) -> list[tuple[Key, float]]:
    """Returns each passage with the weighted sum of what its places are worth, best first, equal ones by key.

    ``weighted``  The scores of each list brought to 0 to 1 (min-max; equal scores are 1 throughout). A passage missing
                  from a list takes 0, the list's lowest.
    ``rrf``       1 / (k + rank), ranks from 1; also where scores are missing or do not follow the order.

    Sums are rounded to 12 digits: the last ones are noise, which would put equal passages in a
    random order.
    """
    if method == "weighted" and has_scores(rankings):
        gains = [[it.variant.weight * worth for worth in _min_max(it.scores)] for it in rankings]  # type: ignore[arg-type]
    else:
        gains = [_reciprocal_ranks(it, it.variant.weight, rrf_k) for it in rankings]
    sums = [(key, round(it.score, 12)) for key, it in _add_up(rankings, gains).items()]
    return sorted(sums, key=lambda pair: (-pair[1], pair[0]))


def merge_anchored(rankings: Sequence[Ranking], sign: int, _rrf_k: int) -> FusedList:
    """The weighted mean of the scores, each list stretched to the mean spread of all."""
    lists: list[Sequence[float]] = [ranking.scores for ranking in rankings]  # type: ignore[misc]
    lowest = [(min if sign > 0 else max)(scores, default=0.0) for scores in lists]
    whole = sum([ranking.variant.weight for ranking in rankings if ranking.keys]) or 1.0
    weights = [
        sign * ranking.variant.weight / whole if ranking.keys else 0.0 for ranking in rankings
    ]
    spreads = list(map(measure_spread, lists))
    mean = _weighted_mean_spread(rankings, spreads)
    gains = [
        [(weight * mean / spread if spread else weight) * (score - least) for score in scores]
        for scores, least, weight, spread in zip(lists, lowest, weights, spreads, strict=True)
    ]
    # What a passage would have that is the lowest of every list; each list adds what it has over
    # that.
    floor = sum([weight * least for weight, least in zip(weights, lowest, strict=True)])
    return FusedList(_sort_by_score(_add_up(rankings, gains, floor)), "anchored", mean, gains)


def merge_rrf(rankings: Sequence[Ranking], _sign: int, rrf_k: int) -> FusedList:
    """The sum of 1 / (k + rank)."""
    return _merge_by_rank("rrf", rankings, [1.0] * len(rankings), rrf_k)


def merge_weighted_rrf(rankings: Sequence[Ranking], _sign: int, rrf_k: int) -> FusedList:
    """The sum of weight / (k + rank)."""
    return _merge_by_rank(
        "weighted_rrf", rankings, [ranking.variant.weight for ranking in rankings], rrf_k
    )


def merge_max(rankings: Sequence[Ranking], sign: int, _rrf_k: int) -> FusedList:
    """The best score a passage has in any list."""
    merged: dict[Key, FusedPassage] = {}
    for it in _list_items(rankings, sign):
        known = merged.setdefault(it.key, it)
        known.sources |= it.sources
        if it.score > known.score:
            known.score, known.item = it.score, it.item
    return FusedList(_sort_by_score(merged), "max")


def merge_concat(rankings: Sequence[Ranking], sign: int, _rrf_k: int) -> FusedList:
    """Every list as it is, one after the other."""
    return FusedList(_list_items(rankings, sign), "concat")


_Merge = Callable[[Sequence[Ranking], int, int], FusedList]
_MERGES: Final[Mapping[str, _Merge]] = {name: globals()[f"merge_{name}"] for name in FUSION_METHODS}
"""The function of each method of the catalogue is the one of its name above."""


class OwnFusionFailed(Exception):
    """A fusion method of an installed package raised, or returned what cannot be an order of the passages."""


def _find_own(method: str) -> FoundFusion:
    # Only whoever uses a method from outside waits for the module.
    from qtmiddleware.plugins import find_fusion

    return find_fusion(method)


def _merge_by_own(method: str, rankings: Sequence[Ranking], sign: int, rrf_k: int) -> FusedList:
    """What a method of an installed package makes of *rankings*; passages that it leaves out follow in their order."""
    items: dict[Key, FusedPassage] = {}
    for it in _list_items(rankings, sign):
        items.setdefault(it.key, it).sources |= it.sources
    # Tuples, so that nothing the function does can change what was found.
    given = [
        replace(it, keys=tuple(it.keys), scores=tuple(it.scores), items=tuple(it.items))
        for it in rankings
    ]
    try:
        scores = {key: float(score) for key, score in _find_own(method).merge(given, sign, rrf_k)}
        if not all(map(isfinite, scores.values())):
            raise ValueError("a score must be a finite number")
        if unknown := scores.keys() - items.keys():
            raise ValueError(f"{len(unknown)} keys belong to no passage")
    except Exception as error:
        raise OwnFusionFailed(type(error).__name__) from error
    least = min(scores.values(), default=0.0)
    for it in items.values():
        it.score = scores.get(it.key, least)
    ordered = sorted(scores, key=lambda key: -scores[key])
    left_out = [key for key in items if key not in scores]
    return FusedList([items[key] for key in (*ordered, *left_out)], method)


def _add_up(
    rankings: Sequence[Ranking], gains: Sequence[Sequence[float]], floor: float = 0.0
) -> dict[Key, FusedPassage]:
    """The sum of *floor* and what a passage gains in each list, from the best of its places there."""
    merged: dict[Key, FusedPassage] = {}
    for position, (ranking, own_gains) in enumerate(zip(rankings, gains, strict=True)):
        bit = 1 << position
        for key, gain, item in zip(ranking.keys, own_gains, ranking.items, strict=True):
            known = merged.get(key)
            if known is None:
                merged[key] = FusedPassage(key, item, floor + gain, bit)
            elif not known.sources & bit:
                known.score += gain
                known.sources |= bit
    return merged


def _list_items(rankings: Sequence[Ranking], sign: int) -> list[FusedPassage]:
    return [
        FusedPassage(key, item, 0.0 if score is None else sign * score, 1 << position)
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
    weighted = [
        (it.variant.weight, spread) for it, spread in zip(rankings, spreads, strict=True) if spread
    ]
    whole = sum([weight for weight, _ in weighted])
    return sum([weight / whole * spread for weight, spread in weighted]) if whole else 0.0


def _sort_by_score(merged: Mapping[Key, FusedPassage]) -> list[FusedPassage]:
    return sorted(merged.values(), key=attrgetter("score"), reverse=True)


def _merge_by_rank(
    method: str, rankings: Sequence[Ranking], weights: Sequence[float], k: int
) -> FusedList:
    gains = list(map(_reciprocal_ranks, rankings, weights, repeat(k)))
    merged = _add_up(rankings, gains)
    best: dict[Key, int] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking.keys):
            best[key] = min(rank, best.get(key, rank))
    # Rounded, for sums of the same parts differ in their last digits by the order of the lists.
    items = sorted(merged.values(), key=lambda it: (-round(it.score, 12), best[it.key], it.key))
    return FusedList(items, method, gains=gains)


def _keep_order(ranking: Ranking, method: str, sign: int) -> FusedList:
    """One list, in its own order, each passage once."""
    kept: dict[Key, tuple[FusedPassage, float | None]] = {}
    for it, score in zip(_list_items([ranking], sign), ranking.scores, strict=True):
        kept.setdefault(it.key, (it, score))
    items = [it for it, _ in kept.values()]
    if _is_usable([score for _, score in kept.values()]):
        return FusedList(items, method, measure_spread([it.score for it in items]))
    for rank, it in enumerate(items, start=1):
        it.score = 1.0 / rank
    return FusedList(items, method)
