"""Write a judge's ranking of answers as one HTML page that loads no other files, or as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.prompts import CRITERIA
from qtmiddleware.kit.evaluation.ranking import RankedAnswers, RankedSystems, Standing
from qtmiddleware.kit.evaluation.reporting import figures
from qtmiddleware.kit.evaluation.reporting.layout import (
    Entry,
    Item,
    Report,
    Section,
    render_markdown,
    render_page,
)
from qtmiddleware.kit.evaluation.side_by_side import AskedQuestion, SideBySide
from qtmiddleware.kit.evaluation.systems import BASELINE
from qtmiddleware.preprocessing.text import shorten_text

_QUESTION_LENGTH: Final = 400
_ANSWER_LENGTH: Final = 2_000
_METHOD: Final = (
    "The judge ranked all answers to a question at once, {repeats} times, in random orders (seed"
    " {seed}) and in the reverse of each. It saw letters instead of names. If it preferred an"
    " answer merely because it was repeated, the question is set aside. Intervals are bootstrapped"
    " over the questions. A judge is a language model, and may share the tastes of the model that"
    " answered. If passages are judged, measure the retrieval itself with qtm bench."
)


def ranking_page(side_by_side: SideBySide) -> str:
    """Return the judge's ranking as one HTML page with ranks, figures and reasons.

    The page's content security policy forbids scripts and loading other files. Raises `ConfigError`
    if nothing was ranked, and `MissingExtra` if jinja2 is not installed.
    """
    return render_page(_build_report(side_by_side))


def ranking_markdown(side_by_side: SideBySide) -> str:
    """Return the judge's ranking as GitHub Markdown, with the same content as the page.

    Raises `ConfigError` if nothing was ranked.
    """
    return render_markdown(_build_report(side_by_side))


def _build_report(side_by_side: SideBySide) -> Report:
    ranked = side_by_side.ranked
    if ranked is None:
        raise ConfigError("a report needs a question with an ideal answer", path="side_by_side")
    sections = [
        Section(
            "Question by question",
            "The answers, what the judge found right (+) and wrong (-) with them, and its reasons.",
            entries=list(_build_ranked_entries(side_by_side)),
        )
    ]
    if ranked.standings:
        sections.insert(0, _build_standings_section(side_by_side, ranked))
    return Report(
        headline=describe_ranking(ranked),
        details=ranked.summary(),
        subject=ranked.judge,
        notes=(),
        sections=sections,
        method=_METHOD.format(repeats=ranked.repeats, seed=ranked.seed),
    )


def _build_standings_section(side_by_side: SideBySide, ranked: RankedSystems) -> Section:
    """Return the table of all systems, with their places, scores and costs."""
    criteria = [
        name for name in CRITERIA if any(name in standing.scores for standing in ranked.standings)
    ]
    costs = ("searches", "calls", "seconds", "$/1k")
    return Section(
        "How the systems rank",
        f"Place: the mean place of a system's answers, 1 for the best, with its 95% interval."
        f" {figures.SIGNIFICANT} marks what is more than chance. Scores are the judge's, from 1 to"
        " 10. Searches and calls are per question, including the answer.",
        ("system", "place", f"before {BASELINE}", "best", "of", *criteria, *costs),
        [
            _build_standing_row(standing, criteria, side_by_side.questions)
            for standing in ranked.standings
        ],
    )


def _build_standing_row(
    standing: Standing, criteria: Sequence[str], questions: Sequence[AskedQuestion]
) -> list[str]:
    lead = figures.UNKNOWN
    if standing.lead is not None:
        mark = figures.SIGNIFICANT if standing.is_ahead else ""
        lead = f"{standing.lead:+.2f}{mark}{_format_interval(standing.lead_interval, '{:+.2f}')}"
    return [
        standing.system,
        f"{standing.place:.2f}{_format_interval(standing.interval, '{:.2f}')}",
        lead,
        str(standing.firsts),
        str(standing.questions),
        *(
            f"{standing.scores[name]:.1f}" if name in standing.scores else figures.UNKNOWN
            for name in criteria
        ),
        *_format_costs(questions, standing.system),
    ]


def describe_ranking(ranked_systems: RankedSystems) -> str:
    """Return a sentence that names the best system and compares it with the baseline."""
    standings = ranked_systems.standings
    if not standings:
        return "There is no ranking."
    best = [standing for standing in standings if standing.rank == standings[0].rank]
    names = " and ".join(
        f"“{shorten_text(standing.system, figures.NAME_LENGTH)}”" for standing in best
    )
    if len(ranked_systems.questions) == 1:
        return f"{names} answered best."
    leader = max(best, key=lambda standing: standing.firsts)
    verb = "gives" if len(best) == 1 else "give"
    sentence = (
        f"{names} {verb} the best answer to {leader.firsts:,} of {leader.questions:,} questions"
    )
    base = next((standing for standing in standings if standing.system == BASELINE), None)
    if base is None or base in best:
        return f"{sentence}."
    chance = "" if any(standing.is_ahead for standing in best) else ", which may be chance"
    return f"{sentence}, “{BASELINE}” to {base.firsts:,}{chance}."


def _format_costs(questions: Sequence[AskedQuestion], system_name: str) -> tuple[str, ...]:
    """Return searches, calls and seconds per question, and the price of 1,000 questions."""
    answers = [row[system_name] for row in questions]
    traces = [answer.retrieval.trace for answer in answers if answer.retrieval is not None]
    prices = [trace.cost_usd for trace in traces]
    known_prices = [price for price in prices if price is not None]
    # A mean over only the known prices would be too low.
    is_priced = known_prices and len(known_prices) == len(prices)
    return (
        figures.format_rate(fmean(trace.searches for trace in traces) if traces else None),
        figures.format_rate(fmean(trace.llm_calls for trace in traces) if traces else None),
        f"{fmean(answer.seconds for answer in answers):.2f}",
        figures.format_dollars(1_000 * fmean(known_prices) if is_priced else None),
    )


def _format_interval(interval: tuple[float, float] | None, number_format: str) -> str:
    return "" if interval is None else f" [{', '.join(map(number_format.format, interval))}]"


def _build_ranked_entries(comparison: SideBySide) -> Iterator[Entry]:
    """Yield each question that has a ranking, with its answers and the judge's reasons."""
    for row in comparison.questions:
        if (ranking := comparison.ranking(row.question)) is not None:
            ideal = Item("", shorten_text(row.question.reference, _ANSWER_LENGTH))
            reasons = tuple(
                Item(
                    "",
                    shorten_text(reason.text, _QUESTION_LENGTH),
                    f"({shorten_text(reason.legend, _QUESTION_LENGTH)})",
                )
                for reason in ranking.reasons
            )
            yield Entry(
                outcome=_format_ranking(ranking),
                question=shorten_text(row.question.text, _QUESTION_LENGTH),
                remark="",
                lists=(
                    ("The ideal answer", (ideal,)),
                    *_build_answer_lists(row, ranking),
                    *((("Why", reasons),) if reasons else ()),
                ),
            )


