"""Rerank passages by the keywords that they contain.

The question's words change the order only if a passage contains clearly more of these words than
the passage that the wrapped function ranked first. The module `question_words` scores these words.
If a model added words, or if the settings fix the weight of keywords, BM25 scores all words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import Final

from qtmiddleware.preprocessing.dates import Times
from qtmiddleware.retrieval.call import EVIDENT, prepare_query
from qtmiddleware.retrieval.fusion import (
    FusedList,
    FusedPassage,
    FusionResult,
    are_reciprocal_ranks,
)
from qtmiddleware.retrieval.metadata_evidence import collect_metadata_evidence
from qtmiddleware.retrieval.question_words import (
    LEADING,
    LEAST_LEAD,
    WordRules,
    compute_gains,
    count_terms,
    find_words,
    judge_lead,
    load_word_rules,
    normalise_scores,
    parse_question,
    sum_gains,
)
from qtmiddleware.retrieval.state import State
from qtmiddleware.retrieval.variants import VariantResults
from qtmiddleware.types import Evidence, Passage

# The weight of a model's words, next to ordinary scores and next to reciprocal ranks, which say
# nothing about the distances between passages.
WEIGHT_OF_VARIANTS: Final = 0.4
WEIGHT_OF_VARIANTS_BESIDE_RANKS: Final = 0.3
# Variants share words with their question. At 1, all their evidence would count as one opinion. At
# 2, it would count as independent opinions.
OVERLAP: Final = 1.5

WeightedKeywords = Sequence[tuple[str, float]]
"""(keywords, weight) for each of several queries."""


@dataclass(eq=False, repr=False, slots=True)
class _WordEvidence:
    """What words and metadata add to the scores of the candidates.

    *shares* are added to the scores, after these were multiplied by *weight*. If *coverage* is set,
    only a passage with clearly more of the question's words replaces one of the first passages.
    """

    shares: Sequence[float]
    weight: float
    strength: float
    reason: str
    coverage: Sequence[float] = ()
    joint_coverage: float | None = None
    language: str = ""
    matched: Sequence[float] = ()


def rerank_by_keywords(state: State, fusion: FusionResult, variants: VariantResults) -> FusedList:
    """Return the fused list, reranked by its scores, by keywords and by metadata.

    The list is returned unchanged if it has fewer than two candidates, if no candidate has a text,
    or if nothing in the texts and metadata matches.
    """
    fused, trace = fusion.fused, state.trace
    if not state.call.uses_keywords:
        return fused
    began, times = trace.measure_elapsed(), state.read_times(variants.texts)
    keywords = _collect_weighted_keywords(state, variants)
    candidates = fused.items[: state.settings.keyword_evidence.candidates or None]
    passages = [candidate.passage for candidate in candidates]
    own_scores = fusion.own_ranking.scores
    evidence = None
    if len(passages) > 1:
        evidence = _collect_evidence(state, variants, times, keywords, passages, own_scores)
    if times.needs_today and times.periods and state.today is not None:
        trace.note("dates", f"{', '.join(map(str, times.periods))}, as today is {state.today}")
    if evidence is not None:
        # Passages with the question's words hold texts, even if each is a bare word.
        state.learned.holds_text = True
        fused = _order_by_evidence(fused, evidence, keywords, state.call.top_k)
    trace.record_stage("keyword_evidence", trace.measure_elapsed() - began)
    return fused


def _collect_weighted_keywords(state: State, variants: VariantResults) -> WeightedKeywords:
    """Return (keywords, weight) for each group of keywords that count as evidence.

    - The first group has weight 1. It contains the question's keywords and the keywords that the
      model named.
    - Each variant that may contain words of an answer adds a group, even if it is not searched. The
      group's weight is a fraction of the variant's weight in the fusion.
    - A step-back question adds no group, because it is more general than the question.
    """
    named = " ".join((variants.question_keywords, *variants.texts.keywords))
    share = state.settings.keyword_evidence.variants
    groups = [
        (prepare_query(variant.text, state.settings).keywords, share * variant.weight)
        for variant in variants.evidence_variants
        if share and variant.weight > 0 and variant.kind in EVIDENT
    ]
    return [(named, 1.0), *groups]


def _collect_evidence(
    state: State,
    variants: VariantResults,
    times: Times,
    keywords: WeightedKeywords,
    passages: Sequence[Passage],
    own_scores: Sequence[float | None],
) -> _WordEvidence | None:
    """Return the evidence in the texts and metadata of *passages*; ``None`` if there is none."""
    call, trace, language = state.call, state.trace, state.query.language
    texts: Sequence[str | None] = [passage.text for passage in passages]
    if not any(texts):
        trace.note("keyword_evidence", "no candidate has a text; order kept")
        return None
    terms, standalone = state.glossary_terms, variants.texts.standalone
    if standalone:
        terms = state.find_glossary_terms(standalone)
    if terms:
        # Imported here so that users without a glossary do not pay for this module.
        from qtmiddleware.retrieval.glossary import add_glossary_terms

        texts = add_glossary_terms(terms, texts)
    weight = state.settings.keyword_evidence.weight
    if len(keywords) > 1 or weight is not None:
        evidence = _score_all_words(keywords, texts, own_scores, weight)
    else:
        # A search that returns fewer passages than it was asked for has returned all there are.
        search_width = call.search_width or call.top_k
        is_whole = search_width is not None and len(own_scores) < search_width
        held_dates = [word for word in times.words if any(word in text for text in texts if text)]
        words = " ".join((keywords[0][0], *held_dates))
        titled = [_prepend_title(*pair) for pair in zip(passages, texts, strict=True)]
        evidence = _score_question_words(words, titled, language, is_whole_collection=is_whole)
    if weight != 0.0:
        evidence = _add_metadata_evidence(evidence, state, times, passages)
    if evidence is None:
        trace.note("keyword_evidence", "no keyword in any candidate; order kept")
    elif evidence.reason:
        trace.note("keyword_evidence", evidence.reason)
    return evidence


def _order_by_evidence(
    fused: FusedList,
    evidence: _WordEvidence,
    keywords: WeightedKeywords,
    top_k: int | None,
) -> FusedList:
    """Return *fused* with *evidence* added to the scores of its first passages.

    result = weight x (score - lowest) / spread + share, where lowest is the lowest of all scores

    The passages after these have no evidence, and no higher scores. They keep their order.
    """
    spread, scores_before = fused.spread, fused.scores
    count = len(evidence.shares)
    shares = [*evidence.shares, *([0.0] * (len(scores_before) - count))]
    if spread is None:
        spread = max(scores_before[:count]) - min(scores_before[:count])
    # Division by a smaller number could give infinity.
    factor = evidence.weight / spread if spread > 1e-300 else 0.0
    low = min(scores_before)
    scores = [
        factor * (score - low) + share for score, share in zip(scores_before, shares, strict=True)
    ]
    order = sorted(range(count), key=[-score for score in scores].__getitem__)
    if evidence.coverage and top_k and top_k < count:
        order = _protect_first_passages(order, evidence.coverage, top_k)
        _lower_scores_to_match_order(order, scores, shares)
    rescored = [
        FusedPassage(passage.key, passage.passage, score, passage.sources)
        for passage, score in zip(fused.items, scores, strict=True)
    ]
    leading = [rescored[place] for place in order]
    matched = evidence.matched
    shown = Evidence(
        keywords=tuple(keywords),
        weight=evidence.strength,
        keys=tuple([passage.key for passage in leading]),
        scores=tuple([passage.score for passage in leading]),
        shares=tuple([shares[place] for place in order]),
        language=evidence.language,
        coverage=evidence.joint_coverage,
        matched=tuple([matched[place] for place in order]) if matched else (),
    )
    return FusedList([*leading, *rescored[count:]], fused.method, evidence=shown)


def _score_all_words(
    keywords: WeightedKeywords,
    texts: Sequence[str | None],
    own_scores: Sequence[float | None],
    weight: float | None,
) -> _WordEvidence | None:
    """Return the evidence of the words of all queries; ``None`` if no text contains any of them.

    share = sum(weight x scaled) / sum(weight ** `OVERLAP`) ** (1 / `OVERLAP`)
    """
    queries = [parse_question(query, WordRules()) for query, _ in keywords]
    terms = list(dict.fromkeys(term for query in queries for term in query.terms))
    pairs = frozenset(pair for query in queries for pair in query.pairs)
    text_terms = count_terms(texts, terms, pairs)
    gains, size = compute_gains(text_terms), len(texts)
    matching = [
        (sum_gains((*query.terms, *query.pairs), gains, size), part)
        for query, (_, part) in zip(queries, keywords, strict=True)
        if not gains.keys().isdisjoint(query.terms)
    ]
    if not matching:
        return None
    if weight is None:
        known = [score for score in own_scores if score is not None]
        has_ranks = len(known) == len(own_scores) and are_reciprocal_ranks(known)
        weight = WEIGHT_OF_VARIANTS_BESIDE_RANKS if has_ranks else WEIGHT_OF_VARIANTS
    largest = max(part for _, part in matching)
    divisor = sum((part / largest) ** OVERLAP for _, part in matching) ** (1.0 / OVERLAP)
    shares = [0.0] * size
    for scores, part in matching:
        factor = weight * part / largest / divisor
        for place, score in enumerate(normalise_scores(scores)):
            shares[place] += factor * score
    own = frozenset(queries[0].terms)
    held = frozenset().union(*(text.counts.keys() for text in text_terms[:LEADING]))
    coverage = len(own & held) / len(own) if own else None
    return _WordEvidence(shares, 1.0 - weight, weight, "", joint_coverage=coverage)


def _score_question_words(
    keywords: str, texts: Sequence[str | None], language: str, *, is_whole_collection: bool
) -> _WordEvidence | None:
    """Return the evidence of the question's own words; ``None`` if no text contains any of them."""
    words = find_words(keywords, texts, language)
    if not any(words.held):
        return None
    coverage = words.measure_coverage()
    # A number or code that occurs in one passage only identifies this passage, even in a small
    # collection.
    codes = [
        term
        for term in words.question.content
        if term.isascii() and not term.isalpha() and term not in words.held[0]
    ]
    is_identified = any(sum(code in held for held in words.held) == 1 for code in codes)
    strength, reason = judge_lead(
        coverage, is_whole_collection=is_whole_collection and not is_identified
    )
    shares = [0.0] * len(texts)
    if strength:
        shares = [strength * share for share in words.score_texts()]
    joint_coverage = words.measure_joint_coverage()
    return _WordEvidence(shares, 1.0, strength, reason, coverage, joint_coverage, language)


def _add_metadata_evidence(
    evidence: _WordEvidence | None,
    state: State,
    times: Times,
    passages: Sequence[Passage],
) -> _WordEvidence | None:
    today = state.today if times.newest else None
    metadata = collect_metadata_evidence(
        times,
        [passage.metadata for passage in passages],
        load_word_rules(state.query.language),
        today,
    )
    if metadata is None:
        return evidence
    state.trace.notes.extend(("metadata", note) for note in metadata.notes)
    if evidence is None:
        nothing = [0.0] * len(passages)
        language = state.query.language
        evidence = _WordEvidence(nothing, 1.0, 0.0, "", nothing, language=language)
    evidence.matched = metadata.matched
    evidence.shares = [
        share + evidence.weight * added_share
        for share, added_share in zip(evidence.shares, metadata.shares, strict=True)
    ]
    if evidence.coverage:
        evidence.coverage = list(map(add, evidence.coverage, metadata.matched))
    return evidence


def _prepend_title(passage: Passage, text: str | None) -> str | None:
    # The beginning of a text counts more, and a title names the topic best.
    title = passage.title
    return f"{title}\n{text}" if text and title and not text.startswith(title) else text


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
