"""The comparison as Markdown, for pull requests, notes and results that are kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from qtmiddleware.evaluation import PRIMARY, Comparison, Dataset, SystemScore
from qtmiddleware.reporting import figures
from qtmiddleware.reporting.hurt import Hurt, Hurting
from qtmiddleware.reporting.table import columns, headings, rows
from qtmiddleware.reporting.verdicts import foremost, notes, verdict
from qtmiddleware.reporting.wording import short

WORST: Final = 5
"""So many of the questions that the best system hurt are told."""
_NAME_LENGTH, _TEXT_LENGTH, _NOTE_LENGTH = 60, 240, 400
_TRANSFORM: Final = "transform."
# An underscore within a word is no emphasis, and reads better as it is. An address would become a link of its own.
_MEANS_SOMETHING: Final = re.compile(r"[\\`*\[\]|~#$]|(?<!\w)@|(?<![^\W_])_|_(?![^\W_])")
_STARTS_SOMETHING: Final = re.compile(r"^(?:([-+=])|(\d+)([.)]))")
_ADDRESS: Final = re.compile(r"(?i)(https?|ftp|mailto)(:)|(www)(\.)")


def markdown(comparison: Comparison, data: Dataset | None = None) -> str:
    """The comparison as GitHub's Markdown: verdict, notes, all figures, times of stages, and the worst questions.

    The worst questions are those of the system that did best, with what was searched; *data* gives their words where
    the systems did not tell them. Texts of others are escaped, so that none of them is markup.
    """
    parts = [
        f"## {plain(comparison.dataset, _NAME_LENGTH)}: {_size(comparison)}",
        plain(verdict(comparison), 10 * _NOTE_LENGTH),
        *(f"> **Note:** {plain(note, _NOTE_LENGTH)}" for note in notes(comparison, data)),
        _figures(comparison),
        _stages(comparison),
        _worst(comparison, data),
        _method(comparison),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(text: str, length: int) -> str:
    """*text* on one line and cut to *length*, written so that Markdown shows it as it is."""
    line = short(text, length).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = _MEANS_SOMETHING.sub(lambda found: "\\" + found[0], line)
    line = _ADDRESS.sub(lambda found: f"{found[1] or found[3]}&#{ord(found[2] or found[4])};", line)
    return _STARTS_SOMETHING.sub(lambda found: f"\\{found[1]}" if found[1] else f"{found[2]}\\{found[3]}", line)


def grid(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table of cells that are Markdown already; the first column is set left, the others right."""
    ruled = [list(titles), ["---", *["---:"] * (len(titles) - 1)], *map(list, lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)


def _size(comparison: Comparison) -> str:
    passages = "" if comparison.passages is None else f", {comparison.passages:,} passages"
    return f"{comparison.questions:,} question{'' if comparison.questions == 1 else 's'}{passages}"


def _figures(comparison: Comparison) -> str:
    # Numbers hold nothing that Markdown would read; only names do.
    lines = [[plain(name, _NAME_LENGTH), *map(str.strip, cells)] for name, *cells in rows(comparison, wide=True)]
    meanings = "; ".join(f"{column.heading}: {column.means}" for column in columns(comparison))
    return f"{grid(headings(comparison, wide=True), lines)}\n\n{plain(meanings, 10 * _NOTE_LENGTH)}."


def _stages(comparison: Comparison) -> str:
    """Each stage's times a system; the many ways to transform share a column."""
    names = dict.fromkeys(_column(stage) for score in comparison.systems for stage in score.stages_ms)
    if not names:
        return ""
    lines = [
        [plain(score.name, _NAME_LENGTH), *(_times(score, name) for name in names)] for score in comparison.systems
    ]
    titles = ["p50 / p95, ms", *(plain(name, _NAME_LENGTH) for name in names)]
    return f"### Time of each stage\n\n{grid(titles, lines)}"


def _column(stage: str) -> str:
    return _TRANSFORM.removesuffix(".") if stage.startswith(_TRANSFORM) else stage


def _times(score: SystemScore, column: str) -> str:
    """What stands in a cell: two times, or several with what they are of."""
    found = {stage: took for stage, took in score.stages_ms.items() if _column(stage) == column}
    told = [
        (stage.removeprefix(_TRANSFORM), f"{figures.milliseconds(took.p50)} / {figures.milliseconds(took.p95)}")
        for stage, took in found.items()
    ]
    if len(told) > 1:
        return ", ".join(f"{plain(stage, _NAME_LENGTH)} {times}" for stage, times in told)
    return told[0][1] if told else figures.UNKNOWN


def _worst(comparison: Comparison, data: Dataset | None) -> str:
    best = foremost(comparison)
    hurt = Hurting(comparison, data).of(best)[:WORST]
    if not hurt:
        return ""
    told = "\n".join(_told(number, one) for number, one in enumerate(hurt, 1))
    return f"### Questions that {plain(best.name, _NAME_LENGTH)} hurt most\n\n{told}"


def _told(number: int, hurt: Hurt) -> str:
    """One question as an entry of a list, with what was searched beneath it."""
    indent = " " * (len(str(number)) + 2)
    question = plain(hurt.question, _TEXT_LENGTH) or "its words are not known"
    fell = f"{PRIMARY} {figures.value(hurt.before)} to {figures.value(hurt.after)}"
    lines = [f"{number}. {plain(hurt.id, _NAME_LENGTH)} ({fell}): {question}"]
    for variant in hurt.variants:
        text = plain(variant.text, _TEXT_LENGTH)
        lines.append(f"{indent}- {plain(variant.kind, _NAME_LENGTH)}, weight {figures.rate(variant.weight)}: {text}")
    return "\n".join(lines)


def _method(comparison: Comparison) -> str:
    count = len(comparison.challengers)
    return (
        f"Held against {plain(comparison.baseline, _NAME_LENGTH)}: paired bootstrap interval and two-sided paired "
        f"randomisation test, seed {comparison.seed}, corrected for {count} comparison{'' if count == 1 else 's'} "
        f"after Holm.{f' Data: sha256 {comparison.data_hash}.' if comparison.data_hash else ''}"
    )
