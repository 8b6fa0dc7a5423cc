"""What each layer costs around one function: the middleware, shadow mode, the adapters to frameworks, OpenTelemetry.

    python -m benchmarks.adapter_costs [--rounds 400] [--keep]

The function answers at once, then after 20 ms, as an index does; the tier is that of the rules. A
last table has a model that answers at once, with four spans a retrieval instead of two. All lines
take turns, one call each, with a pause after it in which its threads finish what they do beside the
caller, so that a slow moment of the machine meets them all alike. ``--keep`` writes
results/adapter_costs.md. Of a framework that is not installed the lines are left out.

An adapter is a function of a search that returns its framework's own retriever around it, and ours:
see `ADAPTERS`.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import qtmiddleware as qtm
from qtmiddleware.errors import MissingExtra
from qtmiddleware.integrations.opentelemetry import OpenTelemetryObserver
from qtmiddleware.testing import ScriptedModel

RESULT: Final = Path(__file__).parent / "results" / "adapter_costs.md"
QUESTION: Final = "Which fee of the clinic is due in March?"
TEXTS: Final = [
    f"Passage {n} says that the fee of the {n % 7}th clinic is due in March." for n in range(50)
]
PLAIN: Final = "the function"
WRAPPED: Final = "wrapped: `search(q)`"
RETRIEVE: Final = "wrapped: `search.retrieve(q)`"
PAUSE: Final = 0.002
WARM_UP: Final = 30
FOREVER: Final = threading.Event()

Call = Callable[[], Any]
Search = Callable[[int], Sequence[str]]
"""The texts found, as many as are asked for."""
Line = tuple[str, str, Call]
"""What it is called, the line it is compared with, and the call."""


def adapt_langchain(search: Search) -> tuple[str, Call, Call]:
    """LangChain."""
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever

    from qtmiddleware.integrations.langchain import QueryTransformRetriever

    class Fixed(BaseRetriever):
        def _get_relevant_documents(
            self,
            query: str,  # noqa: ARG002
            *,
            run_manager: Any,  # noqa: ARG002
            k: int = 4,
        ) -> list[Document]:
            return [Document(id=str(n), page_content=text) for n, text in enumerate(search(k))]

    inner = Fixed()
    ours = QueryTransformRetriever(retriever=inner, config="rules")
    return (
        "LangChain, `invoke`",
        lambda: inner.invoke(QUESTION, k=4),
        lambda: ours.invoke(QUESTION, k=4),
    )


def adapt_llamaindex(search: Search) -> tuple[str, Call, Call]:
    """LlamaIndex."""
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, TextNode

    from qtmiddleware.integrations.llamaindex import QueryTransformRetriever  # type: ignore[import-not-found,unused-ignore]

    class Fixed(BaseRetriever):
        def __init__(self, similarity_top_k: int = 4) -> None:
            self.similarity_top_k = similarity_top_k
            super().__init__()

        def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:  # noqa: ARG002
            found = enumerate(search(self.similarity_top_k))
            return [
                NodeWithScore(node=TextNode(id_=str(n), text=text), score=1 - n / 99)
                for n, text in found
            ]

    inner = Fixed()
    ours = QueryTransformRetriever(inner, config="rules")
    return (
        "LlamaIndex, `retrieve`",
        lambda: inner.retrieve(QUESTION),
        lambda: ours.retrieve(QUESTION),
    )


def adapt_haystack(search: Search) -> tuple[str, Call, Call]:
    """Haystack."""
    from haystack import Document, component

    from qtmiddleware.integrations.haystack import QueryTransformRetriever  # type: ignore[import-not-found,unused-ignore]

    class Fixed:
        def run(self, query: str, top_k: int = 4) -> dict[str, Any]:  # noqa: ARG002
            found = enumerate(search(top_k))
            return {
                "documents": [
                    Document(id=str(n), content=text, score=1 - n / 99) for n, text in found
                ]
            }

    Fixed.run = component.output_types(documents=list[Document])(Fixed.run)  # type: ignore[method-assign]
    inner: Any = component(Fixed)()
    ours = QueryTransformRetriever(inner, config="rules")
    return (
        "Haystack, `run`",
        lambda: inner.run(query=QUESTION, top_k=4),
        lambda: ours.run(query=QUESTION, top_k=4),
    )


ADAPTERS: Final = (adapt_langchain, adapt_llamaindex, adapt_haystack)


class Exporting(SpanExporter):
    """An exporter that takes all spans, never returns, or raises, as *how* says."""

    def __init__(self, how: str = "takes") -> None:
        self._how = how

    def export(self, _: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._how == "blocks":
            FOREVER.wait()
        if self._how == "raises":
            raise OSError("no route to host")
        return SpanExportResult.SUCCESS


def make_observer(processor: Any = None, **given: Any) -> OpenTelemetryObserver:
    """One with providers of its own: the spans go to *processor*, the metrics to a reader in memory."""
    provider = TracerProvider(**given)
    if processor is not None:
        provider.add_span_processor(processor)
    meters = MeterProvider(metric_readers=[InMemoryMetricReader()])
    return OpenTelemetryObserver(tracer_provider=provider, meter_provider=meters)


def make_observers() -> dict[str, OpenTelemetryObserver]:
    """The observer of each line."""
    return {
        "OpenTelemetry, no provider set": OpenTelemetryObserver(),
        "OpenTelemetry, a sampler that drops all": make_observer(sampler=ALWAYS_OFF),
        "OpenTelemetry, batch processor": make_observer(BatchSpanProcessor(Exporting())),
        "OpenTelemetry, an exporter that blocks": make_observer(
            SimpleSpanProcessor(Exporting("blocks"))
        ),
        "OpenTelemetry, an exporter that raises": make_observer(
            SimpleSpanProcessor(Exporting("raises"))
        ),
    }


def list_lines(seconds: float, config: dict[str, Any], *, with_model: bool = False) -> list[Line]:
    """What is measured around a function that takes *seconds*; with a model the spans alone."""

    def find(count: int) -> Sequence[str]:
        if seconds:
            time.sleep(seconds)
        return TEXTS[:count]

    def search(query: str, top_k: int = 4) -> list[dict[str, Any]]:  # noqa: ARG001
        return [
            {"id": str(n), "score": 1 - n / 99, "text": text} for n, text in enumerate(find(top_k))
        ]

    def wrap(more: Any = None, *observers: Any) -> Any:
        model = ScriptedModel(
            {"rewrite": "Is a fee of a hospital to be paid in spring?"}, name="scripted"
        )
        return qtm.QueryMiddleware(
            {**config, **(more or {})}, client=model, observers=observers
        ).wrap(search)

    plain = wrap()
    lines: list[Line] = [(PLAIN, "", lambda: search(QUESTION))]
    lines += [
        (WRAPPED, PLAIN, lambda: plain(QUESTION)),
        (RETRIEVE, PLAIN, lambda: plain.retrieve(QUESTION)),
    ]
    for name, it in make_observers().items():
        lines.append((name, RETRIEVE, partial(wrap(None, it).retrieve, QUESTION)))
    if with_model:
        return lines
    for share in (0.0, 0.05):
        lines.append(
            (f"shadow mode, `{share:g}`", PLAIN, partial(wrap({"shadow": share}), QUESTION))
        )
    for adapt in ADAPTERS:
        try:
            name, bare, ours = adapt(find)
        except (ImportError, MissingExtra) as error:
            print(f"{adapt.__doc__} is left out: {error}")
            continue
        lines += [(f"{name}: its own", PLAIN, bare), (f"{name}: ours", RETRIEVE, ours)]
    return lines


def measure(lines: Sequence[Line], rounds: int) -> dict[str, list[float]]:
    """Microseconds of each call of each line, which take turns."""
    took: dict[str, list[float]] = {name: [] for name, _, _ in lines}
    for turn in range(min(WARM_UP, rounds) + rounds):
        for name, _, call in lines:
            began = perf_counter()
            call()
            spent = (perf_counter() - began) * 1e6
            time.sleep(PAUSE)
            if turn >= min(WARM_UP, rounds):
                took[name].append(spent)
    return took


def format_table(lines: Sequence[Line], took: dict[str, list[float]]) -> str:
    """A row a line: its median, and what it adds to the line it stands around, by medians and by lowest deciles."""
    rows = [
        "| | median | adds | ratio | undisturbed | adds | around |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    least = {name: quantiles(spent, n=10)[0] for name, spent in took.items()}
    for name, base, _ in lines:
        middle = median(took[name])
        cells = [name, f"{middle:,.0f}", "", "", f"{least[name]:,.0f}", "", base]
        if base:
            under = median(took[base])
            cells[2:4] = f"{middle - under:+,.0f}", f"{middle / under:.2f}"
            cells[5] = f"{least[name] - least[base]:+,.0f}"
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    """Measure and print."""
    what, *_ = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapter_costs", description=what)
    parser.add_argument(
        "--rounds",
        type=int,
        default=400,
        help="calls of each line; a quarter around a search of 20 ms",
    )
    parser.add_argument("--keep", action="store_true", help="write results/adapter_costs.md")
    given = parser.parse_args()
    # The SDK logs a traceback for each span that an exporter of ours fails with.
    logging.disable(logging.CRITICAL)
    told = [
        f"""# What each layer costs around a function

`python -m benchmarks.adapter_costs --rounds {given.rounds} --keep`

Python {platform.python_version()}, {os.cpu_count()} processors with a load of {os.getloadavg()[0]:.1f} at the start,
opentelemetry {version("opentelemetry-api")}.

Microseconds of the caller's time: the median, what it adds to the line named last and the ratio of the two; then the
tenth of the calls that the machine disturbed least, and what that adds. All lines of a table take turns."""
    ]
    rewriting = {"transformationType": "rewrite", "cache": {"enabled": False}}
    for title, seconds, config, rounds, with_model in (
        ("A function that answers at once, rules alone", 0.0, {}, given.rounds, False),
        ("One that takes 20 ms", 0.02, {}, max(10, given.rounds // 4), False),
        ("A model that answers at once, four spans", 0.0, rewriting, given.rounds, True),
    ):
        lines = list_lines(seconds, config, with_model=with_model)
        told.append(f"## {title}\n\n{format_table(lines, measure(lines, rounds))}")
    text = "\n\n".join(told) + "\n"
    print(text, flush=True)
    if given.keep:
        RESULT.write_text(text, encoding="utf-8")
    # Threads that hang in an exporter are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
