"""Spans and metrics over OTLP/HTTP, as a collector on this machine reads them; and what forks, greenlets, exits do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

import qtmiddleware as qtm
from qtmiddleware.integrations.opentelemetry import OpenTelemetryObserver
from qtmiddleware.testing import ScriptedModel
from tests.support.retrieval_world import QUERY, scripted
from tests.support.telemetry_world import REWRITE, plain

ROOT = Path(__file__).parents[3]


class Collector:
    """Decodes what is sent to it."""

    def __init__(self, server: HTTPServer) -> None:
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.raw = b""
        server.expect_request("/v1/traces", method="POST").respond_with_handler(self._take_traces)
        server.expect_request("/v1/metrics", method="POST").respond_with_handler(self._take_metrics)

    def _take_traces(self, request: Request) -> Response:
        self.raw += request.data
        self.traces.append(ExportTraceServiceRequest.FromString(request.data))
        return Response(b"", content_type="application/x-protobuf")

    def _take_metrics(self, request: Request) -> Response:
        self.raw += request.data
        self.metrics.append(ExportMetricsServiceRequest.FromString(request.data))
        return Response(b"", content_type="application/x-protobuf")

    def spans(self) -> list[Span]:
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            if scope.scope.name == "qtmiddleware"
            for span in scope.spans
        ]

    def metric_names(self) -> set[str]:
        return {
            metric.name
            for request in self.metrics
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def test_a_collector_gets_the_whole_trace_and_the_metrics_and_no_text(
    httpserver: HTTPServer,
) -> None:
    collector = Collector(httpserver)
    tracers = TracerProvider()
    tracers.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(httpserver.url_for("/v1/traces")))
    )
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(httpserver.url_for("/v1/metrics")))
    meters = MeterProvider(metric_readers=[reader])
    observer = OpenTelemetryObserver(
        data_source_id="guides", tracer_provider=tracers, meter_provider=meters
    )
    qm = qtm.QueryMiddleware(
        REWRITE, client=ScriptedModel(scripted, name="small"), observers=[observer]
    )
    with tracers.get_tracer("app").start_as_current_span("request"):
        qm.wrap(plain).retrieve(QUERY)
    assert tracers.force_flush(50_000)
    assert meters.force_flush(50_000)
    spans = {span.name: span for span in collector.spans()}
    assert set(spans) == {"retrieval guides", "chat small", "search original", "search rewrite"}
    whole = spans.pop("retrieval guides")
    assert {span.parent_span_id for span in spans.values()} == {whole.span_id}
    assert whole.parent_span_id != b""
    assert whole.kind == Span.SPAN_KIND_CLIENT
    told = {it.key: it.value for it in whole.attributes}
    assert told["gen_ai.operation.name"].string_value == "retrieval"
    assert told["gen_ai.retrieval.top_k"].int_value == 4
    assert told["qtmiddleware.status"].string_value == "full"
    assert "qtmiddleware.request.duration" in collector.metric_names()
    assert b"Jaco" not in collector.raw
    tracers.shutdown()
    meters.shutdown()


def run(code: str, tmp_path: Path) -> str:
    """What *code* prints in an interpreter of its own, which ends by itself."""
    script = tmp_path / "script.py"
    script.write_text(code, encoding="utf-8")
    # Found from here, and the texts that the tests share.
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=env,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


SETUP = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
import qtmiddleware as qtm
from qtmiddleware.integrations.opentelemetry import OpenTelemetryObserver

def search(query, top_k=1):
    return [{"id": "a", "score": 0.9, "metadata": {"text": "Jaco is healthy"}}]

observer = OpenTelemetryObserver()
trace.set_tracer_provider(TracerProvider())
wrapped = qtm.QueryMiddleware({}, observers=[observer]).wrap(search)
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="gevent is not tested there")
def test_greenlets_keep_their_traces_apart(tmp_path: Path) -> None:
    patch = "from gevent import monkey\nmonkey.patch_all()\n"
    code = """
import gevent
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
kept = InMemorySpanExporter()
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(kept))

def ask(number):
    with trace.get_tracer('app').start_as_current_span('request'):
        wrapped('Is Jaco ill?')

gevent.joinall([gevent.spawn(ask, number) for number in range(20)], raise_error=True, timeout=200)
traces = {}
for it in kept.get_finished_spans():
    traces.setdefault(it.context.trace_id, []).append(it.name)
print(len(traces), {tuple(sorted(it)) for it in traces.values()})
"""
    said = run(patch + SETUP + code, tmp_path)
    assert said.splitlines()[-1] == "20 {('request', 'retrieval', 'search original')}"
