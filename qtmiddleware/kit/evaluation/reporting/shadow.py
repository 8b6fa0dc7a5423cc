"""Write a report on shadow mode as sentences, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.reporting import figures
from qtmiddleware.kit.evaluation.reporting.markdown import escape_text, format_table
from qtmiddleware.kit.evaluation.shadow import ShadowQuestion, ShadowReport
from qtmiddleware.preprocessing.text import format_count

_QUESTION_LENGTH, _NAME_LENGTH = 400, 120
_UNJUDGED: Final = (
    "This shows how much would change, not whether it would be better. "
    "With --judge, a language model compares the lists."
)
_CHANGES: Final = {
    "passages": "other passages",
    "order": "the same passages in another order",
    "same": "the same list",
}


def format_shadow_headline_and_details(report: ShadowReport) -> tuple[str, str]:
    """Return the headline and the details of a report on shadow mode, both as sentences.

    The headline counts the questions whose first passage would change. The details state the other
    changes, and the time, searches, model calls and price per question.
    """
    questions = report.questions
    other_count, total_text = (
        sum(not question.is_first_same for question in questions),
        format_count(len(questions), "question"),
    )
    same_count = sum(question.change == "same" for question in questions)
    same_lists = f"{_format_count(same_count)} would get the same list"
    headline = (
        f"Another passage would come first for {other_count:,} of {total_text}; {same_lists}."
    )
    if not other_count:
        subject = f"{'all' if len(questions) > 1 else 'the'} {total_text}"
        rest = f"; {same_lists}." if same_count < len(questions) else ", in the same list."
        headline = f"The same passage would come first for {subject}{rest}"
    record = report.to_dict()
    # The third share, the questions with the same list, is in the headline.
    changes = " and ".join(
        f"{_format_count(count)} would get {name}"
        for name, count in list(_count_changes(report).items())[:2]
    )
    changes = f"{changes[:1].upper()}{changes[1:]}"
    after, before = (
        figures.format_duration(record[times]["median"]) for times in ("ms", "plainMs")
    )
    searches, calls = (figures.format_rate(record[name]) for name in ("searches", "llmCalls"))
    return (
        headline,
        (
            f"{changes}. Half of the questions would take {after} or less, instead of {before}. A"
            f" question would take {searches} searches and {calls} model calls,"
            f" {_format_price(record)}."
        ),
    )


def _count_changes(report: ShadowReport) -> dict[str, int]:
    """Return the numbers of questions with other passages, with another order, and unchanged."""
    return {
        name: sum(question.change == kind for question in report.questions)
        for kind, name in _CHANGES.items()
    }


def shadow_markdown(report: ShadowReport, examples: Sequence[ShadowQuestion] = ()) -> str:
    """Return the whole *report* as GitHub Markdown. Both lists of each of *examples* are shown.

    Raises `ConfigError` if no question was logged.
    """
    if not report.questions:
        raise ConfigError(
            "a report needs a question that was retrieved in shadow mode", path="report"
        )
    headline, lede = format_shadow_headline_and_details(report)
    shares = [
        [name, f"{count:,}", figures.format_share(count / len(report.questions))]
        for name, count in _count_changes(report).items()
    ]
    paragraphs = [
        f"# {headline}",
        escape_text(lede, _QUESTION_LENGTH),
        *(f"> **Note:** {escape_text(note, _QUESTION_LENGTH)}" for note in _collect_notes(report)),
        format_table(["would get", "questions", "share"], shares),
        format_table(["per question", "plain", "ours"], _build_cost_rows(report)),
        *(
            [format_table(["the judge prefers", "questions"], votes)]
            if (votes := _build_verdict_rows(report))
            else []
        ),
        *(_format_example(question) for question in examples),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _format_count(count: int) -> str:
    return f"{count:,}" if count else "none"


def _format_price(figures_record: dict[str, Any]) -> str:
    """Return the price per 1,000 questions in words.

    *figures_record* is the result of `ShadowReport.to_dict`.
    """
    cost = figures_record["costUsd"]
    return (
        "at an unknown price"
        if cost is None
        else f"for {figures.format_dollars(1e3 * cost)} per 1,000 questions"
    )


def _collect_notes(report: ShadowReport) -> tuple[str, ...]:
    """Return notes for readers of the report, such as the number of unreadable lines."""
    notes = [] if report.judge else [_UNJUDGED]
    if report.dropped_calls:
        notes.append(
            f"{report.dropped_calls:,} more calls were dropped, because too many were running."
        )
    if report.unreadable:
        notes.append(f"{report.unreadable:,} lines of the log could not be read.")
    return tuple(notes)


def _build_cost_rows(report: ShadowReport) -> list[tuple[str, str, str]]:
    """Return one row per cost: its name, and its values without and with qtmiddleware."""
    record = report.to_dict()
    cost = record["costUsd"]

    def format_time(times_name: str, statistic: str) -> str:
        return figures.format_duration(record[times_name][statistic])

    # The caller's function made one search and called no model, so its figures are fixed.
    return [
        ("time, median", format_time("plainMs", "median"), format_time("ms", "median")),
        ("time, 95 of 100 within", format_time("plainMs", "p95"), format_time("ms", "p95")),
        ("searches", "1.00", figures.format_rate(record["searches"])),
        ("model calls", "0.00", figures.format_rate(record["llmCalls"])),
        ("tokens", "0", f"{record['tokens']:,.0f}"),
        (
            "price per 1,000 questions", figures.UNKNOWN,
            figures.UNKNOWN if cost is None else figures.format_dollars(1e3 * cost),
        ),
        ("degraded results", figures.UNKNOWN, figures.format_share(record["degraded"])),
    ]  # fmt: skip


def _build_verdict_rows(report: ShadowReport) -> list[list[str]]:
    """Return one row per possible verdict: its name, and the number of questions that have it.

    Returns an empty list if no question was judged.
    """
    votes = report.count_verdicts()
    return [
        [name, f"{votes.get(name, 0):,}"]
        for name in ("ours", "plain", "neither", "failed")
        if votes
    ]


def _describe_change(question: ShadowQuestion) -> str:
    """Return the difference between a question's two lists in words, such as ``2 new``.

    If the lists were judged, the text also names the list that the judge prefers.
    """
    list_change = f"{question.new_count} new" if question.new_count else "another order"
    first_change = "" if question.is_first_same else ", another first"
    preference = {None: "", "failed": "; the judge failed"}.get(
        question.better, f"; the judge prefers {question.better}"
    )
    return f"{list_change}{first_change}{preference}"


def _escape_cell(text: str) -> str:
    return escape_text(text, _NAME_LENGTH)


def _format_example(question: ShadowQuestion) -> str:
    """Return *question* as a Markdown section: heading, difference, and a table of both lists."""
    rows = max(len(question.plain), len(question.ours))
    lists = [
        [_escape_cell(passage.name) for passage in passages]
        for passages in (question.plain, question.ours)
    ]
    lines = [
        [str(row + 1), *(names[row] if row < len(names) else "" for names in lists)]
        for row in range(rows)
    ]
    heading = f"## {escape_text(question.query, _QUESTION_LENGTH)}"
    change = _describe_change(question)
    return (
        f"{heading}\n\n{change[:1].upper()}{change[1:]}.\n\n"
        f"{format_table(['place', 'plain', 'ours'], lines)}"
    )
