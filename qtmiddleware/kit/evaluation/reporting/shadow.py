"""What shadow mode logged, told to people: a sentence, Markdown, and a page like that of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.reporting import figures
from qtmiddleware.kit.evaluation.reporting.markdown import escape_text, write_table
from qtmiddleware.kit.evaluation.reporting.template import render
from qtmiddleware.kit.evaluation.shadow import ShadowQuestion, ShadowReport, Shown
from qtmiddleware.preprocessing.text import shorten

_QUESTION_LENGTH, _NAME_LENGTH, _TEXT_LENGTH = 400, 120, 160
_UNJUDGED: Final = (
    "This shows how much would change, not whether it would be better. "
    "With --judge, a language model compares the lists."
)
_SHARES: Final = {
    "passages": "other passages",
    "order": "the same passages in another order",
    "same": "the same list",
}


@dataclass(frozen=True, slots=True)
class Share:
    """How many of the questions something would happen to; *percent* of them all."""

    name: str
    count: int
    percent: float
    kind: str


def write_shadow_verdict(report: ShadowReport) -> tuple[str, str]:
    """Return a headline on whose first passage would change, and what must be known with it: changes and price."""
    asked = report.questions
    other, worded = sum(not it.is_first_same for it in asked), _count(len(asked))
    same = sum(it.change == "same" for it in asked)
    same_lists = f"{_count_or_none(same)} would get the same list"
    headline = f"Another passage would come first for {other:,} of {worded}; {same_lists}."
    if not other:
        whose = f"{'all' if len(asked) > 1 else 'the'} {worded}"
        rest = f"; {same_lists}." if same < len(asked) else ", in the same list."
        headline = f"The same passage would come first for {whose}{rest}"
    plain = report.to_dict()
    changes = " and ".join(
        f"{_count_or_none(it.count)} would get {it.name}" for it in list_shares(report)[:2]
    )
    changes = f"{changes[:1].upper()}{changes[1:]}"
    took, before = (figures.format_duration(plain[times]["median"]) for times in ("ms", "plainMs"))
    searches, calls = (figures.format_rate(plain[name]) for name in ("searches", "llmCalls"))
    return (
        headline,
        (
            f"{changes}. Half of the questions would take {took} or less, instead of {before}. A"
            f" question would take {searches} searches and {calls} model calls,"
            f" {_format_price(plain)}."
        ),
    )


def list_shares(report: ShadowReport) -> list[Share]:
    """Return how many questions would get other passages, another order, and the same list."""
    total = len(report.questions)
    counts = {kind: sum(it.change == kind for it in report.questions) for kind in _SHARES}
    return [
        Share(_SHARES[kind], count, 100 * count / total, kind) for kind, count in counts.items()
    ]


def shadow_page(report: ShadowReport, examples: Sequence[ShadowQuestion] = ()) -> str:
    """Return the whole *report* as one HTML page with both lists of each of the *examples*.

    It has no script, loads nothing and forbids itself to. Raises `ConfigError` if no question was
    logged, and `MissingExtra` without jinja2.
    """
    _require_questions(report)
    headline, lede = write_shadow_verdict(report)
    return render(
        "shadow.html.jinja",
        headline=headline,
        lede=lede,
        notes=_collect_notes(report),
        report=report,
        plain=report.to_dict(),
        others=sum(not it.is_first_same for it in report.questions),
        shares=list_shares(report),
        costs=_list_costs(report),
        votes=_list_votes(report),
        examples=[
            (
                shorten(it.query, _QUESTION_LENGTH),
                _describe_change(it),
                _cut_list(it.plain),
                _cut_list(it.ours),
            )
            for it in examples
        ],
    )


def shadow_markdown(report: ShadowReport, examples: Sequence[ShadowQuestion] = ()) -> str:
    """Return the same as GitHub's Markdown; raises `ConfigError` if no question was logged."""
    _require_questions(report)
    headline, lede = write_shadow_verdict(report)
    shares = [
        [it.name, f"{it.count:,}", figures.format_share(it.percent / 100)]
        for it in list_shares(report)
    ]
    parts = [
        f"# {headline}",
        escape_text(lede, _QUESTION_LENGTH),
        *(f"> **Note:** {escape_text(note, _QUESTION_LENGTH)}" for note in _collect_notes(report)),
        write_table(["would get", "questions", "share"], shares),
        write_table(["per question", "plain", "ours"], _list_costs(report)),
        *(
            [write_table(["the judge prefers", "questions"], votes)]
            if (votes := _list_votes(report))
            else []
        ),
        *(_write_example(it) for it in examples),
    ]
    return "\n\n".join(parts) + "\n"


