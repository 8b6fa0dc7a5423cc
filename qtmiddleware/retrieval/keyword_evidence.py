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
from operator import add, mul
from typing import Any, Final

from qtmiddleware.config.settings import KeywordEvidenceSettings
from qtmiddleware.retrieval.bm25 import (
    compute_pair_gains,
    compute_term_gains,
    normalise_scores,
    sum_gains,
)
from qtmiddleware.retrieval.fusion import FusedList, FusedPassage
from qtmiddleware.retrieval.metadata_evidence import MetadataEvidence
from qtmiddleware.retrieval.question_words import (
    FoundWords,
    QuestionWords,
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
WeightedWords = tuple[QuestionWords, float]
"""(words, weight) of one query."""

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
    scores_before = [passage.score for passage in candidates]
    spread = (
        max(scores_before) - min(scores_before) if fused_list.spread is None else fused_list.spread
    )
    held_dates = [word for word in date_words if any(word in text for text in texts if text)]
    (question_keywords, weight), *model_keywords = keywords = collect_weighted_keywords()
    rules = load_word_rules(language)
    question = parse_question(" ".join((question_keywords, *held_dates)), rules)
    queries = [(parse_question(text, rules), weight) for text, weight in model_keywords]
    if options.weight is not None:
        queries.insert(0, (question, weight))
    # The beginning of a text counts more, and a title says best what the text is about.
    titled_texts = [
        _prepend_title(candidate.passage.title, text)
        for candidate, text in zip(candidates, texts, strict=True)
    ]
    found_words = find_words(_list_terms(question, queries), titled_texts, rules)
    word_evidence = (
        _score_question_words(question, found_words, scores_before, spread)
        if options.weight is None
        else None
    )
    if queries:
        word_evidence = _add_model_words(word_evidence, queries, found_words, options.weight)
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


def _list_terms(question: QuestionWords, queries: Sequence[WeightedWords]) -> list[str]:
    """Return the terms of *question*, and the content words of the other *queries*."""
    contents = (term for words, _ in queries for term in words.content)
    return list(dict.fromkeys((*question.terms, *contents)))


def _score_question_words(
    question: QuestionWords, found_words: FoundWords, scores: Sequence[float], spread: float
) -> _WordEvidence | None:
    """Return the evidence of the question's own words; ``None`` if no text contains any of them.

    Args:
        question: The question's words.
        found_words: The result of `find_words` for the candidates.
        scores: The candidates' scores; higher is better.
        spread: The typical gap between high and low scores.
    """
    if not any(map(frozenset(question.terms).intersection, found_words.held)):
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
    word_evidence: _WordEvidence | None,
    queries: Sequence[WeightedWords],
    found_words: FoundWords,
    weight: float | None,
) -> _WordEvidence | None:
    """Return the weighted mean of *word_evidence* and the evidence of the words of *queries*.

    Without a *weight* from the settings, the weight is `MODEL_WEIGHT`, or less if the weights of
    *queries* have a sum below 1. Returns *word_evidence* unchanged if no text contains any word.
    """
    model_evidence = _score_words(queries, found_words)
    if model_evidence is None:
        return word_evidence
    own = word_evidence or _WordEvidence([0.0] * len(model_evidence), 1.0, 0.0, "")
    if weight is None:
        weight = MODEL_WEIGHT * min(1.0, sum(weight for _, weight in queries))
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
    keywords: WeightedKeywords, texts: Sequence[str | None], language: str = ""
) -> list[float] | None:
    """Return a score per text for the keywords of several queries; higher is better.

    Returns ``None`` if no text contains any keyword.

    A query's score for a text is the BM25 score of its words, plus `PAIR` x idf for each pair of
    content words that are neighbours in the query and also in the text. `normalise_scores` scales
    the scores of each query. The scaled scores are combined:

    result = sum(weight x scaled) / sum(weight ** `OVERLAP`) ** (1 / `OVERLAP`)

    Both sums are over the queries that match any text. `OVERLAP` says how independent the queries
    are, from 1 (they repeat each other) to 2 (independent).
    """
    rules = load_word_rules(language)
    queries = [(parse_question(text, rules), weight) for text, weight in keywords]
    terms = _list_terms(QuestionWords((), (), (), ()), queries)
    return _score_words(queries, find_words(terms, texts, rules))


def _score_words(queries: Sequence[WeightedWords], found_words: FoundWords) -> list[float] | None:
    """Return a score per text for the words of *queries*, as `score_by_keywords` does."""
    queries = [(words, weight) for words, weight in queries if weight > 0]
    terms = frozenset(term for words, _ in queries for term in words.content)
    pairs = list(dict.fromkeys(pair for words, _ in queries for pair in words.neighbours))
    text_terms = count_terms(found_words, terms, pairs)
    term_gains = compute_term_gains(text_terms)
    pair_gains = compute_pair_gains(text_terms)
    matching = []
    for words, weight in queries:
        if any(scores := sum_gains(words.content, term_gains, len(text_terms))):
            pair_scores = sum_gains(words.neighbours, pair_gains, len(text_terms))
            matching.append((normalise_scores(list(map(add, scores, pair_scores))), weight))
    if not matching:
        return None
    largest = max(weight for _, weight in matching)
    shares = [weight / largest for _, weight in matching]
    divisor = sum(share**OVERLAP for share in shares) ** (1.0 / OVERLAP)
    columns = zip(*(scores for scores, _ in matching), strict=True)
    return [sum(map(mul, shares, scores)) / divisor for scores in columns]
