"""Rerank passages by the keywords that they contain.

The question's words change the order only if a passage contains clearly more of these words than
the passage that the wrapped function ranked first. The module `question_words` scores these words.
If a model added words, or if the settings fix the weight of keywords, BM25 scores all words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from operator import add
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from qtmiddleware.config.settings import KeywordEvidenceSettings
from qtmiddleware.retrieval.bm25 import (
    Pair,
    TextTerms,
    compute_pair_gains,
    compute_term_gains,
    normalise_scores,
    sum_gains,
)
from qtmiddleware.retrieval.fusion import FusedList, FusedPassage
from qtmiddleware.retrieval.metadata_evidence import MetadataEvidence
from qtmiddleware.retrieval.question_words import (
    FULL_LEAD,
    HALF,
    LEADING,
    LEAST_LEAD,
    WHOLE,
    WordRules,
    count_terms,
    find_words,
    load_word_rules,
    measure_coverage,
    measure_joint_coverage,
    parse_question,
    sum_word_scores,
)
from qtmiddleware.types import Evidence, Trace

if TYPE_CHECKING:
    from qtmiddleware.retrieval.glossary import Term

# The weight of a model's words, next to ordinary scores and next to reciprocal ranks, which say
# nothing about the distances between passages.
WEIGHT_OF_VARIANTS: Final = 0.4
WEIGHT_OF_VARIANTS_BESIDE_RANKS: Final = 0.3
# Variants share words with their question. At 1, all their evidence would count as one opinion. At
# 2, it would count as independent opinions.
OVERLAP: Final = 1.5
# To recognise reciprocal ranks: how many scores are checked, and how far from a whole number a
# rank may be by rounding.
_LOOKED_AT: Final = 8
_ROUNDING: Final = 1e-4

WeightedKeywords = Sequence[tuple[str, float]]
"""(keywords, weight) for each of several queries."""

ScoreMetadata = Callable[[Sequence[Mapping[str, Any]]], MetadataEvidence | None]
"""Returns the evidence in the metadata of several passages; ``None`` if there is none."""


@dataclass(eq=False, repr=False, slots=True)
class _WordEvidence:
    """The evidence that the words of the queries give for each candidate.

    Attributes:
        shares: The amount to add to each candidate's score.
        weight: The factor by which to multiply each candidate's original score.
        strength: How much words count overall, from 0 to 1.
        reason: A sentence that explains the strength.
        coverage: The fraction of the question's words in each candidate. If this is set, only a
            passage with clearly more of these words can replace one of the first passages.
        joint_coverage: The fraction of the question's words that occur in at least one of the first
            `LEADING` candidates.
    """

    shares: Sequence[float]
    weight: float
    strength: float
    reason: str
    coverage: Sequence[float] = ()
    joint_coverage: float | None = None


def rerank_by_keywords(
    fused_list: FusedList,
    keywords: WeightedKeywords,
    options: KeywordEvidenceSettings,
    original_scores: Sequence[float | None],
    trace: Trace,
    *,
    language: str = "",
    search_width: int | None = None,
    top_k: int | None = None,
    glossary_terms: Sequence[Term] = (),
    score_metadata: ScoreMetadata = lambda _: None,
    date_words: Sequence[str] = (),
) -> FusedList:
    """Return *fused_list*, reranked by its scores, by keywords and by metadata.

    *fused_list* is returned unchanged if it has fewer than two candidates, if no candidate has a
    text, or if nothing in the texts and metadata matches.
    """
    count = options.candidates or len(fused_list.items)
    candidates = fused_list.items[:count]
    if len(candidates) < 2:
        return fused_list
    texts = [candidate.passage.text for candidate in candidates]
    if not any(texts):
        trace.note("keyword_evidence", "no candidate has a text; order kept")
        return fused_list
    if glossary_terms:
        # Imported here so that users without a glossary do not pay for this module.
        from qtmiddleware.retrieval.glossary import add_glossary_terms

        texts = add_glossary_terms(glossary_terms, texts)
    if len(keywords) > 1 or options.weight is not None:
        # BM25 over several queries uses no word rules, so the evidence names no language.
        language = ""
        word_evidence = _score_all_words(keywords, texts, original_scores, options.weight)
    else:
        # A search that returns fewer passages than it was asked for has returned all there are.
        is_whole_collection = search_width is not None and len(original_scores) < search_width
        held_dates = [word for word in date_words if any(word in text for text in texts if text)]
        words = " ".join((keywords[0][0], *held_dates))
        titles = [candidate.passage.title for candidate in candidates]
        word_evidence = _score_question_words(
            words, texts, titles, language, is_whole_collection=is_whole_collection
        )
    fields = [candidate.passage.metadata for candidate in candidates]
    metadata = None if options.weight == 0.0 else score_metadata(fields)
    if metadata is not None:
        trace.notes.extend(("metadata", sentence) for sentence in metadata.notes)
        word_evidence = _add_metadata_evidence(word_evidence, metadata)
    if word_evidence is None:
        trace.note("keyword_evidence", "no keyword in any candidate; order kept")
        return fused_list
    if word_evidence.reason:
        trace.note("keyword_evidence", word_evidence.reason)
    matched = metadata.matched if metadata is not None else ()
    return _order_by_evidence(fused_list, word_evidence, matched, keywords, language, top_k)


def _order_by_evidence(
    fused_list: FusedList,
    word_evidence: _WordEvidence,
    matched: Sequence[float],
    keywords: WeightedKeywords,
    language: str,
    top_k: int | None,
) -> FusedList:
    """Return *fused_list* with *word_evidence* added to the scores of its first passages.

    The passages after these have no evidence, and no higher scores. They keep their order.
    """
    spread, scores_before = fused_list.spread, fused_list.scores
    count = len(word_evidence.shares)
    shares = [*word_evidence.shares, *([0.0] * (len(scores_before) - count))]
    if spread is None:
        spread = max(scores_before[:count]) - min(scores_before[:count])
    scores = add_keyword_evidence(scores_before, shares, word_evidence.weight, spread)
    order = sorted(range(count), key=[-score for score in scores].__getitem__)
    if word_evidence.coverage and top_k and top_k < count:
        order = _protect_first_passages(order, word_evidence.coverage, top_k)
        _lower_scores_to_match_order(order, scores, shares)
    rescored = [
        FusedPassage(passage.key, passage.passage, score, passage.sources)
        for passage, score in zip(fused_list.items, scores, strict=True)
    ]
    leading = [rescored[place] for place in order]
    evidence = Evidence(
        keywords=tuple(keywords),
        weight=word_evidence.strength,
        keys=tuple([passage.key for passage in leading]),
        scores=tuple([passage.score for passage in leading]),
        shares=tuple([shares[place] for place in order]),
        language=language,
        coverage=word_evidence.joint_coverage,
        matched=tuple([matched[place] for place in order]) if matched else (),
    )
    return FusedList([*leading, *rescored[count:]], fused_list.method, evidence=evidence)


def _score_all_words(
    keywords: WeightedKeywords,
    texts: Sequence[str | None],
    original_scores: Sequence[float | None],
    weight: float | None,
) -> _WordEvidence | None:
    """Return the evidence of the words of all queries; ``None`` if no text contains any of them."""
    rules = WordRules()
    queries = [
        _QueryTerms(words.terms, words.pairs, query_weight)
        for words, query_weight in [(parse_question(text, rules), part) for text, part in keywords]
    ]
    terms = list(dict.fromkeys(term for query in queries for term in query.terms))
    pairs = frozenset(pair for query in queries for pair in query.pairs)
    text_terms = count_terms(texts, terms, pairs)
    evidence = _score_texts(queries, text_terms)
    if evidence is None:
        return None
    reason = ""
    if weight is None:
        weight, reason = weigh_variants(original_scores)
    question_terms = frozenset(queries[0].terms)
    held_terms = frozenset().union(*(text.counts.keys() for text in text_terms[:LEADING]))
    leading = len(question_terms & held_terms) / len(question_terms) if question_terms else None
    return _WordEvidence(
        [weight * share for share in evidence], 1.0 - weight, weight, reason, joint_coverage=leading
    )


def _score_question_words(
    keywords: str,
    texts: Sequence[str | None],
    titles: Sequence[str],
    language: str,
    *,
    is_whole_collection: bool,
) -> _WordEvidence | None:
    """Return the evidence of the question's own words; ``None`` if no text contains any of them."""
    rules = load_word_rules(language)
    question = parse_question(keywords, rules)
    if not question.terms:
        return None
    # The beginning of a text counts more, and a title says best what the text is about.
    titled_texts = (
        [_prepend_title(title, text) for title, text in zip(titles, texts, strict=True)]
        if any(titles)
        else texts
    )
    found_words = find_words(question, titled_texts, rules)
    if not any(found_words.held):
        return None
    coverage = measure_coverage(question, found_words)
    # A number or code that occurs in one passage only identifies this passage, even in a small
    # collection.
    codes = [
        term
        for term in question.content
        if term.isascii() and not term.isalpha() and term not in found_words.held[0]
    ]
    is_whole_collection = is_whole_collection and not any(
        sum(code in held for held in found_words.held) == 1 for code in codes
    )
    strength, reason = judge_lead(coverage, is_whole_collection=is_whole_collection)
    shares = (
        [strength * share for share in sum_word_scores(question, found_words)]
        if strength
        else [0.0] * len(texts)
    )
    return _WordEvidence(
        shares, 1.0, strength, reason, coverage, measure_joint_coverage(question, found_words)
    )


