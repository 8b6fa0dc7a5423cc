"""Spans and metrics of every retrieval, through opentelemetry-api alone.

A span is made, and current, in the context in which the work is done. What is told of its end is
worked out beside the
caller: one thread describes it and records the metrics, where the SDK locks and an operation may
end in a collection of garbage that begins under such a lock. Another hands the span to the
processors, which may export at once and block. What is emitted is called as `names` says.
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

from qtmiddleware.integrations import find_version, needs
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Answer, Degradation, Operation, Retrieval, Stage, Trace

with needs("opentelemetry-api", "1.30", extra="otel"):
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
"""The variable that OpenTelemetry's own GenAI instrumentations look at."""
# `event_only` asks for events, of which there are none here; `true` is what the instrumentations
# took before.
_CAPTURING: Final = frozenset({"span_only", "span_and_event", "true"})

MAX_OPEN: Final = 65_536
"""How many operations are kept in mind that have not ended, as streams that nobody closes."""
EXIT_SECONDS: Final = 2.0
"""How long the end of the interpreter waits for spans that are on their way."""


class _Open(NamedTuple):
    """The span of an operation that runs, and how to leave the context it is current in."""

    span: Span
    token: Token[Context] | None
    mark: Token[int] | None


class _Account(NamedTuple):
    """What a retrieval, or an answer after it, had come to when it ended: its trace is added to by what follows."""

    model_calls: int = 0
    cost: float | None = 0.0
    stages: tuple[Stage, ...] = ()
    cache_hits: int = 0
    read_units: float = 0
    read_cost: float | None = None

    @classmethod
    def read(cls, trace: Trace) -> _Account:
        return cls(
            trace.llm_calls,
            trace.cost_usd,
            trace.stages,
            trace.cache_hits,
            trace.read_units,
            trace.read_cost_usd,
        )

    def subtract(self, before: _Account) -> _Account:
        """Return what was added since *before*: calls of models and stages."""
        cost = None if self.cost is None or before.cost is None else self.cost - before.cost
        return _Account(
            self.model_calls - before.model_calls, cost, self.stages[len(before.stages) :]
        )


# Set beside the current span: unlike OpenTelemetry's own, it tells silently that we are in another
# context by now.
_inside: Final[ContextVar[int]] = ContextVar("inside", default=0)


