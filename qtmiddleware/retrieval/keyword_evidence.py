"""Weighing passages that were already found by the words of the query.

The question's own words count as `question_words` says, and only where a passage holds clearly more
of them than the function's own first one. A model's words, which are news to every function, and a
weight that is set count as one sum of BM25 (`score_by_keywords`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from operator import add
from typing import Any, Final, NamedTuple

from qtmiddleware.config.settings import KeywordEvidenceSettings
from qtmiddleware.retrieval.bm25 import (
    Pair,
    TextTerms,
    count_terms,
    normalise,
    read_keywords,
    sum_gains,
    weigh_pairs,
    weigh_terms,
)
from qtmiddleware.retrieval.fusion import Fused, FusedItem
from qtmiddleware.retrieval.metadata_evidence import MetadataEvidence
from qtmiddleware.retrieval.question_words import (
    FULL_LEAD,
    HALF,
    LEADING,
    LEAST_LEAD,
    WHOLE,
    find_words,
    load_word_rules,
    measure_coverage,
    measure_union,
    read_question,
    weigh_words,
)
from qtmiddleware.retrieval.responses import read_all_metadata, read_texts, read_titles
from qtmiddleware.types import Evidence, Trace

# What a model's words weigh beside scores, and beside scores that are ranks, which say nothing of
# distances.
WEIGHT_OF_VARIANTS: Final = 0.4
WEIGHT_OF_VARIANTS_BESIDE_RANKS: Final = 0.3
# Variants share words with their question. At 1 their evidence would count as one opinion, at 2 as
# independent ones.
OVERLAP: Final = 1.5
# How many scores are looked at, and how far from a whole number a rank may be by rounding.
_LOOKED_AT: Final = 8
_ROUNDING: Final = 1e-4

WeightedKeywords = Sequence[tuple[str, float]]
"""The keywords of several queries, each with its weight."""

WeighMetadata = Callable[[Sequence[Mapping[str, Any]]], MetadataEvidence | None]
"""What the metadata of several passages says of the question."""
WriteTerms = Callable[[list[str | None]], list[str | None]]
"""Writes the question's terms into texts that hold another form of them."""


@dataclass(eq=False, repr=False, slots=True)
class _Opinion:
    """What words say of the candidates: *shares* of each one's sum, beside the *weight* of its score.

    *strength* is how much words count, from 0 to 1, *reason* why, and *coverage* the share of the
    question's words that each candidate holds, if passages may leave the plain set only for others
    that hold more. *leading* is that of the first three between them.
    """

    shares: Sequence[float]
    weight: float
    strength: float
    reason: str
    coverage: Sequence[float] = ()
    leading: float | None = None


