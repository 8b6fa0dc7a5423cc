"""Record retrievals as OpenTelemetry spans and metrics. Only opentelemetry-api is needed.

The names follow the GenAI semantic conventions, v0.1.0 (open-telemetry/semantic-conventions-genai,
November 2026, status Development). Names that they do not define begin with ``qtmiddleware.``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from contextvars import Token
from typing import Any, Final, NamedTuple

from qtmiddleware.integrations import find_installed_version, require_package
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.types import Answer, Degradation, Operation, Retrieval

with require_package("opentelemetry-api", "1.30", extra="otel"):
    from opentelemetry.context import Context, attach, get_current
    from opentelemetry.metrics import MeterProvider, get_meter
    from opentelemetry.trace import (
        Span,
        SpanKind,
        StatusCode,
        TracerProvider,
        get_tracer,
        set_span_in_context,
    )

CAPTURE_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The environment variable that turns on texts in spans.

OpenTelemetry's own GenAI instrumentations read the same variable.
"""
# `event_only` asks for events, which this module does not emit. Earlier instrumentations used
# `true`.
_CAPTURE_VALUES: Final = frozenset({"span_only", "span_and_event", "true"})

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai/0.1.0"
"""The schema URL of each span and metric. It identifies the conventions that the names follow."""

_SECONDS: Final = tuple(0.0005 * 2**power for power in range(16))
_MODEL_SECONDS: Final = tuple(0.01 * 2**power for power in range(14))
_TOKENS: Final = tuple(float(4**power) for power in range(14))
_LABEL: Final = re.compile(r"[\w.:-]{1,64}", re.ASCII)


class _Kind(NamedTuple):
    """How one kind of operation is recorded.

    Attributes:
        title: The first word of the span's name.
        metric: The name of the histogram of durations.
        span_kind: The span's kind.
        name: The ``gen_ai.operation.name``; empty if the conventions define none.
        is_current: Whether the span is the current one during the operation, so that spans of a
            client go below it. The span of a streamed answer must not stay current in the code that
            reads the stream.
    """

    title: str
    metric: str = "qtmiddleware.request.duration"
    span_kind: SpanKind = SpanKind.INTERNAL
    name: str = ""
    is_current: bool = True


_KINDS: Final = {
    "retrieval": _Kind(
        "retrieval",
        span_kind=SpanKind.CLIENT,
        name="retrieval",
        is_current=False,
    ),
    "answer": _Kind("answer", is_current=False),
    "transform": _Kind("transform", is_current=False),
    "search": _Kind("search", "qtmiddleware.search.duration"),
    "rerank": _Kind("rerank", "qtmiddleware.rerank.duration"),
    "model": _Kind(
        "chat",
        "gen_ai.client.inference.duration",
        SpanKind.CLIENT,
        "chat",
    ),
    "embedding": _Kind(
        "embeddings",
        "gen_ai.client.embeddings.duration",
        SpanKind.CLIENT,
        "embeddings",
    ),
}