def _format_ranking(ranking: RankedAnswers) -> str:
    """Return *ranking* on one line, such as ``rules > raw``.

    If there is no ranking, the line states the reason.
    """
    if ranking.error:
        explanations = {
            "equal": "all answers are the same",
            "length": "not counted: length decided",
        }
        return explanations.get(ranking.error, f"the judge failed: {ranking.error}")
    ranks: dict[int, list[str]] = {}
    for standing in ranking.standings:
        ranks.setdefault(standing.rank, []).append(
            shorten_text(standing.system, figures.NAME_LENGTH)
        )
    return " > ".join(" = ".join(names) for _, names in sorted(ranks.items()))


def _build_answer_lists(
    asked_question: AskedQuestion, ranking: RankedAnswers
) -> Iterator[tuple[str, tuple[Item, ...]]]:
    """Yield each distinct answer to *asked_question*, best first, with the judge's remarks.

    Systems with the same answer share a list. Answers that are not in *ranking* come last.
    """
    standings = {standing.system: standing for standing in ranking.standings}
    systems_by_text: dict[str, list[str]] = {}
    for answer in asked_question.systems:
        text = f"No answer: {answer.error}" if answer.answer is None else answer.answer.text
        systems_by_text.setdefault(text, []).append(answer.system)
    # Answers that were not ranked, such as those of failed systems, come last.
    last = len(standings) + 1
    ordered = sorted(
        systems_by_text.items(),
        key=lambda entry: standings[entry[1][0]].rank if entry[1][0] in standings else last,
    )
    for text, names in ordered:
        standing = standings.get(names[0])
        heading = " = ".join(shorten_text(system, figures.NAME_LENGTH) for system in names)
        items = [Item("", shorten_text(text, _ANSWER_LENGTH))]
        if standing is not None:
            heading = f"{standing.rank}. {heading}"
            if standing.scores:
                scores = [f"{name} {score:g}" for name, score in standing.scores.items()]
                heading += f" ({', '.join(scores)})"
            # The judge may make the same remark for several orders; one is enough.
            items += [
                Item(sign, shorten_text(remark, _QUESTION_LENGTH))
                for sign, remarks in (("+", standing.strengths), ("-", standing.weaknesses))
                for remark in dict.fromkeys(filter(None, remarks))
            ]
        yield heading, tuple(items)
