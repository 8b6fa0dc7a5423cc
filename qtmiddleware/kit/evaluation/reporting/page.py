"""Write a comparison as one HTML page that loads no other files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qtmiddleware.kit.evaluation import PRIMARY, Comparison, Dataset, SystemScore
from qtmiddleware.kit.evaluation.reporting import figures, verdicts
from qtmiddleware.kit.evaluation.reporting.layout import Entry, Item, Report, Section, render_page
from qtmiddleware.kit.evaluation.reporting.markdown import describe_columns, describe_method
from qtmiddleware.preprocessing.text import format_count

if TYPE_CHECKING:
    from qtmiddleware.kit.evaluation.judging import Judged, Verdict


def page(
    comparison: Comparison, data: Dataset | None = None, *, judged: Judged | None = None
) -> str:
    """Return the whole comparison as one HTML page.

    The page has the verdict, the figures, the worst questions and the method. Its content security
    policy forbids scripts and loading other files. Without *data*, the page shows a question's text
    only if a system reported its search queries.

    Args:
        comparison: The comparison.
        data: The data set, with the texts of questions and passages, and with the judgements that
            mark relevant passages.
        judged: A judge's verdicts on the answers; ``None`` if there was no judge.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    headline, details = verdicts.format_headline_and_details(comparison)
    report = Report(
        headline=headline,
        details=details,
        subject=comparison.dataset,
        notes=verdicts.collect_notes(comparison, data),
        sections=tuple(_build_sections(comparison, data, judged)),
        method=describe_method(comparison),
    )
    return render_page(report)


def _build_sections(
    comparison: Comparison, dataset: Dataset | None, judged: Judged | None
) -> Iterator[Section]:
    passages = "" if comparison.passages is None else f", {comparison.passages:,} passages"
    yield Section(
        f"{comparison.dataset}: {format_count(comparison.questions, 'question')}{passages}",
        f"{describe_columns(comparison)}.",
        figures.headings(comparison, wide=True),
        figures.rows(comparison, wide=True),
    )
    times = [
        (
            f"{score.name}: {stage}",
            figures.format_milliseconds(took.p50),
            figures.format_milliseconds(took.p95),
        )
        for score in comparison.systems
        for stage, took in score.stages_ms.items()
    ]
    if times:
        yield Section("Time of each stage", columns=("system", "p50, ms", "p95, ms"), rows=times)
    finder = verdicts.WorstQuestionFinder(comparison, dataset)
    for score in comparison.challengers:
        helped, same, hurt = verdicts.count_better_same_worse(score)
        yield Section(
            f"Questions that get worse most with {score.name}",
            f"{helped:,} better, {same:,} unchanged, {hurt:,} worse.",
            entries=[
                _build_worst_entry(comparison, score, question)
                for question in finder.find_worst_questions(score)
            ],
        )
    if judged is not None and judged.verdicts:
        texts = {question.id: question.text for question in dataset.questions} if dataset else {}
        yield Section(
            "How a judge compares the answers",
            judged.summary(),
            entries=[
                _build_judged_entry(judged, verdict, texts.get(verdict.question, verdict.question))
                for verdict in judged.verdicts
            ],
        )


def _build_worst_entry(
    comparison: Comparison, score: SystemScore, question: verdicts.WorseQuestion
) -> Entry:
    """Return a question that lost, with the variants and the passages that were found."""
    lists = {
        "Said before": [Item(role, text) for role, text in question.history],
        "What was searched": [
            Item(variant.kind, variant.text, f"weight {figures.format_rate(variant.weight)}")
            for variant in question.variants
        ],
        f"{comparison.baseline} found": _list_passages(question.raw),
        f"{score.name} found": _list_passages(question.found),
        f"Relevant, but not among the first ten of {score.name}": _list_passages(question.missed),
    }
    return Entry(
        outcome=figures.format_points(question.gain),
        question=question.question or question.id,
        remark=(
            f"{question.id}: {PRIMARY} {figures.format_measure(question.before)} to"
            f" {figures.format_measure(question.after)}"
        ),
        lists=tuple((heading, tuple(items)) for heading, items in lists.items() if items),
    )


def _list_passages(passages: Sequence[verdicts.FoundPassage]) -> list[Item]:
    return [
        Item(
            passage.id,
            passage.text,
            f"relevant, grade {passage.grade}" if passage.is_relevant else "",
        )
        for passage in passages
    ]


def _build_judged_entry(judged: Judged, verdict: Verdict, question: str) -> Entry:
    """Return a judged question with the judge's mean scores and reasons."""
    scores = {
        judged.baseline: verdict.baseline_scores,
        judged.challenger: verdict.challenger_scores,
    }
    means = ", ".join(
        f"{name} {sum(values.values()) / len(values):.1f}"
        for name, values in scores.items()
        if values
    )
    reasons = tuple(Item("", reason.text, f"({reason.legend})") for reason in verdict.reasons)
    missing = "Both answers are the same." if verdict.outcome == "tie" else "No reason was given."
    return Entry(
        outcome=judged.describe(verdict),
        question=question,
        remark=f"Mean scores, 1 to 10: {means}" if means else "",
        lists=(("Reasons", reasons or (Item("", missing),)),),
    )
