"""Record retrievals as OpenTelemetry spans and metrics. Only opentelemetry-api is needed.

A span starts in the context of its operation, and is the current span in that context. When the
span ends, two background threads process it:

- The first thread collects the span's attributes and records the metrics. In the caller's thread,
  these steps could deadlock: the SDK takes locks while it records, and an operation may end during
  a garbage collection that started while the thread held such a lock.
- The second thread ends the span. This calls the span processors, which may block while they export
  the span.

The module `names` defines the names of all attributes, spans and metrics.
"""

from __future__ import annotations

import atexit
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar, Token
from functools import lru_cache, partial
from time import monotonic
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from qtmiddleware.integrations import find_installed_version, require_package
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Answer, Degradation, Operation, Retrieval, Stage, Trace

with require_package("opentelemetry-api", "1.30", extra="otel"):
    from opentelemetry.context import Context, attach, detach, get_current
    from opentelemetry.metrics import Meter, MeterProvider, get_meter, get_meter_provider
    from opentelemetry.trace import (
        Span,
        StatusCode,
        TracerProvider,
        get_current_span,
        get_tracer,
        set_span_in_context,
    )

    from qtmiddleware.integrations.opentelemetry.names import (
        CALL_INPUT_TOKENS,
        CALL_OUTPUT_TOKENS,
        COST,
        DEGRADATIONS,
        INPUT_TOKENS,
        METRICS,
        OUTPUT_TOKENS,
        READ_UNITS,
        REQUESTS,
        SCHEMA_URL,
        SPANS,
        STAGES,
        UNKNOWN_PROVIDER,
        Metric,
        Names,
    )
    from qtmiddleware.integrations.opentelemetry.outbox import MAX_WAITING, Outbox

logger: Final = get_logger("qtmiddleware")

CAPTURE_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The environment variable that turns on texts in spans.

OpenTelemetry's own GenAI instrumentations read the same variable.
"""
# `event_only` asks for events, which this module does not emit. Earlier instrumentations used
# `true`.
_CAPTURE_VALUES: Final = frozenset({"span_only", "span_and_event", "true"})

MAX_OPEN: Final = 65_536
"""The maximum number of running operations to remember.

This limits the memory for streams that are never closed.
"""
EXIT_SECONDS: Final = 2.0
"""The maximum time in seconds that the interpreter's exit waits for queued spans."""


class _OpenSpan(NamedTuple):
    """The span of a running operation.

    Attributes:
        span: The OpenTelemetry span of the operation.
        context_token: The token that restores the previous context; ``None`` if *span* was not made
            the current span.
        operation_token: The token that restores the previous current operation; ``None`` if *span*
            was not made the current span.
    """

    span: Span
    context_token: Token[Context] | None
    operation_token: Token[int] | None


class _Usage(NamedTuple):
    """The counts and costs of a retrieval or an answer when it ended.

    The numbers are copied from the trace, because later steps add to the trace.

    Attributes:
        model_calls: The number of model calls.
        cost: The cost of the model calls in US dollars; ``None`` if it is unknown.
        stages: The stages with their durations.
        cache_hits: The number of transformations that came from the cache.
        read_units: The read units of the searches, as reported by the vector store.
        read_cost: The cost of the searches in US dollars; ``None`` if it is unknown.
    """

    model_calls: int = 0
    cost: float | None = 0.0
    stages: tuple[Stage, ...] = ()
    cache_hits: int = 0
    read_units: float = 0
    read_cost: float | None = None

    @classmethod
    def copy_from_trace(cls, trace: Trace) -> _Usage:
        """Return a copy of the current counts and costs in *trace*."""
        return cls(
            trace.llm_calls,
            trace.cost_usd,
            trace.stages,
            trace.cache_hits,
            trace.read_units,
            trace.read_cost_usd,
        )

    def subtract(self, earlier_usage: _Usage) -> _Usage:
        """Return the model calls, cost and stages that were added after *earlier_usage*."""
        cost = (
            None
            if self.cost is None or earlier_usage.cost is None
            else self.cost - earlier_usage.cost
        )
        return _Usage(
            self.model_calls - earlier_usage.model_calls,
            cost,
            self.stages[len(earlier_usage.stages) :],
        )


