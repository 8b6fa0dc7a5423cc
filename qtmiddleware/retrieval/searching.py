"""The variants of a question: which texts are searched, with what weight, and their searches; each may fail alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from contextvars import ContextVar
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from qtmiddleware.catalogue import (
    GLOSSARY,
    JOINED,
    NOTHING,
    STANDALONE,
    TEXT_CLAUSE,
    TEXT_FIELDS,
    TextField,
)
from qtmiddleware.config.settings import FusionSettings
from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.retrieval.bm25 import find_terms
from qtmiddleware.retrieval.request import EVIDENT, Request
from qtmiddleware.retrieval.responses import SearchResult, read_response, read_usage
from qtmiddleware.runtime.steps import Embed, Flow, Outcome, Search, Together
from qtmiddleware.types import Deadline, Degradation, Ranking, Trace, Transformation, Variant

if TYPE_CHECKING:
    from qtmiddleware.retrieval.glossary import Term

IN_ONE_TEXT: Final = "searched together with the question, as one text"
NOT_SEARCHED: Final = "not searched"
PASSAGE_LEADS: Final = "not searched: the hypothetical passage is used instead"
"""What is noted on a variant that has no search of its own."""

# From this share of the question's keywords on a text is about the question, and has its whole
# weight.
ON_TOPIC: Final = 0.4
# With fewer keywords a good rewrite may hold none: heart attack, myocardial infarction.
TELLING: Final = 4

# From this share of its whole weight on the hypothetical passage leads in a follow-up.
LEADS_FROM: Final = 0.7


# What the question with the other forms of its terms weighs beside the question.
WEIGHT_OF_EXPANDED: Final = 1.0


def build_variants(
    transformation: Transformation, original: str, options: FusionSettings, keywords: str = ""
) -> tuple[tuple[Variant, ...], tuple[tuple[str, str], ...]]:
    """Returns the variants to search beside *original*, and a note on each that says the same as another.

    All texts of one kind share its weight. One that says the same as the original is searched where
    the original takes no part in the fusion. Where the question's *keywords* are given, a kind
    whose texts together hold less than `ON_TOPIC` of them has that much less weight: a model that
    answers another question, or says nothing of this one, has no say.
    """
    if transformation is NOTHING:
        return (), ()
    # The free tier does not wait for its modules.
    from qtmiddleware.transforms import ORIGINAL, SAME, find_repeats

    if not options.include_original:
        if ("rewrite", SAME) in transformation.notes:
            transformation = replace(transformation, rewrite=original)
        original = ""
    candidates = [
        (row, text)
        for row in TEXT_FIELDS.values()
        if row.variant
        for text in transformation.texts(row.name)
        if text and not text.isspace()
    ]
    texts: dict[TextField, list[str]] = {}
    notes: list[tuple[str, str]] = []
    repeats = find_repeats([text for _, text in candidates], original=original)
    for (row, text), other in zip(candidates, repeats, strict=True):
        if other is None:
            texts.setdefault(row, []).append(text)
        else:
            repeated = "original" if other == ORIGINAL else candidates[other][0].variant
            notes.append((row.variant, f"not searched: same text as the {repeated}"))
    terms = find_terms(keywords)
    variants: list[Variant] = []
    for row, own in texts.items():
        topic = 1.0 if row.variant == STANDALONE else _measure_topic(own, terms)
        weight = getattr(options.weights, row.name) / len(own) * topic
        variants += [Variant(row.variant, text, weight) for text in own]
    return tuple(variants), tuple(notes)


def _measure_topic(texts: Sequence[str], terms: Set[str]) -> float:
    """How far *texts* are about a question of these *terms*, from 0 to 1; 1 where they are too few to tell."""
    if len(terms) < TELLING:
        return 1.0
    return min(1.0, len(terms & find_terms(" ".join(texts))) / len(terms) / ON_TOPIC)


def choose_searches(
    variants: Sequence[Variant], question: str, count: int | None
) -> tuple[tuple[Variant, ...], tuple[tuple[str, str], ...]]:
    """Returns what of *variants* is searched with *count* searches beside the question's own, and a note on the rest.

    All of them where *count* is ``None`` or allows for it. Else those of the largest weight, and
    with the last search the *question* and all other texts that may hold words of an answer, as one
    text. A follow-up costs one search whatever *count* is, with the standalone form in place of the
    question: measured, more of them bring no more.
    """
    if count is None or len(variants) <= count:
        return tuple(variants), ()
    standalone = [it for it in variants if it.kind == STANDALONE]
    others = [it for it in variants if it.kind != STANDALONE]
    if standalone:
        count, question = 1, standalone[0].text
    alone = sorted(others, key=lambda it: -it.weight)[: max(0, count - 1)]
    left = [it for it in others if it not in alone]
    parts = [it for it in left if it.kind in EVIDENT and it.weight > 0] if count > 0 else []
    text = " ".join([question, *(it.text.strip() for it in parts)])
    kinds = {it.kind for it in parts}
    weight = max((sum(it.weight for it in parts if it.kind == kind) for kind in kinds), default=0.0)
    joined = [Variant(JOINED, text, weight)] if parts else standalone
    notes = [(it.kind, IN_ONE_TEXT if it in parts else NOT_SEARCHED) for it in left]
    return (*(it for it in others if it in alone), *joined), tuple(dict.fromkeys(notes))


def build_expanded(question: str, terms: Sequence[Term], request: Request) -> Variant | None:
    """Returns the variant that is *question* with the other forms of its *terms*; ``None`` if it is not searched."""
    settings, most = request.settings, request.settings.limits.max_searches
    by_words = int(request.why_not_by_words is None)
    # The words of a follow-up are seldom those of what it asks for.
    if (
        not settings.glossary.search
        or request.page
        or request.history
        or (most is not None and most < 2 + by_words)
    ):
        return None
    from qtmiddleware.retrieval.glossary import expand_question

    text = expand_question(question, terms)
    weight = WEIGHT_OF_EXPANDED * settings.fusion.weights.original
    return None if text == question else Variant(GLOSSARY, text, weight)


def count_most_searches(request: Request) -> int:
    """Returns how many searches a question like that of *request* makes at most, its own counted.

    A follow-up costs one search beside its own, whatever the budget.
    """
    settings, most = request.settings, request.max_searches
    by_words = int(request.why_not_by_words is None)
    by_words += (
        request.glossary is not None
        and settings.glossary.search
        and not (request.page or request.history)
    )
    if settings.escalation.mode == "never" or not settings.escalation.max_llm_calls_per_query:
        return 1 + by_words
    # The free tier does not wait for its modules.
    from qtmiddleware.transforms import build_prompts

    asked = {
        it.name: it
        for prompt in build_prompts(settings, "?", request.history)
        for it in prompt.fields
    }
    count = 1 + sum(max(1, it.max_items) for name, it in asked.items() if TEXT_FIELDS[name].variant)
    if most is None:
        return count + by_words
    return min(count, max(most, 2 if request.history and not request.page else 1)) + by_words


def let_passage_lead(
    variants: Sequence[Variant], options: FusionSettings
) -> tuple[tuple[Variant, ...], tuple[tuple[str, str], ...]]:
    """Returns what is left of a follow-up's *variants* beside its hypothetical passage, and a note on each other kind.

    The passages of one conversation all speak of what the standalone form names, so that it finds
    them all; how the answer would read tells them apart. Where the hypothetical passage holds
    nearly enough of the keywords it stands alone, with the weight of the standalone form, beside
    the question as it was asked; else it is left out itself.
    """
    forms = {it.kind: it for it in variants}
    standalone, passage = forms.get(STANDALONE), forms.get("hyde")
    if standalone is None or passage is None or not options.weights.hyde:
        return tuple(variants), ()
    topic = passage.weight / options.weights.hyde
    if topic < LEADS_FROM:
        return tuple(it for it in variants if it is not passage), (
            ("hyde", "not searched: has little to do with the question"),
        )
    others = dict.fromkeys(it.kind for it in variants if it is not passage)
    notes = tuple((kind, PASSAGE_LEADS) for kind in others)
    return (replace(passage, weight=topic * standalone.weight),), notes


def select_parts(transformation: Transformation) -> Transformation:
    """Returns of *transformation* what an answer put together from sub-answers reads; all without two sub-queries.

    A follow-up's standalone form stays, as it is what is answered where too few of the parts are.
    """
    if len(transformation.sub_queries) < 2:
        return transformation
    return Transformation(
        standalone=transformation.standalone, sub_queries=transformation.sub_queries
    )


def search_variants(
    variants: Sequence[Variant],
    request: Request,
    *,
    width: int | None,
    may_narrow: bool = False,
    deadline: Deadline,
    trace: Trace,
    degradations: list[Degradation],
) -> Flow[list[SearchResult]]:
    """Returns what the variants found, without those that could not be searched in time, which are noted.

    Where the wrapped function takes vectors all variants are embedded in one batch first. A
    function that refuses
    *width* passages is asked as the caller asked if it *may_narrow*.
    """
    if not variants:
        return []
    limit = request.settings.limits.max_concurrency
    vectors: Sequence[Any] = [None] * len(variants)
    if request.embeds:
        (embedded,) = yield Together(
            (Embed([variant.text for variant in variants]),), deadline, limit
        )
        if not embedded.ok:
            degradations.append(_note_failure("embed", embedded, trace))
            return []
        trace.stage("embed", embedded.seconds, detail="variants", began=embedded.began)
        vectors = embedded.value
        if not hasattr(vectors, "__len__") or len(vectors) != len(variants):
            degradations.append(
                Degradation("embed", "failed", "embed= returned the wrong number of vectors")
            )
            return []
    began = perf_counter()
    widths = {"sub_query": request.settings.fusion.sub_query_top_k or width}
    steps = [
        Search(
            it.text,
            widths.get(it.kind, width),
            vector,
            may_narrow=may_narrow,
            kind=it.kind,
            weight=it.weight,
        )
        for it, vector in zip(variants, vectors, strict=True)
    ]
    outcomes = yield Together(steps, deadline, limit)
    for step in steps:
        trace.count_search(step.calls, step.reads)
    if seconds := max([it.embed_seconds for it in steps]):
        trace.stage("embed", seconds, detail="variants", began=began)
    trace.stage("search.variants", perf_counter() - began)
    return _read_outcomes(variants, steps, outcomes, request, trace, degradations)


def search_by_words(
    keywords: str,
    request: Request,
    *,
    width: int | None,
    deadline: Deadline,
    trace: Trace,
    degradations: list[Degradation],
) -> Flow[tuple[list[SearchResult], BaseException | None]]:
    """Returns what a text clause over the request's fields finds for *keywords*, and the error if it fails.

    A failure is noted, and there is no result then.
    """
    hybrid = request.settings.hybrid
    weight = (
        request.settings.fusion.weights.original
        * hybrid.bm25_weight
        / (hybrid.vector_weight or 1.0)
    )
    variant = Variant(TEXT_CLAUSE, keywords, weight)
    step = Search(keywords, width, fields=request.text_fields, kind=variant.kind, weight=weight)
    began = perf_counter()
    outcomes = yield Together((step,), deadline, request.settings.limits.max_concurrency)
    trace.count_search(step.calls, step.reads)
    trace.stage("search.text_clause", perf_counter() - began, began=began)
    results = _read_outcomes((variant,), (step,), outcomes, request, trace, degradations)
    return results, outcomes[0].error


def _read_outcomes(
    variants: Sequence[Variant],
    steps: Sequence[Search],
    outcomes: Sequence[Outcome],
    request: Request,
    trace: Trace,
    degradations: list[Degradation],
) -> list[SearchResult]:
    """The responses that came and can be read; what else there was is noted."""
    results: list[SearchResult] = []
    for variant, step, outcome in zip(variants, steps, outcomes, strict=True):
        if outcome.ok:
            try:
                options = request.settings.keyword_evidence
                found = read_response(
                    variant, outcome.value, request.shape, options=options, initial=step.initial
                )
                results.append(found)
                continue
            except ResponseShapeError as error:
                outcome.error = error
        degradations.append(_note_failure(f"search.{variant.kind}", outcome, trace))
    return results


def _note_failure(stage: str, outcome: Outcome, trace: Trace) -> Degradation:
    trace.stage(stage, outcome.seconds, "degraded", outcome.reason, began=outcome.began)
    return Degradation(stage, outcome.reason, outcome.detail)


class Searching:
    """One call of a function for *step*, while it runs; threads and tasks of ours have it in their context.

    The function may write down in *step* how it searched. An earlier try counts as a call, and is
    forgotten otherwise.

    *fn*, the function itself, is set inside the ``with``: an interrupt on the way in leaves a call
    of nothing behind. The context holds the call weakly: an interrupt on the way out leaves none
    behind either, as it ends with the frame that made it.
    """

    __slots__ = ("__weakref__", "_token", "fn", "step")

    def __init__(self, step: Search) -> None:
        self.step = step
        self.fn: Callable[..., Any] | None = None

    def __enter__(self) -> Searching:
        step = self.step
        step.calls += 1
        step.initial.clear()
        step.reads.clear()
        under_way = _under_way.get()
        if under_way:
            under_way = tuple([it for it in under_way if it() is not None])
        self._token = _under_way.set((*under_way, ref(self)))
        return self

    def __exit__(self, *_: object) -> None:
        # A task that the function began, and that outlives its call, is none of its calls any more.
        self.fn = None
        try:
            _under_way.reset(self._token)
        except ValueError:
            # A coroutine that is thrown away may be closed in another context than it ran in.
            return


_under_way: Final[ContextVar[tuple[ref[Searching], ...]]] = ContextVar("under_way", default=())
"""The calls of functions that the running code is part of, the innermost last."""


def is_nested_call(fn: Callable[..., Any]) -> bool:
    """Whether we are called from within a call of *fn* that we made: a function that searches through itself."""
    under_way = _under_way.get()
    return bool(under_way) and any((call := it()) is not None and call.fn is fn for it in under_way)


def _find_step() -> Search | None:
    """The search under way."""
    under_way = _under_way.get()
    call = under_way[-1]() if under_way else None
    return None if call is None else call.step


def note_embedding(seconds: float) -> None:
    """Note that embedding the text of the search under way took so long."""
    if (step := _find_step()) is not None:
        step.embed_seconds += seconds


def note_reads(response: Any) -> None:
    """Note what *response*, one of those to the search under way, says it read; most say nothing."""
    units = read_usage(response)
    if units is not None and (step := _find_step()) is not None:
        step.reads.append(units)


def note_initial_list(name: str, ranking: Ranking) -> None:
    """Note *ranking* as one of those the response to the search under way is merged from; several are one list."""
    step = _find_step()
    if step is None:
        return
    if (before := step.initial.get(name)) is not None:
        ranking = replace(
            ranking,
            keys=[*before.keys, *ranking.keys],
            scores=[*before.scores, *ranking.scores],
            items=[*before.items, *ranking.items],
        )
    step.initial[name] = ranking
