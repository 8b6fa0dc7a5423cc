"""Call a wrapped function once for each text to search for, and log the result."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from qtmiddleware.errors import SetupWarning, WrapError, is_outage, is_rate_limit
from qtmiddleware.retrieval.pipeline import build_retrieval_flow
from qtmiddleware.retrieval.request import Request, build_paging_warning
from qtmiddleware.retrieval.result import hide_field, read_matches
from qtmiddleware.retrieval.searching import RunningCall, record_read_units
from qtmiddleware.runtime.drivers import Bulkhead, run_in_thread
from qtmiddleware.runtime.logs import get_logger, quote_text
from qtmiddleware.runtime.observing import Observation
from qtmiddleware.runtime.steps import FunctionStopped, Rerank, Search, observe_embedding
from qtmiddleware.types import Retrieval, Variant, add_degradation
from qtmiddleware.wrapping.binding import Arguments
from qtmiddleware.wrapping.call_context import CallContext

if TYPE_CHECKING:
    from qtmiddleware.providers.embedding import CallableEmbedder
    from qtmiddleware.providers.llms.governed import GovernedModel

Vectors = Sequence[Sequence[float]]

logger: Final = get_logger("qtmiddleware")


def make_awaitable(value: Any) -> Awaitable[Any]:
    """Return *value* if it can be awaited, else an awaitable that returns *value*.

    A decorated function may look asynchronous although it returns a plain value.
    """
    return value if hasattr(value, "__await__") else _return_value(value)


async def _return_value(value: Any) -> Any:
    return value


class _Attempt(NamedTuple):
    """One attempt to call the function.

    Attributes:
        top_k: the number of passages to request; ``None`` for the caller's number.
        field: the document field to request in addition to the caller's fields; ``""`` for none.
    """

    top_k: int | None
    field: str


@dataclass(eq=False, repr=False, slots=True)
class Invocation:
    """One call of a wrapped function, which may search for several texts.

    The invocation calls the function once per text.

    Attributes:
        fn: the function that was wrapped.
        arguments: the caller's arguments.
        original: the query that the caller passed.
        context: the settings and components for this call.
        is_async: whether the function is asynchronous.
    """

    fn: Callable[..., Any]
    arguments: Arguments
    original: Any
    context: CallContext
    is_async: bool
    shadow: Callable[[Any, float], None] | None = None
    """Starts a shadow retrieval, given the caller's response and its duration in milliseconds.

    ``None`` if shadow mode is off.
    """
    known_model: GovernedModel | None = None
    """The model that transforms questions; ``None`` if it has not been looked up yet."""
    adds_field: bool = True
    """Whether to request the text field of documents if the caller does not request it.

    The field is removed from the response before the caller gets the response.
    """

    @property
    def can_await_calls(self) -> bool:
        """Whether the caller's event loop can await this call's searches or embeddings.

        The loop awaits searches if the function is asynchronous. The loop awaits all embeddings,
        because the embedding client's connections belong to the loop.
        """
        return self.is_async or self.context.embedder is not None

    @property
    def bulkhead(self) -> Bulkhead:
        """The thread pool for all work except the search for the original query."""
        return self.context.bulkhead

    @property
    def model(self) -> GovernedModel:
        """The model that transforms questions."""
        return self.known_model or self.context.model

    @property
    def chat(self) -> GovernedModel:
        """The model that writes answers."""
        return self.context.chat

    def search(self, search: Search) -> Any:
        """Call the function for the text of *search*, and return its response.

        The first call may request more passages or another field than the caller's call. If it
        fails and *search* allows another attempt, this method calls the function again without the
        addition. Later calls also omit the addition. Exceptions from the last attempt pass through.
        """
        query: Any = search.text
        if self._should_embed_text(search):
            query = search.vector
            if query is None:
                with self._time_embedding(search) as observation:
                    query = observation.keep_result(self.embed((search.text or "",)))[0]
        first_attempt = attempt = _Attempt(search.top_k, self._find_unrequested_field())
        while True:
            try:
                response = self._run_search(search, query, attempt)
            except Exception as error:
                next_attempt = self._find_next_attempt(search, attempt, error)
                if next_attempt is None:
                    raise
                attempt = next_attempt
            else:
                self._record_rejections(search, attempt, first_attempt)
                return response

    async def asearch(self, search: Search) -> Any:
        """Call the function as `search` does, but await its response."""
        query: Any = search.text
        if self._should_embed_text(search):
            query = search.vector
            if query is None:
                with self._time_embedding(search) as observation:
                    query = observation.keep_result(await self.aembed((search.text or "",)))[0]
        first_attempt = attempt = _Attempt(search.top_k, self._find_unrequested_field())
        while True:
            try:
                response = await self._arun_search(search, query, attempt)
            except Exception as error:
                next_attempt = self._find_next_attempt(search, attempt, error)
                if next_attempt is None:
                    raise
                attempt = next_attempt
            else:
                self._record_rejections(search, attempt, first_attempt)
                return response

    def _should_embed_text(self, search: Search) -> bool:
        """Return whether the function gets a vector instead of the text of *search*."""
        return self.context.embedder is not None and search.text is not None and not search.fields

    def _find_next_attempt(
        self, search: Search, attempt: _Attempt, error: Exception
    ) -> _Attempt | None:
        """Return the smaller request to make after *error*; ``None`` if there is none."""
        caller_attempt, is_widened = _Attempt(None, ""), attempt.top_k is not None
        if attempt == caller_attempt or search.narrow_by is None or search.fields:
            return None
        # Another call is the last thing that a service with too many calls needs.
        if is_rate_limit(error):
            return None
        if search.narrow_by.passed:
            # Too late for this call: the next ones ask for fewer passages at once.
            if is_widened:
                self.context.learned.widening.stop()
            return None
        # A request without the field does not help if the service is down.
        if is_outage(error):
            return caller_attempt if is_widened else None
        return attempt._replace(field="") if attempt.field else caller_attempt

    def _find_unrequested_field(self) -> str:
        """Return the text field to request in addition to the caller's fields, or ``""``.

        Returns ``""`` if the caller requests the field, if the call cannot request fields, and in
        shadow mode.
        """
        learned, settings = self.context.learned, self.context.settings
        # In shadow mode, the caller gets exactly the plain function's response.
        if not self.adds_field or settings.shadow is not None or learned.refuses_field:
            return ""
        return self.arguments.find_unrequested_field(settings.keyword_evidence.fields.get("text"))

    def _record_rejections(
        self, search: Search, attempt: _Attempt, first_attempt: _Attempt
    ) -> None:
        """Record for which request the function failed: more passages, or a field.

        Args:
            search: the search that was attempted.
            attempt: the attempt that succeeded.
            first_attempt: the attempt with the largest request.
        """
        learned, search.was_refused = self.context.learned, attempt is not first_attempt
        if attempt.field != first_attempt.field and attempt.top_k == first_attempt.top_k:
            learned.refuses_field = True
            problem = (
                f"the index does not return keywordEvidence.fields.text {first_attempt.field!r}"
            )
            learned.record_problem(f"{problem}; name a text field that the index stores")
        if attempt.top_k != first_attempt.top_k:
            search.top_k = None
            learned.widening.stop()

    def _run_search(self, search: Search, query: Any, attempt: _Attempt) -> Any:
        with RunningCall(search) as call:
            call.fn = self.fn
            try:
                response = self._call_function(search, query, attempt)
            except StopIteration as error:
                raise FunctionStopped(error) from None
            record_read_units(response)
            return response

    async def _arun_search(self, search: Search, query: Any, attempt: _Attempt) -> Any:
        if not self.is_async:
            # `partial`, because a lambda would create a closure cell for each of these variables
            # even if the function is awaited.
            return await run_in_thread(partial(self._run_search, search, query, attempt))
        with RunningCall(search) as call:
            call.fn = self.fn
            response = await make_awaitable(self._call_function(search, query, attempt))
            record_read_units(response)
            return response

    def _call_function(self, search: Search, query: Any, attempt: _Attempt) -> Any:
        """Call the function with *query* and the additions that *attempt* requests."""
        has_changes = attempt.top_k is not None or query is not self.original or search.fields
        if query is not None and has_changes:
            arguments = self.arguments.replace(query, attempt.top_k, text_fields=search.fields)
        else:
            # The function gets the caller's arguments as they are.
            arguments = self.arguments.move_query()
        if attempt.field:
            arguments = arguments.request_field(attempt.field)
        return self.fn(*arguments.args, **arguments.kwargs)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per text. An asynchronous embedder runs in a background event loop."""
        return self._embedder.embed(texts, self.context.settings.limits.max_concurrency)

    async def aembed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per text. A synchronous embedder runs in a thread."""
        return await self._embedder.aembed(texts, self.context.settings.limits.max_concurrency)

    @property
    def _embedder(self) -> CallableEmbedder:
        if self.context.embedder is None:
            raise WrapError("embed= must be set to turn texts into vectors")
        return self.context.embedder

    @contextmanager
    def _time_embedding(self, search: Search) -> Iterator[Observation]:
        began = perf_counter()
        with observe_embedding(
            search.observation, self.context.embedder, (search.text or "",)
        ) as observation:
            yield observation
        search.embed_seconds = perf_counter() - began

    def rerank(self, step: Rerank) -> Sequence[float]:
        """Return the reranker's score for each text of *step*. Higher is better."""
        if self.context.reranker is None:
            raise WrapError("there is no reranker; pass reranker= or set rerank.enabled")
        return self.context.reranker.rerank(step.query, step.texts)

    def finish_retrieval(self, retrieval: Retrieval) -> Retrieval:
        """Log *retrieval*, and return it without the text field that only qtmiddleware requested.

        If the query log cannot be written, the returned retrieval has a degradation. If
        qtmiddleware cannot improve the function's results, this method warns the user once.
        """
        if field := self._find_unrequested_field():
            retrieval = hide_field(
                retrieval, field, self.context.shape, self.context.settings.keyword_evidence
            )
        self._warn_about_setup_once(retrieval)
        log = self.context.log
        if log is not None:
            degradation = log.append_record(retrieval)
            if degradation is not None:
                retrieval = add_degradation(retrieval, degradation)
        if logger.isEnabledFor(logging.DEBUG):
            self._log_keywords_and_texts(retrieval)
        if self.shadow is not None:
            self.shadow(retrieval.response, retrieval.trace.total_ms)
        return retrieval

    def _warn_about_setup_once(self, retrieval: Retrieval) -> None:
        """Warn once if the function returns pages, and once if its results cannot be improved."""
        learned, warned = self.context.learned, self.context.issued_warnings
        if learned.page and not warned.about_pages:
            warned.about_pages = True
            # A user who named the argument knows about the pages.
            if not self.arguments.binding.is_page_named:
                logger.warning(
                    "%s(): %s, with page_arg=%r if it does", self.arguments.binding.function_name,
                    build_paging_warning(learned.page), learned.page,
                    event="paged", query_id=retrieval.trace.query_id,
                )  # fmt: skip
        if learned.problem and not warned.about_problem:
            warned.about_problem = True
            name = self.arguments.binding.function_name
            message = f"{name}(): {learned.problem} (details: .check(question))"
            _issue_setup_warning(message, retrieval.trace.query_id)

    def start_shadow_retrieval(self, request: Request, response: Any, response_ms: float) -> None:
        """Start a shadow retrieval for *request* in the background. Never raises.

        An asynchronous function is called in the running event loop, and a synchronous function in
        a thread.

        Args:
            request: The request built from the caller's arguments.
            response: The plain function's response, which the caller gets.
            response_ms: The time that the plain function took, in milliseconds.
        """
        # Without `shadow`, the copy really changes the results, and starts no shadow of its own.
        settings = replace(request.settings, shadow=None)
        call = replace(self, context=replace(self.context, settings=settings), shadow=None)
        request = replace(request, settings=settings, hooks=())
        flow, finish = (
            build_retrieval_flow(request),
            partial(call._log_shadow_differences, request, response, response_ms),
        )
        runs = self.context.components.shadow_runs
        if self.is_async:
            runs.start_in_event_loop(flow, call, finish)
        else:
            runs.start_in_thread(flow, call, finish, self.bulkhead)

    def _log_shadow_differences(
        self, request: Request, response: Any, response_ms: float, retrieval: Retrieval
    ) -> None:
        """Log the differences between *retrieval* and the caller's *response*."""
        from qtmiddleware.wrapping.query_log import PlainResult

        self._warn_about_setup_once(retrieval)
        dropped = self.context.components.shadow_runs.count_newly_dropped_retrievals()
        plain = PlainResult(
            read_matches(Variant("original", self.original, 1.0), response, request),
            response_ms,
            dropped,
        )
        trace, passages, kept = (
            retrieval.trace,
            len(retrieval.matches),
            plain.count_kept_passages(retrieval),
        )
        logger.info(
            "shadow of %s: %d of %d passages as in the plain result; %d searches, %d model calls,"
            " %.0f ms for %.0f ms",
            trace.query_id, kept, passages, trace.searches, trace.llm_calls, trace.total_ms,
            response_ms, event="shadow", query_id=trace.query_id, status=retrieval.status,
            passages=passages, kept=kept, searches=trace.searches,
            llm_calls=trace.llm_calls, cost_usd=trace.cost_usd,
            seconds=round(trace.total_ms / 1e3, 6), plain_seconds=round(response_ms / 1e3, 6),
        )  # fmt: skip
        if self.context.log is not None:
            self.context.log.append_record(retrieval, plain)

    def _log_keywords_and_texts(self, retrieval: Retrieval) -> None:
        """Log the query's keywords and the searched texts at DEBUG, after redacting them."""
        from qtmiddleware.wrapping.query_log import TextWriter

        writer, trace = TextWriter(self.context.redact), retrieval.trace
        query: Any = retrieval.original_query
        if retrieval.keywords:
            texts = (
                quote_text(writer.prepare_text(query)),
                quote_text(writer.prepare_keywords(retrieval.keywords, query)),
            )
            logger.debug(
                "Query preprocessing: %s -> %s",
                *texts,
                event="preprocessing",
                query_id=trace.query_id,
            )
        searched_texts = [
            (variant.kind, writer.prepare_text(variant.text)) for variant in retrieval.variants
        ]
        query_text = writer.prepare_text(query) if isinstance(query, str) else type(query).__name__
        logger.debug(
            "query %s %r searched %s",
            trace.query_id,
            query_text,
            searched_texts,
            event="query",
            query_id=trace.query_id,
            status=retrieval.status,
            degradations=[
                f"{degradation.stage} {degradation.reason}"
                for degradation in retrieval.degradations
            ],
            passages=len(retrieval.matches),
            seconds=round(trace.total_ms / 1e3, 6),
            searches=trace.searches,
            llm_calls=trace.llm_calls,
            input_tokens=trace.input_tokens,
            output_tokens=trace.output_tokens,
            cost_usd=trace.cost_usd,
            cache_hits=trace.cache_hits,
        )


def _issue_setup_warning(message: str, query_id: str) -> None:
    """Log *message*, and issue a `SetupWarning` for the line that called the wrapped function.

    Never raises, even if a filter turns warnings into errors.
    """
    logger.warning("%s", message, event="setup_problem", query_id=query_id)
    frame: FrameType | None = sys._getframe()
    level = 0
    # Skip our own frames, and asyncio's: an asynchronous function is called by the event loop.
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in (
        "qtmiddleware",
        "asyncio",
    ):
        frame, level = frame.f_back, level + 1
    # A warning filter may turn the warning into an error, which would cost the user the result.
    with suppress(Exception):
        warnings.warn(message, SetupWarning, stacklevel=level + 1)
