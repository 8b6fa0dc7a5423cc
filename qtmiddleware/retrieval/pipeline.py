"""The flow of one retrieval, written once.

    query ─ prepare ─┬─ search(original) ───────────────┐
                     └─ gate ─ ask model ─ search × n ──┴─ fuse ─ keyword evidence ─ rerank? ─
                     Retrieval

A generator of steps: it yields what it wants done and is sent what came of it, so that the same
flow runs blocking and awaiting. Every fallback lives here, as an ordinary ``if``. The original's
own search starts first and is the answer whenever the rest is late, wrong or down; only its own
failure is raised, as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.catalogue import NOTHING, STANDALONE, TEXT_CLAUSE
from qtmiddleware.errors import ResponseShapeError, is_refusal
from qtmiddleware.preprocessing import Span, protected_spans
from qtmiddleware.preprocessing.dates import Times, read_times
from qtmiddleware.retrieval.confidence import (
    LATER_PAGE,
    measure_first_coverage,
    measure_standing_signals,
)
from qtmiddleware.retrieval.fusion import (
    Fused,
    Fusion,
    OwnFusionFailed,
    find_direction,
    fuse,
    has_scores,
    separate_chunks,
    weighted_rankings,
)
from qtmiddleware.retrieval.gate import find_skip_reason
from qtmiddleware.retrieval.history import opens_new_topic
from qtmiddleware.retrieval.keyword_evidence import WriteTerms, weigh_by_keywords
from qtmiddleware.retrieval.metadata_evidence import MetadataEvidence, weigh_by_metadata
from qtmiddleware.retrieval.question_words import LEADING, load_word_rules
from qtmiddleware.retrieval.request import (
    Request,
    collect_keywords,
    find_own_keywords,
    prepare_query,
    read_clock,
)
from qtmiddleware.retrieval.reranking import rerank
from qtmiddleware.retrieval.responses import (
    SearchResult,
    describe_missing_text,
    holds_text,
    read_response,
    read_text,
    read_texts,
)
from qtmiddleware.retrieval.result import build_result, read_matches
from qtmiddleware.retrieval.searching import (
    build_expanded,
    build_variants,
    choose_searches,
    let_passage_lead,
    search_by_words,
    search_variants,
    select_parts,
)
from qtmiddleware.retrieval.transform_stage import TransformStage
from qtmiddleware.runtime.logs import format_error, get_logger
from qtmiddleware.runtime.steps import (
    Beside,
    Flow,
    Outcome,
    Search,
    Tell,
    gather_flows,
    observe_flow,
)
from qtmiddleware.types import (
    Deadline,
    Decision,
    Degradation,
    Evidence,
    Query,
    Retrieval,
    Standing,
    Trace,
    Transformation,
    Variant,
    add_degradation,
)

if TYPE_CHECKING:
    from qtmiddleware.retrieval.glossary import Glossary, Term
    from qtmiddleware.transforms.anchors import Anchors

logger: Final = get_logger("qtmiddleware")


def retrieval_flow(
    request: Request,
    *,
    parts: dict[str, Any] | None = None,
    found: Outcome | None = None,
    trace: Trace | None = None,
) -> Flow[Retrieval]:
    """Answer *request*; raises what the original's own search raises, and nothing else.

    With *parts* the question is to be answered part by part: of several sub-queries and other
    variants only the former are searched, and the response to each is put into *parts* under its
    text. *found* is what came of the original's own search where that was made before. The account
    is written into *trace*, which tells of a search that raised too.
    """
    observation = request.observation.child(
        "retrieval", top_k=request.top_k, content=request.original
    )
    flow = observe_flow(_Pipeline(request, parts, found, trace).run(), observation, request.models)
    return _tell_hooks(flow, request) if request.hooks else flow


def transform_flow(request: Request) -> Flow[Transformation]:
    """Ask the model alone; what could not be had is empty, and noted."""
    observation = request.observation.child("transform", content=request.original)
    return observe_flow(_Pipeline(request).run_transform(), observation, request.models)


def _tell_hooks(flow: Flow[Retrieval], request: Request) -> Flow[Retrieval]:
    """*flow*, of whose result the hooks are told; one that fails or is late is part of the result the next one gets."""
    retrieval = yield from flow
    for hook in request.hooks:
        try:
            yield Tell(hook, retrieval)
        except Exception as error:
            outcome = (
                Outcome(late=True) if isinstance(error, TimeoutError) else Outcome(error=error)
            )
            degradation = Degradation("hook", outcome.reason, outcome.detail)
            retrieval = add_degradation(retrieval, degradation)
            request.log_degradations(logger, "retrieval", retrieval.trace, [degradation])
            # What it says may quote the question.
            if logger.isEnabledFor(logging.DEBUG):
                query_id, kind = retrieval.trace.query_id, type(error).__name__
                why = format_error(error)
                logger.debug(
                    "on_retrieval failed: %s",
                    why,
                    event="hook_failed",
                    query_id=query_id,
                    error=kind,
                )
    return retrieval


def _list_result(flow: Flow[Any]) -> Flow[list[Any]]:
    return [(yield from flow)]


@dataclass(eq=False, repr=False, slots=True)
class _Found:
    """What there is beside the original's own list: a *transformation*, its *variants* and their *results*."""

    transformation: Transformation
    variants: _Variants
    results: list[SearchResult]


