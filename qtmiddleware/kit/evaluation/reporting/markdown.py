"""Write a comparison as Markdown, for example for a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from qtmiddleware.kit.evaluation import PRIMARY, Comparison, Dataset, Percentiles
from qtmiddleware.kit.evaluation.reporting import figures
from qtmiddleware.kit.evaluation.reporting.figures import choose_columns, headings, rows
from qtmiddleware.kit.evaluation.reporting.verdicts import (
    WorseQuestion,
    WorstQuestionFinder,
    collect_notes,
    find_best_system,
    format_headline_and_details,
)
from qtmiddleware.preprocessing.text import format_count, shorten_text

_WORST: Final = 5
"""A report shows at most this many of the questions that lost most."""
_NAME_LENGTH, _TEXT_LENGTH, _NOTE_LENGTH = figures.NAME_LENGTH, 240, 400
# Characters to escape. An underscore inside a word is no emphasis and needs no escape.
_MARKUP: Final = re.compile(r"[\\`*\[\]|~#$]|(?<!\w)@|(?<![^\W_])_|_(?![^\W_])")
_BLOCK_START: Final = re.compile(r"^(?:([-+=])|(\d+)([.)]))")
# GitHub turns a bare address into a link.
_ADDRESS: Final = re.compile(r"(?i)(https?|ftp|mailto)(:)|(www)(\.)")


def markdown(comparison: Comparison, data: Dataset | None = None) -> str:
    """Return the comparison as GitHub Markdown.

    The Markdown has a headline, the verdict, notes, figures and the time of each stage. At the end,
    it lists the questions that lost most with the best system, and the queries that the system
    searched for them. Names and texts are escaped.

    Args:
        comparison: The comparison.
        data: The data set. It has the texts of questions that the systems did not report.
    """
    count = comparison.questions
    passages = "" if comparison.passages is None else f", {comparison.passages:,} passages"
    headline, details = format_headline_and_details(comparison)
    sections = [
        f"# {escape_text(headline, 10 * _NOTE_LENGTH)}",
        escape_text(details, 10 * _NOTE_LENGTH),
        (
            f"## {escape_text(comparison.dataset, _NAME_LENGTH)}: "
            f"{format_count(count, 'question')}{passages}"
        ),
        *(
            f"> **Note:** {escape_text(note, _NOTE_LENGTH)}"
            for note in collect_notes(comparison, data)
        ),
        _format_figures_table(comparison),
        _format_stages(comparison),
        _format_worst_questions(comparison, data),
        escape_text(describe_method(comparison), 10 * _NOTE_LENGTH),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def escape_text(text: str, max_length: int) -> str:
    """Return *text* on one line, cut to *max_length* characters and escaped for Markdown."""
    line = (
        shorten_text(text, max_length)
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )
    line = _MARKUP.sub(lambda match: "\\" + match[0], line)
    line = _ADDRESS.sub(lambda match: f"{match[1] or match[3]}&#{ord(match[2] or match[4])};", line)
    return _BLOCK_START.sub(
        lambda match: f"\\{match[1]}" if match[1] else f"{match[2]}\\{match[3]}", line
    )


def format_table(column_titles: Sequence[str], table_rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with *column_titles* and *table_rows*.

    Titles and cells must be escaped already. The first column is aligned left, the others right.
    """
    ruled = [
        list(column_titles),
        ["---", *["---:"] * (len(column_titles) - 1)],
        *map(list, table_rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)


def _format_figures_table(comparison: Comparison) -> str:
    """Return a Markdown table of all figures, and an explanation of the table's columns."""
    # Only names need escaping. Numbers contain no markup.
    lines = [
        [escape_text(name, _NAME_LENGTH), *map(str.strip, cells)]
        for name, *cells in rows(comparison, wide=True)
    ]
    return (
        f"{format_table(headings(comparison, wide=True), lines)}\n\n"
        f"{escape_text(describe_columns(comparison), 10 * _NOTE_LENGTH)}."
    )


def describe_columns(comparison: Comparison) -> str:
    """Return the meaning of each column in the table of figures."""
    missing = figures.describe_missing_time(comparison)
    return "; ".join(
        f"{column.heading}: {column.means}{missing if 'milliseconds' in column.means else ''}"
        for column in choose_columns(comparison)
    )


def _format_stages(comparison: Comparison) -> str:
    """Return a Markdown list of each system's time per stage; ``""`` if no time is known."""
    lines = []
    for score in comparison.systems:
        times = ", ".join(
            _format_stage_times(stage, percentiles)
            for stage, percentiles in score.stages_ms.items()
        )
        if times:
            lines.append(f"- {escape_text(score.name, _NAME_LENGTH)}: {times}")
    return "\n".join(["### Time of each stage: p50 / p95, ms", "", *lines]) if lines else ""


def _format_stage_times(stage: str, percentiles: Percentiles) -> str:
    """Return the name of *stage* with its median time and 95th percentile, in milliseconds."""
    p50, p95 = (
        figures.format_milliseconds(percentiles.p50),
        figures.format_milliseconds(percentiles.p95),
    )
    return f"{escape_text(stage, _NAME_LENGTH)} {p50} / {p95}"


def _format_worst_questions(comparison: Comparison, dataset: Dataset | None) -> str:
    """Return a Markdown list of the questions that lost most with the best system.

    Returns ``""`` if no question got worse.
    """
    best = find_best_system(comparison)
    hurt = WorstQuestionFinder(comparison, dataset).find_worst_questions(best)[:_WORST]
    if not hurt:
        return ""
    entries = "\n".join(
        _format_question(number, question) for number, question in enumerate(hurt, 1)
    )
    return (
        "### Questions that get worse most with"
        f" {escape_text(best.name, _NAME_LENGTH)}\n\n{entries}"
    )


def _format_question(number: int, question: WorseQuestion) -> str:
    """Return *question* as a Markdown list item, with its search queries as sub-items."""
    # Markdown takes a line as a sub-item only if it is indented up to the item's text.
    indent = " " * (len(str(number)) + 2)
    text = escape_text(question.question, _TEXT_LENGTH) or "its text is not known"
    loss = (
        f"{PRIMARY} {figures.format_measure(question.before)} to"
        f" {figures.format_measure(question.after)}"
    )
    lines = [f"{number}. {escape_text(question.id, _NAME_LENGTH)} ({loss}): {text}"]
    for variant in question.variants:
        kind, weight = escape_text(variant.kind, _NAME_LENGTH), figures.format_rate(variant.weight)
        lines.append(
            f"{indent}- {kind}, weight {weight}: {escape_text(variant.text, _TEXT_LENGTH)}"
        )
    return "\n".join(lines)


def describe_method(comparison: Comparison) -> str:
    """Return a sentence on the statistical methods of the comparison."""
    count = len(comparison.challengers)
    return (
        f"Compared with {shorten_text(comparison.baseline, _NAME_LENGTH)}: paired bootstrap"
        f" interval and two-sided paired randomisation test, seed {comparison.seed}, corrected for"
        f" {format_count(count, 'comparison')} after"
        f" Holm.{f' Data: sha256 {comparison.data_hash}.' if comparison.data_hash else ''}"
    )