class OpenTelemetryObserver:
    """Makes spans and metrics of every retrieval: ``QueryMiddleware(..., observers=[OpenTelemetryObserver()])``.

    *provider_name* is the ``gen_ai.provider.name`` of language and embedding models (``openai``,
    ``anthropic``, ...); by default that of the client they are asked with, where that tells.
    *data_source_id* is the ``gen_ai.data_source.id`` of what is searched, left out where it is not
    given. *capture_content* puts the texts of queries and models into spans; by default the
    variable ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` decides when this is made, and
    without it no text is emitted. The global providers are used unless
    *tracer_provider* and *meter_provider* are given.

    Ended spans reach the provider's processors from a daemon thread: an exporter that blocks holds
    up nobody. At most 2,048 wait for it; *dropped* counts those beyond, which is logged once.
    Thread-safe; a forked process begins anew. Importing this raises `MissingExtra` where
    opentelemetry-api is not installed or older than 1.30.
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
            capture_content = os.environ.get(CAPTURE_CONTENT, "").strip().lower() in _CAPTURING
        self._captures_content = capture_content
        self._provider_name = provider_name
        self._source_id = data_source_id
        scope = find_version("qtmiddleware"), SCHEMA_URL
        self._tracer = get_tracer("qtmiddleware", scope[0], tracer_provider, scope[1])
        meter = get_meter("qtmiddleware", scope[0], meter_provider, scope[1])
        self._instruments: dict[Metric, Any] = {
            row: _make_instrument(meter, row) for row in METRICS
        }
        self._has_meter = meter_provider is not None
        self._open: dict[int, _Open] = {}
        # By the answer that each retrieval is part of.
        self._retrieved: dict[int, _Account] = {}
        self.dropped = 0
        self._ended = Outbox(self._drop)
        self._spans = Outbox(self._drop)
        self._is_known = False

    def flush(self, seconds: float = 5.0) -> bool:
        """Hand all ended spans to the provider's processors; returns whether that was done within *seconds*.

        Metrics are recorded then, too. To have all exported call ``force_flush`` of the providers
        afterwards.
        """
        until = monotonic() + seconds
        is_described = self._ended.flush(until - monotonic())
        return self._spans.flush(until - monotonic()) and is_described

    # --- what the middleware calls
    # ------------------------------------------------------------------------------------

    def on_start(self, operation: Operation) -> None:
        """Start the span of *operation*, in the context in which that is performed."""
        around = get_current()
        parent = None if operation.parent is None else self._open.get(operation.parent.id)
        if parent is None:
            if operation.parent is not None:
                # Nobody records the operation it is part of.
                return
            span = self._start_span(operation, around)
            if (
                not span.is_recording()
                and span.get_span_context() == get_current_span(around).get_span_context()
            ):
                # No provider is set.
                return
        elif parent.span.is_recording():
            span = self._start_span(operation, set_span_in_context(parent.span, around))
        else:
            # A sampler that dropped the whole is not asked for its parts, and what they call is
            # told of that.
            span = parent.span
        token = mark = None
        if SPANS[operation.kind].is_current:
            mark = _inside.set(operation.id)
            token = attach(set_span_in_context(span, around))
        self._open[operation.id] = _Open(span, token, mark)
        _bound(self._open)

    def on_end(self, operation: Operation) -> None:
        """End the span of *operation*, wherever this is called, and record what it was."""
        opened = self._open.pop(operation.id, None)
        if opened is not None:
            _leave(opened)
        span = opened.span if opened is not None and opened.span.is_recording() else None
        # Where no meter is set the API gives one of its own, which keeps nothing.
        if (
            span
            or self._has_meter
            or not type(get_meter_provider()).__module__.startswith("opentelemetry.metrics.")
        ):
            self._ended.put(partial(self._take, operation, span, self._settle(operation)))
        if operation.parent is None:
            self._ended.hand_over()
            if not self._is_known:
                self._is_known = True
                _flush_at_exit(self)

    def _settle(self, operation: Operation) -> _Account:
        """Return what *operation* has come to by now, of an answer without its retrieval."""
        result = operation.result
        if isinstance(result, Retrieval):
            account = _Account.read(result.trace)
            if operation.parent is not None:
                # The first one of an answer; those after it are of its sub-queries.
                self._retrieved.setdefault(operation.parent.id, account)
                _bound(self._retrieved)
            return account
        before = self._retrieved.pop(operation.id, None)
        if isinstance(result, Answer) and before is not None:
            return _Account.read(result.retrieval.trace).subtract(before)
        return _Account()

    def _take(self, operation: Operation, span: Span | None, account: _Account) -> None:
        """Record what *operation* was, and let its *span* wait for the processors."""
        if span is not None:
            ended = round((operation.began + operation.seconds) * 1e9)
            told = dict(self._describe(operation, account))
            self._spans.put(partial(_finish, span, told, operation.outcome, ended))
        self._record(operation, span, account)
        if operation.parent is None:
            self._spans.hand_over()

    def _drop(self) -> None:
        self.dropped += 1
        if self.dropped == 1:
            logger.warning(
                "spans are being dropped: %d are queued, and OpenTelemetry's span processors cannot"
                " keep up",
                MAX_WAITING,
                event="spans_dropped",
                limit=MAX_WAITING,
            )

    # --- spans
    # --------------------------------------------------------------------------------------------------------

    def _start_span(self, operation: Operation, within: Context) -> Span:
        row = SPANS[operation.kind]
        subject = (
            self._source_id
            if operation.kind == "retrieval"
            else getattr(operation, row.subject or "kind")
        )
        return self._tracer.start_span(
            f"{row.title} {subject}" if subject and subject != row.title else row.title,
            within,
            row.kind,
            self._identify(operation),
            start_time=round(operation.began * 1e9),
        )

    def _identify(self, operation: Operation) -> dict[str, Any]:
        """The attributes that a sampler may go by; all others wait for the end, where they cost the caller nothing."""
        told: dict[str, Any] = {Names.KIND: operation.kind}
        if title := SPANS[operation.kind].operation:
            told[Names.OPERATION] = title
        if self._source_id and operation.kind in ("retrieval", "search"):
            told[Names.DATA_SOURCE] = self._source_id
        return told | self._name_model(operation)

    def _name_model(self, operation: Operation) -> dict[str, Any]:
        provider = operation.provider
        if operation.kind in ("model", "embedding"):
            provider = self._provider_name or provider or UNKNOWN_PROVIDER
        address, port = operation.server or ("", 0)
        named = {
            Names.PROVIDER: provider,
            Names.MODEL: operation.model,
            Names.SERVER_ADDRESS: address,
            Names.SERVER_PORT: port,
        }
        return {name: value for name, value in named.items() if value}

    def _describe(self, operation: Operation, account: _Account) -> Iterator[tuple[str, Any]]:
        """What is known of *operation* at its end."""
        yield Names.OUTCOME, operation.outcome
        if error := _find_error(operation):
            yield Names.ERROR, error
        if operation.top_k is not None:
            yield Names.TOP_K, operation.top_k
        if operation.kind == "search":
            yield Names.VARIANT, _label(operation.name)
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
            yield from _describe_reply(result)
        elif operation.kind == "embedding":
            yield from _describe_vectors(operation)
        elif isinstance(result, Retrieval | Answer):
            yield from _describe_result(result, account)
        if self._captures_content:
            yield from _quote(operation)

    # --- metrics
    # ------------------------------------------------------------------------------------------------------

    def _record(self, operation: Operation, span: Span | None, account: _Account) -> None:
        row, result, instruments = SPANS[operation.kind], operation.result, self._instruments
        # An exemplar of the measurement leads to the span.
        context = None if span is None else set_span_in_context(span)
        model = self._name_model(operation) | (
            {Names.OPERATION: row.operation} if row.operation else {}
        )
        if isinstance(result, Reply) and result.model:
            model[Names.RESPONSE_MODEL] = result.model
        labels = (
            _label_operation(operation)
            if row.metric is REQUESTS
            else _label_operation(operation) | model
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
            for it in _select_own(result):
                labels = {Names.STAGE: _label(it.stage), Names.REASON: _label(it.reason)}
                instruments[DEGRADATIONS].add(1, labels, context)
        for stage in account.stages:
            instruments[STAGES].record(stage.ms / 1e3, {Names.STAGE: _label(stage.name)}, context)
        if isinstance(result, Retrieval):
            if account.read_units > 0:
                instruments[READ_UNITS].add(account.read_units, None, context)
            costs = "searches", account.read_cost
        if costs[1]:
            instruments[COST].add(costs[1], {Names.COST_OF: costs[0]}, context)


def _make_instrument(meter: Meter, row: Metric) -> Any:
    if not row.boundaries:
        return meter.create_counter(row.name, row.unit, row.description)
    return meter.create_histogram(
        row.name, row.unit, row.description, explicit_bucket_boundaries_advisory=row.boundaries
    )


def _bound(kept: dict[int, Any]) -> None:
    """Forget the oldest of more than `MAX_OPEN` operations; what is left of those that never end is small."""
    if len(kept) > MAX_OPEN:
        with suppress(StopIteration, RuntimeError):
            kept.pop(next(iter(kept)), None)


def _leave(opened: _Open) -> None:
    """Make the span that was current before so again; in another context than it was set in there is nothing to do."""
    if opened.token is None or opened.mark is None:
        return
    try:
        _inside.reset(opened.mark)
    except ValueError:
        # Who gave the operation up tells of its end. The context it ran in ends with its thread or
        # task.
        return
    detach(opened.token)


def _finish(span: Span, told: Mapping[str, Any], outcome: str, ended: int) -> None:
    span.set_attributes(told)
    if outcome in ("failed", "late"):
        # No description: what was raised may quote the question.
        span.set_status(StatusCode.ERROR)
    span.end(ended)


def _find_error(operation: Operation) -> str:
    if operation.outcome == "late":
        return "timeout"
    return _label(operation.reason or "_OTHER") if operation.outcome == "failed" else ""


_WORD: Final = re.compile(r"[\w.:-]{1,64}", re.ASCII)


@lru_cache(1024)
def _label(word: str) -> str:
    """Returns *word* where it is one, as reasons and names of stages are: a model of the user's may raise anything."""
    return word if _WORD.fullmatch(word) else "_OTHER"