def weigh_by_keywords(
    fused: Fused,
    collect_keywords: Callable[[], WeightedKeywords],
    options: KeywordEvidenceSettings,
    own_scores: Sequence[float | None],
    trace: Trace,
    *,
    language: str = "",
    asked: int | None = None,
    top_k: int | None = None,
    write_terms: WriteTerms | None = None,
    weigh_metadata: WeighMetadata = lambda _: None,
    dated: Sequence[str] = (),
) -> Fused:
    """Return *fused* with its leading candidates ordered by score and by words; unchanged if none has a text.

    Args:
        collect_keywords: Called only if there are texts to look for keywords in.
        own_scores: Those of the question's own list.
        language: The code of the question's language, empty if unknown.
        asked: How many passages the question's own search asked for.
        top_k: How many passages the caller asked for.
        write_terms: Writes the question's terms into texts that hold another form of them.
        weigh_metadata: What the metadata of the candidates says of the question.
        dated: Words for the dates that the question leans on, which count as its own if a candidate
        holds them.
    """
    count = options.candidates or len(fused.items)
    candidates, rest = fused.items[:count], fused.items[count:]
    if len(candidates) < 2:
        return fused
    items = [it.item for it in candidates]
    texts = read_texts(items, options.text_field)
    if not any(texts):
        trace.note("keyword_evidence", "no candidate has a text; order kept")
        return fused
    if write_terms is not None:
        texts = write_terms(texts)
    fields = read_all_metadata(items)
    keywords, numbers = collect_keywords(), [it.score for it in candidates]
    spread = max(numbers) - min(numbers) if fused.spread is None else fused.spread
    if len(keywords) > 1 or options.weight is not None:
        language = ""
        opinion = _weigh_all_words(keywords, texts, own_scores, options.weight)
    else:
        is_whole = asked is not None and len(own_scores) < asked
        held = [word for word in dated if any(word in text for text in texts if text)]
        own = " ".join((keywords[0][0], *held))
        opinion = _weigh_own_words(own, texts, read_titles(fields), language, is_whole=is_whole)
    metadata = None if options.weight == 0.0 else weigh_metadata(fields)
    if metadata is not None:
        trace.notes.extend(("metadata", said) for said in metadata.notes)
        opinion = _add_metadata(opinion, metadata)
    if opinion is None:
        trace.note("keyword_evidence", "no keyword in any candidate; order kept")
        return fused
    if opinion.reason:
        trace.note("keyword_evidence", opinion.reason)
    # What follows the candidates has no evidence, and no score above theirs: it stays behind them,
    # in its order.
    shares = [*opinion.shares, *([0.0] * len(rest))]
    scores = add_evidence(fused.scores, shares, opinion.weight, spread)
    order = sorted(range(len(candidates)), key=[-score for score in scores].__getitem__)
    if opinion.coverage and top_k and top_k < len(order):
        order = _keep_covering(order, opinion.coverage, top_k)
        _lower_to_order(order, scores, shares)
    weighed = [
        FusedItem(it.key, it.item, score, it.sources)
        for it, score in zip(fused.items, scores, strict=True)
    ]
    leading = [weighed[place] for place in order]
    account = Evidence(
        keywords=tuple(keywords),
        weight=opinion.strength,
        keys=tuple([it.key for it in leading]),
        scores=tuple([it.score for it in leading]),
        shares=tuple([shares[place] for place in order]),
        language=language,
        coverage=opinion.leading,
    )
    return Fused([*leading, *weighed[len(candidates) :]], fused.method, evidence=account)


def _weigh_all_words(
    keywords: WeightedKeywords,
    texts: Sequence[str | None],
    own_scores: Sequence[float | None],
    weight: float | None,
) -> _Opinion | None:
    """What the words of several queries say, or those of the question under a *weight* that is set."""
    queries, counted = _count_keywords(keywords, texts)
    evidence, reason = _score_queries(queries, counted), ""
    if evidence is None:
        return None
    if weight is None:
        weight, reason = choose_weight(own_scores)
    own = frozenset(queries[0].terms)
    held = frozenset[str]().union(*(it.counts.keys() for it in counted[:LEADING]))
    leading = len(own & held) / len(own) if own else None
    return _Opinion(
        [weight * share for share in evidence], 1.0 - weight, weight, reason, leading=leading
    )


def _weigh_own_words(
    keywords: str,
    texts: Sequence[str | None],
    titles: Sequence[str],
    language: str,
    *,
    is_whole: bool,
) -> _Opinion | None:
    """What the words of the question say; *is_whole* says that the texts are the whole collection."""
    rules = load_word_rules(language)
    question = read_question(keywords, rules)
    if not question.terms:
        return None
    titled = (
        [_put_title_first(title, text) for title, text in zip(titles, texts, strict=True)]
        if any(titles)
        else texts
    )
    found = find_words(question, titled, rules)
    if not any(found.places):
        return None
    coverage = measure_coverage(question, found)
    # A number or code that one passage alone holds says which is meant, however few passages there
    # are.
    codes = [
        term
        for term in question.content
        if term.isascii() and not term.isalpha() and term not in found.places[0]
    ]
    is_whole = is_whole and not any(
        sum(code in places for places in found.places) == 1 for code in codes
    )
    strength, reason = measure_strength(coverage, is_whole=is_whole)
    shares = (
        [strength * share for share in weigh_words(question, found)]
        if strength
        else [0.0] * len(texts)
    )
    return _Opinion(shares, 1.0, strength, reason, coverage, measure_union(question, found))