def _add_metadata_evidence(
    word_evidence: _WordEvidence | None, metadata_evidence: MetadataEvidence
) -> _WordEvidence:
    if word_evidence is None:
        return _WordEvidence(metadata_evidence.shares, 1.0, 0.0, "", metadata_evidence.matched)
    word_evidence.shares = [
        share + word_evidence.weight * added_share
        for share, added_share in zip(word_evidence.shares, metadata_evidence.shares, strict=True)
    ]
    if word_evidence.coverage:
        word_evidence.coverage = list(map(add, word_evidence.coverage, metadata_evidence.matched))
    return word_evidence


def _prepend_title(title: str, text: str | None) -> str | None:
    return f"{title}\n{text}" if text and title and not text.startswith(title) else text


class Strength(NamedTuple):
    """How much words count, from 0 to 1, and why; ``""`` for the usual weight."""

    value: float
    reason: str


def judge_lead(coverage: Sequence[float], *, is_whole_collection: bool) -> Strength:
    """Return how much the question's own words count.

    strength = (lead - `LEAST_LEAD`) / (`FULL_LEAD` - `LEAST_LEAD`)

    - The lead is the largest *coverage* minus the coverage of the first passage.
    - Up to `LEAST_LEAD`, words do not count. From `FULL_LEAD` on, they count fully.
    """
    most, first = max(coverage), coverage[0]
    strength = min(1.0, max(0.0, (most - first - LEAST_LEAD) / (FULL_LEAD - LEAST_LEAD)))
    if not strength:
        kept = "order kept: no passage holds clearly more of the question's keywords than the"
        return Strength(0.0, f"{kept} first one ({first:.0%})")
    reason = f"one passage holds {most:.0%} of the question's keywords, the first one {first:.0%}"
    if is_whole_collection and (most < 1.0 or first > HALF):
        strength *= WHOLE
        reason = f"{reason}; the list is the whole collection, so keywords count a fifth"
    return Strength(strength, f"strength {strength:.2f}: {reason}")


