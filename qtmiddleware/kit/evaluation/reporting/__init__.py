"""Write reports on a comparison: rows for a terminal, Markdown, and one HTML page.

from qtmiddleware import evaluation, reporting
comparison = evaluation.compare(retrieve, queries, qrels)
reporting.verdict(comparison)
Path("report.html").write_text(reporting.page(comparison), encoding="utf-8")
"""

from __future__ import annotations

from qtmiddleware.kit.evaluation.reporting.figures import headings, rows
from qtmiddleware.kit.evaluation.reporting.markdown import markdown
from qtmiddleware.kit.evaluation.reporting.page import page
from qtmiddleware.kit.evaluation.reporting.ranking import ranking_markdown, ranking_page
from qtmiddleware.kit.evaluation.reporting.regression import (
    write_comment,
    write_headline,
    write_sentences,
)
from qtmiddleware.kit.evaluation.reporting.shadow import shadow_markdown
from qtmiddleware.kit.evaluation.reporting.verdicts import verdict

__all__ = [
    "headings",
    "markdown",
    "page",
    "ranking_markdown",
    "ranking_page",
    "rows",
    "shadow_markdown",
    "verdict",
    "write_comment",
    "write_headline",
    "write_sentences",
]