def _add_metadata(opinion: _Opinion | None, metadata: MetadataEvidence) -> _Opinion:
    """What words and *metadata* say together: what a passage has of what was named counts as words that it holds."""
    if opinion is None:
        return _Opinion(metadata.shares, 1.0, 0.0, "", metadata.matched)
    opinion.shares = [
        share + opinion.weight * more
        for share, more in zip(opinion.shares, metadata.shares, strict=True)
    ]
    if opinion.coverage:
        opinion.coverage = list(map(add, opinion.coverage, metadata.matched))
    return opinion


def _put_title_first(title: str, text: str | None) -> str | None:
    return f"{title}\n{text}" if text and title and not text.startswith(title) else text


def measure_strength(coverage: Sequence[float], *, is_whole: bool) -> tuple[float, str]:
    """Return how much the question's own words count, from 0 to 1, and what decided it, in a sentence.

    strength = (lead - `LEAST_LEAD`) / (`FULL_LEAD` - `LEAST_LEAD`) between 0 and 1, with lead = the
    largest *coverage* of any passage less that of the first one. If the list *is_whole*, the whole
    collection, times `WHOLE`, unless one passage holds every word and the first one no more than
    half of them.
    """
    most, first = max(coverage), coverage[0]
    strength = min(1.0, max(0.0, (most - first - LEAST_LEAD) / (FULL_LEAD - LEAST_LEAD)))
    if not strength:
        return (
            0.0,
            (
                "order kept: no passage holds clearly more of the question's keywords than the"
                f" first one ({first:.0%})"
            ),
        )
    reason = f"one passage holds {most:.0%} of the question's keywords, the first one {first:.0%}"
    if is_whole and (most < 1.0 or first > HALF):
        strength, reason = (
            strength * WHOLE,
            f"{reason}; the list is the whole collection, so keywords count a fifth",
        )
    return strength, f"strength {strength:.2f}: {reason}"


def _keep_covering(order: Sequence[int], coverage: Sequence[float], top_k: int) -> list[int]:
    """Return *order* so that a passage leaves the plain first *top_k* only for one that holds clearly more.

    Newcomers are taken in their order. Each takes the place of the last passage of the plain set
    that it may replace.
    """
    places = {candidate: place for place, candidate in enumerate(order)}
    chosen = list(order[:top_k])
    leaving = sorted(set(range(top_k)).difference(chosen), key=lambda candidate: -places[candidate])
    for newcomer in [candidate for candidate in chosen if candidate >= top_k]:
        # The shares of words are fractions, so what is equal may differ by rounding.
        least = coverage[newcomer] - LEAST_LEAD + 1e-9
        replaced = next((candidate for candidate in leaving if coverage[candidate] <= least), None)
        if replaced is None:
            chosen.remove(newcomer)
        else:
            leaving.remove(replaced)
    first = sorted([*chosen, *leaving], key=places.__getitem__)
    taken = set(first)
    return [*first, *[candidate for candidate in order if candidate not in taken]]


def _lower_to_order(order: Sequence[int], scores: list[float], shares: list[float]) -> None:
    """Lower the *scores*, and the *shares* of words in them, of passages that stand behind lower ones in *order*."""
    lowest = scores[order[0]]
    for place in order:
        excess = max(0.0, scores[place] - lowest)
        scores[place] -= excess
        shares[place] -= excess
        lowest = scores[place]


def choose_weight(own_scores: Sequence[float | None]) -> tuple[float, str]:
    """Return what a model's words weigh beside scores, and why that is less than usual.

    *own_scores* are those of the question's own list. A function that fuses lists by rank has less
    to gain from words.
    """
    scores = [score for score in own_scores if score is not None]
    if len(scores) == len(own_scores) and are_reciprocal_ranks(scores):
        weight = WEIGHT_OF_VARIANTS_BESIDE_RANKS
        return (
            weight,
            f"weight {weight:.2f} of {WEIGHT_OF_VARIANTS}: the scores are reciprocal ranks",
        )
    return WEIGHT_OF_VARIANTS, ""


