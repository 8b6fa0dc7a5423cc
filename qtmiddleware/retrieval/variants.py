"""Build the variants of a question, choose which of them to search, and search them.

If a search fails, the failure is recorded and the results of the other searches are used.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, Final

from qtmiddleware.catalogue import (
    JOINED,
    NOTHING,
    STANDALONE,
    TEXT_FIELDS,
    TextField,
)
from qtmiddleware.config.settings import FusionSettings
from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.retrieval.call import EVIDENT, find_question_keywords
from qtmiddleware.retrieval.question_words import find_terms
from qtmiddleware.retrieval.responses import SearchResult
from qtmiddleware.retrieval.state import State
from qtmiddleware.runtime.services import Search, Services
from qtmiddleware.types import Degradation, Trace, Transformation, Variant

# Notes in the trace on a variant that is not searched separately.
IN_ONE_TEXT: Final = "searched together with the question, as one text"
NOT_SEARCHED: Final = "not searched"
PASSAGE_LEADS: Final = "not searched: the hypothetical passage is used instead"

# A text with at least this fraction of the question's keywords keeps its full weight.
ON_TOPIC: Final = 0.4
# With fewer keywords, a good rewrite may contain none of them: heart attack, myocardial infarction.
TELLING: Final = 4

# In a follow-up, the hypothetical passage replaces the other variants if it keeps at least this
# fraction of its weight.
LEADS_FROM: Final = 0.7


def build_variants(
    transformation: Transformation,
    question: str,
    options: FusionSettings,
    trace: Trace,
    keywords: str = "",
) -> Sequence[Variant]:
    """Return the variants made from the model's texts.

    If the model wrote several texts of one kind, they share the weight of this kind equally. A
    text that repeats *question* becomes a variant only if the question has no weight.
    """
    if transformation is NOTHING:
        return ()
    # Imported here so that calls without a model do not load the modules for models.
    from qtmiddleware.transforms import ORIGINAL, SAME, find_repeats

    # Without the question in the fusion, a rewrite that repeats it is the only search for it.
    if not options.weights["original"]:
        if ("rewrite", SAME) in transformation.notes:
            transformation = replace(transformation, rewrite=question)
        question = ""
    candidates = [
        (row, text)
        for row in TEXT_FIELDS.values()
        if row.variant
        for text in transformation.texts(row.name)
        if text and not text.isspace()
    ]
    texts: dict[TextField, list[str]] = {}
    repeats = find_repeats([text for _, text in candidates], original=question)
    for (row, text), repeat in zip(candidates, repeats, strict=True):
        if repeat is None:
            texts.setdefault(row, []).append(text)
        else:
            repeated = "original" if repeat == ORIGINAL else candidates[repeat][0].variant
            trace.note(row.variant, f"not searched: same text as the {repeated}")
    terms = find_terms(keywords)
    variants: list[Variant] = []
    for row, kind_texts in texts.items():
        # The standalone form is the question in a conversation, so it keeps its full weight.
        topic = 1.0 if row.variant == STANDALONE else _measure_relevance(kind_texts, terms)
        weight = options.weights[row.name] / len(kind_texts) * topic
        variants += [Variant(row.variant, text, weight) for text in kind_texts]
    return variants


def _measure_relevance(texts: Sequence[str], question_terms: Set[str]) -> float:
    if len(question_terms) < TELLING:
        return 1.0
    kept = question_terms & find_terms(" ".join(texts))
    return min(1.0, len(kept) / len(question_terms) / ON_TOPIC)


def select_variants(
    variants: Sequence[Variant], question: str, max_searches: int | None, trace: Trace
) -> Sequence[Variant]:
    """Return the variants to search.

    - If *max_searches* allows one search per variant, every variant is searched separately.
    - Otherwise, the variants with the largest weights are searched separately. The last search is
      for one joined text: the *question* and the other variants that may contain words of an
      answer.
    - In a conversation, if *max_searches* is smaller than the number of variants, only the joined
      text is searched. The joined text then begins with the standalone form instead of the
      question. In measurements, more searches brought no gain.
    """
    if max_searches is None or len(variants) <= max_searches:
        return variants
    standalone = [variant for variant in variants if variant.kind == STANDALONE]
    others = [variant for variant in variants if variant.kind != STANDALONE]
    if standalone:
        max_searches, question = 1, standalone[0].text
    alone = sorted(others, key=lambda variant: -variant.weight)[: max(0, max_searches - 1)]
    remaining = [variant for variant in others if variant not in alone]
    joinable = (
        [variant for variant in remaining if variant.kind in EVIDENT and variant.weight > 0]
        if max_searches > 0
        else []
    )
    text = " ".join([question, *(variant.text.strip() for variant in joinable)])
    weights: dict[str, float] = {}
    for variant in joinable:
        weights[variant.kind] = weights.get(variant.kind, 0.0) + variant.weight
    joined = [Variant(JOINED, text, max(weights.values()))] if joinable else standalone
    notes = [
        (variant.kind, IN_ONE_TEXT if variant in joinable else NOT_SEARCHED)
        for variant in remaining
    ]
    trace.notes.extend(dict.fromkeys(notes))
    return [*(variant for variant in others if variant in alone), *joined]


def prefer_hypothetical_passage(
    variants: Sequence[Variant], options: FusionSettings, trace: Trace
) -> Sequence[Variant]:
    """Return only the hypothetical passage if it is relevant enough, else all others.

    In a conversation, most candidates concern the same topic, so they all match the standalone
    form. A hypothetical passage tells the candidates apart better, and gets the weight of the
    standalone form times its own relevance (`LEADS_FROM`).
    """
    by_kind = {variant.kind: variant for variant in variants}
    standalone, passage = by_kind.get(STANDALONE), by_kind.get("hyde")
    if standalone is None or passage is None or not options.weights["hyde"]:
        return variants
    topic = passage.weight / options.weights["hyde"]
    others = [variant for variant in variants if variant is not passage]
    if topic < LEADS_FROM:
        trace.note("hyde", "not searched: has little to do with the question")
        return others
    for kind in dict.fromkeys(variant.kind for variant in others):
        trace.note(kind, PASSAGE_LEADS)
    return [replace(passage, weight=topic * standalone.weight)]


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class VariantResults:
    """What the model's texts brought.

    Attributes:
        texts: The model's texts. The standalone form is dropped if the question starts a new
            topic.
        question_keywords: The keywords of the question or, in a conversation, of its standalone
            form.
        evidence_variants: The variants whose words count as keyword evidence.
        searched_variants: The variants that were searched.
        results: The responses that could be read, at most one per variant.
    """

    texts: Transformation
    question_keywords: str
    evidence_variants: Sequence[Variant]
    searched_variants: Sequence[Variant]
    results: Sequence[SearchResult]


async def search_variants(state: State, services: Services) -> VariantResults:
    """Build variants of the model's texts, search the best of them, and return what they brought.

    If fewer searches succeed than ``fusion.minSuccesses``, the variants count for nothing.
    """
    settings = state.settings
    texts = _choose_texts(state)
    keywords = find_question_keywords(state.query, texts, settings)
    variants = build_variants(
        texts,
        state.query.text,
        state.call.fusion_settings,
        state.trace,
        keywords if settings.llm.guard else "",
    )
    variants, searched = _choose_searches(state, texts, variants)
    results = await _search_at_once(searched, state, services) if searched else []
    if len(results) < min(settings.fusion.min_successes, len(searched)):
        detail = f"{len(results)} of {len(searched)} searches succeeded"
        state.degradations.append(Degradation("search", "too_few_successes", detail))
        return VariantResults(texts, keywords, (), searched, ())
    return VariantResults(texts, keywords, variants, searched, results)


def _choose_texts(state: State) -> Transformation:
    """Return the model's texts; none if its latest replies were off topic."""
    texts, model = state.texts, state.call.model
    if model is not None and model.relevance.is_low and not texts.is_empty:
        kept = f"{model.relevance.mean:.0%}"
        detail = f"the model's latest replies keep {kept} of their questions' words"
        state.degradations.append(Degradation("transform", "off_topic", detail))
        return NOTHING
    if texts.standalone and not state.is_follow_up:
        return replace(texts, standalone=None)
    return texts


