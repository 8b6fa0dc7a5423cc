"""Providers of OpenTelemetry's own SDK that keep everything in memory, an observer on them, and what it emitted."""

from __future__ import annotations

from typing import Any, Final

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import qtmiddleware as qtm
from qtmiddleware.integrations.opentelemetry import OpenTelemetryObserver
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline
from tests.support.retrieval_world import scripted, search

REWRITE: Final = {
    "transformationType": "rewrite",
    "limits": {"llmTimeoutMs": 50_000, "deadlineMs": 55_000},
}


class Telemetry:
    """An observer, whose spans and metrics can be looked at; spans of the tests' own come from *tracer*."""

    def __init__(
        self, processor: SpanProcessor | None = None, *, sampler: Any = None, **given: Any
    ) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(processor or SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        meters = MeterProvider(metric_readers=[self._reader])
        self.observer = OpenTelemetryObserver(
            tracer_provider=self.provider, meter_provider=meters, **given
        )
        self.tracer = self.provider.get_tracer("tests")

    def wrap(self, fn: Any, config: Any = None, script: Any = scripted, **given: Any) -> Any:
        options = {name: given.pop(name) for name in ("embed", "embed_many") if name in given}
        given.setdefault("client", ScriptedModel(script, name="small"))
        qm = qtm.QueryMiddleware(
            REWRITE if config is None else config, observers=[self.observer], **given
        )
        return qm.wrap(fn, **options)

    def spans(self) -> list[ReadableSpan]:
        """All that ended, in the order they began."""
        return sorted(self._exporter.get_finished_spans(), key=lambda it: it.start_time or 0)

    def span(self, name: str) -> ReadableSpan:
        (found,) = (it for it in self.spans() if it.name == name)
        return found

    def parents(self) -> list[tuple[str, str]]:
        """The name of each span with that of its parent."""
        spans = self.spans()
        names = {it.context.span_id: it.name for it in spans if it.context}
        return sorted(
            (it.name, names.get(it.parent.span_id, "?") if it.parent else "") for it in spans
        )

    def points(self) -> dict[str, list[tuple[dict[str, Any], float]]]:
        """Of each metric what was counted under which labels: a histogram's measurements, a counter's sum."""
        data = self._reader.get_metrics_data()
        metrics = (
            [
                it
                for one in data.resource_metrics
                for scope in one.scope_metrics
                for it in scope.metrics
            ]
            if data
            else []
        )
        return {
            it.name: [
                (dict(at.attributes), at.count if hasattr(at, "count") else at.value)
                for at in it.data.data_points
            ]
            for it in metrics
        }

    def scopes(self) -> set[Any]:
        """The scopes of all metrics."""
        data = self._reader.get_metrics_data()
        return (
            {scope.scope for one in data.resource_metrics for scope in one.scope_metrics}
            if data
            else set()
        )


class Billing:
    """A model that answers everything with one reply, which says what it cost."""

    name = "small"

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        return self._reply

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        return self._reply


def plain(query: str, top_k: int = 4) -> Any:
    return search(query, top_k)


async def aplain(query: str, top_k: int = 4) -> Any:
    return search(query, top_k)


def is_nothing_current() -> bool:
    """Whether no span was left behind in this context."""
    return trace.get_current_span() is trace.INVALID_SPAN
