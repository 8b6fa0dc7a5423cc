"""Write the result of a regression gate as sentences, and as a comment on a pull request."""

from __future__ import annotations

from typing import Final

from qtmiddleware.kit.evaluation.gate import Change, GateResult, join_names
from qtmiddleware.kit.evaluation.measures import FEW
from qtmiddleware.kit.evaluation.reporting import figures
from qtmiddleware.kit.evaluation.reporting.markdown import escape_text, write_table
from qtmiddleware.kit.evaluation.reporting.verdicts import ID_LENGTH
from qtmiddleware.preprocessing.text import format_count, shorten_text

_LENGTH: Final = 2_000


def format_headline(gate: GateResult) -> str:
    """Return a sentence on whether retrieval got worse.

    A second sentence may state the largest loss that cannot be ruled out.
    """
    if gate.verdict == "worse":
        names = [_quote_name(change.name) for change in gate.changes if change.verdict == "worse"]
        return f"Retrieval got worse with {join_names(names)}."
    if gate.verdict == "inconclusive":
        count = format_count(gate.question_count, "question is", "questions are")
        return f"{count} too few to tell whether retrieval got worse. Use at least {FEW}."
    if gate.rule.bound is not None:
        return (
            "No system lost more than the allowed"
            f" {_format_unsigned_points(gate.rule.bound)} points."
        )
    return f"Found no loss that is more than chance.{_describe_possible_loss(gate)}"


def _describe_possible_loss(gate: GateResult) -> str:
    """Return a sentence on the largest loss in the 95 % intervals; empty if they show no loss."""
    lowest = min(gate.changes, key=lambda change: change.difference.low)
    size = _format_unsigned_points(lowest.difference.low)
    # A loss that rounds to 0.0 points is not worth a sentence.
    if lowest.difference.low >= 0 or size == "0.0":
        return ""
    return f" A loss of up to {size} points with {_quote_name(lowest.name)} cannot be ruled out."


def format_sentences(gate: GateResult) -> tuple[str, ...]:
    """Return the headline, then the change of each system, then the changed conditions."""
    return (
        f"{format_headline(gate)} The baseline is {gate.baseline}.",
        *(
            f"{_quote_name(change.name)}: {_describe_change(gate, change)}"
            for change in gate.changes
        ),
        *_list_changed_conditions(gate),
    )


def format_comment(gate: GateResult) -> str:
    """Return the result as a comment on a pull request, in GitHub Markdown.

    The comment has the verdict, the figures and the worst questions. It shows the questions' ids,
    because *gate* does not contain their texts.
    """
    worse = [change for change in gate.changes if change.verdict == "worse"]
    reasons = (f"{_quote_name(change.name)}: {_describe_change(gate, change)}" for change in worse)
    worst = [_write_worst_questions(change) for change in gate.changes if change.worse_count]
    remarks = (*_list_changed_conditions(gate), _describe_method(gate))
    paragraphs = [
        f"**{escape_text(format_headline(gate), _LENGTH)}**",
        *(escape_text(sentence, _LENGTH) for sentence in reasons),
        _write_figures_table(gate),
        *(["Questions that lost most, in points:\n\n" + "\n".join(worst)] if worst else []),
        *(escape_text(sentence, _LENGTH) for sentence in remarks),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _describe_change(gate: GateResult, change: Change) -> str:
    """Return one to three sentences on the change of one system."""
    total = format_count(len(change.gains), "question")
    if not change.worse_count and not change.better_count:
        return f"no change in {total}."
    return (
        f"of {total}, {change.worse_count:,} got worse and {change.better_count:,} got better. "
        f"{_describe_mean_change(gate, change)} {_describe_significance(gate, change)}"
    )


def _describe_mean_change(gate: GateResult, change: Change) -> str:
    """Return a sentence on the change of the measure's mean."""
    before, after = map(figures.format_measure, (change.before, change.after))
    size = _format_unsigned_points(change.difference.gain)
    interval = figures.format_interval(change.difference)
    # A change that rounds to 0.0 points has no direction.
    if size == "0.0":
        return f"{gate.rule.measure} stays at {after} {interval}."
    verb = "fell" if change.difference.gain < 0 else "rose"
    return f"{gate.rule.measure} {verb} from {before} to {after}, by {size} points {interval}."


def _describe_significance(gate: GateResult, change: Change) -> str:
    """Return a sentence on whether the change may be chance, or is within the allowed loss."""
    if gate.rule.bound is not None:
        allowed = _format_unsigned_points(gate.rule.bound)
        over = "more than" if change.verdict == "worse" else "within"
        return f"This is {over} the allowed loss of {allowed} points."
    if change.has_significant_loss and change.has_mostly_losses:
        return "Both are more than chance."
    if change.has_significant_loss:
        return "The loss is more than chance."
    if change.has_mostly_losses:
        return "So many worse questions are more than chance."
    if change.difference.is_significant:
        return "The gain is more than chance."
    return "This may be chance."


def _list_changed_conditions(gate: GateResult) -> tuple[str, ...]:
    """Return sentences on systems that are in only one measurement, then the gate's notes."""
    groups = (("Only in the baseline", gate.missing), ("Not in the baseline", gate.new))
    systems = (
        f"{label}: {join_names([*map(_quote_name, names)])}." for label, names in groups if names
    )
    return (*systems, *gate.notes)


def _write_figures_table(gate: GateResult) -> str:
    """Return a Markdown table of the systems' figures."""
    titles = ("system", "before", "after", "change [95%]", "better", "worse", "verdict")
    lines = [
        [
            escape_text(change.name, figures.NAME_LENGTH),
            figures.format_measure(change.before),
            figures.format_measure(change.after),
            figures.format_gain(change.difference),
            f"{change.better_count:,}",
            f"{change.worse_count:,}",
            change.verdict,
        ]
        for change in gate.changes
    ]
    return write_table(titles, lines)


def _write_worst_questions(change: Change) -> str:
    """Return a Markdown list item with the questions that lost most with one system."""
    worst = [
        f"{escape_text(id_, ID_LENGTH)} ({figures.format_points(gain)})"
        for id_, gain in change.list_worst_questions()
    ]
    return f"- {escape_text(change.name, figures.NAME_LENGTH)}: {', '.join(worst)}"


def _describe_method(gate: GateResult) -> str:
    """Return sentences on the rule and on the statistical methods."""
    if gate.rule.bound is None:
        rule = (
            "A system is worse if its mean fell, or more of its questions got worse than better, by"
            " more than chance (randomisation test and sign test at 5 %, corrected after Holm)."
        )
    else:
        allowed = _format_unsigned_points(gate.rule.bound)
        rule = f"A system is worse if its mean fell by more than {allowed} points."
    return (
        f"{gate.rule.measure} of {format_count(gate.question_count, 'question')},"
        f" before in {gate.baseline}. The change is in points (hundredths) with its 95% interval."
        f" {rule}"
    )


def _format_unsigned_points(gain: float) -> str:
    """Format the size of a gain or loss in points (hundredths), without its sign."""
    return figures.format_points(abs(gain)).removeprefix("+")


def _quote_name(name: str) -> str:
    return f"“{shorten_text(name, figures.NAME_LENGTH)}”"
