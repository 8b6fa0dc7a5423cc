"""Merge several rankings into one list.

================  ==================================================================================
``anchored``      The weighted mean of the backend's scores. First, each list is shifted to a lowest
                  score of 0 and scaled to the mean spread of all lists. A passage that a list lacks
                  gets the lowest score of this list. A variant can therefore raise the passages
                  that it found, but never lower other passages.
``rrf``           Reciprocal rank fusion: the sum of 1 / (k + rank), with ranks from 1 (Cormack,
                  Clarke and Büttcher, 2009).
``weighted_rrf``  Reciprocal rank fusion: the sum of weight / (k + rank).
``max``           Each passage gets its best score in any list.
``concat``        The best passage of each list in turn, then the second of each, and so on.
================  ==================================================================================

Passages with equal keys are the same passage. If a list contains a passage several times, only its
best rank counts. If scores are missing, ``anchored`` and ``max`` fall back to ``weighted_rrf``.
Lists are always best first, so their order shows whether lower scores are better, as with
distances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from math import ceil, isfinite
from operator import attrgetter, mul
from pathlib import Path
from traceback import extract_tb
from typing import Any, Final

from qtmiddleware.catalogue import FUSION_METHODS, OWN_FUSION
from qtmiddleware.config.settings import FusionSettings
from qtmiddleware.protocols import FuseFunction
from qtmiddleware.types import Evidence, Key, Passage, Ranking, Variant


@dataclass(eq=False, repr=False, slots=True)
class FusedPassage:
    """One passage of a fused list. Higher scores are always better.

    In the bit mask *sources*, bit i is set if ranking i found the passage.
    """

    key: Key
    passage: Passage
    score: float
    sources: int


@dataclass(eq=False, repr=False, slots=True)
class FusedList:
    """A list merged from several rankings, best first.

    Attributes:
        items: The passages.
        method: The fusion method that was used. It may differ from the configured method.
        spread: The typical gap between the backend's high and low scores. ``None`` if the fused
            scores use a different scale.
        evidence: How keywords changed the order after the fusion. ``None`` if keywords were not
            used.
        rerank_scores: The reranker's scores of the first passages, as far as they were reranked.
    """

    items: Sequence[FusedPassage]
    method: str
    spread: float | None = None
    evidence: Evidence | None = None
    rerank_scores: Sequence[float | None] = ()

    @property
    def keys(self) -> list[Key]:
        """The keys of the passages, best first."""
        return [passage.key for passage in self.items]

    @property
    def scores(self) -> list[float]:
        """The scores of the passages, best first. Higher is better."""
        return [passage.score for passage in self.items]


@dataclass(eq=False, repr=False, slots=True)
class FusionResult:
    """The fused list before keyword evidence, the rankings that were fused, and the question's own.

    The question's own ranking is not fused if its weight is 0.
    """

    fused: FusedList
    rankings: tuple[Ranking, ...]
    own_ranking: Ranking

    @property
    def question_ranking(self) -> Ranking | None:
        """The ranking whose scores were computed for the user's question.

        In a conversation this is the ranking of the standalone form, unless that ranking is empty.
        ``None`` if the question's ranking was not fused or the scores are not merged.
        """
        if not FUSION_METHODS.get(self.fused.method, OWN_FUSION).merges:
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
    own_ranking: Ranking, other_rankings: Sequence[Ranking], options: FusionSettings
) -> list[Ranking]:
    """Return the rankings to fuse, *own_ranking* first. Those of weight 0 are left out."""
    weight = options.weights["original"]
    if "standalone" in [ranking.variant.kind for ranking in other_rankings if ranking.keys]:
        weight = options.weights["original_in_conversation"]
    weighted = [ranking for ranking in other_rankings if ranking.variant.weight > 0]
    if weight <= 0 and any(ranking.keys for ranking in weighted):
        return weighted
    variant = Variant(own_ranking.variant.kind, own_ranking.variant.text, weight or 1.0)
    return [replace(own_ranking, variant=variant), *weighted]


def make_chunk_keys_unique(rankings: Sequence[Ranking]) -> Sequence[Ranking]:
    """Return *rankings* with a different key for each passage that one list tells apart.

    Chunks may share their document's id; then the text is added to the key. Documents may share
    their text; then the metadata that says where the text comes from is added.
    """
    for describe in (_get_text, _describe_source):
        rankings = _split_shared_keys(rankings, describe)
    return rankings


def _split_shared_keys(
    rankings: Sequence[Ranking], describe: Callable[[Passage], str]
) -> Sequence[Ranking]:
    descriptions: dict[Key, set[str]] = {}
    for ranking in rankings:
        # Only a list that repeats a key shows that passages share it.
        if len(set(ranking.keys)) == len(ranking.keys):
            continue
        counts = Counter(ranking.keys)
        for key, passage in zip(ranking.keys, ranking.passages, strict=True):
            if counts[key] > 1:
                descriptions.setdefault(key, set()).add(describe(passage))
    shared = {key for key, described in descriptions.items() if len(described) > 1}
    if not shared:
        return rankings

    def extend_key(key: Key, passage: Passage) -> Key:
        return (key[0], f"{key[1]}\0{describe(passage)}") if key in shared else key

    return [
        replace(ranking, keys=list(map(extend_key, ranking.keys, ranking.passages)))
        for ranking in rankings
    ]


def _get_text(passage: Passage) -> str:
    return passage.text or ""


def _describe_source(passage: Passage) -> str:
    # Other values, such as a distance, may differ between two searches.
    fields = passage.metadata.items()
    return repr(sorted((str(name), text) for name, text in fields if isinstance(text, str)))


# --- reading scores -------------------------------------------------------------------------------

WHOLE_TO_TAIL: Final = 2.65
"""The usual ratio of a list's whole range of scores to the range of its lower 70 %."""
MOST_SPREADS: Final = 4.0
"""The largest ratio of a list's whole range of scores to its spread."""
# To recognise reciprocal ranks: how many scores are checked, and how far from a whole number a
# rank may be by rounding.
_LOOKED_AT: Final = 8
_ROUNDING: Final = 1e-4