def are_reciprocal_ranks(scores: Sequence[float]) -> bool:
    """Whether *scores*, best first, are those of a reciprocal rank fusion: 1 / (k + rank) of one list or of two.

    The lower half is looked at, whose passages are seldom in more lists. Any k will do, and no
    weights. Of few scores nothing can be said, nor of round ones: 0.7 is 1 / 2 + 1 / 5.
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
    """Whether *score* is 1 / i, or 1 / i + 1 / j with i <= j, of whole numbers."""
    if abs(1.0 / score - round(1.0 / score)) < _ROUNDING:
        return True
    rests = (
        score - 1.0 / i
        for i in range(ceil(1.0 / score), min(1_000, int(2.0 / score + _ROUNDING)) + 1)
    )
    return any(rest > 0.0 and abs(1.0 / rest - round(1.0 / rest)) < _ROUNDING for rest in rests)


def add_evidence(
    scores: Sequence[float], shares: Sequence[float], weight: float, spread: float
) -> list[float]:
    """Return the backend's *scores* (higher is better) and the *shares* of words as one sum each.

    sum = weight x (score - lowest) / spread + share. *spread* is how far apart such scores usually
    lie; at 0 they tell nothing apart and have no say.
    """
    low = min(scores, default=0.0)
    # A score divided by less than that may be infinite.
    tells_apart = spread > 1e-300
    return [
        weight * ((score - low) / spread if tells_apart else 0.0) + share
        for score, share in zip(scores, shares, strict=True)
    ]


def score_by_keywords(
    keywords: WeightedKeywords, texts: Sequence[str | None]
) -> list[float] | None:
    """Returns how well each text holds several queries' keywords; ``None`` where no text holds any.

    evidence = sum over queries of weight x (score - lowest) / (`MEANS` x mean of that), at most
    `MOST`, divided by (sum of weight ** OVERLAP) ** (1 / OVERLAP) over the queries that any text
    matches; score is BM25 of the words plus `PAIR` x idf for each two of them that stand side by
    side in the text as in the query. The worst text has 0, and the best the more, the fewer have as
    much.
    """
    return _score_queries(*_count_keywords(keywords, texts))


class _QueryTerms(NamedTuple):
    """The *terms* of one query and the *pairs* of neighbouring ones, with what the query weighs."""

    terms: Sequence[str]
    pairs: Sequence[Pair]
    weight: float


def _count_keywords(
    keywords: WeightedKeywords, texts: Sequence[str | None]
) -> tuple[list[_QueryTerms], Sequence[TextTerms]]:
    """The terms of each query that counts, and how often each text holds them."""
    queries = [
        _QueryTerms(*read_keywords(words), weight) for words, weight in keywords if weight > 0
    ]
    all_terms = frozenset[str]().union(*(it.terms for it in queries))
    return queries, count_terms(
        texts, all_terms, frozenset[Pair]().union(*(it.pairs for it in queries))
    )


def _score_queries(
    queries: Sequence[_QueryTerms], counted: Sequence[TextTerms]
) -> list[float] | None:
    term_gains, pair_gains, size = weigh_terms(counted), weigh_pairs(counted), len(counted)
    matching = [
        (list(map(add, scores, sum_gains(pairs, pair_gains, size))), weight)
        for terms, pairs, weight in queries
        if any(scores := sum_gains(terms, term_gains, size))
    ]
    if not matching:
        return None
    largest = max(weight for _, weight in matching)
    shares = [weight / largest for _, weight in matching]
    whole = sum(share**OVERLAP for share in shares) ** (1.0 / OVERLAP)
    evidence = [0.0] * size
    for (scores, _), share in zip(matching, shares, strict=True):
        evidence = list(map(add, evidence, [share / whole * score for score in normalise(scores)]))
    return evidence
