"""Spans and metrics over OTLP/HTTP, as a collector reads them."""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pytest_httpserver import HTTPServer

import qtmiddleware as qtm
from qtmiddleware.integrations.opentelemetry import OpenTelemetryObserver
from qtmiddleware.testing import ScriptedModel
from tests.support.retrieval_world import QUERY, scripted
from tests.support.telemetry_world import REWRITE, plain


def test_a_collector_gets_the_whole_trace_and_the_metrics_and_no_text(
    httpserver: HTTPServer,
) -> None:
    httpserver.expect_request("/v1/traces").respond_with_data(b"")
    httpserver.expect_request("/v1/metrics").respond_with_data(b"")
    tracers = TracerProvider()
    exporter = OTLPSpanExporter(httpserver.url_for("/v1/traces"))
    tracers.add_span_processor(BatchSpanProcessor(exporter))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(httpserver.url_for("/v1/metrics")))
    meters = MeterProvider(metric_readers=[reader])
    observer = OpenTelemetryObserver(
        data_source_id="guides", tracer_provider=tracers, meter_provider=meters
    )
    model = ScriptedModel(scripted, name="small")
    wrapped = qtm.QueryMiddleware(REWRITE, client=model, observers=[observer]).wrap(plain)
    wrapped.retrieve(QUERY)
    tracers.shutdown()
    meters.shutdown()
    sent = {request.path: request.data for request, _ in httpserver.log}
    assert b"Jaco" not in b"".join(sent.values())
    (resource,) = ExportTraceServiceRequest.FromString(sent["/v1/traces"]).resource_spans
    spans = {span.name: span for scope in resource.scope_spans for span in scope.spans}
    whole = spans.pop("retrieval guides")
    assert set(spans) == {"chat small", "search original", "search rewrite"}
    assert {span.parent_span_id for span in spans.values()} == {whole.span_id}
    (measured,) = ExportMetricsServiceRequest.FromString(sent["/v1/metrics"]).resource_metrics
    names = {metric.name for scope in measured.scope_metrics for metric in scope.metrics}
    assert "qtmiddleware.request.duration" in names