def _label_operation(operation: Operation) -> dict[str, str]:
    labels: dict[str, str] = {Names.OUTCOME: operation.outcome}
    if SPANS[operation.kind].metric is REQUESTS:
        ended = (
            getattr(operation.result, "status", "full")
            if operation.outcome == "ok"
            else operation.outcome
        )
        labels = {Names.KIND: operation.kind, Names.STATUS: ended}
    elif operation.kind == "search":
        labels[Names.VARIANT] = _label(operation.name)
    if error := _find_error(operation):
        labels[Names.ERROR] = error
    return labels


def _select_own(result: Retrieval | Answer) -> tuple[Degradation, ...]:
    """The degradations of *result*, without those of the retrieval an answer rests on, which are told of by that."""
    found = result.degradations
    return found[len(result.retrieval.degradations) :] if isinstance(result, Answer) else found


def _describe_reply(reply: Reply) -> Iterator[tuple[str, Any]]:
    yield Names.FINISH_REASONS, ("length" if reply.truncated else "stop",)
    yield Names.MODEL_CALLS, reply.calls
    told = {
        Names.RESPONSE_MODEL: reply.model,
        Names.RESPONSE_ID: reply.id,
        # A service that counts never says 0.
        Names.INPUT_TOKENS: reply.input_tokens,
        Names.OUTPUT_TOKENS: reply.output_tokens,
    }
    yield from ((name, value) for name, value in told.items() if value)
    if reply.cost_usd is not None:
        yield Names.COST, reply.cost_usd


