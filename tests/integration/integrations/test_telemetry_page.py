"""The tables of docs/telemetry.md are those of what is emitted."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from qtmiddleware.integrations.opentelemetry import CAPTURE_CONTENT
from qtmiddleware.protocols import Prompt, Reply
from tests.support.completions import embeddings
from tests.support.retrieval_world import QUERY, REPLIES, search
from tests.support.telemetry_world import REWRITE, Billing, Telemetry

PAGE = (Path(__file__).parents[3] / "docs" / "telemetry.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below *heading*, without its head."""
    _, _, below = PAGE.partition(f"| {heading} |")
    table, _, _ = below.partition("\n\n")
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]
    ]


class Embedder:
    """Has all that a span tells of a model."""

    name, provider, server, dimension = "small-embed", "openai", ("a.example", 443), 2

    def embed(self, texts: list[str]) -> dict[str, object]:
        usage = {"prompt_tokens": 7, "total_tokens": 7}
        return {**embeddings([[0.0, 1.0]] * len(texts)), "usage": usage}


class Model(Billing):
    """Answers a rewrite with its fields, and the rest with a citation of what is not there."""

    def complete(self, prompt: Prompt, deadline: object) -> Reply:  # type: ignore[override]
        text = REPLIES.get(prompt.mode) and json.dumps(REPLIES[prompt.mode])
        return Reply(
            text or "Jaco is well [1] [9].",
            1,
            2,
            cost_usd=0.5,
            model="m-1",
            id="c-1",
        )


@cache
def use_everything(**options: bool) -> Telemetry:
    telemetry = Telemetry(data_source_id="guides", **options)
    config = {
        **REWRITE,
        "answer": {"timeoutMs": 50_000},
        "rerank": {"enabled": True},
        "escalation": {"mode": "always"},
        "cache": {"enabled": False},
    }
    wrapped = telemetry.wrap(
        lambda vector, top_k=4: search(QUERY, top_k),
        config,
        client=Model(Reply("")),
        embed=Embedder(),
        reranker=lambda query, texts: [1.0] * len(texts),
    )
    wrapped.answer(QUERY)
    for _ in range(25):  # the confidence is told when there is something to compare with
        wrapped.retrieve(QUERY)
    wrapped.middleware.transform(QUERY)
    down = telemetry.wrap(lambda query, top_k=4: {}[query], {})
    for _ in range(2):
        try:
            down.retrieve(QUERY)
        except KeyError:
            continue
    return telemetry


def names_of_spans(telemetry: Telemetry) -> set[str]:
    return {name for span in telemetry.spans() for name in span.attributes or {}}


NAME = re.compile(r"`((?:gen_ai|qtmiddleware|error|server)\.[\w.]+)`")


def test_every_attribute_of_spans_is_in_the_table_once_and_content_is_marked() -> None:
    told = {row[0]: NAME.findall(row[1]) for row in rows("spans | attributes")}
    every, plain = (names_of_spans(use_everything(capture_content=it)) for it in (True, False))
    assert sorted(name for names in told.values() for name in names) == sorted(every)
    assert set(told["**content**"]) == every - plain
    assert CAPTURE_CONTENT in PAGE


def test_every_metric_is_in_the_table_with_labels_that_exist() -> None:
    points = use_everything().points()
    told = rows("metric | unit | labels")
    assert {name for row in told for name in NAME.findall(row[0])} == set(points)
    labels = {label for row in told for label in NAME.findall(row[2])}
    assert labels >= {label for it in points.values() for point, _ in it for label in point}


def test_every_kind_of_span_is_in_the_table_with_its_kind() -> None:
    told = {row[0].strip("|` ").split()[0]: row[1] for row in rows("span | kind | what it covers")}
    spans = use_everything().spans()
    assert told == {it.name.split()[0]: it.kind.name.lower() for it in spans}
