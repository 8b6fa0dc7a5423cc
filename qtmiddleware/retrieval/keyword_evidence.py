"""Rerank passages by the keywords that they contain.

The question's own words raise a passage only as far as they say more about it than about the
passage that the wrapped function ranked first (`question_words`). BM25 scores the words that a
model added (`score_by_keywords`). If the settings fix the weight of keywords, BM25 scores all of
them.
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
    compute_pair_gains,
    compute_term_gains,
    normalise_scores,
    sum_gains,
)
from qtmiddleware.retrieval.fusion import FusedList, FusedPassage
from qtmiddleware.retrieval.metadata_evidence import MetadataEvidence
from qtmiddleware.retrieval.question_words import (
    LEADING,
    WordRules,
    count_terms,
    find_words,
    load_word_rules,
    measure_certainties,
    measure_coverage,
    measure_joint_coverage,
    measure_word_evidence,
    parse_question,
)
from qtmiddleware.types import Evidence, Trace

MODEL_WEIGHT: Final = 0.3
"""The weight of a model's words. The scores and the question's own words have the rest."""
# Variants share words with their question. At 1, all their evidence would count as one opinion. At
# 2, it would count as independent opinions.
OVERLAP: Final = 1.5
# Division by a smaller spread could give infinity.
_LEAST_SPREAD: Final = 1e-300
# To recognise reciprocal ranks: how many scores are checked, and how far from a whole number a
# rank may be by rounding.
_LOOKED_AT: Final = 8
_ROUNDING: Final = 1e-4

WeightedKeywords = Sequence[tuple[str, float]]
"""(keywords, weight) for each of several queries."""

ScoreMetadata = Callable[[Sequence[Mapping[str, Any]]], MetadataEvidence | None]
"""Returns the evidence in the metadata of several passages; ``None`` if there is none."""
AddTerms = Callable[[list[str | None]], list[str | None]]
"""Adds the question's glossary terms to texts that contain another form of these terms."""


@dataclass(eq=False, repr=False, slots=True)
class _WordEvidence:
    """The evidence that the words of the queries give for each candidate.

    Attributes:
        shares: The amount to add to each candidate's score.
        weight: The factor by which to multiply each candidate's original score.
        strength: How much words count overall, from 0 to 1.
        reason: A sentence that explains the strength.
        joint_coverage: The fraction of the question's words that occur in at least one of the first
            `LEADING` candidates.
    """

    shares: Sequence[float]
    weight: float
    strength: float
    reason: str
    joint_coverage: float | None = None


def rerank_by_keywords(
    fused_list: FusedList,
    collect_weighted_keywords: Callable[[], WeightedKeywords],
    options: KeywordEvidenceSettings,
    trace: Trace,
    *,
    language: str = "",
    add_terms: AddTerms | None = None,
    score_metadata: ScoreMetadata = lambda _: None,
    date_words: Sequence[str] = (),
) -> FusedList:
    """Return *fused_list*, reranked by its scores, by keywords and by metadata.

    *fused_list* is returned unchanged if it has fewer than two candidates, if no candidate has a
    text, or if nothing in the texts and metadata matches.

    Args:
        fused_list: The list to rerank.
        collect_weighted_keywords: Returns the keywords. Called only if a candidate has a text.
        options: The settings for keyword evidence.
        trace: Receives notes on the evidence.
        language: The code of the question's language; ``""`` if unknown.
        add_terms: Adds the question's glossary terms to texts with another form of these terms.
        score_metadata: Returns the evidence in the candidates' metadata.
        date_words: Words for the dates in the question. A date word counts like a word of the
            question if it occurs in a candidate.
    """
    count = options.candidates or len(fused_list.items)
    candidates = fused_list.items[:count]
    others = fused_list.items[count:]
    if len(candidates) < 2:
        return fused_list
    texts = [candidate.passage.text for candidate in candidates]
    if not any(texts):
        trace.note("keyword_evidence", "no candidate has a text; order kept")
        return fused_list
    if add_terms is not None:
        texts = add_terms(texts)
    keywords = collect_weighted_keywords()
    scores_before = [passage.score for passage in candidates]
    spread = (
        max(scores_before) - min(scores_before) if fused_list.spread is None else fused_list.spread
    )
    if options.weight is not None:
        # BM25 over several queries uses no word rules, so the evidence names no language.
        language = ""
        word_evidence = _score_all_words(keywords, texts, options.weight)
    else:
        held_dates = [word for word in date_words if any(word in text for text in texts if text)]
        words = " ".join((keywords[0][0], *held_dates))
        titles = [candidate.passage.title for candidate in candidates]
        word_evidence = _score_question_words(words, texts, titles, language, scores_before, spread)
        if len(keywords) > 1:
            word_evidence = _add_model_words(word_evidence, keywords[1:], texts)
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
    # The passages after the candidates have no evidence, and no higher scores than the candidates.
    # They keep their order after them.
    shares = [*word_evidence.shares, *([0.0] * len(others))]
    scores = add_keyword_evidence(fused_list.scores, shares, word_evidence.weight, spread)
    order = sorted(range(len(candidates)), key=[-score for score in scores].__getitem__)
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
        matched=tuple([metadata.matched[place] for place in order]) if metadata else (),
    )
    return FusedList([*leading, *rescored[len(candidates) :]], fused_list.method, evidence=evidence)


