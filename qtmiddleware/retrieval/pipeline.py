"""Run one retrieval, from the query to its result.

    query ─ prepare ─┬─ search(original) ───────────────┐
                     └─ gate ─ ask model ─ search × n ──┴─ fuse ─ keyword evidence ─ rerank? ─
                     Retrieval

Every fallback is an ordinary ``if`` or ``try`` in this file. If the model or the search for a
variant fails or is late, the flow continues with the passages that the question itself found. The
flow raises only the errors of the search for the question, unchanged.

The search for the question starts first, in the caller's own thread or task. The other work (the
model, the searches for its texts, a keyword search by `hybrid.textFields`) runs beside it, or after
it in these cases:

- The escalation mode ``auto``: the gate decides from the passages whether to ask the model.
- The first call of a function that takes vectors or has a known problem: its first response shows
  whether to search variants. The model is asked beside the search.
- Without a free place: `limits.maxConcurrency` counts the search for the question too.
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
from qtmiddleware.preprocessing import Span, find_protected_spans
from qtmiddleware.preprocessing.dates import Times, read_times
from qtmiddleware.retrieval.call import (
    Call,
    collect_weighted_keywords,
    find_question_keywords,
    prepare_query,
    read_today,
)
from qtmiddleware.retrieval.confidence import (
    LATER_PAGE,
    measure_confidence_signals,
    measure_leading_coverage,
)
from qtmiddleware.retrieval.fusion import (
    FusedList,
    FuseError,
    FusionResult,
    find_score_direction,
    fuse_by_function,
    fuse_rankings,
    has_usable_scores,
    make_chunk_keys_unique,
    select_rankings,
)
from qtmiddleware.retrieval.gate import find_skip_reason
from qtmiddleware.retrieval.history import is_new_topic
from qtmiddleware.retrieval.keyword_evidence import AddTerms, rerank_by_keywords
from qtmiddleware.retrieval.metadata_evidence import MetadataEvidence, collect_metadata_evidence
from qtmiddleware.retrieval.question_words import LEADING, load_word_rules
from qtmiddleware.retrieval.reranking import rerank_candidates
from qtmiddleware.retrieval.responses import (
    SearchResult,
    describe_missing_text,
    has_text,
    read_response,
)
from qtmiddleware.retrieval.result import build_response_and_matches, read_matches
from qtmiddleware.retrieval.searching import (
    build_variants_and_notes,
    prefer_hypothetical_passage,
    search_by_keywords,
    search_variants,
    select_sub_query_texts,
    select_variants_and_notes,
)
from qtmiddleware.retrieval.transform_stage import TransformStage
from qtmiddleware.runtime.io import Outcome, Work
from qtmiddleware.runtime.logs import format_error, get_logger
from qtmiddleware.runtime.services import Search, Services
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


async def retrieve(
    request: Call,
    services: Services,
    *,
    sub_responses: dict[str, Any] | None = None,
    original_outcome: Outcome[Any] | None = None,
    trace: Trace | None = None,
) -> Retrieval:
    """Retrieve the passages for *request*.

    Args:
        request: The query, its settings and the state of the function.
        services: Calls the function, the model and the hooks.
        sub_responses: A dict that receives the response to each searched variant, by the variant's
            text. Pass a dict to answer sub-queries separately. If the model then returns at least
            two sub-queries, only the sub-queries and the standalone form are searched.
        original_outcome: The outcome of the search for the question, if the caller has already made
            this search.
        trace: The trace to write to; ``None`` for a new trace.

    Raises:
        Exception: The error of the search for the question, unchanged. There are no other errors.
    """
    observation = request.observation.make_child(
        "retrieval", top_k=request.top_k, content=request.original
    )
    services = services.within(observation, request.settings.limits.max_concurrency, request.models)
    pipeline = _Pipeline(request, services, sub_responses, original_outcome, trace)
    with observation:
        retrieval = observation.keep_result(await pipeline.run())
    for hook in request.hooks:
        try:
            await services.tell(hook, retrieval)
        except Exception as error:
            retrieval = _record_failed_hook(request, retrieval, error)
    return retrieval


async def transform(request: Call, services: Services) -> Transformation:
    """Ask the model for a transformation of *request*, without any search.

    If the model fails, the transformation is empty.
    """
    observation = request.observation.make_child("transform", content=request.original)
    services = services.within(observation, request.settings.limits.max_concurrency, request.models)
    with observation:
        return observation.keep_result(await _Pipeline(request, services).run_transform())


def _record_failed_hook(request: Call, retrieval: Retrieval, error: Exception) -> Retrieval:
    """Return *retrieval* with a degradation for a hook that raised *error*."""
    outcome = Outcome[None](late=True) if isinstance(error, TimeoutError) else Outcome(error=error)
    degradation = Degradation("hook", outcome.reason, outcome.detail)
    retrieval = add_degradation(retrieval, degradation)
    request.log_degradations(logger, "retrieval", retrieval.trace, [degradation])
    # The text of the hook's error may quote the question.
    if logger.isEnabledFor(logging.DEBUG):
        query_id, error_type = retrieval.trace.query_id, type(error).__name__
        message = format_error(error)
        logger.debug(
            "on_retrieval failed: %s",
            message,
            event="hook_failed",
            query_id=query_id,
            error=error_type,
        )
    return retrieval


@dataclass(eq=False, repr=False, slots=True)
class _VariantResults:
    """The search results of a question's variants.

    Attributes:
        transformation: The model's texts. The standalone form is dropped if the question starts a
            new topic.
        choice: The variants that count as keyword evidence, and the variants to search.
        results: The responses that could be read, at most one per variant.
    """

    transformation: Transformation
    choice: _VariantChoice
    results: list[SearchResult]


@dataclass(eq=False, repr=False, slots=True)
class _VariantChoice:
    """The variants that count as keyword evidence, and the variants to search.

    Attributes:
        question_keywords: The keywords of the question or, in a conversation, of its standalone
            form.
        evidence_variants: The variants whose words count as keyword evidence.
        searched_variants: The variants to search.
    """

    question_keywords: str
    evidence_variants: Sequence[Variant]
    searched_variants: Sequence[Variant]


class _Pipeline:
    """One retrieval in progress. Its methods are listed in the order in which they run."""

    def __init__(
        self,
        request: Call,
        services: Services,
        sub_responses: dict[str, Any] | None = None,
        original_outcome: Outcome[Any] | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.request = request
        self.services = services
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
        # The question itself as a variant, the one that every call searches.
        self.original = Variant(
            "original", request.original, self.settings.fusion.weights["original"]
        )
        # The error of the original's own search, the only error that the flow raises.
        self._search_error: BaseException | None = None
        self._keyword_search_error: BaseException | None = None
        self._original_outcome = original_outcome
        self._sub_responses = sub_responses
        self._is_follow_up = bool(request.history)
        self._keywords = ""
        self._glossary_terms: Sequence[Term] = ()
        self._original_search = Search(request.original)
        self._response: Any = None
        # Whether `_response` is that to a search for more passages than the caller asked for.
        self._is_widened = False
        # In a tuple once the clock was read, since a failed reading is ``None``.
        self._clock_reading: tuple[date | None] | None = None
        self._anchors: Anchors | None = None
        self._times: Times | None = None

    async def run(self) -> Retrieval:
        """Run the whole flow and return its result.

        If qtmiddleware itself fails, the flow returns the function's result without any changes.
        """
        if self.request.problem is not None:
            self.degradations.append(self.request.problem)
            return await self._call_function_unchanged()
        if self.settings.shadow is not None:
            self.trace.note("original", "shadow mode: the plain function's result")
            return await self._call_function_unchanged()
        try:
            return await self._improve_retrieval()
        except Exception as error:
            if error is self._search_error:
                # The error's traceback holds this frame and so `self`, which must not hold it.
                self._search_error = None
                raise
            self._record_internal_error(error)
        self.original = replace(self.original, text=self.request.original)
        response = await self._perform_search(Search(self.original.text, None))
        return self._build_unchanged_retrieval(response, self.original)

    async def run_transform(self) -> Transformation:
        """Ask the model for a transformation and return it, without searching.

        Failures are added to the notes of the transformation.
        """
        transformation = NOTHING
        try:
            stage, transformation = self._prepare_stage_and_transformation()
            if stage is not None:
                transformation = await stage.run(self.services, self._find_llm_deadline())
        except Exception as error:
            self._record_internal_error(error)
        notes = tuple((degradation.stage, degradation.reason) for degradation in self.degradations)
        return replace(transformation, notes=transformation.notes + notes)

    async def _improve_retrieval(self) -> Retrieval:
        """Search, ask the model, rerank the passages, and return the result.

        The order of these steps depends on the request; the module's docstring lists all orders.
        """
        stage, transformation = self._prepare_stage_and_transformation()
        variants: _VariantResults | None = None
        # None until the keyword search has run. If it must not run, its list of results is empty.
        keyword_results: list[SearchResult] | None = (
            None if self._should_search_by_keywords() else []
        )
        # A follow-up never waits for the gate: its own search seldom finds what it refers to.
        gated = (
            stage is not None and self.settings.escalation.mode == "auto" and not self._is_follow_up
        )
        # The first response of a function shows how `embed=` is called and whether responses can
        # be read. Until then its variants wait.
        learns = self.learned.is_new and (
            self.request.embedder is not None or bool(self.learned.problem)
        )
        search_width = self.request.search_width
        beside = list[Work[Any]]()
        places = 0 if self._original_outcome is not None else self.services.limit - 1
        alone = stage is None and (learns or transformation.is_empty)
        asks_beside = places > 0 and not gated and not alone
        if keyword_results is None and not learns and places > asks_beside:
            deadline = self.deadline if stage is None else self._find_llm_deadline()
            beside.append(partial(self._search_by_keywords, search_width, deadline))
            places -= 1
        if asks_beside:
            beside.append(
                partial(
                    self._ask_model_and_search,
                    self.services.with_limit(places),
                    stage,
                    transformation,
                    search_width,
                    should_search=not learns,
                )
            )
            # If the stage stayed set, the model would be asked a second time after the search.
            stage = None
        response, results = await self._perform_original_search(beside)
        if asks_beside:
            transformation, variants = results.pop()
        if results:
            keyword_results = results.pop()
        try:
            original_result = await self._read_original_response(response)
        except ResponseShapeError as error:
            return await self._return_unreadable_response(error)
        self.learned.is_unreadable = False
        if original_result.is_cut:
            self.degradations.append(Degradation("metadata", "timeout", "slow to read"))
        # Lengths are learnt because they limit how many passages later searches ask for.
        self.learned.update_average_length(
            original_result.ranking.passages if self.request.uses_keyword_evidence else ()
        )
        if stage is not None and (not gated or self._should_ask_model(original_result)):
            transformation = await stage.run(self.services, self._find_llm_deadline())
        if keyword_results is None:
            keyword_results = await self._search_by_keywords(
                self.request.search_width, self.deadline
            )
        self._record_rejected_keyword_search()
        variants = variants or (
            await self._collect_variant_results(
                self.services, transformation, self.request.search_width
            )
        )
        transformation, choice = variants.transformation, variants.choice
        others = [*self._align_score_direction(keyword_results, original_result), *variants.results]
        fusion = self._fuse_lists(original_result, others)
        ranked, rerank_scores = fusion.fused, list[float | None]()
        if self.request.uses_keyword_evidence:
            ranked = self._rerank_by_keywords(fusion, transformation, choice)
        evidence = ranked.evidence
        standing = self._measure_confidence(fusion, evidence, choice.question_keywords)
        self._record_text_presence(fusion, ranked)
        if self.request.uses_reranker:
            ranked, rerank_scores = await rerank_candidates(
                ranked, self.request, self.services, self.deadline, self.trace, self.degradations
            )
        try:
            response, matches = build_response_and_matches(
                [original_result, *others], fusion, ranked, rerank_scores, self.request
            )
        except ResponseShapeError as error:
            return await self._return_unreadable_response(error)
        return self._build_retrieval(
            response,
            matches=matches,
            variants=(
                self.original,
                *(result.ranking.variant for result in keyword_results),
                *choice.searched_variants,
            ),
            transformation=transformation,
            rankings=fusion.rankings,
            fused=tuple(fusion.fused.keys),
            fused_scores=tuple(fusion.fused.scores),
            gains=tuple(map(tuple, fusion.fused.gains)),
            evidence=evidence,
            standing=standing,
            reranked=tuple(ranked.keys[: len(rerank_scores)]),
            rerank_scores=tuple(rerank_scores),
        )

    # --- before the first search ------------------------------------------------------------------

    def _prepare_stage_and_transformation(self) -> tuple[TransformStage | None, Transformation]:
        """Return the stage that asks the model, and the transformation from the cache.

        The stage is ``None`` if the model is not asked. The transformation is empty (`NOTHING`) if
        the cache does not contain it.
        """
        request, trace = self.request, self.trace
        self.query = prepare_query(request.original, self.settings)
        self._keywords = self.query.keywords if self.settings.preprocess.enabled else ""
        self.original = Variant("original", self.query.text, self.original.weight)
        if request.engine.glossary is not None:
            self._prepare_glossary_terms(request.engine.glossary)
        trace.record_stage("preprocess", trace.measure_elapsed())
        reason = request.skip_reason or find_skip_reason(
            self.settings,
            request.original,
            is_follow_up=bool(request.history),
            find_spans=self._find_protected_spans,
        )
        if reason:
            trace.decision = Decision(call=False, reason=reason)
            if request.history:
                trace.note("history", f"not used for the search: {reason}")
            return None, NOTHING
        # Imported here so that calls without a model do not load the modules for models.
        from qtmiddleware.retrieval.question import Question
        from qtmiddleware.transforms.prompt import select_recent_messages

        if request.history:
            recent = select_recent_messages(
                request.history, request.original, self.settings.llm.history_messages
            )
            if is_new_topic(self.query, recent):
                self._is_follow_up = False
                trace.note("standalone", "not searched: the question starts a new topic")
        facts = tuple(
            (term.form, term.meanings[0]) for term in self._glossary_terms if term.is_certain
        )
        self._anchors = self._find_date_anchors()
        question = Question(request.original, request.history, self.settings, facts, self._anchors)
        stage = TransformStage(
            question,
            self.query,
            request,
            trace,
            self.degradations,
            self._find_protected_spans,
        )
        if (remembered := stage.find_cached_transformation()) is not None:
            trace.decision = Decision(call=False, reason="cached")
            return None, remembered
        if self._is_follow_up:
            # The gate compensates for this call, so that the call rate stays near its target.
            self.learned.gate.record_forced_call(self.settings.escalation.target_call_rate)
        trace.decision = Decision(
            call=True, reason="conversation" if self._is_follow_up else "always"
        )
        return stage, NOTHING

    def _find_protected_spans(self) -> Sequence[Span]:
        """Return the parts of the question that the model must keep, such as numbers and names."""
        spans = find_protected_spans(self.request.original, language=self.query.language or "auto")
        # The model is told to replace "last year" by a date, so it need not keep the words.
        return spans if self._anchors is None else self._anchors.drop_relative_spans(spans)

    def _find_date_anchors(self) -> Anchors | None:
        """Return the dates that the model's prompts must contain, such as today's date.

        Returns ``None`` if the question does not depend on today's date, or if the clock fails.
        """
        from qtmiddleware.transforms.anchors import Anchors

        self._times = times = read_times(
            self.request.original, self.query.language, self._get_today
        )
        today = self._get_today() if times.needs_today else None
        return None if today is None else Anchors(today, times)

    # --- the original's own search, and the model -------------------------------------------------

    async def _perform_original_search(self, beside: Sequence[Work[Any]]) -> tuple[Any, list[Any]]:
        """Search for the question while *beside* runs; return the response and the results.

        If the caller has already made this search, its response is returned without another search.
        """
        if self._original_outcome is not None:
            return self._original_outcome.value, []
        search_width = self.request.search_width
        search = self._build_original_search(search_width)
        running = [self.services.io.start(work) for work in beside]
        try:
            began = perf_counter()
            try:
                response = await self.services.search(search)
            except Exception as error:
                self._search_error = error
                raise
            seconds = perf_counter() - began
            results = [await work.get() for work in running]
        finally:
            for work in running:
                await work.cancel()
        # Recorded only now, because the work beside the search writes to the same trace.
        self.trace.count_search(search.calls, search.reads)
        self._record_original_search(began, seconds, search_width)
        return response, results

    async def _read_original_response(self, response: Any) -> SearchResult:
        """Return the passages in *response*, the one to the question.

        If a search for many passages brought fewer than the caller asked for, or what cannot be
        read, the function is asked once more with the caller's own number.

        Raises:
            ResponseShapeError: The response cannot be read.
        """
        search, widening = self._original_search, self.learned.widening
        self._response, self._is_widened = response, search.top_k is not None
        top_k, count = self.request.top_k, 0
        result: SearchResult | None = None
        try:
            result = self._read_response(response, search)
        except ResponseShapeError:
            if search.top_k is None:
                raise
        if result is not None:
            count = len(result.ranking.passages)
            if search.top_k is None or top_k is None:
                return result
            widening.is_proven = widening.is_proven or count >= top_k
            if count >= top_k or count in widening.confirmed or self.deadline.passed:
                return result
        # Python warns about a coroutine that is neither awaited nor closed.
        if isinstance(response, Coroutine):
            response.close()
        own_search = Search(self.query.text, None, weight=self.original.weight)
        try:
            self._response = await self._perform_search(own_search)
            self._is_widened = False
        except Exception:
            if result is None:
                raise
            self._search_error = None
            return result
        own_result = self._read_response(self._response, own_search)
        own_count = len(own_result.ranking.passages)
        if result is not None and own_count <= count:
            widening.confirm(count)
            return result
        widening.stop()
        note = (
            f"{search.top_k} candidates bring {count} passages, your own {top_k} bring {own_count}"
        )
        self.trace.note("keyword_evidence", note)
        return own_result

    def _read_response(self, response: Any, search: Search) -> SearchResult:
        """Return the passages in *response* to *search*, a search for the question."""
        return read_response(
            self.original,
            response,
            self.request.shape,
            options=self.settings.keyword_evidence,
            initial_rankings=search.initial,
            deadline=self.deadline,
        )

    def _should_search_by_keywords(self) -> bool:
        """Return whether to search the configured text fields for the question's keywords.

        If configured fields cannot be searched for this question, the reason is added to the trace.
        """
        reason = self.request.keyword_search_skip_reason
        if reason:
            self.trace.note(TEXT_CLAUSE, reason)
        return reason is None and bool(self._keywords)

    async def _search_by_keywords(
        self, search_width: int | None, deadline: Deadline
    ) -> list[SearchResult]:
        """Search the text fields for the question's keywords.

        Returns a list with one result, or an empty list if the search fails.
        """
        results, self._keyword_search_error = await search_by_keywords(
            self._keywords,
            self.request,
            self.services,
            search_width=search_width or self.request.top_k,
            deadline=deadline,
            trace=self.trace,
            degradations=self.degradations,
        )
        return results

    def _record_rejected_keyword_search(self) -> None:
        """Stop further keyword searches if the function has just rejected one.

        A rejection is ignored if the function also rejected the requested number of passages,
        because this number may be the only cause.
        """
        error, learned = self._keyword_search_error, self.learned
        # A function that rejected the number of passages would have rejected any search.
        if error is None or not is_refusal(error) or self._original_search.was_refused:
            return
        learned.refuses_words = True
        fields = ", ".join(map(repr, self.request.text_fields))
        problem = (
            f"the function rejected a keyword search of {fields} (hybrid.textFields):"
            f" {type(error).__name__}"
        )
        learned.record_problem(
            f"{problem}; name fields that the index declares with full_text_search"
        )

    def _align_score_direction(
        self, results: Sequence[SearchResult], original_result: SearchResult
    ) -> Sequence[SearchResult]:
        """Return *results* with scores in the direction of the scores in *original_result*.

        Before the call, higher scores are better in *results*. If lower scores are better in
        *original_result*, the scores in *results* are negated in place.
        """
        direction = find_score_direction([original_result.ranking]) or (
            1 if self.learned.lower_is_better else -1
        )
        for result in results if direction > 0 else ():
            scores = [None if score is None else -score for score in result.ranking.scores]
            result.ranking = replace(result.ranking, scores=scores)
        return results

    async def _ask_model_and_search(
        self,
        services: Services,
        stage: TransformStage | None,
        transformation: Transformation,
        search_width: int | None,
        *,
        should_search: bool,
    ) -> tuple[Transformation, _VariantResults | None]:
        """Ask the model, search the variants, and return the transformation and the results.

        Args:
            services: Calls the model and the function.
            stage: The stage that asks the model; ``None`` to use *transformation* instead.
            transformation: A transformation from the cache.
            search_width: How many passages each search asks for.
            should_search: Whether to search the variants. If false, the results are ``None``.
        """
        if stage is not None:
            transformation = await stage.run(services, self._find_llm_deadline())
        return transformation, (
            await self._collect_variant_results(services, transformation, search_width)
            if should_search
            else None
        )

    async def _collect_variant_results(
        self, services: Services, transformation: Transformation, search_width: int | None
    ) -> _VariantResults:
        """Choose and search the variants of *transformation*, and return their results.

        Each search asks for *search_width* passages. The standalone form is not searched if the
        question starts a new topic.
        """
        if not self._is_follow_up and transformation.standalone:
            transformation = replace(transformation, standalone=None)
        variants, results = await self._search_variants(services, transformation, search_width)
        return _VariantResults(transformation, variants, results)

    def _build_original_search(self, search_width: int | None) -> Search:
        """Build the search step for the question, with *search_width* passages.

        If *search_width* was reduced because the passages are long, the trace gets a note.
        """
        if (full := self.request.full_search_width) is not None and search_width != full:
            count, chars = search_width or self.request.top_k, self.learned.passage_chars
            self.trace.note(
                "keyword_evidence",
                f"{count} candidates instead of {full}: passages have {chars:,.0f} characters",
            )
        self._original_search = Search(
            self.query.text, search_width, narrow_by=self.deadline, weight=self.original.weight
        )
        return self._original_search

    async def _perform_search(self, search: Search) -> Any:
        """Perform *search*, count its calls of the function, and return the response.

        Errors of the function pass through unchanged.
        """
        try:
            return await self.services.search(search)
        except Exception as error:
            # `run` tells this error, which it raises, from an error of qtmiddleware's own code.
            self._search_error = error
            raise
        finally:
            self.trace.count_search(search.calls, search.reads)

    def _record_original_search(
        self, start_time: float, search_seconds: float, search_width: int | None
    ) -> None:
        """Record the start and duration of the search for the question in the trace.

        If the function rejected a search for *search_width* passages, a note is added.

        Args:
            start_time: The start of the search, as returned by `time.perf_counter`.
            search_seconds: The duration of the search, in seconds.
            search_width: How many passages the search asked for.
        """
        search = self._original_search
        self.trace.original_ms = search_seconds * 1e3
        if search.embed_seconds:
            self.trace.record_stage(
                "embed", search.embed_seconds, detail="original", began=start_time
            )
        self.trace.record_stage("search.original", search_seconds, began=start_time)
        if search_width is not None and search.top_k is None:
            self.trace.note("keyword_evidence", f"the function rejects {search_width} candidates")

    def _find_llm_deadline(self) -> Deadline:
        """Return the deadline for the model's reply."""
        return self.deadline.sooner(self.settings.limits.model_seconds)

    def _should_ask_model(self, original_result: SearchResult) -> bool:
        """Return whether the gate decides, from *original_result*, to ask the model."""
        self.trace.decision = self.learned.gate.decide_model_call(
            original_result.ranking.scores,
            (passage.text for passage in original_result.ranking.passages),
            self.query.keywords,
            target_call_rate=self.settings.escalation.target_call_rate,
            language=self.query.language,
        )
        return self.trace.decision.call

    # --- after the model --------------------------------------------------------------------------

    async def _search_variants(
        self, services: Services, transformation: Transformation, search_width: int | None
    ) -> tuple[_VariantChoice, list[SearchResult]]:
        """Choose and search the variants of *transformation*; return the choice and the results.

        If fewer searches succeed than ``fusion.minSuccesses``, the list of results is empty.
        """
        searchable = (
            transformation
            if self._sub_responses is None
            else select_sub_query_texts(transformation)
        )
        question_keywords = find_question_keywords(self.query, transformation, self.settings)
        topic = question_keywords if self.settings.llm.guard else ""
        variants, notes = build_variants_and_notes(
            searchable, self.query.text, self.request.fusion_settings, topic
        )
        self.trace.notes.extend(notes)
        evidence_variants, searched = self._choose_evidence_and_searched_variants(variants)
        results = await search_variants(
            searched,
            self.request,
            services,
            search_width=search_width,
            deadline=self.deadline,
            trace=self.trace,
            degradations=self.degradations,
        )
        if self._sub_responses is not None:
            self._sub_responses |= {
                result.ranking.variant.text: result.response for result in results
            }
        if len(results) < min(self.settings.fusion.min_successes, len(searched)):
            detail = f"{len(results)} of {len(searched)} searches succeeded"
            self.degradations.append(Degradation("search", "too_few_successes", detail))
            return _VariantChoice(question_keywords, (), searched), []
        return _VariantChoice(question_keywords, evidence_variants, searched), results

    def _choose_evidence_and_searched_variants(
        self, variants: Sequence[Variant]
    ) -> tuple[Sequence[Variant], Sequence[Variant]]:
        """Return two lists: the variants for keyword evidence, and the variants to search.

        If the sub-queries are answered separately, every variant is searched on its own, up to
        ``limits.maxSearches``.
        """
        # A page keeps its passages. Variants may only change their order.
        if self.request.page:
            return variants, ()
        if self._sub_responses is not None:
            most_searches = self.settings.limits.max_searches
            keyword_searches = int(self.request.keyword_search_skip_reason is None)
            return variants, variants if most_searches is None else variants[
                : max(0, most_searches - 1 - keyword_searches)
            ]
        most_searches = self.request.max_searches
        # A follow-up cannot be found without its standalone form, so that is searched even if it
        # exceeds the budget by one search.
        count = (
            None
            if most_searches is None
            else max(
                most_searches - 1, int(any(variant.kind == STANDALONE for variant in variants))
            )
        )
        if self._can_prefer_hypothetical_passage(variants):
            variants, notes = prefer_hypothetical_passage(variants, self.request.fusion_settings)
            self.trace.notes.extend(notes)
        searched, notes = select_variants_and_notes(variants, self.query.text, count)
        self.trace.notes.extend(notes)
        return variants, searched

    def _can_prefer_hypothetical_passage(self, variants: Sequence[Variant]) -> bool:
        """Return whether a hypothetical passage may replace the other variants of a follow-up.

        Two conditions must be met: the fusion method uses weights, and ``limits.maxSearches`` is
        unset or too low for one search per variant.
        """
        most_searches = self.settings.limits.max_searches
        return self.request.fusion_row.weighs and (
            most_searches is None or len(variants) >= most_searches
        )

    def _fuse_lists(
        self, original_result: SearchResult, other_results: Sequence[SearchResult]
    ) -> FusionResult:
        """Fuse the ranking of *original_result* with the rankings of *other_results*.

        If the user's function to fuse rankings fails, *other_results* are ignored.
        """
        began, options = self.trace.measure_elapsed(), self.settings.fusion
        selected_rankings = select_rankings(
            original_result.ranking, [result.ranking for result in other_results], options
        )
        original_ranking, *rankings = make_chunk_keys_unique(
            [original_result.ranking, *selected_rankings]
        )
        direction, are_scores_usable = find_score_direction(rankings), has_usable_scores(rankings)
        # Remembered for lists whose order does not show the direction, such as a single passage.
        if direction and are_scores_usable:
            self.learned.lower_is_better = direction > 0
        fuse, lower_is_better = self.request.engine.fuse, self.learned.lower_is_better
        if fuse is None:
            fused = fuse_rankings(
                rankings,
                options.method,
                rrf_k=options.rrf_k,
                lower_is_better=lower_is_better,
                are_scores_usable=are_scores_usable,
            )
        else:
            try:
                fused = fuse_by_function(
                    rankings, fuse, rrf_k=options.rrf_k, lower_is_better=lower_is_better
                )
            except FuseError as error:
                self._record_failed_fusion(error)
                # Go on with the question's own list, as if no variant had found anything.
                rankings = [original_ranking]
                fused = fuse_by_function(rankings, fuse, lower_is_better=lower_is_better)
        if fused.method != self.request.fusion_row.name and other_results:
            self.trace.note(
                "fusion",
                f"scores are missing or do not match the order; {fused.method} is used instead",
            )
        self.trace.record_stage("fuse", self.trace.measure_elapsed() - began)
        return FusionResult(fused, tuple(rankings), original_ranking)

    def _record_failed_fusion(self, error: FuseError) -> None:
        """Record that the user's function to fuse rankings failed with *error*."""
        self.degradations.append(Degradation("fusion", "failed", str(error)))
        # The text of the error may quote a passage.
        if logger.isEnabledFor(logging.DEBUG):
            query_id, message = self.trace.query_id, format_error(error.__cause__ or error)
            logger.debug("fuse= failed: %s", message, event="fusion_failed", query_id=query_id)

    def _rerank_by_keywords(
        self, fusion_result: FusionResult, transformation: Transformation, choice: _VariantChoice
    ) -> FusedList:
        """Return the fused list, reranked by keywords and by the candidates' metadata."""
        began = self.trace.measure_elapsed()
        request = self.request
        times = self._times
        # In a conversation, a date may be in an earlier message. The standalone form repeats it.
        if times is None or transformation.standalone:
            times = read_times(
                transformation.standalone or request.original, self.query.language, self._get_today
            )
        ranked = rerank_by_keywords(
            fusion_result.fused,
            lambda: collect_weighted_keywords(
                choice.question_keywords, transformation, choice.evidence_variants, self.settings
            ),
            self.settings.keyword_evidence,
            fusion_result.original_ranking.scores,
            self.trace,
            language=self.query.language,
            search_width=request.search_width or request.top_k,
            top_k=request.top_k,
            add_terms=self._build_glossary_term_adder(transformation, choice.question_keywords),
            score_metadata=partial(self._collect_metadata_evidence, times),
            date_words=times.words,
        )
        if times.needs_today and times.periods and (today := self._get_today()) is not None:
            self.trace.note("dates", f"{', '.join(map(str, times.periods))}, as today is {today}")
        self.trace.record_stage("keyword_evidence", self.trace.measure_elapsed() - began)
        return ranked

    def _prepare_glossary_terms(self, glossary: Glossary) -> None:
        """Find the glossary terms in the question.

        If the glossary fails, no terms are used and a degradation is recorded.
        """
        request = self.request
        try:
            self._glossary_terms = glossary.find_terms(request.original, self.query.language)
        except Exception as error:
            self._glossary_terms = ()
            self._record_failed_glossary(error)
        # With keyword evidence, passages may still decide against a term: noted later.
        if not request.uses_keyword_evidence:
            self._add_glossary_notes(
                [str(term) for term in self._glossary_terms if term.is_certain]
            )

    def _record_failed_glossary(self, error: Exception) -> None:
        """Record that the glossary failed with *error*. The record names only the error's type."""
        self.degradations.append(Degradation("glossary", "failed", type(error).__name__))

    def _build_glossary_term_adder(
        self, transformation: Transformation, question_keywords: str
    ) -> AddTerms | None:
        """Return a function that adds a glossary term to each text with another form of this term.

        Returns ``None`` if the question has no glossary terms, or if the glossary fails.

        Args:
            transformation: The model's texts. In a conversation, its standalone form is searched
                for glossary terms.
            question_keywords: The keywords of the question or, in a conversation, of its standalone
                form.
        """
        glossary, language, glossary_terms = (
            self.request.engine.glossary,
            self.query.language,
            self._glossary_terms,
        )
        if glossary is not None and transformation.standalone:
            try:
                glossary_terms = glossary.find_terms(transformation.standalone, language)
            except Exception as error:
                self._record_failed_glossary(error)
                return None
        if glossary is None or not glossary_terms:
            return None
        from qtmiddleware.retrieval.glossary import (
            add_glossary_terms,
            choose_term_meanings_and_notes,
        )

        def add_terms_to_texts(texts: list[str | None]) -> list[str | None]:
            try:
                settled, undecided = choose_term_meanings_and_notes(
                    glossary_terms, texts, question_keywords, language
                )
                written = add_glossary_terms(settled, texts, glossary, question_keywords, language)
            except Exception as error:
                self._record_failed_glossary(error)
                return texts
            self._add_glossary_notes([*map(str, settled), *undecided])
            return written

        return add_terms_to_texts

    def _add_glossary_notes(self, sentences: Sequence[str]) -> None:
        """Add *sentences* about glossary terms to the trace, except those that it already has."""
        for sentence in sentences:
            if ("glossary", sentence) not in self.trace.notes:
                self.trace.note("glossary", sentence)

    def _collect_metadata_evidence(
        self, times: Times, metadata: Sequence[Mapping[str, Any]]
    ) -> MetadataEvidence | None:
        """Return the evidence in the candidates' metadata; ``None`` if there is none.

        If reading the metadata fails, a degradation is recorded and ``None`` is returned.

        Args:
            times: The dates and versions in the question.
            metadata: The metadata of each candidate.
        """
        today = self._get_today() if times.newest else None
        try:
            rules = load_word_rules(self.query.language)
            return collect_metadata_evidence(times, metadata, rules, today)
        except Exception as error:
            self.degradations.append(Degradation("metadata", "failed", type(error).__name__))
            return None

    def _get_today(self) -> date | None:
        """Return today's date by the user's clock; ``None`` if the clock fails.

        The clock is read once per question, so that midnight cannot change the date in between.
        """
        if self._clock_reading is None:
            try:
                self._clock_reading = (read_today(self.request.engine.clock),)
            except Exception as error:
                self.degradations.append(Degradation("clock", "failed", type(error).__name__))
                self._clock_reading = (None,)
        return self._clock_reading[0]

    def _measure_confidence(
        self, fusion_result: FusionResult, evidence: Evidence | None, question_keywords: str
    ) -> Standing:
        """Return the confidence in the result, by comparison with results of earlier questions.

        Args:
            fusion_result: The fused list, and the rankings that were fused.
            evidence: How keywords changed the order; ``None`` if keywords were not used.
            question_keywords: The keywords of the question or of its standalone form.
        """
        if self.request.page:
            return LATER_PAGE
        ranking = fusion_result.question_ranking or fusion_result.original_ranking
        coverage = None if evidence is None else evidence.coverage
        if coverage is None and self.request.uses_keyword_evidence:
            texts = [passage.text for passage in ranking.passages[:LEADING]]
            coverage = measure_leading_coverage(question_keywords, texts, self.query.language)
        signals = measure_confidence_signals(
            ranking.scores, coverage, lower_is_better=self.learned.lower_is_better
        )
        return self.learned.standings.measure_confidence(
            signals, passage_count=len(ranking.keys), scores=ranking.scores
        )

    def _record_text_presence(self, fusion_result: FusionResult, ranked_list: FusedList) -> None:
        """Remember whether the passages of the wrapped function contain texts.

        Keywords and rerankers need texts. If there are no texts, a problem is recorded.
        """
        if self.learned.holds_text or not (
            self.request.uses_keyword_evidence or self.request.uses_reranker
        ):
            return
        passages = [fused.passage for fused in fusion_result.fused.items]
        if ranked_list is not fusion_result.fused or any(map(has_text, passages)):
            self.learned.holds_text = True
        # One passage without a text proves little about the others.
        elif len(passages) > 1:
            self.learned.holds_text = False
            text_field = self.settings.keyword_evidence.fields.get("text")
            problem, advice = describe_missing_text(passages, text_field)
            self.learned.record_problem(f"{problem}, so keywords cannot rerank them; {advice}")

    def _build_retrieval(self, response: Any, **fields: Any) -> Retrieval:
        """Finish the trace, log the degradations, and return a result with *response*.

        *fields* are further fields of `Retrieval`.
        """
        self.trace.finish()
        self.request.log_degradations(logger, "retrieval", self.trace, self.degradations)
        return Retrieval(
            original_query=self.request.original,
            keywords=self._keywords,
            response=response,
            status="degraded" if self.degradations else "full",
            degradations=tuple(self.degradations),
            trace=self.trace,
            **fields,
        )

    # --- the result of the unchanged call, if nothing can be improved -----------------------------

    async def _call_function_unchanged(self) -> Retrieval:
        """Call the wrapped function exactly as the caller did, and return its result.

        Used in shadow mode, and for queries that are not text, blank or too long.
        """
        problem = self.request.problem
        query, began = self.request.original, perf_counter()
        # A text is still embedded for a function that takes vectors. Anything else goes to the
        # function as it is.
        is_text = isinstance(query, str) and (problem is None or problem.reason != "missing")
        self._original_search = Search(query if is_text else None, None)
        response = await self._perform_search(self._original_search)
        self._record_original_search(began, perf_counter() - began, None)
        return self._build_unchanged_retrieval(response, *((self.original,) if is_text else ()))

    def _build_unchanged_retrieval(self, response: Any, *variants: Variant) -> Retrieval:
        """Return a result with the passages of *response* in unchanged order."""
        matches = read_matches(self.original, response, self.request)
        return self._build_retrieval(response, matches=matches, variants=variants)

    async def _return_unreadable_response(self, error: ResponseShapeError) -> Retrieval:
        """Return a result with the function's own response, which cannot be read or rebuilt."""
        self.learned.record_problem(f"results are passed through unchanged: {error}")
        self.learned.is_unreadable = True
        if self._is_widened:
            self._response = await self._perform_search(Search(self.query.text, None))
        # The variants are dropped, so the failures of their searches no longer matter.
        self.degradations = [
            degradation
            for degradation in self.degradations
            if not degradation.stage.startswith(("search", "embed"))
        ]
        self.degradations.append(Degradation("response", "unreadable", error.shape))
        return self._build_retrieval(self._response, matches=(), variants=(self.original,))

    def _record_internal_error(self, error: Exception) -> None:
        """Log an internal *error* of qtmiddleware, and record its type as a degradation."""
        extra: dict[str, Any] = {"query_id": self.trace.query_id, "error": type(error).__name__}
        summary = f"{type(error).__name__} inside qtmiddleware"
        self.request.engine.sampler.log(
            logger, "nothing was improved", [summary], level=logging.ERROR, **extra
        )
        logger.debug("qtmiddleware failed", exc_info=error, event="nothing_was_improved", **extra)
        self.degradations.append(Degradation("middleware", "failed", type(error).__name__))