def _require_questions(report: ShadowReport) -> None:
    if not report.questions:
        raise ConfigError(
            "a report needs a question that was retrieved in shadow mode", path="report"
        )


def _count(questions: int) -> str:
    return f"{questions:,} question{'' if questions == 1 else 's'}"


def _count_or_none(count: int) -> str:
    return f"{count:,}" if count else "none"


def _format_price(plain: dict[str, Any]) -> str:
    cost = plain["costUsd"]
    return (
        "at an unknown price"
        if cost is None
        else f"for {figures.format_dollars(1e3 * cost)} per 1,000 questions"
    )


def _collect_notes(report: ShadowReport) -> tuple[str, ...]:
    notes = [] if report.judge else [_UNJUDGED]
    if report.dropped:
        notes.append(f"{report.dropped:,} more calls were dropped, because too many were running.")
    if report.unreadable:
        notes.append(f"{report.unreadable:,} lines of the log could not be read.")
    return tuple(notes)


def _list_costs(report: ShadowReport) -> list[tuple[str, str, str]]:
    """What a question takes: its name, without us and with us."""
    plain = report.to_dict()
    cost = plain["costUsd"]

    def format_time(whose: str, which: str) -> str:
        return figures.format_duration(plain[whose][which])

    return [
        ("time, median", format_time("plainMs", "median"), format_time("ms", "median")),
        ("time, 95 of 100 within", format_time("plainMs", "p95"), format_time("ms", "p95")),
        ("searches", "1.00", figures.format_rate(plain["searches"])),
        ("model calls", "0.00", figures.format_rate(plain["llmCalls"])),
        ("tokens", "0", f"{plain['tokens']:,.0f}"),
        (
            "price per 1,000 questions", figures.UNKNOWN,
            figures.UNKNOWN if cost is None else figures.format_dollars(1e3 * cost),
        ),
        ("degraded results", figures.UNKNOWN, figures.format_share(plain["degraded"])),
    ]  # fmt: skip


def _list_votes(report: ShadowReport) -> list[list[str]]:
    votes = report.count_better()
    return [
        [name, f"{votes.get(name, 0):,}"]
        for name in ("ours", "plain", "neither", "failed")
        if votes
    ]


def _describe_change(question: ShadowQuestion) -> str:
    """What is other about our list, and which one the judge prefers."""
    new = f"{question.entered} new" if question.entered else "another order"
    first = "" if question.is_first_same else ", another first"
    judged = {None: "", "failed": "; the judge failed"}.get(
        question.better, f"; the judge prefers {question.better}"
    )
    return f"{new}{first}{judged}"


def _cut_list(found: tuple[Shown, ...]) -> tuple[Shown, ...]:
    return tuple(
        Shown(shorten(it.name, _NAME_LENGTH), shorten(it.text, _TEXT_LENGTH)) for it in found
    )


def _escape_cell(text: str) -> str:
    return escape_text(text, _NAME_LENGTH)


def _write_example(question: ShadowQuestion) -> str:
    rows = max(len(question.plain), len(question.ours))
    lists = [[_escape_cell(it.name) for it in found] for found in (question.plain, question.ours)]
    lines = [
        [str(at + 1), *(names[at] if at < len(names) else "" for names in lists)]
        for at in range(rows)
    ]
    heading = f"## {escape_text(question.query, _QUESTION_LENGTH)}"
    change = _describe_change(question)
    return f"{heading}\n\n{change[:1].upper()}{change[1:]}.\n\n{write_table(['place', 'plain', 'ours'], lines)}"