def _describe_vectors(operation: Operation) -> Iterator[tuple[str, int]]:
    if tokens := operation.counts.get("input_tokens"):
        yield Names.INPUT_TOKENS, tokens
    if vectors := operation.result:
        yield Names.DIMENSIONS, len(vectors[0])


def _describe_result(result: Retrieval | Answer, account: _Account) -> Iterator[tuple[str, Any]]:
    trace = result.retrieval.trace if isinstance(result, Answer) else result.trace
    yield Names.STATUS, result.status
    yield Names.QUERY_ID, trace.query_id
    if degradations := _select_own(result):
        yield (
            Names.DEGRADATIONS,
            tuple(f"{_label(it.stage)} {_label(it.reason)}" for it in degradations),
        )
    yield Names.MODEL_CALLS, account.model_calls
    if account.cost is not None:
        yield Names.COST, account.cost
    if isinstance(result, Answer):
        yield Names.FOUND, result.found
        return
    yield Names.CACHE_HITS, account.cache_hits
    yield Names.READ_UNITS, account.read_units
    if account.read_cost is not None:
        yield Names.READ_COST, account.read_cost
    if result.confidence is not None:
        yield Names.CONFIDENCE, result.confidence
    yield Names.IS_UNSURE, result.is_unsure
    if trace.decision is not None:
        yield Names.DECISION, _label(trace.decision.reason)


def _quote(operation: Operation) -> Iterator[tuple[str, str]]:
    """What users, passages and models say in *operation*, as the conventions write it: messages as JSON."""
    content, result = operation.content, operation.result
    if isinstance(content, Prompt):
        yield Names.INSTRUCTIONS, json.dumps([_quote_text(content.system)])
        yield Names.INPUT, json.dumps([{"role": "user", "parts": [_quote_text(content.user)]}])
    elif isinstance(content, str):
        # An exporter loses the whole batch with half a surrogate pair.
        yield Names.QUERY_TEXT, content.encode("utf-8", "replace").decode("utf-8")
    if isinstance(result, Reply):
        reason = "length" if result.truncated else "stop"
        said = {"role": "assistant", "parts": [_quote_text(result.text)], "finish_reason": reason}
        yield Names.OUTPUT, json.dumps([said])
    elif isinstance(result, Retrieval):
        yield (
            Names.DOCUMENTS,
            json.dumps([{"id": str(it.id), "score": it.score} for it in result.matches]),
        )


def _quote_text(text: str) -> dict[str, str]:
    return {"type": "text", "content": text}


_observers: Final[WeakSet[OpenTelemetryObserver]] = WeakSet()


def _flush_at_exit(observer: OpenTelemetryObserver) -> None:
    _observers.add(observer)
    # Anew each time, as what is registered last comes first: before the provider, which registered
    # itself when made.
    atexit.unregister(_flush_all)
    atexit.register(_flush_all)


def _flush_all() -> None:
    until = monotonic() + EXIT_SECONDS
    for observer in list(_observers):
        observer.flush(until - monotonic())