def _protect_first_passages(
    order: Sequence[int], coverage: Sequence[float], top_k: int
) -> list[int]:
    """Return *order*, changed so that few of the original first *top_k* passages are replaced."""
    places = {candidate: place for place, candidate in enumerate(order)}
    chosen = list(order[:top_k])
    leaving = sorted(set(range(top_k)).difference(chosen), key=lambda candidate: -places[candidate])
    for newcomer in [candidate for candidate in chosen if candidate >= top_k]:
        # Coverages are fractions, so equal ones may differ by rounding.
        limit = coverage[newcomer] - LEAST_LEAD + 1e-9
        replaced = next((candidate for candidate in leaving if coverage[candidate] <= limit), None)
        if replaced is None:
            chosen.remove(newcomer)
        else:
            leaving.remove(replaced)
    first_places = sorted([*chosen, *leaving], key=places.__getitem__)
    placed = set(first_places)
    return [*first_places, *[candidate for candidate in order if candidate not in placed]]


def _lower_scores_to_match_order(
    order: Sequence[int], scores: list[float], shares: list[float]
) -> None:
    """Lower *scores* in place until none is higher than the score before it in *order*."""
    lowest = scores[order[0]]
    for place in order:
        excess = max(0.0, scores[place] - lowest)
        scores[place] -= excess
        shares[place] -= excess
        lowest = scores[place]


