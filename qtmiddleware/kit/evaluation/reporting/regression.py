"""Write the result of a regression gate as sentences, and as a comment on a pull request."""

from __future__ import annotations

from typing import Final

from qtmiddleware.kit.evaluation.gate import Change, GateResult, join_names
from qtmiddleware.kit.evaluation.measures import FEW
from qtmiddleware.kit.evaluation.reporting import figures
from qtmiddleware.kit.evaluation.reporting.markdown import escape_text, format_table
from qtmiddleware.kit.evaluation.reporting.verdicts import ID_LENGTH
from qtmiddleware.preprocessing.text import format_count, shorten_text

_LENGTH: Final = 2_000


def format_headline(gate_result: GateResult) -> str:
    """Return a sentence that says whether retrieval got worse.

    If no significant loss was found, a second sentence may state the largest loss that is still
    possible.
    """
    if gate_result.verdict == "worse":
        names = [
            _quote_name(change.name) for change in gate_result.changes if change.verdict == "worse"
        ]
        return f"Retrieval got worse with {join_names(names)}."
    if gate_result.verdict == "inconclusive":
        count = format_count(gate_result.question_count, "question is", "questions are")
        return f"{count} too few to tell whether retrieval got worse. Use at least {FEW}."
    if gate_result.rule.bound is not None:
        return (
            "No system lost more than the allowed"
            f" {_format_unsigned_points(gate_result.rule.bound)} points."
        )
    return f"Found no loss that is more than chance.{_describe_possible_loss(gate_result)}"


def _describe_possible_loss(gate_result: GateResult) -> str:
    """Return a sentence on the largest loss in the 95 % intervals; ``""`` if there is no loss."""
    lowest = min(gate_result.changes, key=lambda change: change.difference.low)
    size = _format_unsigned_points(lowest.difference.low)
    # A loss that rounds to 0.0 points is not worth a sentence.
    if lowest.difference.low >= 0 or size == "0.0":
        return ""
    return f" A loss of up to {size} points with {_quote_name(lowest.name)} cannot be ruled out."


def format_sentences(gate_result: GateResult) -> tuple[str, ...]:
    """Return the result as sentences: the headline, each system's change, and changed conditions.

    A changed condition is, for example, another version of qtmiddleware or another model.
    """
    return (
        f"{format_headline(gate_result)} The baseline is {gate_result.baseline}.",
        *(
            f"{_quote_name(change.name)}: {_describe_change(gate_result, change)}"
            for change in gate_result.changes
        ),
        *_list_changed_conditions(gate_result),
    )


def format_comment(gate_result: GateResult) -> str:
    """Return the result as a comment on a pull request, in GitHub Markdown.

    The comment has the verdict, the figures and the ids of the worst questions. *gate_result* does
    not contain the questions' texts.
    """
    worse = [change for change in gate_result.changes if change.verdict == "worse"]
    reasons = (
        f"{_quote_name(change.name)}: {_describe_change(gate_result, change)}" for change in worse
    )
    worst = [
        _format_worst_questions(change) for change in gate_result.changes if change.worse_count
    ]
    remarks = (*_list_changed_conditions(gate_result), _describe_method(gate_result))
    paragraphs = [
        f"**{escape_text(format_headline(gate_result), _LENGTH)}**",
        *(escape_text(sentence, _LENGTH) for sentence in reasons),
        _format_figures_table(gate_result),
        *(["Questions that lost most, in points:\n\n" + "\n".join(worst)] if worst else []),
        *(escape_text(sentence, _LENGTH) for sentence in remarks),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _describe_change(gate_result: GateResult, change: Change) -> str:
    """Return one to three sentences on *change*, the change of one system."""
    total = format_count(len(change.gains), "question")
    if not change.worse_count and not change.better_count:
        return f"no change in {total}."
    return (
        f"of {total}, {change.worse_count:,} got worse and {change.better_count:,} got better. "
        f"{_describe_mean_change(gate_result, change)}"
        f" {_describe_significance(gate_result, change)}"
    )


def _describe_mean_change(gate_result: GateResult, change: Change) -> str:
    """Return a sentence on how the mean of the rule's measure changed, with the 95% interval."""
    before, after = map(figures.format_measure, (change.before, change.after))
    size = _format_unsigned_points(change.difference.gain)
    interval = figures.format_interval(change.difference)
    # A change that rounds to 0.0 points has no direction.
    if size == "0.0":
        return f"{gate_result.rule.measure} stays at {after} {interval}."
    verb = "fell" if change.difference.gain < 0 else "rose"
    return (
        f"{gate_result.rule.measure} {verb} from {before} to {after}, by {size} points {interval}."
    )


def _describe_significance(gate_result: GateResult, change: Change) -> str:
    """Return a sentence that says whether *change* may be chance.

    If the rule has a bound, the sentence says whether *change* is within the allowed loss instead.
    """
    # A rule with a bound does not depend on significance.
    if gate_result.rule.bound is not None:
        allowed = _format_unsigned_points(gate_result.rule.bound)
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


def _list_changed_conditions(gate_result: GateResult) -> tuple[str, ...]:
    """Return sentences on systems that only one measurement has, then the result's notes."""
    groups = (
        ("Only in the baseline", gate_result.missing),
        ("Not in the baseline", gate_result.new),
    )
    systems = (
        f"{label}: {join_names([*map(_quote_name, names)])}." for label, names in groups if names
    )
    return (*systems, *gate_result.notes)


def _format_figures_table(gate_result: GateResult) -> str:
    """Return a Markdown table with the change and the verdict of each system."""
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
        for change in gate_result.changes
    ]
    return format_table(titles, lines)


def _format_worst_questions(change: Change) -> str:
    """Return a Markdown list item with the ids and losses of a system's worst questions."""
    worst = [
        f"{escape_text(id_, ID_LENGTH)} ({figures.format_points(gain)})"
        for id_, gain in change.list_worst_questions()
    ]
    return f"- {escape_text(change.name, figures.NAME_LENGTH)}: {', '.join(worst)}"


def _describe_method(gate_result: GateResult) -> str:
    """Return sentences on the measure, the rule for the verdict, and the statistical tests."""
    if gate_result.rule.bound is None:
        rule = (
            "A system is worse if its mean fell, or more of its questions got worse than better, by"
            " more than chance (randomisation test and sign test at 5 %, corrected after Holm)."
        )
    else:
        allowed = _format_unsigned_points(gate_result.rule.bound)
        rule = f"A system is worse if its mean fell by more than {allowed} points."
    return (
        f"{gate_result.rule.measure} of {format_count(gate_result.question_count, 'question')},"
        f" before in {gate_result.baseline}. The change is in points (hundredths) with its 95%"
        f" interval. {rule}"
    )


def _format_unsigned_points(gain: float) -> str:
    """Format the size of a gain or loss in points (hundredths), without a sign."""
    return figures.format_points(abs(gain)).removeprefix("+")


def _quote_name(name: str) -> str:
    return f"“{shorten_text(name, figures.NAME_LENGTH)}”"
