"""Run one retrieval, from the query to its result.

    query ─ prepare ─┬─ search(original) ───────────────┐
                     └─ gate ─ ask model ─ search × n ──┴─ fuse ─ keyword evidence ─ rerank? ─
                     Retrieval

If the model or the search for a variant fails or is late, the flow continues with the passages
that the question itself found. The flow raises only the errors of the search for the question,
unchanged. Every fallback is an ordinary ``if`` or ``try``, in the file of its step:

==================  ====================================================================
`transform_stage`   the model is slow, fails or may not be asked, or its texts cannot be used
`variants`          the search for a variant fails
`calling`           the function refuses more passages than the caller asked for
`history`           messages of the conversation cannot be read
`state`             the user's clock fails
`ranking`           the user's ``fuse=`` or the reranker fails, or scores are missing
`cache`             the cache that several processes share fails
this file           the search for the question, hooks, unreadable responses, own faults
==================  ====================================================================

The search for the question starts first, in the caller's own thread or task. The other work (the
model and the searches for its texts) runs beside it, or after it in these cases:

- The escalation mode ``auto``: the gate decides from the passages whether to ask the model.
- The first call of a function that takes vectors or has a known problem: its first response shows
  whether to search variants. The model is asked beside the search.
- With `limits.maxConcurrency` 1, which counts the search for the question too.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.errors import ResponseShapeError, is_rate_limit
from qtmiddleware.retrieval.call import Call
from qtmiddleware.retrieval.keyword_evidence import rerank_by_keywords
from qtmiddleware.retrieval.ranking import fuse_lists, measure_confidence, rerank_candidates
from qtmiddleware.retrieval.responses import (
    ADVICE,
    SearchResult,
    find_dependent_field,
    list_described_fields,
)
from qtmiddleware.retrieval.result import build_result, read_matches, record_failed_hook
from qtmiddleware.retrieval.state import State
from qtmiddleware.retrieval.variants import VariantResults, search_variants
from qtmiddleware.runtime.concurrency import Work
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.runtime.observing import Observation
from qtmiddleware.runtime.services import Search, Services
from qtmiddleware.types import (
    Deadline,
    Degradation,
    Retrieval,
    Trace,
    Transformation,
)

if TYPE_CHECKING:
    from qtmiddleware.retrieval.transform_stage import TransformStage

BUSY_SECONDS: Final = 2.0
"""How many seconds, or its own duration, a search that failed waits for others beside it."""

logger: Final = get_logger("qtmiddleware")


async def retrieve(call: Call, services: Services) -> Retrieval:
    """Retrieve the passages for *call*.

    Raises:
        Exception: The error of the search for the question, unchanged. There are no other errors.
    """
    observation = call.observation.make_child("retrieval", top_k=call.top_k, content=call.original)
    flow = _Flow(call, services, observation)
    with observation:
        retrieval = observation.keep_result(await flow.run())
    for hook in call.hooks:
        outcome = await flow.services.tell(hook, retrieval)
        if not outcome.has_succeeded:
            retrieval = record_failed_hook(call, retrieval, outcome)
    return retrieval


async def transform(call: Call, services: Services) -> Transformation:
    """Return the model's texts for *call*, without any search: none if the model fails."""
    observation = call.observation.make_child("transform", content=call.original)
    flow = _Flow(call, services, observation)
    with observation:
        return observation.keep_result(await flow.transform())