# Set together with the current span. In another context, resetting it raises an error, which shows
# that the span must not be detached there. OpenTelemetry's own `detach` would only log an error.
_current_operation: Final[ContextVar[int]] = ContextVar("inside", default=0)


class OpenTelemetryObserver:
    """Creates OpenTelemetry spans and metrics for each retrieval.

    Use the observer as ``QueryMiddleware(..., observers=[OpenTelemetryObserver()])``. Importing
    this module raises `MissingExtra` if opentelemetry-api is missing or older than 1.30.

    A daemon thread passes ended spans to the provider's processors, so a slow exporter does not
    delay your calls. At most 2,048 spans are queued. Further spans are dropped and counted in the
    attribute ``dropped``. The first dropped span is logged. A forked process starts with an empty
    queue. Thread-safe.

    Args:
        provider_name: The ``gen_ai.provider.name`` of language and embedding models (``openai``,
            ``anthropic``, ...); by default the client's provider, if it is known.
        data_source_id: The ``gen_ai.data_source.id`` of the index; omitted by default.
        capture_content: Whether spans contain the texts of queries and models. By default, the
            environment variable ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` decides. If
            it is not set, spans contain no texts.
        tracer_provider: Creates the spans; by default the global provider.
        meter_provider: Records the metrics; by default the global provider.
    """

    def __init__(
        self,
        *,
        provider_name: str = "",
        data_source_id: str = "",
        capture_content: bool | None = None,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        if capture_content is None:
            capture_content = os.environ.get(CAPTURE_CONTENT, "").strip().lower() in _CAPTURE_VALUES
        self._captures_content = capture_content
        self._provider_name = provider_name
        self._source_id = data_source_id
        scope = find_installed_version("qtmiddleware"), SCHEMA_URL
        self._tracer = get_tracer("qtmiddleware", scope[0], tracer_provider, scope[1])
        meter = get_meter("qtmiddleware", scope[0], meter_provider, scope[1])
        self._instruments: dict[Metric, Any] = {
            row: _make_instrument(meter, row) for row in METRICS
        }
        self._has_meter = meter_provider is not None
        self._open: dict[int, _OpenSpan] = {}
        # Keyed by the id of the answer that the retrieval belongs to.
        self._retrieval_usages: dict[int, _Usage] = {}
        self.dropped = 0
        self._ended = Outbox(self._count_dropped_span)
        self._spans = Outbox(self._count_dropped_span)
        self._is_registered = False

    def flush(self, seconds: float = 5.0) -> bool:
        """Pass all ended spans to the provider's processors, and record their metrics.

        Waits at most *seconds*, and returns whether everything was done in that time. To export the
        spans and metrics, call ``force_flush`` of the providers afterwards.
        """
        deadline = monotonic() + seconds
        is_described = self._ended.flush(deadline - monotonic())
        return self._spans.flush(deadline - monotonic()) and is_described

    # --- called by the middleware -----------------------------------------------------------------

    def on_start(self, operation: Operation) -> None:
        """Start a span for *operation* in the current context.

        Does nothing if no provider is set, or if the parent operation has no span.
        """
        current_context = get_current()
        parent = None if operation.parent is None else self._open.get(operation.parent.id)
        if parent is None:
            if operation.parent is not None:
                # The parent operation is not recorded, so neither is this one.
                return
            span = self._start_span(operation, current_context)
            if (
                not span.is_recording()
                and span.get_span_context() == get_current_span(current_context).get_span_context()
            ):
                # No provider is set.
                return
        elif parent.span.is_recording():
            span = self._start_span(operation, set_span_in_context(parent.span, current_context))
        else:
            # The sampler dropped the parent, so it is not asked about this operation. Calls within
            # the operation see the dropped span as their parent, so they are dropped too.
            span = parent.span
        context_token = operation_token = None
        if SPANS[operation.kind].is_current:
            operation_token = _current_operation.set(operation.id)
            context_token = attach(set_span_in_context(span, current_context))
        self._open[operation.id] = _OpenSpan(span, context_token, operation_token)
        _drop_oldest_entry(self._open)

    def on_end(self, operation: Operation) -> None:
        """Queue the end of the operation's span, and its metrics, for the background threads.

        Can be called from any thread and context.
        """
        opened = self._open.pop(operation.id, None)
        if opened is not None:
            _restore_context(opened)
        span = opened.span if opened is not None and opened.span.is_recording() else None
        # Without a provider, the API's own one discards all metrics. Then the work is skipped.
        if (
            span
            or self._has_meter
            or not type(get_meter_provider()).__module__.startswith("opentelemetry.metrics.")
        ):
            self._ended.put_task(
                partial(self._finish_operation, operation, span, self._read_usage(operation))
            )
        if operation.parent is None:
            self._ended.start_thread()
            if not self._is_registered:
                self._is_registered = True
                _register_exit_flush(self)

    def _read_usage(self, operation: Operation) -> _Usage:
        """Return the counts and costs of *operation*, a retrieval or an answer.

        The numbers for an answer do not include its retrieval. For any other operation, all numbers
        are 0.
        """
        result = operation.result
        if isinstance(result, Retrieval):
            usage = _Usage.copy_from_trace(result.trace)
            if operation.parent is not None:
                # Only the first retrieval of an answer is stored. Later ones are its sub-queries.
                self._retrieval_usages.setdefault(operation.parent.id, usage)
                _drop_oldest_entry(self._retrieval_usages)
            return usage
        retrieval_usage = self._retrieval_usages.pop(operation.id, None)
        if isinstance(result, Answer) and retrieval_usage is not None:
            return _Usage.copy_from_trace(result.retrieval.trace).subtract(retrieval_usage)
        return _Usage()

    def _finish_operation(self, operation: Operation, span: Span | None, usage: _Usage) -> None:
        """Record the metrics of *operation*, and queue the end of its *span*."""
        if span is not None:
            end_time = round((operation.began + operation.seconds) * 1e9)
            attributes = dict(self._list_end_attributes(operation, usage))
            self._spans.put_task(partial(_end_span, span, attributes, operation.outcome, end_time))
        self._record_metrics(operation, span, usage)
        if operation.parent is None:
            self._spans.start_thread()

    def _count_dropped_span(self) -> None:
        """Count a dropped span. Log a warning for the first dropped span."""
        self.dropped += 1
        if self.dropped == 1:
            logger.warning(
                "spans are being dropped: %d are queued, and OpenTelemetry's span processors cannot"
                " keep up",
                MAX_WAITING,
                event="spans_dropped",
                limit=MAX_WAITING,
            )

    # --- spans ------------------------------------------------------------------------------------

    def _start_span(self, operation: Operation, context: Context) -> Span:
        """Return a new span for *operation*. Its parent is the current span of *context*."""
        row = SPANS[operation.kind]
        subject = (
            self._source_id
            if operation.kind == "retrieval"
            else getattr(operation, row.subject or "kind")
        )
        return self._tracer.start_span(
            f"{row.title} {subject}" if subject and subject != row.title else row.title,
            context,
            row.kind,
            self._build_start_attributes(operation),
            start_time=round(operation.began * 1e9),
        )

    def _build_start_attributes(self, operation: Operation) -> dict[str, Any]:
        """Return the attributes that a sampler may read at the start of a span.

        A background thread sets all other attributes at the end.
        """
        attributes: dict[str, Any] = {Names.KIND: operation.kind}
        if title := SPANS[operation.kind].operation:
            attributes[Names.OPERATION] = title
        if self._source_id and operation.kind in ("retrieval", "search"):
            attributes[Names.DATA_SOURCE] = self._source_id
        return attributes | self._build_model_attributes(operation)

    def _build_model_attributes(self, operation: Operation) -> dict[str, Any]:
        """Return the attributes for the provider, model and server of *operation*.

        Unknown values are omitted.
        """
        provider = operation.provider
        if operation.kind in ("model", "embedding"):
            provider = self._provider_name or provider or UNKNOWN_PROVIDER
        address, port = operation.server or ("", 0)
        attributes = {
            Names.PROVIDER: provider,
            Names.MODEL: operation.model,
            Names.SERVER_ADDRESS: address,
            Names.SERVER_PORT: port,
        }
        return {name: value for name, value in attributes.items() if value}

    def _list_end_attributes(
        self, operation: Operation, usage: _Usage
    ) -> Iterator[tuple[str, Any]]:
        """Yield the attributes that are known at the end of *operation*."""
        yield Names.OUTCOME, operation.outcome
        if error := _find_error_type(operation):
            yield Names.ERROR, error
        if operation.top_k is not None:
            yield Names.TOP_K, operation.top_k
        if operation.kind == "search":
            yield Names.VARIANT, _clean_label(operation.name)
            yield Names.WEIGHT, float(operation.weight)
        for count in (Names.PASSAGES, Names.TEXTS, Names.SEARCHES, Names.CITATIONS):
            if (number := operation.counts.get(count.rpartition(".")[2])) is not None:
                yield count, number
        if isinstance(prompt := operation.content, Prompt):
            yield Names.PROMPT, prompt.mode
            yield Names.PROMPT_VERSION, prompt.version
            yield Names.MAX_TOKENS, prompt.max_tokens
            yield Names.OUTPUT_TYPE, "json" if prompt.fields else "text"
        result = operation.result
        if isinstance(result, Reply):
            yield from _list_reply_attributes(result)
        elif operation.kind == "embedding":
            yield from _list_vector_attributes(operation)
        elif isinstance(result, Retrieval | Answer):
            yield from _list_result_attributes(result, usage)
        if self._captures_content:
            yield from _list_content_attributes(operation)

    # --- metrics ----------------------------------------------------------------------------------

    def _record_metrics(self, operation: Operation, span: Span | None, usage: _Usage) -> None:
        """Record the duration, tokens, degradations, read units and costs of *operation*."""
        row = SPANS[operation.kind]
        result = operation.result
        instruments = self._instruments
        # With the span as context, the metric's exemplars link to the span.
        context = None if span is None else set_span_in_context(span)
        model = self._build_model_attributes(operation) | (
            {Names.OPERATION: row.operation} if row.operation else {}
        )
        if isinstance(result, Reply) and result.model:
            model[Names.RESPONSE_MODEL] = result.model
        labels = (
            _build_metric_labels(operation)
            if row.metric is REQUESTS
            else _build_metric_labels(operation) | model
        )
        instruments[row.metric].record(operation.seconds, labels, context)
        costs: tuple[str, float | None] = "", None
        if isinstance(result, Reply):
            for total, by_call, tokens in (
                (INPUT_TOKENS, CALL_INPUT_TOKENS, result.input_tokens),
                (OUTPUT_TOKENS, CALL_OUTPUT_TOKENS, result.output_tokens),
            ):
                if tokens > 0:
                    instruments[total].add(tokens, {Names.MODALITY: "text", **model}, context)
                    instruments[by_call].record(tokens, model, context)
            costs = "models", result.cost_usd
        elif isinstance(result, Retrieval | Answer):
            for entry in _select_new_degradations(result):
                labels = {
                    Names.STAGE: _clean_label(entry.stage),
                    Names.REASON: _clean_label(entry.reason),
                }
                instruments[DEGRADATIONS].add(1, labels, context)
        for stage in usage.stages:
            instruments[STAGES].record(
                stage.ms / 1e3, {Names.STAGE: _clean_label(stage.name)}, context
            )
        if isinstance(result, Retrieval):
            if usage.read_units > 0:
                instruments[READ_UNITS].add(usage.read_units, None, context)
            costs = "searches", usage.read_cost
        if costs[1]:
            instruments[COST].add(costs[1], {Names.COST_OF: costs[0]}, context)


def _make_instrument(meter: Meter, metric: Metric) -> Any:
    if not metric.boundaries:
        return meter.create_counter(metric.name, metric.unit, metric.description)
    return meter.create_histogram(
        metric.name,
        metric.unit,
        metric.description,
        explicit_bucket_boundaries_advisory=metric.boundaries,
    )


def _drop_oldest_entry(operations: dict[int, Any]) -> None:
    """Remove the oldest entry of *operations* if there are more than `MAX_OPEN` entries.

    This limits the memory for operations whose end is never reported.
    """
    if len(operations) > MAX_OPEN:
        # Another thread may change the dict at the same time.
        with suppress(StopIteration, RuntimeError):
            operations.pop(next(iter(operations)), None)


def _restore_context(open_span: _OpenSpan) -> None:
    """Restore the context that was current before *open_span* started.

    Does nothing if the current context is not the context in which *open_span* started.
    """
    if open_span.context_token is None or open_span.operation_token is None:
        return
    try:
        _current_operation.reset(open_span.operation_token)
    except ValueError:
        # The caller gave up on the operation, and reports its end from another context. The
        # operation's own context ends with its thread or task.
        return
    detach(open_span.context_token)


def _end_span(span: Span, attributes: Mapping[str, Any], outcome: str, end_time_ns: int) -> None:
    """Set the attributes and status of *span*, and end *span* at *end_time_ns* (nanoseconds)."""
    span.set_attributes(attributes)
    if outcome in ("failed", "late"):
        # No description: the exception's text may quote the question.
        span.set_status(StatusCode.ERROR)
    span.end(end_time_ns)


def _find_error_type(operation: Operation) -> str:
    """Return the value of the attribute ``error.type`` for *operation*; ``""`` without an error."""
    if operation.outcome == "late":
        return "timeout"
    return _clean_label(operation.reason or "_OTHER") if operation.outcome == "failed" else ""


_LABEL: Final = re.compile(r"[\w.:-]{1,64}", re.ASCII)


@lru_cache(1024)
def _clean_label(label: str) -> str:
    """Return *label* if it has 1 to 64 ASCII letters, digits or ``_.:-``, else ``_OTHER``."""
    # A user's model may raise an error with any text, which must not become a metric's label.
    return label if _LABEL.fullmatch(label) else "_OTHER"


def _build_metric_labels(operation: Operation) -> dict[str, str]:
    """Return the attributes to record with the duration of *operation*."""
    labels: dict[str, str] = {Names.OUTCOME: operation.outcome}
    if SPANS[operation.kind].metric is REQUESTS:
        status = (
            getattr(operation.result, "status", "full")
            if operation.outcome == "ok"
            else operation.outcome
        )
        labels = {Names.KIND: operation.kind, Names.STATUS: status}
    elif operation.kind == "search":
        labels[Names.VARIANT] = _clean_label(operation.name)
    if error := _find_error_type(operation):
        labels[Names.ERROR] = error
    return labels


def _select_new_degradations(result: Retrieval | Answer) -> tuple[Degradation, ...]:
    """Return the degradations of *result*, a retrieval or an answer.

    The degradations of an answer do not include those of its retrieval.
    """
    # The retrieval's own span and metrics already report them.
    degradations = result.degradations
    return (
        degradations[len(result.retrieval.degradations) :]
        if isinstance(result, Answer)
        else degradations
    )


def _list_reply_attributes(reply: Reply) -> Iterator[tuple[str, Any]]:
    """Yield the finish reason, model calls, tokens and cost of *reply*. Skip unknown values."""
    yield Names.FINISH_REASONS, ("length" if reply.truncated else "stop",)
    yield Names.MODEL_CALLS, reply.calls
    attributes = {
        Names.RESPONSE_MODEL: reply.model,
        Names.RESPONSE_ID: reply.id,
        # A service that counts tokens never reports 0, so 0 means unknown.
        Names.INPUT_TOKENS: reply.input_tokens,
        Names.OUTPUT_TOKENS: reply.output_tokens,
    }
    yield from ((name, value) for name, value in attributes.items() if value)
    if reply.cost_usd is not None:
        yield Names.COST, reply.cost_usd


def _list_vector_attributes(operation: Operation) -> Iterator[tuple[str, int]]:
    """Yield the token count and the vector length of an embedding call. Skip unknown values."""
    if tokens := operation.counts.get("input_tokens"):
        yield Names.INPUT_TOKENS, tokens
    if vectors := operation.result:
        yield Names.DIMENSIONS, len(vectors[0])


def _list_result_attributes(result: Retrieval | Answer, usage: _Usage) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of *result*, a retrieval or an answer.

    The counts and costs come from *usage*.
    """
    trace = result.retrieval.trace if isinstance(result, Answer) else result.trace
    yield Names.STATUS, result.status
    yield Names.QUERY_ID, trace.query_id
    if degradations := _select_new_degradations(result):
        yield (
            Names.DEGRADATIONS,
            tuple(
                f"{_clean_label(entry.stage)} {_clean_label(entry.reason)}"
                for entry in degradations
            ),
        )
    yield Names.MODEL_CALLS, usage.model_calls
    if usage.cost is not None:
        yield Names.COST, usage.cost
    if isinstance(result, Answer):
        yield Names.FOUND, result.found
        return
    yield Names.CACHE_HITS, usage.cache_hits
    yield Names.READ_UNITS, usage.read_units
    if usage.read_cost is not None:
        yield Names.READ_COST, usage.read_cost
    if result.confidence is not None:
        yield Names.CONFIDENCE, result.confidence
    yield Names.IS_UNSURE, result.is_unsure
    if trace.decision is not None:
        yield Names.DECISION, _clean_label(trace.decision.reason)


def _list_content_attributes(operation: Operation) -> Iterator[tuple[str, str]]:
    """Yield the texts of *operation*: prompt, question, reply, or the passages' ids and scores.

    Each value except the question is JSON in the format of the GenAI conventions.
    """
    content = operation.content
    result = operation.result
    if isinstance(content, Prompt):
        yield Names.INSTRUCTIONS, json.dumps([_build_text_part(content.system)])
        yield Names.INPUT, json.dumps([{"role": "user", "parts": [_build_text_part(content.user)]}])
    elif isinstance(content, str):
        # A lone surrogate cannot be encoded, and an exporter would lose its whole batch.
        yield Names.QUERY_TEXT, content.encode("utf-8", "replace").decode("utf-8")
    if isinstance(result, Reply):
        reason = "length" if result.truncated else "stop"
        message = {
            "role": "assistant",
            "parts": [_build_text_part(result.text)],
            "finish_reason": reason,
        }
        yield Names.OUTPUT, json.dumps([message])
    elif isinstance(result, Retrieval):
        yield (
            Names.DOCUMENTS,
            json.dumps([{"id": str(match.id), "score": match.score} for match in result.matches]),
        )


def _build_text_part(text: str) -> dict[str, str]:
    return {"type": "text", "content": text}


_observers: Final[WeakSet[OpenTelemetryObserver]] = WeakSet()


def _register_exit_flush(observer: OpenTelemetryObserver) -> None:
    """Register *observer* to be flushed when the interpreter exits."""
    _observers.add(observer)
    # At exit, the function that was registered last runs first. Registering again makes this flush
    # run before the shutdown of a provider that was created meanwhile.
    atexit.unregister(_flush_all_observers)
    atexit.register(_flush_all_observers)


def _flush_all_observers() -> None:
    """Flush all registered observers, in at most `EXIT_SECONDS` seconds in total."""
    deadline = monotonic() + EXIT_SECONDS
    for observer in list(_observers):
        observer.flush(deadline - monotonic())
