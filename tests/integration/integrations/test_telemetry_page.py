"""The tables of docs/telemetry.md are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from qtmiddleware.integrations.opentelemetry import CAPTURE_CONTENT
from qtmiddleware.integrations.opentelemetry.names import CONTENT, METRICS, SPANS, Names

PAGE = (Path(__file__).parents[3] / "docs" / "telemetry.md").read_text(encoding="utf-8")
NAMES = {value for name, value in vars(Names).items() if not name.startswith("_")}
LABELS_ALONE = {Names.STAGE, Names.REASON, Names.MODALITY, Names.COST_OF}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below *heading*, without its head."""
    _, _, below = PAGE.partition(f"| {heading} |")
    table, _, _ = below.partition("\n\n")
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]
    ]


def read_names(cell: str) -> list[str]:
    """The names in *cell*, each between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def test_every_attribute_of_spans_is_in_the_table_once() -> None:
    told = [name for row in rows("attribute") for name in read_names(row[0])]
    assert sorted(told) == sorted(NAMES - LABELS_ALONE)


def test_what_is_content_is_marked_so() -> None:
    marked = {
        name for row in rows("attribute") if "**content**" in row[2] for name in read_names(row[0])
    }
    assert marked == CONTENT
    assert CAPTURE_CONTENT in PAGE


def test_every_metric_is_in_the_table_with_its_unit_and_labels_that_exist() -> None:
    told = [(name, row[1].strip("`")) for row in rows("metric") for name in read_names(row[0])]
    assert told == [(row.name, row.unit) for row in METRICS]
    label_in = re.compile(r"`((?:gen_ai|qtmiddleware|error|server)\.[\w.]+)`")
    labels = {label for row in rows("metric") for label in label_in.findall(row[2])}
    assert labels <= NAMES
    assert labels >= LABELS_ALONE


def test_every_kind_of_span_is_in_the_table_with_its_kind() -> None:
    told = {row[0].strip("|` ").split()[0]: row[1] for row in rows("span")}
    assert told == {row.title: row.kind.name.lower() for row in SPANS.values()}