class _Flow:
    """One retrieval in progress. Its methods are listed in the order in which they run."""

    def __init__(
        self,
        call: Call,
        services: Services,
        observation: Observation,
    ) -> None:
        self.call = call
        self.settings = call.settings
        limit = self.settings.limits.max_concurrency
        self.services = services.within(observation, limit)
        self.learned = call.learned
        self.trace = Trace()
        self.state = State(call, self.trace)
        self.degradations = self.state.degradations
        # The error of the original's own search, the only error that the flow raises.
        self._search_error: BaseException | None = None
        # What the variants brought that were searched beside the question.
        self._variant_results: VariantResults | None = None
        self._searches_beside = False
        self._original_search = Search(call.original)
        # The search for the question that was answered last, and the response.
        self._answered = Search(None)
        self._response: Any = None

    async def run(self) -> Retrieval:
        """Return the result. If qtmiddleware itself fails, that is the function's own."""
        if self.call.problem is not None:
            self.degradations.append(self.call.problem)
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
        return self._build_unchanged_retrieval(await self._get_response(self.call.original))

    async def transform(self) -> Transformation:
        """Return the model's texts without searching; their notes name the failures."""
        try:
            if (stage := self._plan_model_call()) is not None:
                self.state.texts = await stage.get_transformation(self.services)
        except Exception as error:
            self._record_internal_error(error)
        notes = tuple((problem.stage, problem.reason) for problem in self.degradations)
        return replace(self.state.texts, notes=self.state.texts.notes + notes)

    async def _improve_retrieval(self) -> Retrieval:
        state = self.state
        stage = self._plan_model_call()
        # A follow-up never waits for the gate: its own search seldom finds what it refers to.
        waits_for_gate = self.settings.escalation.mode == "auto" and not state.is_follow_up
        beside = self._choose_work_beside(None if waits_for_gate else stage)
        response = await self._perform_original_search(beside)
        try:
            own_result = await self._read_original_response(response)
        except ResponseShapeError as error:
            return await self._return_unreadable_response(error)
        self.learned.is_unreadable = self.learned.is_new = False
        state.search_width = self.call.search_width
        if stage is not None:
            asks_now = self._should_ask_model(own_result) if waits_for_gate else beside is None
            if asks_now:
                state.texts = await stage.get_transformation(self.services)
        variants = self._variant_results or await search_variants(state, self.services)
        return await self._rank(own_result, variants)

    def _plan_model_call(self) -> TransformStage | None:
        """Return the stage that asks the model; ``None`` if the model is not asked."""
        if self.state.prepare():
            return None
        # Imported here so that calls without a model do not load the modules for models.
        from qtmiddleware.retrieval.transform_stage import plan_model_call

        return plan_model_call(self.state)

    def _choose_work_beside(self, stage: TransformStage | None) -> Work[None] | None:
        """Return what runs beside the search for the question; ``None`` if there is nothing."""
        # The first response of a function shows how `embed=` is called and whether responses can
        # be read. Until then, the other searches wait, but not the model.
        should_search = not self.learned.is_new or (
            self.call.embedder is None and not self.learned.problem
        )
        has_texts = should_search and not self.state.texts.is_empty
        if self.services.limit == 1 or not (stage is not None or has_texts):
            return None
        return partial(self._work_on_texts, stage, should_search=should_search)

    async def _work_on_texts(
        self,
        stage: TransformStage | None,
        *,
        should_search: bool,
    ) -> None:
        if stage is not None:
            self.state.texts = await stage.get_transformation(self.services)
        if should_search:
            self._searches_beside = True
            self._variant_results = await search_variants(self.state, self.services)

    async def _rank(self, own_result: SearchResult, variants: VariantResults) -> Retrieval:
        state, call = self.state, self.call
        fusion = fuse_lists(state, own_result, variants.results)
        ranked = rerank_by_keywords(state, fusion, variants)
        standing = measure_confidence(state, fusion, ranked.evidence, variants.question_keywords)
        if (call.uses_keywords or call.uses_reranker) and not self.learned.holds_text:
            passages = [fused.passage for fused in fusion.fused.items]
            text_field = self.settings.keyword_evidence.fields.get("text")
            self.learned.record_texts(passages, text_field)
        if call.uses_reranker:
            ranked = await rerank_candidates(ranked, state, self.services)
        try:
            response, matches = build_result([own_result, *variants.results], fusion, ranked, call)
        except ResponseShapeError as error:
            return await self._return_unreadable_response(error)
        return self._build_retrieval(
            response,
            matches=matches,
            variants=(state.original, *variants.searched_variants),
            transformation=variants.texts,
            rankings=fusion.rankings,
            fused=tuple(fusion.fused.keys),
            fused_scores=tuple(fusion.fused.scores),
            evidence=ranked.evidence,
            standing=standing,
            reranked=tuple(ranked.keys[: len(ranked.rerank_scores)]),
            rerank_scores=tuple(ranked.rerank_scores),
        )

    # --- the searches and the model ---------------------------------------------------------------

    async def _perform_original_search(self, beside: Work[None] | None) -> Any:
        """Search for the question while *beside* runs, and return the response."""
        original, search_width = self.state.original, self.state.search_width
        self._original_search = search = Search(
            original.text, search_width, narrow_by=self.state.deadline, weight=original.weight
        )
        # This search takes one of the places for calls at once, as long as it runs.
        self.services.busy += 1
        running = None if beside is None else self.services.io.start(beside)
        try:
            began = perf_counter()
            try:
                response = await self._call_function(search)
            except Exception as error:
                if running is None or not self._searches_beside or is_rate_limit(error):
                    raise
                # The function may allow only one call at a time, as a database connection does.
                patience = Deadline.after(max(BUSY_SECONDS, perf_counter() - began))
                with suppress(TimeoutError):
                    await running.ended.get(patience)
                    running = None
                # If this did not help before, the function fails for another reason.
                is_shared = self._variant_results and self._variant_results.results
                if not is_shared and self.learned.fails_alone:
                    raise
                search_width = None
                search = Search(original.text, weight=original.weight, calls=search.calls)
                self._original_search = search
                self.learned.fails_alone = True
                response = await self._call_function(search)
                self.learned.fails_alone = False
                self._search_error = None
                self.trace.note("original", "failed beside other searches; repeated alone")
            finally:
                self.services.busy -= 1
            seconds = perf_counter() - began
            if running is not None:
                await running.get()
        finally:
            if running is not None:
                await running.cancel()
        # Recorded only now, because the work beside the search writes to the same trace.
        self.trace.searches += search.calls
        self._record_original_search(began, seconds, search_width)
        return response

    def _record_original_search(
        self, start_time: float, search_seconds: float, search_width: int | None
    ) -> None:
        search = self._original_search
        self.trace.original_ms = search_seconds * 1e3
        if search.embed_seconds:
            self.trace.record_stage(
                "embed", search.embed_seconds, detail="original", began=start_time
            )
        self.trace.record_stage("search.original", search_seconds, began=start_time)
        if search_width is not None and search.top_k is None:
            self.trace.note("keyword_evidence", f"the function rejects {search_width} candidates")

    async def _read_original_response(self, response: Any) -> SearchResult:
        """Return the passages in *response*, the response to the search for the question.

        If a search for more passages brought fewer than the caller asked for, the function is
        called again with the caller's own number.
        """
        search, state = self._original_search, self.state
        self._response, self._answered = response, search
        # A function that refused the larger number was called again with the caller's own.
        if search.top_k is None or self.call.top_k is None:
            return self._read_answered()
        widened, widening = None, self.learned.widening
        with suppress(ResponseShapeError):
            widened = self._read_answered()
            count = len(widened.ranking.passages)
            is_new = count > self.call.top_k and not widening.is_compared
            # The user's own functions read what they know.
            fields = list_described_fields(widened) if is_new and not self.call.shape else ()
            is_enough = widening.is_enough(count, self.call.top_k) and not fields
            if is_enough or state.deadline.passed:
                widening.is_compared |= is_enough and is_new
                return widened
        # Python warns about a coroutine that is neither awaited nor closed.
        if isinstance(response, Coroutine):
            response.close()
        return await self._repeat_with_own_number(search, widened)

    def _read_answered(self) -> SearchResult:
        return self.state.read_response(self.state.original, self._response, self._answered.initial)

    async def _repeat_with_own_number(
        self, search: Search, widened: SearchResult | None
    ) -> SearchResult:
        """Repeat *search* with the caller's number of passages; return what brought more."""
        own_search = Search(self.state.query.text, None, weight=self.state.original.weight)
        try:
            self._response = await self._perform_search(own_search)
        except Exception:
            if widened is None:
                raise
            self._search_error = None
            return widened
        self._answered = own_search
        own = self._read_answered()
        own_count = len(own.ranking.passages)
        widened_count = 0 if widened is None else len(widened.ranking.passages)
        note = (
            f"{search.top_k} candidates bring {widened_count} passages, your own"
            f" {self.call.top_k} bring {own_count}"
        )
        if widened is not None and own_count <= widened_count:
            name = "" if self.call.shape else find_dependent_field(widened, own)
            if not name:
                self.learned.widening.is_compared |= own_count < widened_count
                self.learned.widening.confirm(widened_count)
                return widened
            note = f"the field {name!r} beside the passages depends on their number"
            self.learned.record_problem(f"{note}, so no more candidates are searched; {ADVICE}")
        self.learned.widening.stop()
        self.trace.note("keyword_evidence", note)
        return own

    def _should_ask_model(self, own_result: SearchResult) -> bool:
        """Return whether the gate decides, from *own_result*, to ask the model."""
        self.trace.decision = self.learned.gate.decide_model_call(
            own_result.ranking.scores,
            (passage.text for passage in own_result.ranking.passages),
            self.state.query.keywords,
            target_call_rate=self.settings.escalation.target_call_rate,
            language=self.state.query.language,
        )
        return self.trace.decision.call

    async def _get_response(self, text: str) -> Any:
        """Return the response to a search for *text* and the caller's own number of passages."""
        if self._answered.top_k is None and self._answered.text == text:
            return self._response
        return await self._perform_search(Search(text, None))

    async def _call_function(self, search: Search) -> Any:
        """Return the function's response to *search*; errors of the function pass through."""
        try:
            return await self.services.search(search)
        except Exception as error:
            # `run` tells this error, which it raises, from an error of qtmiddleware's own code.
            self._search_error = error
            raise

    async def _perform_search(self, search: Search) -> Any:
        try:
            return await self._call_function(search)
        finally:
            self.trace.searches += search.calls

    # --- the result -------------------------------------------------------------------------------

    def _build_retrieval(self, response: Any, **fields: Any) -> Retrieval:
        self.trace.finish()
        self.call.log_degradations(logger, "retrieval", self.trace, self.degradations)
        return Retrieval(
            original_query=self.call.original,
            keywords=self.state.keywords,
            response=response,
            status="degraded" if self.degradations else "full",
            degradations=tuple(self.degradations),
            trace=self.trace,
            **fields,
        )

    async def _call_function_unchanged(self) -> Retrieval:
        problem, query = self.call.problem, self.call.original
        # A search without a text repeats the caller's call. With one, a function that takes
        # vectors gets the text's vector. If the call has no query, the text is only a placeholder.
        is_text = isinstance(query, str) and not (problem and problem.reason == "missing")
        self._original_search = Search(query if is_text else None)
        began = perf_counter()
        response = await self._perform_search(self._original_search)
        self._record_original_search(began, perf_counter() - began, None)
        return self._build_unchanged_retrieval(response, is_text=is_text)

    def _build_unchanged_retrieval(
        self,
        response: Any,
        *,
        is_text: bool = True,
    ) -> Retrieval:
        original = replace(self.state.original, text=self.call.original)
        matches = read_matches(original, response, self.call)
        variants = (original,) if is_text else ()
        return self._build_retrieval(response, matches=matches, variants=variants)

    async def _return_unreadable_response(self, error: ResponseShapeError) -> Retrieval:
        """Return a result with the function's own response, which cannot be read or rebuilt."""
        self.learned.record_problem(f"results are passed through unchanged: {error}")
        self.learned.is_unreadable = True
        response = await self._get_response(self.state.query.text)
        # The variants are dropped, so the failures of their searches no longer matter.
        self.degradations[:] = [
            problem
            for problem in self.degradations
            if not problem.stage.startswith(("search", "embed"))
        ]
        self.degradations.append(Degradation("response", "unreadable", error.shape))
        return self._build_retrieval(response, matches=(), variants=(self.state.original,))

    def _record_internal_error(self, error: Exception) -> None:
        """Log an internal *error* of qtmiddleware, and record its type as a problem."""
        extra: dict[str, Any] = {"query_id": self.trace.query_id, "error": type(error).__name__}
        summary = f"{type(error).__name__} inside qtmiddleware"
        self.call.engine.sampler.log(
            logger,
            "nothing_was_improved",
            {summary: ""},
            message="nothing was improved",
            level=logging.ERROR,
            **extra,
        )
        logger.debug("qtmiddleware failed", exc_info=error, event="nothing_was_improved", **extra)
        self.degradations.append(Degradation("middleware", "failed", type(error).__name__))