def _choose_searches(
    state: State, texts: Transformation, variants: Sequence[Variant]
) -> tuple[Sequence[Variant], Sequence[Variant]]:
    """Return the variants whose words count as evidence, and the variants to search."""
    call, trace = state.call, state.trace
    standalone = [variant for variant in variants if variant.kind == STANDALONE]
    if call.has_parts and len(texts.sub_queries) > 1:
        return variants, standalone
    # The limit must be unset, or too low for one search per variant.
    limit = state.settings.limits.max_searches
    if call.fusion_row.weighs and (limit is None or len(variants) >= limit):
        variants = prefer_hypothetical_passage(variants, call.fusion_settings, trace)
    count = None
    if call.max_searches is not None:
        # A follow-up cannot be found without its standalone form, so that is searched even if it
        # exceeds the budget by one search.
        count = max(call.max_searches - 1, min(1, len(standalone)))
    return variants, select_variants(variants, state.query.text, count, trace)


async def _search_at_once(
    variants: Sequence[Variant], state: State, services: Services
) -> list[SearchResult]:
    """Search *variants* at the same time, and return the responses that could be read."""
    call, trace = state.call, state.trace
    vectors: Sequence[Any] = [None] * len(variants)
    if call.embedder is not None:
        texts = [variant.text for variant in variants]
        work = partial(services.embed, call.embedder, texts)
        (embedded,) = await services.gather([work], state.deadline)
        if not embedded.has_succeeded:
            state.record_failed_stage("embed", embedded)
            return []
        trace.record_stage("embed", embedded.seconds, detail="variants", began=embedded.began)
        vectors = embedded.get()
    # Nothing is known yet about whether the function allows so many passages.
    narrow_by = None if call.learned.widening.is_proven else state.deadline
    widths = {"sub_query": call.settings.fusion.sub_query_top_k or state.search_width}
    searches = [
        Search(
            variant.text,
            widths.get(variant.kind, state.search_width),
            vector,
            narrow_by=narrow_by,
            kind=variant.kind,
            weight=variant.weight,
        )
        for variant, vector in zip(variants, vectors, strict=True)
    ]
    began = perf_counter()
    outcomes = await services.gather(
        [partial(services.search, search) for search in searches], state.deadline
    )
    if seconds := max([search.embed_seconds for search in searches]):
        trace.record_stage("embed", seconds, detail="variants", began=began)
    trace.record_stage("search.variants", perf_counter() - began)
    results: list[SearchResult] = []
    for variant, search, outcome in zip(variants, searches, outcomes, strict=True):
        trace.searches += search.calls
        if outcome.has_succeeded:
            try:
                results.append(state.read_response(variant, outcome.value, search.initial))
                continue
            except ResponseShapeError as error:
                outcome.error = error
        state.record_failed_stage(f"search.{variant.kind}", outcome)
    return results