class OpenTelemetryObserver:
    """Creates OpenTelemetry spans and metrics for each retrieval.

    Use the observer as ``QueryMiddleware(..., observers=[OpenTelemetryObserver()])``. Importing
    this module raises `MissingExtra` if opentelemetry-api is missing or older than 1.30.

    Spans end in the thread or task of their operation. Use OpenTelemetry's `BatchSpanProcessor`, so
    that a slow exporter does not delay your calls. Thread-safe.

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
        version = find_installed_version("qtmiddleware")
        self._tracer = get_tracer(
            "qtmiddleware",
            version,
            tracer_provider,
            SCHEMA_URL,
        )
        meter = get_meter(
            "qtmiddleware",
            version,
            meter_provider,
            SCHEMA_URL,
        )
        self._durations = {
            kind.metric: meter.create_histogram(
                kind.metric,
                "s",
                explicit_bucket_boundaries_advisory=_MODEL_SECONDS
                if kind.metric.startswith("gen_ai")
                else _SECONDS,
            )
            for kind in _KINDS.values()
        }
        self._tokens = {
            name: meter.create_histogram(
                f"gen_ai.client.inference.operation.{name}",
                "{token}",
                explicit_bucket_boundaries_advisory=_TOKENS,
            )
            for name in ("input_tokens", "output_tokens")
        }
        self._degradations = meter.create_counter(
            "qtmiddleware.degradations",
            "{degradation}",
        )
        self._cost = meter.create_counter("qtmiddleware.cost", "{USD}")
        # The span of each running operation, and the token that restores the context before it.
        self._open: dict[int, tuple[Span, Token[Context] | None]] = {}

    def on_start(self, operation: Operation) -> None:
        """Start a span for *operation* below its parent's span, or below the current span."""
        kind = _KINDS[operation.kind]
        context = current_context = get_current()
        if operation.parent is not None and operation.parent.id in self._open:
            context = set_span_in_context(
                self._open[operation.parent.id][0],
                current_context,
            )
        subject = operation.name if operation.kind == "search" else operation.model
        if operation.kind == "retrieval":
            subject = self._source_id
        # A sampler may read the attributes of the start.
        attributes = {
            "qtmiddleware.operation": operation.kind,
            **self._describe_model(operation),
        }
        if self._source_id and operation.kind in ("retrieval", "search"):
            attributes["gen_ai.data_source.id"] = self._source_id
        span = self._tracer.start_span(
            f"{kind.title} {subject}" if subject else kind.title,
            context,
            kind.span_kind,
            attributes,
            start_time=round(operation.began * 1e9),
        )
        token = attach(set_span_in_context(span, current_context)) if kind.is_current else None
        self._open[operation.id] = span, token

    def on_end(self, operation: Operation) -> None:
        """End the operation's span, and record its metrics."""
        span, token = self._open.pop(operation.id, (None, None))
        if token is not None:
            # The caller may give up on an operation, and report its end from another context. The
            # operation's own context ends with its thread or task.
            with suppress(ValueError):
                token.var.reset(token)
        self._record_metrics(operation, None if span is None else set_span_in_context(span))
        if span is None or not span.is_recording():
            return
        found = _list_attributes(operation)
        span.set_attributes({name: it for name, it in found.items() if it not in (None, "", ())})
        if self._captures_content:
            span.set_attributes(dict(_list_content(operation)))
        if operation.outcome in ("failed", "late"):
            # No description: the exception's text may quote the question.
            span.set_status(StatusCode.ERROR)
        span.end(round((operation.began + operation.seconds) * 1e9))

    def _describe_model(self, operation: Operation) -> dict[str, Any]:
        """Return the attributes for the kind, provider and model of *operation*."""
        provider = operation.provider
        if operation.kind in ("model", "embedding"):
            # The conventions require a name, also for a function of the user's own.
            provider = self._provider_name or provider or "_OTHER"
        attributes = {
            "gen_ai.operation.name": _KINDS[operation.kind].name,
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": operation.model,
        }
        return {name: value for name, value in attributes.items() if value}

    def _record_metrics(
        self,
        operation: Operation,
        context: Context | None,
    ) -> None:
        """Record the metrics of *operation*. Their exemplars link to the span of *context*."""
        result = operation.result
        metric = _KINDS[operation.kind].metric
        labels: dict[str, Any] = {}
        if error := _find_error_type(operation):
            labels["error.type"] = error
        if metric == "qtmiddleware.request.duration":
            is_ok = operation.outcome == "ok"
            status = getattr(result, "status", "full") if is_ok else operation.outcome
            labels |= {
                "qtmiddleware.operation": operation.kind,
                "qtmiddleware.status": status,
            }
        else:
            model = self._describe_model(operation)
            if isinstance(result, Reply):
                model |= {"gen_ai.response.model": result.model} if result.model else {}
                for name, histogram in self._tokens.items():
                    # A service that counts tokens never reports 0, so 0 means unknown.
                    if tokens := getattr(result, name):
                        histogram.record(tokens, model, context)
                if result.cost_usd:
                    self._cost.add(result.cost_usd, model, context)
            labels |= {"qtmiddleware.outcome": operation.outcome, **model}
            if operation.kind == "search":
                labels["qtmiddleware.variant.kind"] = _clean_label(operation.name)
        self._durations[metric].record(operation.seconds, labels, context)
        for entry in _select_own_degradations(result):
            stage, reason = _clean_label(entry.stage), _clean_label(entry.reason)
            reported = {
                "qtmiddleware.stage": stage,
                "qtmiddleware.reason": reason,
            }
            self._degradations.add(1, reported, context)


def _find_error_type(operation: Operation) -> str:
    """Return the value of the attribute ``error.type`` for *operation*; ``""`` without an error."""
    if operation.outcome == "late":
        return "timeout"
    return _clean_label(operation.reason) if operation.outcome == "failed" else ""


