"""The picture of a trace in docs/telemetry.md: one retrieval's spans, as the SDK exported them, as bars over time.

    python -m scripts.waterfall > docs/telemetry.svg

A question under the preset `balanced` with a search of 40 ms and a model of 120 ms, which make
spans of their own as instrumented clients do.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any
from xml.sax.saxutils import escape

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import qtmiddleware as qtm
from qtmiddleware.integrations.opentelemetry import OpenTelemetryObserver
from qtmiddleware.testing import ScriptedModel

QUESTION = "Does Jaco have any health concerns?"
REPLY = {
    "rewrite": "Does the dog Jaco have medical conditions?",
    "sub_queries": ["What did the vet say about Jaco?", "Which illness does Jaco have?"],
    "hyde": "Jaco was seen by the vet. His heart, hips and teeth are healthy.",
}
SHOWN = {
    "qtmiddleware.variant.weight": "weight",
    "gen_ai.retrieval.top_k": "top_k",
    "gen_ai.prompt.name": "prompt",
    "qtmiddleware.status": "status",
}
WIDTH, LEFT, ROW = 960, 250, 30
COLOURS = {"qtmiddleware": "#2f6f9f", "": "#9aa5ad"}


def record_spans() -> list[ReadableSpan]:
    """The spans of one retrieval within a request, in the order they began."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("app")

    def search(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        with tracer.start_as_current_span("POST index.example"):
            time.sleep(0.04)
        return [
            {"id": str(n), "score": 0.9 - n / 99, "metadata": {"text": f"{query} {n}"}}
            for n in range(top_k)
        ]

    observer = OpenTelemetryObserver(data_source_id="guides", tracer_provider=provider)
    model = ScriptedModel(REPLY, name="gpt-6-luna", seconds=0.12)
    wrapped = qtm.QueryMiddleware("balanced", client=model, observers=[observer]).wrap(search)
    # Modules are read and thresholds learnt by then.
    wrapped.retrieve("Who was Jaco's vet?")
    observer.flush()
    exporter.clear()
    with tracer.start_as_current_span("GET /ask"):
        wrapped.retrieve(QUESTION)
    observer.flush()
    return sorted(exporter.get_finished_spans(), key=lambda it: it.start_time or 0)


def order(spans: Sequence[ReadableSpan]) -> Iterator[tuple[int, ReadableSpan]]:
    """Every span with its depth, children below their parents."""

    def below(parent: int | None, depth: int) -> Iterator[tuple[int, ReadableSpan]]:
        for it in spans:
            if (it.parent.span_id if it.parent else None) == parent:
                yield depth, it
                yield from below(it.context.span_id if it.context else 0, depth + 1)

    return below(None, 0)


def draw(spans: Sequence[ReadableSpan]) -> str:
    """The spans as an SVG."""
    rows = list(order(spans))
    began = min(it.start_time or 0 for it in spans)
    whole = max(it.end_time or 0 for it in spans) - began
    scale = (WIDTH - LEFT - 20) / whole
    height = ROW * len(rows) + 20
    box = f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (depth, it) in enumerate(rows):
        start, end = it.start_time or 0, it.end_time or 0
        y, x = 10 + number * ROW, LEFT + (start - began) * scale
        wide = max(2.0, (end - start) * scale)
        scope = it.instrumentation_scope.name if it.instrumentation_scope else ""
        told = [
            f"{label} {value}"
            for name, label in SHOWN.items()
            if (value := (it.attributes or {}).get(name))
        ]
        text = escape(" · ".join([f"{(end - start) / 1e6:.0f} ms", *told]))
        inside = wide > 7 * len(text)
        at, anchor = (x + 6, "start") if inside else (x + wide + 6, "start")
        if not inside and at + 7 * len(text) > WIDTH:
            at, anchor = x - 6, "end"
        colour = COLOURS.get(scope, COLOURS[""])
        style = f'text-anchor="{anchor}" font-size="11" fill="{"#ffffff" if inside else "#222222"}"'
        lines += [
            f'<text x="{10 + depth * 16}" y="{y + 16}" fill="#222222">{escape(it.name)}</text>',
            f'<rect x="{x:.1f}" y="{y + 2}" width="{wide:.1f}" height="{ROW - 10}" rx="3" fill="{colour}"/>',
            f'<text x="{at:.1f}" y="{y + 16}" {style}>{text}</text>',
        ]
    return "\n".join([*lines, "</svg>"])


if __name__ == "__main__":
    sys.stdout.write(draw(record_spans()) + "\n")