def _score_all_words(
    keywords: WeightedKeywords, texts: Sequence[str | None], weight: float
) -> _WordEvidence | None:
    """Return the evidence of the words of all queries at the *weight* that the settings give them.

    Returns ``None`` if no text contains any of the words.
    """
    queries, text_terms = _list_and_count_query_terms(keywords, texts)
    evidence = _score_texts(queries, text_terms)
    if evidence is None:
        return None
    question_terms = frozenset(queries[0].terms)
    held_terms = frozenset[str]().union(*(text.counts.keys() for text in text_terms[:LEADING]))
    leading = len(question_terms & held_terms) / len(question_terms) if question_terms else None
    return _WordEvidence([weight * share for share in evidence], 1.0 - weight, weight, "", leading)


def _score_question_words(
    keywords: str,
    texts: Sequence[str | None],
    titles: Sequence[str],
    language: str,
    scores: Sequence[float],
    spread: float,
) -> _WordEvidence | None:
    """Return the evidence of the question's own words; ``None`` if no text contains any of them.

    Args:
        keywords: The question's keywords.
        texts: The texts of the candidates.
        titles: The titles of the candidates; ``""`` for a candidate without a title.
        language: The code of the question's language; ``""`` if unknown.
        scores: The candidates' scores; higher is better.
        spread: The typical gap between high and low scores.
    """
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
    certainties = measure_certainties(question, found_words)
    strength = max(certainties)
    first, *_ = coverage = measure_coverage(question, found_words)
    reason = (
        f"strength {strength:.2f}: one passage holds {coverage[certainties.index(strength)]:.0%} of"
        f" the question's keywords, the first one {first:.0%}"
        if strength
        else "order kept: no passage holds clearly more of the question's keywords than the first"
        f" one ({first:.0%})"
    )
    evidence = measure_word_evidence(question, found_words, certainties, scores)
    unit = spread if spread > _LEAST_SPREAD else 1.0
    shares = [share / unit for share in evidence]
    joint_coverage = measure_joint_coverage(question, found_words)
    return _WordEvidence(shares, 1.0, strength, reason, joint_coverage)


def _add_model_words(
    word_evidence: _WordEvidence | None, keywords: WeightedKeywords, texts: Sequence[str | None]
) -> _WordEvidence | None:
    """Return the weighted mean of *word_evidence* and the evidence of a model's words.

    The weight is `MODEL_WEIGHT`, or less if the weights of *keywords* have a sum below 1. Returns
    *word_evidence* unchanged if no text contains any of the words.
    """
    model_evidence = score_by_keywords(keywords, texts)
    if model_evidence is None:
        return word_evidence
    own = word_evidence or _WordEvidence([0.0] * len(texts), 1.0, 0.0, "")
    weight = MODEL_WEIGHT * min(1.0, sum(weight for _, weight in keywords))
    shares = [
        (1.0 - weight) * own_share + weight * model_share
        for own_share, model_share in zip(own.shares, model_evidence, strict=True)
    ]
    return _WordEvidence(shares, 1.0 - weight, weight, "", own.joint_coverage)