@dataclass(eq=False, repr=False, slots=True)
class _Variants:
    """The question's *own* keywords, the variants whose words are *weighed*, and those that are *searched*."""

    own: str
    weighed: Sequence[Variant]
    searched: Sequence[Variant]


class _Pipeline:
    """One retrieval under way; its methods stand in the order they run."""

    def __init__(
        self,
        request: Request,
        parts: dict[str, Any] | None = None,
        found: Outcome | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.request = request
        self.settings = request.settings
        self.learned = request.learned
        self.trace = trace or Trace(read_price=self.settings.store.read_price)
        self.degradations = request.known_problems
        if request.page:
            self.trace.note(
                "query",
                f"`{request.page}` selects a page: the plain call's passages in a new order",
            )
        self.deadline = Deadline.after(self.settings.limits.deadline_ms / 1e3)
        self.query = Query(request.original, request.original, request.original)
        self.original = Variant("original", request.original, self.settings.fusion.weights.original)
        self._search_error: BaseException | None = None
        self._words_error: BaseException | None = None
        self._found = found
        self._is_new = request.learned.is_new
        self._parts = parts
        self._is_follow_up = bool(request.history)
        self._keywords = ""
        self._terms: Sequence[Term] = ()
        self._expanded: Variant | None = None
        self._first = Search(request.original)
        self._clock_reading: tuple[date | None] | None = None
        self._anchors: Anchors | None = None
        self._times: Times | None = None

    def run(self) -> Flow[Retrieval]:
        """The whole flow; whatever of ours fails in it, the caller gets what the plain function gives."""
        if self.request.problem is not None:
            self.degradations.append(self.request.problem)
            return (yield from self._pass_on())
        if self.settings.shadow is not None:
            self.trace.note("original", "shadow mode: the plain function's result")
            return (yield from self._pass_on())
        try:
            return (yield from self._improve())
        except Exception as error:
            if error is self._search_error:
                # As the traceback holds this frame, and with it us.
                self._search_error = None
                raise
            self._note_internal_error(error)
        self.original = replace(self.original, text=self.request.original)
        response = yield from self._search(Search(self.original.text, None))
        return self._build_plain_retrieval(response, self.original)

    def run_transform(self) -> Flow[Transformation]:
        """The model's part alone; whatever fails in it is noted."""
        transformation = NOTHING
        try:
            stage, transformation = self._prepare()
            if stage is not None:
                transformation = yield from stage.run(self._llm_deadline())
        except Exception as error:
            self._note_internal_error(error)
        notes = tuple((it.stage, it.reason) for it in self.degradations)
        return replace(transformation, notes=transformation.notes + notes)

    def _improve(self) -> Flow[Retrieval]:
        stage, transformation = self._prepare()
        found: _Found | None = None
        by_words: list[SearchResult] | None = None if self._searches_by_words() else []
        waits_for_first = (
            stage is not None and self.settings.escalation.mode == "auto" and not self._is_follow_up
        )
        # The first response tells how `embed=` is called and whether responses can be read: once,
        # variants wait for it.
        learns = self.learned.is_new and (self.request.embeds or bool(self.learned.problem))
        width, flows = self.request.width, list[Flow[Any]]()
        if self._found is None and not learns and by_words is None:
            flows.append(
                self._search_by_words(
                    width, self.deadline if stage is None else self._llm_deadline()
                )
            )
        is_over = stage is None and (learns or (transformation.is_empty and self._expanded is None))
        if not (self._found is not None or waits_for_first or is_over):
            flows.append(self._look_beside(stage, transformation, width, searches=not learns))
            stage = None
        if flows:
            response, results = yield from self._search_original_beside(flows, width)
            by_words = results.pop(0) if by_words is None and not learns else by_words
            transformation, found = results[0] if results else (transformation, None)
        else:
            response = yield from self._search_original()
        try:
            options = self.settings.keyword_evidence
            initial = self._first.initial
            first = read_response(
                self.original, response, self.request.shape, options=options, initial=initial
            )
        except ResponseShapeError as error:
            return (yield from self._give_up_unreadable(response, error))
        # How long they are decides alone how many are weighed by their words.
        self.learned.record_passages(
            first.ranking.items if self.request.uses_keyword_evidence else ()
        )
        if stage is not None and (not waits_for_first or self._escalate(first)):
            transformation = yield from stage.run(self._llm_deadline())
        if by_words is None:
            by_words = yield from self._search_by_words(self.request.width, self.deadline)
        self._note_refused_words()
        found = found or (yield from self._find_variants(transformation, self.request.width))
        transformation, variants = found.transformation, found.variants
        others = [*self._turn_scores(by_words, first), *found.results]
        fusion = self._fuse(first, others)
        candidates, rerank_scores = fusion.fused, list[float | None]()
        if self.request.uses_keyword_evidence:
            candidates = self._weigh_by_keywords(fusion, transformation, variants)
        evidence = candidates.evidence
        standing = self._judge(fusion, evidence, variants.own)
        self._note_texts(fusion, candidates)
        if self.request.uses_reranker:
            candidates, rerank_scores = yield from rerank(
                candidates, self.request, self.deadline, self.trace, self.degradations
            )
        response, matches = build_result(
            [first, *others], fusion, candidates, rerank_scores, self.request
        )
        return self._build_retrieval(
            response,
            matches=matches,
            variants=(self.original, *(it.ranking.variant for it in by_words), *variants.searched),
            transformation=transformation,
            offsets=fusion.offsets,
            rankings=fusion.rankings,
            fused=tuple(fusion.fused.keys),
            fused_scores=tuple(fusion.fused.scores),
            gains=tuple(map(tuple, fusion.fused.gains)),
            evidence=evidence,
            standing=standing,
            reranked=tuple(candidates.keys[: len(rerank_scores)]),
            rerank_scores=tuple(rerank_scores),
        )

    # --- before the first search
    # --------------------------------------------------------------------------------------

    def _prepare(self) -> tuple[TransformStage | None, Transformation]:
        """The stage that asks the model, or what is remembered of an equal question, or neither."""
        request, trace = self.request, self.trace
        self.query = prepare_query(request.original, self.settings)
        self._keywords = self.query.keywords if self.settings.preprocess.enabled else ""
        self.original = Variant("original", self.query.text, self.original.weight)
        if request.glossary is not None:
            self._read_glossary(request.glossary)
        trace.stage("preprocess", trace.clock())
        reason = request.skip_reason or find_skip_reason(
            self.settings,
            request.original,
            is_follow_up=bool(request.history),
            find_spans=self._find_spans,
        )
        if reason:
            trace.decision = Decision(call=False, reason=reason)
            if request.history:
                trace.note("history", f"not used for the search: {reason}")
            return None, NOTHING
        # The free tier does not wait for its modules.
        from qtmiddleware.retrieval.question import Question
        from qtmiddleware.transforms.prompt import select_recent

        if request.history:
            said = select_recent(
                request.history, request.original, self.settings.llm.history_messages
            )
            if opens_new_topic(self.query, said):
                self._is_follow_up = False
                trace.note("standalone", "not searched: the question starts a new topic")
        facts = tuple((term.form, term.meanings[0]) for term in self._terms if term.is_certain)
        self._anchors = self._find_anchors()
        question = Question(request.original, request.history, self.settings, facts, self._anchors)
        stage = TransformStage(
            question, self.query, request, trace, self.degradations, self._find_spans, self.deadline
        )
        if (remembered := stage.recall()) is not None:
            trace.decision = Decision(call=False, reason="cached")
            return None, remembered
        if self._is_follow_up:
            self.learned.gate.record_forced_call(self.settings.escalation.target_call_rate)
        trace.decision = Decision(
            call=True, reason="conversation" if self._is_follow_up else "always"
        )
        return stage, NOTHING

    def _find_spans(self) -> Sequence[Span]:
        """What the model may not lose of the question."""
        spans = protected_spans(self.request.original, language=self.query.language or "auto")
        return spans if self._anchors is None else self._anchors.drop_relative(spans)

    def _find_anchors(self) -> Anchors | None:
        """The dates that the model is told: none for a question that does not lean on today."""
        from qtmiddleware.transforms.anchors import Anchors

        self._times = times = read_times(
            self.request.original, self.query.language, self._find_today
        )
        today = self._find_today() if times.needs_today else None
        return None if today is None else Anchors(today, times)

    # --- the original's own search, and the model
    # ---------------------------------------------------------------------

    def _search_original(self) -> Flow[Any]:
        """Return the response of the original's own search, which may have been made before."""
        if self._found is not None:
            return self._found.value
        began, width = perf_counter(), self.request.width
        response = yield from self._search(self._build_first_search(width))
        self._note_original(began, perf_counter() - began, width)
        return response

    def _search_original_beside(
        self, flows: Sequence[Flow[Any]], width: int | None
    ) -> Flow[tuple[Any, list[Any]]]:
        """Return the response of the original's own search, and what *flows* return, which are performed beside it."""
        limit = self.settings.limits.max_concurrency
        flow = gather_flows(flows, limit=limit) if len(flows) > 1 else _list_result(flows[0])
        outcome, beside = yield Beside(self._build_first_search(width), flow, limit)
        self.trace.count_search(self._first.calls, self._first.reads)
        self._note_original(outcome.began, outcome.seconds, width)
        if outcome.error is not None:
            self._search_error = outcome.error
            try:
                raise outcome.error
            finally:
                # The traceback holds this frame, which must not hold the error.
                del outcome
        if beside.error is not None:
            raise beside.error
        return outcome.value, beside.value

    def _searches_by_words(self) -> bool:
        """Whether the keywords are searched in fields of a document index, by words."""
        reason = self.request.why_not_by_words
        if reason:
            self.trace.note(TEXT_CLAUSE, reason)
        return reason is None and bool(self._keywords)

    def _search_by_words(self, width: int | None, deadline: Deadline) -> Flow[list[SearchResult]]:
        results, self._words_error = yield from search_by_words(
            self._keywords,
            self.request,
            width=width or self.request.top_k,
            deadline=deadline,
            trace=self.trace,
            degradations=self.degradations,
        )
        return results

    def _note_refused_words(self) -> None:
        """Remember that the function refused to search by words, if that is what it refused."""
        error, learned = self._words_error, self.learned
        # A call that asks for too much is refused whatever it searches for.
        if error is None or not is_refusal(error) or self._first.was_refused:
            return
        learned.refuses_words = True
        fields = ", ".join(map(repr, self.request.text_fields))
        what = (
            f"the function rejected a keyword search of {fields} (hybrid.textFields):"
            f" {type(error).__name__}"
        )
        learned.record_problem(f"{what}; name fields that the index declares with full_text_search")

    def _turn_scores(
        self, results: Sequence[SearchResult], first: SearchResult
    ) -> Sequence[SearchResult]:
        """Let the scores of *results*, which are better the higher they are, run as those of the *first* do."""
        direction = find_direction([first.ranking]) or (1 if self.learned.lower_is_better else -1)
        for result in results if direction > 0 else ():
            scores = [None if score is None else -score for score in result.ranking.scores]
            result.ranking = replace(result.ranking, scores=scores)
        return results

    def _look_beside(
        self,
        stage: TransformStage | None,
        transformation: Transformation,
        width: int | None,
        *,
        searches: bool,
    ) -> Flow[tuple[Transformation, _Found | None]]:
        """Ask the model, unless *transformation* is remembered, and search the variants as soon as it has replied."""
        if stage is not None:
            transformation = yield from stage.run(self._llm_deadline())
        return transformation, (
            (yield from self._find_variants(transformation, width)) if searches else None
        )

    def _find_variants(self, transformation: Transformation, width: int | None) -> Flow[_Found]:
        """Return what the variants of *transformation* find, each asked for *width* passages."""
        if not self._is_follow_up and transformation.standalone:
            transformation = replace(transformation, standalone=None)
        variants, results = yield from self._search_variants(transformation, width)
        return _Found(transformation, variants, results)

    def _build_first_search(self, width: int | None) -> Search:
        if (full := self.request.full_width) is not None and width != full:
            count, chars = width or self.request.top_k, self.learned.passage_chars
            self.trace.note(
                "keyword_evidence",
                f"{count} candidates instead of {full}: passages have {chars:,.0f} characters",
            )
        self._first = Search(self.query.text, width, may_narrow=True, weight=self.original.weight)
        return self._first

    def _search(self, step: Search) -> Flow[Any]:
        """The response to *step*, which is counted; what the function raises is known as its own from here on."""
        try:
            return (yield step)
        except Exception as error:
            self._search_error = error
            raise
        finally:
            self.trace.count_search(step.calls, step.reads)

    def _note_original(self, began: float, seconds: float, width: int | None) -> None:
        first = self._first
        self.trace.original_ms = seconds * 1e3
        if first.embed_seconds:
            self.trace.stage("embed", first.embed_seconds, detail="original", began=began)
        self.trace.stage("search.original", seconds, began=began)
        if width is not None and first.was_refused and self.learned.refuses_widening:
            self.trace.note("keyword_evidence", f"the function rejects {width} candidates")

    def _llm_deadline(self) -> Deadline:
        return self.deadline.sooner(self.settings.limits.model_seconds)

    def _escalate(self, first: SearchResult) -> bool:
        """The gate's decision, once the first result is known."""
        text_field = self.settings.keyword_evidence.text_field
        self.trace.decision = self.learned.gate.decide(
            first.ranking.scores,
            (read_text(item, text_field) for item in first.ranking.items),
            self.query.keywords,
            target_call_rate=self.settings.escalation.target_call_rate,
            language=self.query.language,
        )
        return self.trace.decision.call

    # --- after the model
    # ----------------------------------------------------------------------------------------------

    def _search_variants(
        self, transformation: Transformation, width: int | None
    ) -> Flow[tuple[_Variants, list[SearchResult]]]:
        """The variants, and what they found; nothing where too few of their searches succeed."""
        used = transformation if self._parts is None else select_parts(transformation)
        own = find_own_keywords(self.query, transformation, self.settings)
        topic = own if self.settings.llm.guard else ""
        variants, notes = build_variants(used, self.query.text, self.request.fusion, topic)
        self.trace.notes.extend(notes)
        weighed, searched = self._choose_searches(variants)
        if self._expanded is not None and self._parts is None:
            searched = (*searched, self._expanded)
        results = yield from search_variants(
            searched,
            self.request,
            width=width,
            # It may not be known yet whether a new function returns so many.
            may_narrow=self._is_new,
            deadline=self.deadline,
            trace=self.trace,
            degradations=self.degradations,
        )
        if self._parts is not None:
            self._parts |= {it.ranking.variant.text: it.response for it in results}
        if len(results) < min(self.settings.fusion.min_successes, len(searched)):
            detail = f"{len(results)} of {len(searched)} searches succeeded"
            self.degradations.append(Degradation("search", "too_few_successes", detail))
            return _Variants(own, (), searched), []
        return _Variants(own, weighed, searched), results

    def _choose_searches(
        self, variants: Sequence[Variant]
    ) -> tuple[Sequence[Variant], Sequence[Variant]]:
        """What of *variants* is weighed, and what is searched within the budget; the parts of an answer stay apart."""
        if self.request.page:
            return variants, ()
        if self._parts is not None:
            most = self.settings.limits.max_searches
            by_words = int(self.request.why_not_by_words is None)
            return variants, variants if most is None else variants[: max(0, most - 1 - by_words)]
        most = self.request.max_searches
        # What a follow-up asks for is found by a search more than the budget rather than not at
        # all.
        count = (
            None
            if most is None
            else max(most - 1, int(any(it.kind == STANDALONE for it in variants)))
        )
        if self._lets_passage_lead(variants):
            variants, notes = let_passage_lead(variants, self.request.fusion)
            self.trace.notes.extend(notes)
        searched, notes = choose_searches(variants, self.query.text, count)
        self.trace.notes.extend(notes)
        return variants, searched

    def _lets_passage_lead(self, variants: Sequence[Variant]) -> bool:
        """Whether one of *variants* may lead a follow-up: weights count, and nobody asks for a search of each."""
        most = self.settings.limits.max_searches
        return self.settings.fusion.row.weighs and (most is None or len(variants) >= most)

    def _fuse(self, first: SearchResult, others: Sequence[SearchResult]) -> Fusion:
        began, options = self.trace.clock(), self.settings.fusion
        taking_part = weighted_rankings(
            first.ranking, [result.ranking for result in others], options
        )
        text_field = self.settings.keyword_evidence.text_field
        own, *rankings = separate_chunks([first.ranking, *taking_part], text_field)
        direction, are_scored = find_direction(rankings), has_scores(rankings)
        if direction and are_scored:
            self.learned.lower_is_better = direction > 0
        try:
            fused = fuse(
                rankings,
                options.method,
                rrf_k=options.rrf_k,
                lower_is_better=self.learned.lower_is_better,
                are_scored=are_scored,
            )
        except OwnFusionFailed as error:
            self._note_failed_fusion(error)
            # The question's own list, as though no variant had found anything.
            rankings = [own]
            fused = fuse(rankings, options.method, lower_is_better=self.learned.lower_is_better)
        if fused.method != options.method and others:
            self.trace.note(
                "fusion",
                f"scores are missing or do not match the order; {fused.method} is used instead",
            )
        self.trace.stage("fuse", self.trace.clock() - began)
        return Fusion(fused, tuple(rankings), own)

    def _note_failed_fusion(self, error: OwnFusionFailed) -> None:
        self.degradations.append(Degradation("fusion", "failed", str(error)))
        # What it says may quote a passage.
        if logger.isEnabledFor(logging.DEBUG):
            query_id, why = self.trace.query_id, format_error(error.__cause__ or error)
            logger.debug("fusion.method failed: %s", why, event="fusion_failed", query_id=query_id)

    def _weigh_by_keywords(
        self, fusion: Fusion, transformation: Transformation, variants: _Variants
    ) -> Fused:
        began = self.trace.clock()
        request = self.request
        times = self._times
        if times is None or transformation.standalone:
            times = read_times(
                transformation.standalone or request.original, self.query.language, self._find_today
            )
        candidates = weigh_by_keywords(
            fusion.fused,
            lambda: collect_keywords(variants.own, transformation, variants.weighed, self.settings),
            self.settings.keyword_evidence,
            fusion.own.scores,
            self.trace,
            language=self.query.language,
            asked=request.width or request.top_k,
            top_k=request.top_k,
            write_terms=self._find_term_writer(transformation, variants.own),
            weigh_metadata=partial(self._weigh_by_metadata, times, transformation.constraints),
            dated=times.words,
        )
        if times.needs_today and times.periods and (today := self._find_today()) is not None:
            self.trace.note("dates", f"{', '.join(map(str, times.periods))}, as today is {today}")
        self.trace.stage("keyword_evidence", self.trace.clock() - began)
        return candidates

    def _read_glossary(self, glossary: Glossary) -> None:
        """Find the question's terms; without any, and with a degradation, if the glossary fails."""
        request = self.request
        try:
            self._terms = glossary.find_terms(request.original, self.query.language)
            self._expanded = build_expanded(self.query.text, self._terms, request)
        except Exception as error:
            self._terms, self._expanded = (), None
            self._note_failed_glossary(error)
        # Passages may still decide against a term.
        if not request.uses_keyword_evidence:
            self._note_terms([str(term) for term in self._terms if term.is_certain])

    def _note_failed_glossary(self, error: Exception) -> None:
        self.degradations.append(Degradation("glossary", "failed", type(error).__name__))

    def _find_term_writer(self, transformation: Transformation, own: str) -> WriteTerms | None:
        """Return what writes the question's terms of the glossary into texts; ``None`` if it has none.

        *own* are the keywords of the question or, in a conversation, of its standalone form.
        """
        glossary, language, terms = self.request.glossary, self.query.language, self._terms
        if glossary is not None and transformation.standalone:
            try:
                terms = glossary.find_terms(transformation.standalone, language)
            except Exception as error:
                self._note_failed_glossary(error)
                return None
        if glossary is None or not terms:
            return None
        from qtmiddleware.retrieval.glossary import settle_terms, write_terms

        def write(texts: list[str | None]) -> list[str | None]:
            try:
                settled, undecided = settle_terms(terms, texts, own, language)
                written = write_terms(settled, texts, glossary, own, language)
            except Exception as error:
                self._note_failed_glossary(error)
                return texts
            self._note_terms([*map(str, settled), *undecided])
            return written

        return write

    def _note_terms(self, sentences: Sequence[str]) -> None:
        """Note what of the glossary is used, each once."""
        for said in sentences:
            if ("glossary", said) not in self.trace.notes:
                self.trace.note("glossary", said)

    def _weigh_by_metadata(
        self, times: Times, constraints: Sequence[str], fields: Sequence[Mapping[str, Any]]
    ) -> MetadataEvidence | None:
        """What the metadata of the candidates says of the question; nothing if it cannot be told."""
        today = self._find_today() if times.newest else None
        try:
            rules = load_word_rules(self.query.language)
            return weigh_by_metadata(times, fields, rules, today, constraints)
        except Exception as error:
            self.degradations.append(Degradation("metadata", "failed", type(error).__name__))
            return None

    def _find_today(self) -> date | None:
        """The day of the question by the caller's clock, which is asked once; ``None`` if it fails."""
        if self._clock_reading is None:
            try:
                self._clock_reading = (read_clock(self.request.clock),)
            except Exception as error:
                self.degradations.append(Degradation("clock", "failed", type(error).__name__))
                self._clock_reading = (None,)
        return self._clock_reading[0]

    def _judge(self, fusion: Fusion, evidence: Evidence | None, own: str) -> Standing:
        """How sure the question's own list looks beside those of earlier questions."""
        if self.request.page:
            return LATER_PAGE
        question = fusion.question or fusion.own
        coverage = None if evidence is None else evidence.coverage
        if coverage is None and self.request.uses_keyword_evidence:
            texts = read_texts(question.items[:LEADING], self.settings.keyword_evidence.text_field)
            coverage = measure_first_coverage(own, texts, self.query.language)
        signals = measure_standing_signals(
            question.scores, coverage, lower_is_better=self.learned.lower_is_better
        )
        return self.learned.standings.judge(
            signals, passages=len(question.keys), scores=question.scores
        )

    def _note_texts(self, fusion: Fusion, weighed: Fused) -> None:
        """Remember whether this function's passages hold texts, without which neither words nor a reranker help."""
        if self.learned.holds_text or not (
            self.request.uses_keyword_evidence or self.request.uses_reranker
        ):
            return
        items, text_field = (
            [it.item for it in fusion.fused.items],
            self.settings.keyword_evidence.text_field,
        )
        if weighed is not fusion.fused or any(holds_text(item, text_field) for item in items):
            self.learned.holds_text = True
        elif len(items) > 1:
            self.learned.holds_text = False
            what, mend = describe_missing_text(items, text_field)
            self.learned.record_problem(f"{what}, so keywords cannot rerank them; {mend}")

    def _build_retrieval(self, response: Any, **parts: Any) -> Retrieval:
        self.trace.finish()
        self.request.log_degradations(logger, "retrieval", self.trace, self.degradations)
        return Retrieval(
            original_query=self.request.original,
            keywords=self._keywords,
            response=response,
            status="degraded" if self.degradations else "full",
            degradations=tuple(self.degradations),
            trace=self.trace,
            **parts,
        )

    # --- the plain function's answer, where nothing can be improved
    # ---------------------------------------------------

    def _pass_on(self) -> Flow[Retrieval]:
        """The call as it was made: in shadow mode, and for a query that cannot be worked with."""
        problem = self.request.problem
        query, began = self.request.original, perf_counter()
        # A text is still embedded for a function that takes vectors; whatever else was passed is
        # its own affair.
        is_text = isinstance(query, str) and (problem is None or problem.reason != "missing")
        self._first = Search(query if is_text else None, None)
        response = yield from self._search(self._first)
        self._note_original(began, perf_counter() - began, None)
        return self._build_plain_retrieval(response, *((self.original,) if is_text else ()))

    def _build_plain_retrieval(self, response: Any, *variants: Variant) -> Retrieval:
        matches = read_matches(self.original, response, self.request)
        return self._build_retrieval(response, matches=matches, variants=variants)

    def _give_up_unreadable(self, response: Any, error: ResponseShapeError) -> Flow[Retrieval]:
        """The plain function's own answer, where we cannot read it."""
        self.learned.record_problem(f"results are passed through unchanged: {error}")
        if self.request.width is not None:
            self.learned.refuses_widening = True
            if isinstance(response, Coroutine):
                response.close()
            response = yield from self._search(Search(self.query.text, None))
        # The variants are dropped, and with them what went wrong with their searches.
        self.degradations = [
            it for it in self.degradations if not it.stage.startswith(("search", "embed"))
        ]
        self.degradations.append(Degradation("response", "unreadable", error.shape))
        return self._build_retrieval(response, matches=(), variants=(self.original,))

    def _note_internal_error(self, error: Exception) -> None:
        about: dict[str, Any] = {"query_id": self.trace.query_id, "error": type(error).__name__}
        kind = f"{type(error).__name__} inside qtmiddleware"
        self.request.sampler.log(
            logger, "nothing was improved", [kind], level=logging.ERROR, **about
        )
        logger.debug("qtmiddleware failed", exc_info=error, event="nothing_was_improved", **about)
        self.degradations.append(Degradation("middleware", "failed", type(error).__name__))
