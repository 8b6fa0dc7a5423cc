"""The comparison as Markdown, for pull requests, notes and results that are kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from qtmiddleware.kit.evaluation import PRIMARY, Comparison, Dataset, Percentiles
from qtmiddleware.kit.evaluation.reporting import figures
from qtmiddleware.kit.evaluation.reporting.figures import choose_columns, headings, rows
from qtmiddleware.kit.evaluation.reporting.verdicts import (
    Decision,
    HurtFinder,
    HurtQuestion,
    collect_notes,
    find_foremost,
    write_verdict,
)
from qtmiddleware.preprocessing.text import shorten

_WORST: Final = 5
"""How many of the questions that the best system hurt are shown."""
_NAME_LENGTH, _TEXT_LENGTH, _NOTE_LENGTH = figures.NAME_LENGTH, 240, 400
# An underscore within a word is no emphasis, and reads better as it is. An address would become a
# link of its own.
_MARKUP: Final = re.compile(r"[\\`*\[\]|~#$]|(?<!\w)@|(?<![^\W_])_|_(?![^\W_])")
_BLOCK_START: Final = re.compile(r"^(?:([-+=])|(\d+)([.)]))")
_ADDRESS: Final = re.compile(r"(?i)(https?|ftp|mailto)(:)|(www)(\.)")


def markdown(
    comparison: Comparison, data: Dataset | None = None, *, decision: Decision | None = None
) -> str:
    """The comparison as GitHub's Markdown: headline, verdict, notes, figures, times of stages, and the worst questions.

    The worst questions are those of the system that did best, with what was searched; *data* gives
    their words where the systems did not tell them. A *decision* takes the place of the verdict.
    Texts of others are escaped, so that none of them is markup.
    """
    count = comparison.questions
    passages = "" if comparison.passages is None else f", {comparison.passages:,} passages"
    headline, beside = write_verdict(comparison, decision)
    parts = [
        f"# {escape_text(headline, 10 * _NOTE_LENGTH)}",
        *_write_rest(beside, decision),
        (
            f"## {escape_text(comparison.dataset, _NAME_LENGTH)}: {count:,}"
            f" question{'' if count == 1 else 's'}{passages}"
        ),
        *(
            f"> **Note:** {escape_text(note, _NOTE_LENGTH)}"
            for note in collect_notes(comparison, data)
        ),
        _write_figures(comparison),
        _write_stages(comparison),
        _write_worst(comparison, data, decision),
        _write_method(comparison),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape_text(text: str, length: int) -> str:
    """*text* on one line and cut to *length*, written so that Markdown shows it as it is."""
    line = shorten(text, length).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = _MARKUP.sub(lambda found: "\\" + found[0], line)
    line = _ADDRESS.sub(lambda found: f"{found[1] or found[3]}&#{ord(found[2] or found[4])};", line)
    return _BLOCK_START.sub(
        lambda found: f"\\{found[1]}" if found[1] else f"{found[2]}\\{found[3]}", line
    )


def write_table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown already; the first column is set left, the others right."""
    ruled = [list(titles), ["---", *["---:"] * (len(titles) - 1)], *map(list, lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)


def _write_figures(comparison: Comparison) -> str:
    # Numbers hold nothing that Markdown would read; only names do.
    lines = [
        [escape_text(name, _NAME_LENGTH), *map(str.strip, cells)]
        for name, *cells in rows(comparison, wide=True)
    ]
    missing = figures.describe_missing_time(comparison)
    meanings = "; ".join(
        f"{column.heading}: {column.means}{missing if 'milliseconds' in column.means else ''}"
        for column in choose_columns(comparison)
    )
    return f"{write_table(headings(comparison, wide=True), lines)}\n\n{escape_text(meanings, 10 * _NOTE_LENGTH)}."


def _write_stages(comparison: Comparison) -> str:
    """Each stage's times of each system."""
    lines = []
    for score in comparison.systems:
        times = ", ".join(_write_times(stage, took) for stage, took in score.stages_ms.items())
        if times:
            lines.append(f"- {escape_text(score.name, _NAME_LENGTH)}: {times}")
    return "\n".join(["### Time of each stage: p50 / p95, ms", "", *lines]) if lines else ""


def _write_times(stage: str, took: Percentiles) -> str:
    p50, p95 = figures.format_milliseconds(took.p50), figures.format_milliseconds(took.p95)
    return f"{escape_text(stage, _NAME_LENGTH)} {p50} / {p95}"


def _write_rest(beside: str, decision: Decision | None) -> list[str]:
    """The paragraphs below the headline; a decision's sentences as a list, with the config that is written."""
    if decision is None:
        return [escape_text(beside, 10 * _NOTE_LENGTH)]
    sentences = filter(None, (beside, *decision.sentences))
    config = [f"```json\n{decision.config.replace('`', '')}\n```"] if decision.config else []
    return [
        "\n".join(f"- {escape_text(sentence, 10 * _NOTE_LENGTH)}" for sentence in sentences),
        *config,
    ]


def _write_worst(comparison: Comparison, data: Dataset | None, decision: Decision | None) -> str:
    best = find_foremost(comparison) if decision is None else comparison[decision.system]
    hurt = HurtFinder(comparison, data).find(best)[:_WORST]
    if not hurt:
        return ""
    entries = "\n".join(_write_question(number, one) for number, one in enumerate(hurt, 1))
    return (
        "### Questions that get worse most with"
        f" {escape_text(best.name, _NAME_LENGTH)}\n\n{entries}"
    )


def _write_question(number: int, hurt: HurtQuestion) -> str:
    """One question as an entry of a list, with what was searched beneath it."""
    indent = " " * (len(str(number)) + 2)
    question = escape_text(hurt.question, _TEXT_LENGTH) or "its text is not known"
    fell = (
        f"{PRIMARY} {figures.format_measure(hurt.before)} to {figures.format_measure(hurt.after)}"
    )
    lines = [f"{number}. {escape_text(hurt.id, _NAME_LENGTH)} ({fell}): {question}"]
    for variant in hurt.variants:
        kind, weight = escape_text(variant.kind, _NAME_LENGTH), figures.format_rate(variant.weight)
        lines.append(
            f"{indent}- {kind}, weight {weight}: {escape_text(variant.text, _TEXT_LENGTH)}"
        )
    return "\n".join(lines)


def _write_method(comparison: Comparison) -> str:
    count = len(comparison.challengers)
    return (
        f"Compared with {escape_text(comparison.baseline, _NAME_LENGTH)}: paired bootstrap interval"
        f" and two-sided paired randomisation test, seed {comparison.seed}, corrected for {count}"
        f" comparison{'' if count == 1 else 's'} after"
        f" Holm.{f' Data: sha256 {comparison.data_hash}.' if comparison.data_hash else ''}"
    )