def _clean_label(label: str) -> str:
    """Return *label* if it has 1 to 64 ASCII letters, digits or ``_.:-``, else ``_OTHER``."""
    # A user's model may raise an error with any text, which must not become a metric's label.
    return label if _LABEL.fullmatch(label) else "_OTHER"


def _select_own_degradations(result: Any) -> tuple[Degradation, ...]:
    """Return the degradations of *result*; for an answer, without those of its retrieval."""
    if isinstance(result, Answer):
        return result.degradations[len(result.retrieval.degradations) :]
    return result.degradations if isinstance(result, Retrieval) else ()


def _list_attributes(operation: Operation) -> dict[str, Any]:
    """Return the attributes that are known at the end of *operation*, some of them empty."""
    result = operation.result
    attributes: dict[str, Any] = {
        "qtmiddleware.outcome": operation.outcome,
        "error.type": _find_error_type(operation),
        "gen_ai.retrieval.top_k": operation.top_k,
    }
    if operation.kind == "search":
        attributes["qtmiddleware.variant.kind"] = _clean_label(operation.name)
    if operation.kind == "model":
        attributes["gen_ai.prompt.name"] = operation.name
    if operation.kind in ("embedding", "rerank"):
        attributes["qtmiddleware.texts"] = len(operation.content)
    if isinstance(result, Reply):
        attributes |= {
            "gen_ai.usage.input_tokens": result.input_tokens or None,
            "gen_ai.usage.output_tokens": result.output_tokens or None,
            "gen_ai.response.model": result.model,
            "gen_ai.response.id": result.id,
            "gen_ai.response.finish_reasons": ("length" if result.truncated else "stop",),
            "qtmiddleware.cost": result.cost_usd,
            "qtmiddleware.model_calls": result.calls,
        }
    elif isinstance(result, Retrieval | Answer):
        trace = result.retrieval.trace if isinstance(result, Answer) else result.trace
        attributes |= {
            "qtmiddleware.status": result.status,
            "qtmiddleware.passages": len(result.matches),
            "qtmiddleware.query_id": trace.query_id,
            "qtmiddleware.degradations": tuple(
                f"{_clean_label(entry.stage)} {_clean_label(entry.reason)}"
                for entry in _select_own_degradations(result)
            ),
        }
    if isinstance(result, Answer):
        attributes["qtmiddleware.found"] = result.found
        attributes["qtmiddleware.citations"] = len(result.citations)
    elif isinstance(result, Retrieval):
        decision = result.trace.decision
        attributes |= {
            "qtmiddleware.searches": result.trace.searches,
            "qtmiddleware.model_calls": result.trace.llm_calls,
            "qtmiddleware.cost": result.trace.cost_usd,
            "qtmiddleware.cache_hits": result.trace.cache_hits,
            "qtmiddleware.confidence": result.confidence,
            "qtmiddleware.is_unsure": result.is_unsure,
            "qtmiddleware.decision": "" if decision is None else _clean_label(decision.reason),
        }
    return attributes


def _list_content(operation: Operation) -> Iterator[tuple[str, str]]:
    """Yield the texts of *operation*: prompt, question, reply, or the passages' ids and scores.

    Each value except the question is JSON in the format of the GenAI conventions.
    """
    content = operation.content
    result = operation.result
    if isinstance(content, Prompt):
        yield "gen_ai.system_instructions", json.dumps(_build_parts(content.system))
        message = {"role": "user", "parts": _build_parts(content.user)}
        yield "gen_ai.input.messages", json.dumps([message])
    elif isinstance(content, str):
        # A lone surrogate cannot be encoded, and an exporter would lose its whole batch.
        yield "gen_ai.retrieval.query.text", content.encode("utf-8", "replace").decode("utf-8")
    if isinstance(result, Reply):
        reason = "length" if result.truncated else "stop"
        message = {"role": "assistant", "parts": _build_parts(result.text)}
        yield "gen_ai.output.messages", json.dumps([{**message, "finish_reason": reason}])
    elif isinstance(result, Retrieval):
        rows = [
            {
                "id": str(match.id),
                "score": match.score,
            }
            for match in result.matches
        ]
        yield "gen_ai.retrieval.documents", json.dumps(rows)


def _build_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "content": text}]