def weigh_variants(original_scores: Sequence[float | None]) -> Strength:
    """Return the weight of a model's words: less beside reciprocal ranks."""
    scores = [score for score in original_scores if score is not None]
    if len(scores) == len(original_scores) and are_reciprocal_ranks(scores):
        weight = WEIGHT_OF_VARIANTS_BESIDE_RANKS
        reason = f"weight {weight:.2f} of {WEIGHT_OF_VARIANTS}: the scores are reciprocal ranks"
        return Strength(weight, reason)
    return Strength(WEIGHT_OF_VARIANTS, "")


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


def add_keyword_evidence(
    scores: Sequence[float], shares: Sequence[float], weight: float, spread: float
) -> list[float]:
    """Return each passage's score with the keyword evidence added.

    result = weight x (score - lowest) / spread + share, where lowest is the lowest of *scores*
    """
    low = min(scores, default=0.0)
    # Division by a smaller number could give infinity.
    tells_apart = spread > 1e-300
    return [
        weight * ((score - low) / spread if tells_apart else 0.0) + share
        for score, share in zip(scores, shares, strict=True)
    ]


class _QueryTerms(NamedTuple):
    """The words of one query.

    Attributes:
        terms: The query's words.
        pairs: The pairs of words that are neighbours in the query.
        weight: The weight of the query in the combined score.
    """

    terms: Sequence[str]
    pairs: Sequence[Pair]
    weight: float


def _score_texts(
    queries: Sequence[_QueryTerms], text_terms: Sequence[TextTerms]
) -> list[float] | None:
    """Return how well each text matches the *queries*; ``None`` if no text matches any query.

    result = sum(weight x scaled) / sum(weight ** `OVERLAP`) ** (1 / `OVERLAP`)
    """
    term_gains = compute_term_gains(text_terms)
    pair_gains = compute_pair_gains(text_terms)
    size = len(text_terms)
    matching = [
        (list(map(add, scores, sum_gains(pairs, pair_gains, size))), weight)
        for terms, pairs, weight in queries
        if any(scores := sum_gains(terms, term_gains, size))
    ]
    if not matching:
        return None
    largest = max(weight for _, weight in matching)
    shares = [weight / largest for _, weight in matching]
    divisor = sum(share**OVERLAP for share in shares) ** (1.0 / OVERLAP)
    evidence = [0.0] * size
    for (scores, _), share in zip(matching, shares, strict=True):
        evidence = list(
            map(add, evidence, [share / divisor * score for score in normalise_scores(scores)])
        )
    return evidence