def find_score_direction(rankings: Sequence[Ranking]) -> int:
    """Return 1 if lower scores are better in *rankings*, -1 if higher ones are, 0 if unclear."""
    up = down = 0
    for ranking in rankings:
        scores = ranking.scores
        if len(scores) > 1 and scores[0] is not None and scores[-1] is not None:
            up += scores[0] < scores[-1]
            down += scores[0] > scores[-1]
    return (up > down) - (down > up)


def has_usable_scores(rankings: Iterable[Ranking]) -> bool:
    """Return whether the scores of every ranking are complete and sorted.

    Unsorted scores do not show why the passages have their order. For example, a function may
    rerank its passages but return the scores from before the reranking.
    """
    return all(map(_are_scores_usable, [ranking.scores for ranking in rankings]))


def _are_scores_usable(scores: Sequence[float | None]) -> bool:
    if None in scores:
        return False
    falls = not scores or scores[0] >= scores[-1]  # type: ignore[operator]
    return list(scores) == sorted(scores, reverse=falls)  # type: ignore[type-var]


def measure_spread(scores: Sequence[float]) -> float:
    """Return a measure of the range of *scores* that ignores outliers at the top.

    - For five or more scores, the spread is the larger of two numbers: the range of the lower 70 %
      times `WHOLE_TO_TAIL`, and the whole range divided by `MOST_SPREADS`.
    - For fewer scores, the spread is the whole range.
    - If all scores are equal, the spread is 0.

    *scores* must be sorted, best first.
    """
    last = len(scores) - 1
    if last < 1:
        return 0.0
    width = abs(scores[0] - scores[last])
    tail_start = 3 * last // 10
    if not tail_start:
        return width
    return max(WHOLE_TO_TAIL * abs(scores[tail_start] - scores[last]), width / MOST_SPREADS)