def _add_metadata_evidence(
    word_evidence: _WordEvidence | None, metadata_evidence: MetadataEvidence
) -> _WordEvidence:
    """Add *metadata_evidence* to *word_evidence*, and return the sum.

    A metadata_evidence value that the question names counts like a word in the passage.
    """
    if word_evidence is None:
        return _WordEvidence(metadata_evidence.shares, 1.0, 0.0, "")
    word_evidence.shares = [
        share + word_evidence.weight * added_share
        for share, added_share in zip(word_evidence.shares, metadata_evidence.shares, strict=True)
    ]
    return word_evidence


def _prepend_title(title: str, text: str | None) -> str | None:
    """Return *text* with *title* as its first line.

    Returns *text* unchanged if *text* already starts with *title*, or if either is empty.
    """
    return f"{title}\n{text}" if text and title and not text.startswith(title) else text


def are_reciprocal_ranks(scores: Sequence[float]) -> bool:
    """Return whether *scores*, best first, look like reciprocal rank fusion of one or two lists.

    Every score must be 1 / (k + rank), for any k, or the sum of two such numbers. Only the lower
    half of *scores* is checked. Weighted lists are not recognised.

    Returns false if this half has fewer than five scores. Also returns false for rounded scores,
    because they fit by chance: 0.7 is 1/2 + 1/5.
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

    Args:
        scores: The passages' scores; higher is better.
        shares: The amount that keywords add to each score.
        weight: The factor by which each score is multiplied.
        spread: The typical gap between high and low scores. If it is 0, the scores are ignored.
    """
    low = min(scores, default=0.0)
    tells_apart = spread > _LEAST_SPREAD
    return [
        weight * ((score - low) / spread if tells_apart else 0.0) + share
        for score, share in zip(scores, shares, strict=True)
    ]


def score_by_keywords(
    keywords: WeightedKeywords, texts: Sequence[str | None]
) -> list[float] | None:
    """Return a score per text for the keywords of several queries; higher is better.

    Returns ``None`` if no text contains any keyword.

    A query's score for a text is the BM25 score of its words, plus `PAIR` x idf for each pair of
    words that are neighbours in both the query and the text. `normalise_scores` scales the scores
    of each query. The scaled scores are combined:

    result = sum(weight x scaled) / sum(weight ** `OVERLAP`) ** (1 / `OVERLAP`)

    Both sums are over the queries that match any text. `OVERLAP` says how independent the queries
    are, from 1 (they repeat each other) to 2 (independent).
    """
    return _score_texts(*_list_and_count_query_terms(keywords, texts))


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


def _list_and_count_query_terms(
    keywords: WeightedKeywords, texts: Sequence[str | None]
) -> tuple[list[_QueryTerms], Sequence[TextTerms]]:
    """Return the terms of each query, and the counts of these terms in each text.

    Queries with weight 0 are left out.
    """
    rules = WordRules()
    queries = [
        _QueryTerms(words.terms, words.pairs, weight)
        for words, weight in ((parse_question(text, rules), weight) for text, weight in keywords)
        if weight > 0
    ]
    terms = list(dict.fromkeys(term for query in queries for term in query.terms))
    pairs = frozenset(pair for query in queries for pair in query.pairs)
    return queries, count_terms(texts, terms, pairs)


def _score_texts(
    queries: Sequence[_QueryTerms], text_terms: Sequence[TextTerms]
) -> list[float] | None:
    """Return how well each text matches the *queries*; ``None`` if no text matches any query.

    The scores of all queries are combined as in `score_by_keywords`.
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