def are_reciprocal_ranks(scores: Sequence[float]) -> bool:
    """Return whether *scores*, best first, look like reciprocal rank fusion of one or two lists.

    In their lower half, of five or more, each is 1 / (k + rank) or a sum of two such numbers.
    """
    lower = scores[len(scores) // 2 :]
    if (
        len(lower) < 5
        or not 0.0 < lower[-1] < lower[0] < 1.0
        or all(score == round(score, 3) for score in lower)
    ):
        return False
    step = max(1, len(lower) // _LOOKED_AT)
    return all(map(_is_sum_of_reciprocals, lower[::step]))


def _is_sum_of_reciprocals(score: float) -> bool:
    """Return whether *score* is 1 / i or 1 / i + 1 / j, for whole numbers i and j."""
    if abs(1.0 / score - round(1.0 / score)) < _ROUNDING:
        return True
    remainders = (
        score - 1.0 / i
        for i in range(ceil(1.0 / score), min(1_000, int(2.0 / score + _ROUNDING)) + 1)
    )
    return any(
        remainder > 0.0 and abs(1.0 / remainder - round(1.0 / remainder)) < _ROUNDING
        for remainder in remainders
    )


# --- the fusion -----------------------------------------------------------------------------------


def fuse_rankings(
    rankings: Sequence[Ranking],
    method: str = "anchored",
    *,
    rrf_k: int = 60,
    lower_is_better: bool = False,
) -> FusedList:
    """Merge *rankings* into one list, best first.

    If two passages tie:

    - Methods that use ranks put the passage with the better best rank first. If these ranks are
      equal too, the smaller key is first.
    - Methods that use scores put the passage from the earlier list first. Within a list, the better
      rank is first.
    """
    sign = choose_sign(rankings, lower_is_better=lower_is_better)
    row = FUSION_METHODS[method]
    # With one list there is nothing to merge, and its own scores stay visible.
    if len(rankings) == 1 and row.merges:
        return _convert_single_ranking(rankings[0], method, sign)
    if row.needs_scores and not has_usable_scores(rankings):
        method = "weighted_rrf"
    if method == "anchored":
        return _merge_anchored(rankings, sign)
    if method == "max":
        return _merge_max(rankings, sign)
    if method == "concat":
        return _merge_concat(rankings, sign)
    return _merge_by_rank(method, rankings, rrf_k)


def sum_weighted_scores(
    rankings: Sequence[Ranking], method: str = "weighted", *, rrf_k: int = 60
) -> list[tuple[Key, float]]:
    """Return (key, score) for each passage, best first. The score is a weighted sum over the lists.

    *method* decides which number each list adds:

    ``weighted``  The passage's score in the list, scaled from 0 to 1 (min-max). Equal scores all
                  become 1. A list that lacks the passage adds 0.
    ``rrf``       1 / (k + rank), with ranks from 1. Also used if scores are missing or unsorted.

    Sums are rounded to 12 digits, so that rounding errors do not separate equal passages. Ties are
    broken by the smaller key.
    """
    is_by_score = method == "weighted" and has_usable_scores(rankings)
    gains = []
    for ranking in rankings:
        weight, scores = ranking.variant.weight, ranking.scores
        if is_by_score:
            gains.append([weight * gain for gain in _scale_scores(scores)])
        else:
            gains.append(_list_reciprocal_ranks(ranking, weight, rrf_k))
    merged = _score_passages_by_gains(rankings, gains)
    sums = [(key, round(passage.score, 12)) for key, passage in merged.items()]
    return sorted(sums, key=lambda pair: (-pair[1], pair[0]))


def _merge_anchored(
    rankings: Sequence[Ranking],
    sign: int,
) -> FusedList:
    """Merge *rankings* by the weighted mean of their scores, scaled to the same spread."""
    spreads = [measure_spread(ranking.scores) for ranking in rankings]  # type: ignore[arg-type]
    # Lists whose scores are all equal do not count.
    parts = [
        ranking.variant.weight if spread else 0.0
        for ranking, spread in zip(rankings, spreads, strict=True)
    ]
    mean = sum(map(mul, parts, spreads)) / (sum(parts) or 1.0)
    total = sum(ranking.variant.weight for ranking in rankings if ranking.keys) or 1.0
    # The score of a passage that is the lowest of every list. Each list adds the difference between
    # the passage's score and that list's lowest score.
    floor, gains = 0.0, []
    for ranking, spread in zip(rankings, spreads, strict=True):
        scores: Sequence[Any] = ranking.scores
        lowest = (min if sign > 0 else max)(scores, default=0.0)
        weight = sign * ranking.variant.weight / total if scores else 0.0
        scale = weight * mean / spread if spread else weight
        gains.append([scale * (score - lowest) for score in scores])
        floor += weight * lowest
    merged = _score_passages_by_gains(rankings, gains, floor)
    return FusedList(_sort_by_score(merged), "anchored", mean)


def _merge_max(rankings: Sequence[Ranking], sign: int) -> FusedList:
    """Merge *rankings* by each passage's best score in any list."""
    merged: dict[Key, FusedPassage] = {}
    for passage in _list_passages(rankings, sign):
        merged_passage = merged.setdefault(passage.key, passage)
        merged_passage.sources |= passage.sources
        if passage.score > merged_passage.score:
            merged_passage.score = passage.score
            merged_passage.passage = passage.passage
    return FusedList(_sort_by_score(merged), "max")


def _merge_concat(rankings: Sequence[Ranking], sign: int) -> FusedList:
    """Return the best passage of each of *rankings*, then the second of each, and so on."""
    merged: dict[Key, FusedPassage] = {}
    for passage in _list_passages(rankings, sign):
        merged.setdefault(passage.key, passage).sources |= passage.sources
    turns = zip_longest(*(ranking.keys for ranking in rankings))
    keys = dict.fromkeys(filter(None, chain.from_iterable(turns)))
    return FusedList([merged[key] for key in keys], "concat")


class FuseError(Exception):
    """The user's function to fuse rankings raised an error or returned unusable scores."""


def fuse_by_function(
    rankings: Sequence[Ranking],
    fuse: FuseFunction,
    *,
    rrf_k: int = 60,
    lower_is_better: bool = False,
) -> FusedList:
    """Merge *rankings* with the user's function *fuse*.

    Passages that the function leaves out are added at the end, in the order of *rankings*.

    Raises:
        FuseError: The function raised an error, or it returned a score that is not finite or a key
            that belongs to no passage.
    """
    sign = choose_sign(rankings, lower_is_better=lower_is_better)
    if len(rankings) == 1:
        return _convert_single_ranking(rankings[0], OWN_FUSION.name, sign)
    passages: dict[Key, FusedPassage] = {}
    for passage in _list_passages(rankings, sign):
        passages.setdefault(passage.key, passage).sources |= passage.sources
    # Tuples, so that the function cannot change the lists.
    copies = [
        Ranking(
            ranking.variant, tuple(ranking.keys), tuple(ranking.scores), tuple(ranking.passages)
        )
        for ranking in rankings
    ]
    try:
        scores = {key: float(score) for key, score in fuse(copies, sign, rrf_k)}
    except Exception as error:
        # Without the message, which may quote a passage.
        place = extract_tb(error.__traceback__)[-1]
        where = f"line {place.lineno} of {Path(place.filename).name}"
        raise FuseError(f"fuse= raised {type(error).__name__} in {where}") from error
    if not all(map(isfinite, scores.values())):
        raise FuseError("fuse= returned a score that is not a finite number")
    if scores.keys() - passages.keys():
        raise FuseError("fuse= returned keys that belong to no passage")
    lowest = min(scores.values(), default=0.0)
    for passage in passages.values():
        passage.score = scores.get(passage.key, lowest)
    ordered = sorted(scores, key=lambda key: -scores[key])
    left_out = [key for key in passages if key not in scores]
    return FusedList([passages[key] for key in (*ordered, *left_out)], OWN_FUSION.name)


def choose_sign(
    rankings: Sequence[Ranking],
    *,
    lower_is_better: bool,
) -> int:
    """Return 1 if higher scores are better in *rankings*, and -1 if lower scores are better."""
    return -(find_score_direction(rankings) or (1 if lower_is_better else -1))


def _score_passages_by_gains(
    rankings: Sequence[Ranking], gains: Sequence[Sequence[float]], base_score: float = 0.0
) -> dict[Key, FusedPassage]:
    """Return the passages by key, each scored *base_score* plus its gains in all lists."""
    merged: dict[Key, FusedPassage] = {}
    for position, (ranking, ranking_gains) in enumerate(zip(rankings, gains, strict=True)):
        bit = 1 << position
        for key, gain, found in zip(ranking.keys, ranking_gains, ranking.passages, strict=True):
            passage = merged.get(key)
            if passage is None:
                merged[key] = FusedPassage(key, found, base_score + gain, bit)
            # If a list contains a passage several times, only the first and best rank counts.
            elif not passage.sources & bit:
                passage.score += gain
                passage.sources |= bit
    return merged


def _list_passages(
    rankings: Sequence[Ranking],
    sign: int,
) -> list[FusedPassage]:
    return [
        FusedPassage(key, passage, 0.0 if score is None else sign * score, 1 << position)
        for position, ranking in enumerate(rankings)
        for key, score, passage in zip(ranking.keys, ranking.scores, ranking.passages, strict=True)
    ]


def _list_reciprocal_ranks(
    ranking: Ranking,
    weight: float,
    rrf_k: int,
) -> list[float]:
    return [weight / (rrf_k + rank) for rank in range(1, len(ranking.keys) + 1)]


def _scale_scores(scores: Sequence[Any]) -> list[float]:
    """Return *scores*, best first, scaled from 1 (first score) to 0 (last score)."""
    width = scores[0] - scores[-1] if scores else 0.0
    return [(score - scores[-1]) / width if width else 1.0 for score in scores]


def make_scores_strictly_decreasing(scores: Sequence[float]) -> list[float]:
    """Sort *scores*, highest first, and lower equal ones by about a millionth."""
    falling: list[float] = []
    for score in sorted(scores, reverse=True):
        below = falling[-1] - max(1e-6 * abs(falling[-1]), 1e-9) if falling else score
        falling.append(min(score, below))
    return falling


def _sort_by_score(merged: Mapping[Key, FusedPassage]) -> list[FusedPassage]:
    return sorted(merged.values(), key=attrgetter("score"), reverse=True)


def _merge_by_rank(
    method: str,
    rankings: Sequence[Ranking],
    rrf_k: int,
) -> FusedList:
    """Merge *rankings* by the sum of 1 / (k + rank), or of weight / (k + rank)."""
    gains = [
        _list_reciprocal_ranks(ranking, 1.0 if method == "rrf" else ranking.variant.weight, rrf_k)
        for ranking in rankings
    ]
    merged = _score_passages_by_gains(rankings, gains)
    best_ranks: dict[Key, int] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking.keys):
            best_ranks[key] = min(rank, best_ranks.get(key, rank))
    # Rounded, since the last digits of a sum depend on the order of the lists.
    items = sorted(
        merged.values(),
        key=lambda passage: (-round(passage.score, 12), best_ranks[passage.key], passage.key),
    )
    return FusedList(items, method)


def _convert_single_ranking(
    ranking: Ranking,
    method: str,
    sign: int,
) -> FusedList:
    """Return *ranking* as a fused list in the same order, without repeated passages."""
    scored_passages: dict[Key, tuple[FusedPassage, float | None]] = {}
    for passage, score in zip(_list_passages([ranking], sign), ranking.scores, strict=True):
        scored_passages.setdefault(passage.key, (passage, score))
    passages = [passage for passage, _ in scored_passages.values()]
    if _are_scores_usable([score for _, score in scored_passages.values()]):
        return FusedList(passages, method, measure_spread([passage.score for passage in passages]))
    for rank, passage in enumerate(passages, start=1):
        passage.score = 1.0 / rank
    return FusedList(passages, method)
